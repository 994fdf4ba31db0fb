package guard_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// Bounds states the bound of each setting in numbers and in words. The tests of each guard measure
// that the numbers hold.
func TestBoundsOfEachSetting(t *testing.T) {
	bucket := penstock.PerSecond(10).WithBurst(200)
	for _, c := range []struct {
		limit     penstock.Limit
		settings  guard.Settings
		instances int
		when      string
		over      int64
		text      string
	}{
		{limit: bucket, instances: 1, when: "always", over: 0,
			text: "200 at once, and 10 per 1s"},
		{limit: bucket, instances: 1, when: "store fails", over: 0,
			text: "no more, with one instance"},
		{limit: bucket, instances: 3, when: "store fails", over: 134,
			text: "3 instances with a share each: 1 unit more by rounding, and up to 133 at the beginning if one of them had used the whole limit"},
		{limit: bucket, instances: 3, when: "store returns", over: 208,
			text: "208 units more around the end: what passed in the outage is not charged later, and the last instance notices the end a second later"},
		{limit: bucket, instances: 1, when: "store returns", over: 200,
			text: "200 units more around the end: what passed in the outage is not charged later"},
		{limit: bucket, settings: guard.Settings{OnFailure: guard.FailClosed}, instances: 3, when: "store fails", over: 0,
			text: "nothing passes"},
		{limit: bucket, settings: guard.Settings{OnFailure: guard.FailOpen}, instances: 3, when: "store fails", over: math.MaxInt64,
			text: "everything passes, and is not counted"},
		{limit: bucket, settings: guard.Settings{OnFailure: guard.FailOpen, Ceiling: penstock.PerSecond(500)}, instances: 3, when: "store fails", over: math.MaxInt64,
			text: "at each instance 500 at once, and 500 per 1s"},
		{limit: bucket, settings: guard.Settings{Lease: 100}, instances: 2, when: "leased", over: 50,
			text: "50 units more: a block of 25 for each of 2 instances, which may hold it unspent for 1s; while traffic is below the limit, leases admit at least 97 % of what the store alone would admit"},
		{limit: bucket, settings: guard.Settings{Lease: 10}, instances: 1, when: "leased", over: 10,
			text: "10 units more: a block of 10, which may be held unspent for 1s; while traffic is below the limit, leases admit at least 97 % of what the store alone would admit"},
		{limit: bucket, settings: guard.Settings{SplitInto: 64}, instances: 1, when: "split", over: 0,
			text: "no more: each of 32 counters has a part; if the limit was larger before, up to 194 units more until they have drained"},
		{limit: bucket, instances: 1, when: "denials", over: 0,
			text: "no more, with one instance"},
		{limit: bucket, instances: 2, when: "denials", over: 0,
			text: "no more; a refund by another instance is seen within 1s"},
		{limit: bucket, settings: guard.Settings{DenyCacheTTL: 5 * time.Second}, instances: 2, when: "denials", over: 0,
			text: "no more; a refund by another instance is seen within 5s"},
		{limit: penstock.PerMinute(10).With(penstock.FixedWindow), settings: guard.Settings{Lease: 100}, instances: 1, when: "always", over: 0,
			text: "10 per 1m in each window, so up to 20 around its end"},
		{limit: penstock.PerMinute(10).With(penstock.FixedWindow), instances: 1, when: "store fails", over: 10,
			text: "no more, with one instance; and up to 10 if its clock and the store's differ, since windows begin by the clock"},
		{limit: penstock.PerMinute(10).With(penstock.FixedWindow), settings: guard.Settings{Lease: 100}, instances: 1, when: "leased", over: 0,
			text: "no more; each instance may hold up to 2 units unspent for 1s; while traffic is below the limit, leases admit at least 97 % of what the store alone would admit"},
		{limit: penstock.PerMinute(10).With(penstock.SlidingWindow), instances: 1, when: "always", over: 0,
			text: "10 per 1m by estimate, and less than 20 in any period of that length"},
		{limit: penstock.PerMinute(10).With(penstock.SubWindow(6)), instances: 1, when: "always", over: 0,
			text: "10 per 1m, wherever the period begins"},
		{limit: penstock.PerMinute(10).With(penstock.LeakyBucket).WithBurst(5), instances: 1, when: "always", over: 0,
			text: "1 at once, and 10 per 1m, evenly spaced; 5 may wait"},
		{limit: penstock.PerDay(7).With(penstock.CalendarWindow(algorithm.Month, time.UTC)), instances: 1, when: "always", over: 0,
			text: "7 in each calendar window, so up to 14 around its end"},
		{limit: penstock.PerMinute(10), instances: 1, when: "clock forward", over: 10,
			text: "10 units more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late"},
		{limit: penstock.PerMinute(10).With(penstock.FixedWindow), instances: 1, when: "clock forward", over: 20,
			text: "20 units more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late"},
		{limit: penstock.InFlight(9, time.Minute), instances: 1, when: "always", over: 0,
			text: "9 at a time"},
		{limit: penstock.InFlight(9, time.Minute), instances: 1, when: "store fails", over: 0,
			text: "no more, with one instance"},
		{limit: penstock.InFlight(9, time.Minute), instances: 3, when: "store fails", over: 6,
			text: "6 units more: 3 instances with a share each, rounded up, besides the slots lent before"},
	} {
		options := guard.Options{Instances: c.instances, Limits: func(*penstock.Plan) guard.Settings { return c.settings }}
		found := false
		for _, b := range options.Bounds(c.limit.MustCompile()) {
			if b.When == c.when {
				found = true
				if b.MaxExcess != c.over || b.Text != c.text {
					t.Errorf("limit %v, %d instances, when %q: MaxExcess is %d and Text %q; want %d and %q", c.limit, c.instances, c.when, b.MaxExcess, b.Text, c.over, c.text)
				}
			}
		}
		if !found {
			t.Errorf("limit %v: Bounds has no bound for %q; want one", c.limit, c.when)
		}
	}
}

// A jump of the clock can use up its bound. Two windows end within a period before the jump, and
// two after it. So four windows are used up in less time than one lasts.
func TestClockJumpReachesItsBoundOfFixedWindows(t *testing.T) {
	now := time.UnixMilli(1_000_900)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limit := penstock.PerSecond(10).With(penstock.FixedWindow).MustCompile()
	granted := int64(0)
	for _, step := range []time.Duration{0, 200 * time.Millisecond, 5700 * time.Millisecond, 300 * time.Millisecond} {
		now = now.Add(step) // seconds in the clock's minute: 40.9 and 41.1, and after the jump 46.8 and 47.1
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit, Mode: penstock.Draw, Cost: 99}})
		if err != nil {
			t.Fatal(err)
		}
		granted += d.Status(0).Granted
	}
	bounds := guard.Options{}.Bounds(limit)
	if over := bounds[slices.IndexFunc(bounds, func(b guard.Bound) bool { return b.When == "clock forward" })].MaxExcess; granted != 20+over {
		t.Errorf("four windows within 0.7 s granted %d units; want 20, the limit's own bound, and %d more", granted, over)
	}
}

func TestSettingsThatDoNotApplyHaveNoBound(t *testing.T) {
	situations := func(o guard.Options, limit *penstock.Plan) string {
		var all []string
		for _, b := range o.Bounds(limit) {
			all = append(all, b.When)
		}
		return strings.Join(all, ", ")
	}
	settings := func(s guard.Settings) guard.Options {
		return guard.Options{Limits: func(*penstock.Plan) guard.Settings { return s }}
	}
	for _, c := range []struct{ got, want string }{
		{situations(guard.Options{}, penstock.PerSecond(9).MustCompile()), "always, denials, store fails, store returns, store forgets, clock forward"},
		{situations(guard.Options{DenyCacheTTL: -1, OnFailure: guard.FailClosed}, penstock.PerSecond(9).MustCompile()), "always, store fails, store forgets, clock forward"},
		{situations(settings(guard.Settings{DenyCacheTTL: -1, Lease: 100, SplitInto: 9, OnFailure: guard.FailOpen}), penstock.PerSecond(7).With(penstock.LeakyBucket).MustCompile()),
			"always, store fails, store forgets, clock forward"}, // a leaky bucket is neither leased nor split
		{situations(guard.Options{}, penstock.InFlight(9, time.Minute).MustCompile()), "always, store fails, store returns, store forgets, clock forward"}, // its denials are not cached
	} {
		if c.got != c.want {
			t.Errorf("Bounds returns bounds for the situations %s; want %s", c.got, c.want)
		}
	}
}

func ExampleOptions_Bounds() {
	limit := penstock.PerSecond(100).MustCompile()
	for _, b := range (guard.Options{Instances: 4}).Bounds(limit) {
		fmt.Printf("%s: %s\n", b.When, b.Text)
	}
	// Output:
	// always: 100 at once, and 100 per 1s
	// denials: no more; a refund by another instance is seen within 1s
	// store fails: 4 instances with a share each: 0 units more by rounding, and up to 75 at the beginning if one of them had used the whole limit
	// store returns: 175 units more around the end: what passed in the outage is not charged later, and the last instance notices the end a second later
	// store forgets: 100 units more each time the store loses data (a restart without persistence, a failover to a replica that lags)
	// clock forward: 100 units more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late
}
