package service

import "testing"

func TestDescriptorsAreNeverUsedUp(t *testing.T) {
	for _, c := range []struct {
		descriptors, max int64
		want             places
	}{
		{1 << 20, 10_000, places{10_000, 524_160, 64}},
		{1024, 10_000, places{384, 384, 64}},
		{1024, 50, places{50, 384, 64}},
		{100, 10_000, places{37, 37, 6}},
		{10, 10_000, places{4, 4, 1}},
		{1, 10_000, places{1, 1, 1}},
	} {
		got := divide(c.descriptors, c.max)
		if got != c.want {
			t.Errorf("of %d descriptors: %+v; want %+v", c.descriptors, got, c.want)
		}
		if taken := got.clients + got.upstream + got.admin; c.descriptors >= 100 && c.descriptors-taken < c.descriptors/8 && c.descriptors-taken < 128 {
			t.Errorf("of %d descriptors too few are left for the store and files: %+v", c.descriptors, got)
		}
	}
}
