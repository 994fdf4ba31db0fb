package main

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// In an open load, a slow decision delays those that are due meanwhile, and their times show it.
func TestPacedDecisionsCountFromWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isFirst := true
		c := &caller{
			allow: func(context.Context, string) (bool, error) {
				if isFirst {
					isFirst = false
					time.Sleep(5 * time.Millisecond)
				}
				return true, nil
			},
			bound: bucketBound(1000, 1000, time.Second),
			ticks: func(every time.Duration) (await, stop func()) { return func() { time.Sleep(every) }, func() {} },
		}
		if err := c.runPaced(1, time.Millisecond, 100*time.Millisecond+time.Microsecond, []string{"a"}); err != nil {
			t.Fatal(err)
		}
		got := c.latencies[0]
		want := []int64{5e6, 4e6, 3e6, 2e6, 1e6, 0} // ns; the rest are 0 too
		if !slices.Equal(got[:min(len(got), len(want))], want) || slices.Max(got[5:]) != 0 {
			t.Errorf("the times of the decisions are %v; want 5, 4, 3, 2 and 1 ms, and then 0", got)
		}
		if n := len(got); n < 100 || n > 102 {
			t.Errorf("%d decisions in 100 ms; want one for each ms", n)
		}
	})
}
