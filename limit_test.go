package penstock_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

func TestCapacityIsTheLargestCostThatIsEverGranted(t *testing.T) {
	for _, c := range []struct {
		limit penstock.Limit
		want  int64
	}{
		{penstock.PerSecond(10), 10},
		{penstock.PerSecond(10).WithBurst(3), 3},
		{penstock.PerSecond(10).With(penstock.LeakyBucket), 1},
		{penstock.PerSecond(10).WithBurst(5).With(penstock.LeakyBucket), 6},
		{penstock.PerDay(7).With(penstock.FixedWindow), 7},
		{penstock.PerDay(7).With(penstock.AnchoredWindow), 7},
		{penstock.PerDay(7).With(penstock.CalendarWindow(algorithm.Month, time.UTC)), 7},
		{penstock.PerDay(7).With(penstock.SlidingWindow), 7},
		{penstock.PerDay(7).With(penstock.SubWindow(4)), 7},
		{penstock.PerDay(7).With(penstock.SlidingLog), 7},
		{penstock.InFlight(9, time.Minute), 9},
	} {
		plan, err := c.limit.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Capacity(); got != c.want {
			t.Errorf("%v: the capacity is %d, want %d", c.limit, got, c.want)
		}
		store := memstore.New(memstore.Options{})
		for cost, never := range map[int64]bool{c.want: false, c.want + 1: true} {
			d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: c.limit.MustCompile(), Cost: cost, Mode: penstock.Peek, Holder: "h", Patience: time.Second}})
			if err != nil || (d.RetryAfter() == penstock.Never) != never {
				t.Errorf("%v: a cost of %d is granted after %v, %v; want 0 up to the capacity, and Never above it", c.limit, cost, d.RetryAfter(), err)
			}
		}
	}
}
