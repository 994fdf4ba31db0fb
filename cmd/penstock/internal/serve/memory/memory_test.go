package memory

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestSizeFollowsTheMemoryLimit(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	if got := Size(7 << 20); got != 7<<20 {
		t.Errorf("without a limit, the size is %d; want %d", got, 7<<20)
	}
	debug.SetMemoryLimit(460 << 20)
	if got := Size(7 << 20); got != 230<<20 {
		t.Errorf("with a limit of 460 MiB, the size is %d; want %d", got, 230<<20)
	}
	if got := debug.SetMemoryLimit(-1); got != 460<<20 {
		t.Errorf("Size has set the limit to %d; want it unchanged", got)
	}
}

func TestTakeIsBounded(t *testing.T) {
	b := New(10, func() {})
	if !b.Take(6) || b.Take(5) || !b.Take(4) || b.Taken() != 10 {
		t.Errorf("of a budget of 10 bytes, %d are taken; want 6 and 4, and 5 refused", b.Taken())
	}
	b.Release(6)
	b.Add(9)
	if b.Take(0) || b.Taken() != 13 {
		t.Errorf("after 6 bytes were released and 9 added, %d are taken; want 13, and nothing left", b.Taken())
	}
}
