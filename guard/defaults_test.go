package guard

import "testing"

func TestFallbackMemoryHasAMillionCountersByDefault(t *testing.T) {
	for given, want := range map[int]int{-1: 1_000_000, 0: 1_000_000, 1: 1} {
		f := newFallback(nil, FallbackOptions{MaxCounters: given}, nil)
		if got := f.options.MaxCounters; int(got) != want {
			t.Errorf("with MaxCounters %d, the local memory has up to %d counters; want %d", given, got, want)
		}
	}
}
