package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercentOf(t *testing.T) {
	for live, want := range map[uint64]int{0: 3200, 1 << 20: 3200, 4 << 20: 1600, 30 << 20: 210, 64 << 20: 100, 10 << 30: 100} {
		if got := percentOf(live); got != want {
			t.Errorf("percentOf(%d) returns %d; want %d", live, got, want)
		}
	}
}

// percent returns the percentage in force.
func percent() int {
	current := debug.SetGCPercent(100)
	debug.SetGCPercent(current)
	return current
}

func TestTuneObeysGOGC(t *testing.T) {
	t.Setenv("GOGC", "150")
	defer debug.SetGCPercent(debug.SetGCPercent(123))
	Tune()
	if got := percent(); got != 123 {
		t.Errorf("Tune has set %d although GOGC is set; want 123, as before", got)
	}
}

func TestTuneFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	Tune()
	if got := percent(); got <= 200 {
		t.Fatalf("the percentage of a small heap is %d; want more than 200", got)
	}
	large := make([]byte, 2*room)
	for deadline := time.Now().Add(time.Minute); percent() != 100; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("the percentage of a heap of %d bytes is %d, want 100", len(large), percent())
		}
		runtime.Gosched()
	}
	runtime.KeepAlive(large)
	large = nil
	for deadline := time.Now().Add(time.Minute); percent() <= 200; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("after the heap has shrunk, the percentage is %d; want more than 200", percent())
		}
		runtime.Gosched()
	}
}
