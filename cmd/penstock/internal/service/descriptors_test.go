package service

import "testing"

func TestConnectionsLeaveDescriptorsFree(t *testing.T) {
	for _, c := range []struct {
		descriptors, max int64
		hasProxy         bool
		callerListeners  int
		want             connectionBudget
	}{
		{1 << 20, 10_000, true, 0, connectionBudget{clients: 10_000, upstream: 524_160, admin: 64}},
		{1024, 10_000, true, 0, connectionBudget{clients: 384, upstream: 384, admin: 64}},
		{1024, 50, true, 0, connectionBudget{clients: 50, upstream: 384, admin: 64}},
		{1024, 10_000, true, 2, connectionBudget{clients: 192, upstream: 192, callers: 192, admin: 64}},
		{1024, 10_000, false, 2, connectionBudget{callers: 384, admin: 64}},
		{100, 10_000, true, 0, connectionBudget{clients: 37, upstream: 37, admin: 8}},
		{10, 10_000, true, 0, connectionBudget{clients: 4, upstream: 4, admin: 8}},
		{1, 10_000, true, 1, connectionBudget{clients: 1, upstream: 1, callers: 1, admin: 8}},
	} {
		got := newConnectionBudget(c.descriptors, c.max, c.hasProxy, c.callerListeners)
		if got != c.want {
			t.Errorf("%+v: got %+v; want %+v", c, got, c.want)
		}
		left := c.descriptors - (got.clients + got.upstream + int64(c.callerListeners)*got.callers + got.admin)
		if c.descriptors >= 100 && left < min(c.descriptors/8, 128) {
			t.Errorf("%+v: %d descriptors are left for the store and files; want at least an eighth, or 128", c, left)
		}
	}
}
