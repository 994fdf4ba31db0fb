package guard

import "testing"

func TestFallbackMemoryHasAMillionCountersByDefault(t *testing.T) {
	f := Fallback(FallbackOptions{})(nil).(*fallback)
	if got := f.options.MaxCounters; got != 1_000_000 {
		t.Errorf("without MaxCounters, the local memory has up to %d counters; want 1,000,000", got)
	}
}
