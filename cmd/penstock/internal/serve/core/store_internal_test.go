package core

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestCountersOfTheStoreMemoryFollowTheMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	if got := MaxCounters(); got != 10_000_000 {
		t.Errorf("without a limit, %d counters may exist; want 10 million", got)
	}
	debug.SetMemoryLimit(400_000_000)
	if got := MaxCounters(); got != 1_000_000 {
		t.Errorf("with 400 MB, %d counters may exist; want 1 million, of 100 bytes each", got)
	}
}
