package simclock

import (
	"fmt"
	"testing"
	"time"
)

func TestThingsHappenAtTheirTimes(t *testing.T) {
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	c := New(start)
	var seen []string
	note := func(name string) func() {
		return func() { seen = append(seen, fmt.Sprint(name, " ", c.Now().Sub(start))) }
	}
	c.Schedule(start.Add(2*time.Second), note("b"))
	c.Schedule(start.Add(time.Second), note("a"))
	c.Schedule(start.Add(2*time.Second), note("c"))
	stopped, reset := c.AfterFunc(time.Second, note("stopped")), c.AfterFunc(3*time.Second, note("reset"))
	if c.Advance(start.Add(1500 * time.Millisecond)); stopped.Stop() || !reset.Reset(5*time.Second) {
		t.Error("a timer was pending after its time, or another one was not before its time")
	}
	for c.Next() {
	}
	if want := "[a 1s stopped 1s b 2s c 2s reset 6.5s]"; fmt.Sprint(seen) != want {
		t.Errorf("%v happened; want %s", seen, want)
	}
	if reset.Reset(time.Second); !reset.Stop() || c.Next() && len(seen) > 5 {
		t.Errorf("a stopped timer has called its function: %v", seen)
	}
}
