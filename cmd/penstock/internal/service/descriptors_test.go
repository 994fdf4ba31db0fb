package service

import "testing"

func TestConnectionsLeaveDescriptorsFree(t *testing.T) {
	for _, c := range []struct {
		descriptors, max int64
		want             connectionBudget
	}{
		{1 << 20, 10_000, connectionBudget{10_000, 524_160, 64}},
		{1024, 10_000, connectionBudget{384, 384, 64}},
		{1024, 50, connectionBudget{50, 384, 64}},
		{100, 10_000, connectionBudget{37, 37, 6}},
		{10, 10_000, connectionBudget{4, 4, 1}},
		{1, 10_000, connectionBudget{1, 1, 1}},
	} {
		got := newConnectionBudget(c.descriptors, c.max)
		if got != c.want {
			t.Errorf("%d descriptors: %+v; want %+v", c.descriptors, got, c.want)
		}
		if taken := got.clients + got.upstream + got.admin; c.descriptors >= 100 && c.descriptors-taken < c.descriptors/8 && c.descriptors-taken < 128 {
			t.Errorf("%d descriptors: too few are left for the store and files: %+v", c.descriptors, got)
		}
	}
}
