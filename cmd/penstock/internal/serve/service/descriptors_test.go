package service

import "testing"

func TestConnectionsLeaveDescriptorsFree(t *testing.T) {
	for _, c := range []struct {
		descriptors     int64
		maxConnections  int64
		hasProxy        bool
		callerListeners int
		want            connectionBudget
	}{
		{descriptors: 1 << 20, maxConnections: 10_000, hasProxy: true, callerListeners: 0, want: connectionBudget{clients: 10_000, upstream: 524_160, admin: 64}},
		{descriptors: 1024, maxConnections: 10_000, hasProxy: true, callerListeners: 0, want: connectionBudget{clients: 384, upstream: 384, admin: 64}},
		{descriptors: 1024, maxConnections: 50, hasProxy: true, callerListeners: 0, want: connectionBudget{clients: 50, upstream: 384, admin: 64}},
		{descriptors: 1024, maxConnections: 10_000, hasProxy: true, callerListeners: 2, want: connectionBudget{clients: 192, upstream: 192, callers: 192, admin: 64}},
		{descriptors: 1024, maxConnections: 10_000, hasProxy: false, callerListeners: 2, want: connectionBudget{callers: 384, admin: 64}},
		{descriptors: 100, maxConnections: 10_000, hasProxy: true, callerListeners: 0, want: connectionBudget{clients: 37, upstream: 37, admin: 8}},
		{descriptors: 10, maxConnections: 10_000, hasProxy: true, callerListeners: 0, want: connectionBudget{clients: 4, upstream: 4, admin: 8}},
		{descriptors: 1, maxConnections: 10_000, hasProxy: true, callerListeners: 1, want: connectionBudget{clients: 1, upstream: 1, callers: 1, admin: 8}},
	} {
		got := newConnectionBudget(c.descriptors, c.maxConnections, c.hasProxy, c.callerListeners)
		if got != c.want {
			t.Errorf("newConnectionBudget(%d, %d, %t, %d) = %+v; want %+v", c.descriptors, c.maxConnections, c.hasProxy, c.callerListeners, got, c.want)
		}
		left := c.descriptors - (got.clients + got.upstream + int64(c.callerListeners)*got.callers + got.admin)
		if c.descriptors >= 100 && left < min(c.descriptors/8, 128) {
			t.Errorf("%+v: %d descriptors are left for the store and files; want at least an eighth, or 128", c, left)
		}
	}
}
