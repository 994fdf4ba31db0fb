// Package heap makes garbage collections rare while the heap is small.
//
// By default Go collects garbage when the heap has doubled. penstock serve keeps few MB, so it
// would collect many times a second. That costs a tenth of its processor time.
package heap

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// room is how much garbage, in bytes, may pile up between two collections of a small heap.
const room = 64 << 20

// Tune lets the heap grow to twice the memory in use, as Go does by default, or by room if that is
// more. It adjusts this after each collection. If the environment variable GOGC is set, Tune does
// nothing. GOMEMLIMIT still bounds the memory.
func Tune() {
	if os.Getenv("GOGC") == "" {
		new(tuner).adjust()
	}
}

type tuner struct{ percent int }

// A marker is freed by the next collection, which then calls adjust. It has a pointer, because Go
// allocates tiny objects without pointers together, and frees them together.
type marker struct{ _ *marker }

func (t *tuner) adjust() {
	if percent := percentOf(liveHeap()); percent != t.percent {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
	runtime.AddCleanup(new(marker), (*tuner).adjust, t)
}

// liveHeap returns how many bytes the last collection has kept.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// percentOf returns the percentage for a heap of live bytes. It is a multiple of 10, so that it
// seldom changes: setting a new one stops the process for a moment.
func percentOf(live uint64) int {
	const most = 3200 // for a heap of 2 MB or less
	percent := min(room*100/max(live, 1), most) / 10 * 10
	return int(max(percent, 100))
}
