package penstock_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

func TestCapacityIsTheLargestCostThatIsEverGranted(t *testing.T) {
	for _, row := range []struct {
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
		plan, err := row.limit.Compile()
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Capacity(); got != row.want {
			t.Errorf("%v: the capacity is %d; want %d", row.limit, got, row.want)
		}
		store := memstore.New(memstore.Options{})
		for cost, isNever := range map[int64]bool{row.want: false, row.want + 1: true} {
			d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: cost, Mode: penstock.Peek, Holder: "h", Patience: time.Second}})
			if err != nil || (d.RetryAfter() == penstock.Never) != isNever {
				t.Errorf("%v: Peek of a cost of %d returned RetryAfter %v, error %v; want RetryAfter equal to Never: %v, and no error", row.limit, cost, d.RetryAfter(), err, isNever)
			}
		}
	}
}

func TestPlanHasNoPartsOutsideItsNumbers(t *testing.T) {
	plan := penstock.PerSecond(10).MustCompile()
	for _, n := range []int{-1, 0} {
		if got := plan.Share(n); got != nil {
			t.Errorf("Share(%d) is %v; want nil", n, got.Limit())
		}
	}
	for _, part := range []struct{ n, i int }{{n: 0, i: 0}, {n: -1, i: 0}, {n: 2, i: 2}, {n: 2, i: -1}} {
		if got := plan.Part(part.n, part.i); got != nil {
			t.Errorf("Part(%d, %d) is %v; want nil", part.n, part.i, got.Limit())
		}
	}
	if plan.Share(2) == nil || plan.Part(2, 1) == nil {
		t.Error("Share(2) or Part(2, 1) of 10 per second is nil; want a Plan of each")
	}
}

func TestPerNamesLimitsAsParseRateDoes(t *testing.T) {
	for text, got := range map[string]penstock.Limit{
		"3 per 15 minutes": penstock.Per(3, 15*time.Minute),
		"3/s":              penstock.Per(3, time.Second),
		"3/min":            penstock.Per(3, time.Minute),
		"3/h":              penstock.Per(3, time.Hour),
		"3/day":            penstock.Per(3, 24*time.Hour),
		"3/week":           penstock.Per(3, 7*24*time.Hour),
		"3/1h30m":          penstock.Per(3, 90*time.Minute),
		"3/250us":          penstock.Per(3, 250*time.Microsecond),
		"1/30s":            penstock.Every(30 * time.Second),
		"5/s":              penstock.PerSecond(5),
		"5/m":              penstock.PerMinute(5),
		"5/h":              penstock.PerHour(5),
		"5/d":              penstock.PerDay(5),
	} {
		want, err := penstock.ParseRate(text)
		if err != nil || got != want {
			t.Errorf("the constructor made %+v; want %+v, as ParseRate(%q), and no error; got error %v", got, want, text, err)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("the limit %v is invalid: %v", got, err)
		}
	}
	if name := penstock.Per(3, 15*time.Minute).Name; name != "every-15m" {
		t.Errorf("a limit per 15 minutes has the name %q; want every-15m", name)
	}
}

// Calendars differ in their windows and counts. Other limits are equal if their numbers are.
func TestPlansWithTheSameNumbersAreEqual(t *testing.T) {
	month, day := penstock.CalendarWindow(algorithm.Month, time.UTC), penstock.CalendarWindow(algorithm.Day, time.UTC)
	base := penstock.PerDay(7).With(month)
	for name, row := range map[string]struct {
		a, b   penstock.Limit
		isSame bool
	}{
		"equal calendars":         {base, penstock.PerDay(7).With(month), true},
		"another calendar":        {base, penstock.PerDay(7).With(day), false},
		"another count":           {base, penstock.PerDay(8).With(month), false},
		"another algorithm":       {base, penstock.Limit{Count: 7, Period: 31 * 24 * time.Hour, Algorithm: penstock.FixedWindow}, false},
		"equal buckets":           {penstock.PerSecond(5), penstock.PerSecond(5), true},
		"another rate":            {penstock.PerSecond(5), penstock.PerSecond(6), false},
		"another burst":           {penstock.PerSecond(5), penstock.PerSecond(5).WithBurst(6), false},
		"equal windows":           {penstock.PerMinute(5).With(penstock.FixedWindow), penstock.PerMinute(5).With(penstock.FixedWindow), true},
		"parts of another number": {penstock.PerMinute(60).With(penstock.SubWindow(6)), penstock.PerMinute(60).With(penstock.SubWindow(5)), false},
		"denied ones count":       {penstock.PerMinute(5), penstock.Limit{Count: 5, Period: time.Minute, ShouldCountDenied: true}, false},
		"a window and its parts":  {penstock.PerMinute(5).With(penstock.FixedWindow), penstock.PerHour(5).With(penstock.FixedWindow), false},
	} {
		row.a.Name, row.b.Name = "a", "b" // names do not matter
		a, b := row.a.MustCompile(), row.b.MustCompile()
		if !a.Equal(a) || a.Equal(b) != row.isSame || b.Equal(a) != row.isSame {
			t.Errorf("%s: the same %t; want %t", name, a.Equal(b), row.isSame)
		}
	}
}
