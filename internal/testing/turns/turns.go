// Package turns is for tests of limits that are used in turn for one counter. Examples are tiers,
// and the old and the new limit during a reload.
package turns

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A Test charges limits in turn. What one of them has used counts for all, so together they admit
// no more than Bound allows.
type Test struct {
	Store penstock.Store

	// Limits have the same Name, Group and algorithm; settings of the algorithm may differ.
	// Calendar windows are not supported.
	Limits []*penstock.Plan

	// Now is the clock of the store, and Advance moves it.
	Now     func() time.Time
	Advance func(time.Duration)

	// Key is the key that is charged. Default: the empty key.
	Key string

	// Slack is how many units the store may admit beyond Bound. Slack is for guards whose bound is
	// higher. Default: 0.
	Slack int64
}

// Run makes n charges of random limits. If they admit units beyond the bound, the error shows the
// latest charges. If Slack is 0, Run also checks the RetryAfter of some denials: the same charge is
// granted at that time, and not 1 µs earlier.
func (t Test) Run(ctx context.Context, rng *rand.Rand, n int) error {
	bound := Bound(t.Limits)
	var admitted []admission
	var trace []traceEntry
	heldUntil := map[string]time.Time{} // by holder
	violation := func(format string, args ...any) error {
		var before strings.Builder
		for _, entry := range trace[max(len(trace)-30, 0):] {
			fmt.Fprintf(&before, "\n%v", entry)
		}
		return fmt.Errorf("%s; the limits are %v; the latest charges:%s", fmt.Sprintf(format, args...), t.Limits, before.String())
	}
	var last penstock.Status
	for i := range n {
		limit := t.Limits[rng.IntN(len(t.Limits))]
		t.Advance(t.pause(rng, limit, last))
		charge := t.charge(rng, limit, i)
		now := t.Now()
		d, err := t.Store.Decide(ctx, []penstock.Charge{charge})
		if err != nil {
			return fmt.Errorf("%v: %w", limit, err)
		}
		last = d.Status(0)
		trace = append(trace, traceEntry{at: now, charge: charge, status: last})
		if !d.Allowed && t.Slack == 0 && last.RetryAfter < time.Hour && rng.IntN(4) == 0 {
			if last, err = t.retry(ctx, charge, last.RetryAfter); err != nil {
				return violation("%v", err)
			}
			now = t.Now()
			trace = append(trace, traceEntry{at: now, charge: charge, status: last, isRetry: true})
		}
		if last.Granted == 0 {
			continue
		}
		if limit.Algorithm() == penstock.Concurrency {
			heldUntil[charge.Holder] = now.Add(limit.Limit().Period)
			live := int64(0)
			for _, until := range heldUntil {
				if until.After(now) {
					live++
				}
			}
			if live > bound(0)+t.Slack {
				return violation("%d slots are held at the same time; want at most %d", live, bound(0)+t.Slack)
			}
			continue
		}
		admitted = insert(admitted, admission{now.Add(last.Wait), last.Granted})
		if err := checkIntervals(admitted, now.Add(last.Wait), bound, t.Slack); err != nil {
			return violation("%v", err)
		}
	}
	return nil
}

// A traceEntry is a charge and its status. It is formatted only if the test fails.
type traceEntry struct {
	at      time.Time
	charge  penstock.Charge
	status  penstock.Status
	isRetry bool
}

func (e traceEntry) String() string {
	at := e.at.UTC().Format("15:04:05.000000")
	if e.isRetry {
		return fmt.Sprintf("  %s: the same again -> %+v", at, e.status)
	}
	return fmt.Sprintf("  %s: %v %d of [%v] -> %+v", at, e.charge.Mode, e.charge.Cost, e.charge.Plan, e.status)
}

// insert keeps admissions sorted by time.
func insert(sorted []admission, a admission) []admission {
	i := len(sorted)
	for i > 0 && sorted[i-1].at.After(a.at) {
		i--
	}
	return slices.Insert(sorted, i, a)
}

// checkIntervals checks the bound of all intervals that contain a moment.
func checkIntervals(sorted []admission, moment time.Time, bound func(time.Duration) int64, slack int64) error {
	for last := len(sorted) - 1; last >= 0 && !sorted[last].at.Before(moment); last-- {
		sum := int64(0)
		for first := last; first >= 0; first-- {
			sum += sorted[first].units
			apart := sorted[last].at.Sub(sorted[first].at)
			if sorted[first].at.After(moment) {
				continue
			}
			if most := bound(apart) + slack; sum > most {
				return fmt.Errorf("%d units were admitted within %v; want at most %d", sum, apart, most)
			}
		}
	}
	return nil
}

// An admission is a number of units that were admitted at a moment.
type admission struct {
	at    time.Time
	units int64
}

// retry repeats a denied charge 1 µs before its RetryAfter, and at it.
func (t Test) retry(ctx context.Context, charge penstock.Charge, after time.Duration) (penstock.Status, error) {
	if after > time.Microsecond {
		t.Advance(after - time.Microsecond)
		d, err := t.Store.Decide(ctx, []penstock.Charge{charge})
		if err == nil && d.RetryAfter() != time.Microsecond {
			err = fmt.Errorf("RetryAfter was %v, but 1 µs before it the decision is %v; want a RetryAfter of 1 µs", after, d)
		}
		if err != nil {
			return penstock.Status{}, err
		}
	}
	t.Advance(time.Microsecond)
	d, err := t.Store.Decide(ctx, []penstock.Charge{charge})
	if err == nil && !d.Allowed {
		err = fmt.Errorf("RetryAfter was %v, but at that time the decision is %v; want allowed", after, d)
	}
	return d.Status(0), err
}

// charge returns a random charge of a limit. i is the number of the charge.
func (t Test) charge(rng *rand.Rand, limit *penstock.Plan, i int) penstock.Charge {
	c := penstock.Charge{Key: t.Key, Plan: limit, Cost: 1}
	switch largestCost := max(limit.Limit().Count, limit.Limit().Burst, 1); {
	case limit.Algorithm() == penstock.LeakyBucket:
		if rng.IntN(2) == 0 {
			c.Patience = time.Hour
		}
	case limit.Algorithm() == penstock.Concurrency:
		c.Holder = fmt.Sprint("h", i)
	case rng.IntN(2) == 0:
		c.Cost = 1 + rng.Int64N(largestCost)
		if rng.IntN(2) == 0 {
			c.Mode = penstock.Draw
		}
	}
	return c
}

// pause returns the time before the next charge: often zero, and often until something changes.
func (t Test) pause(rng *rand.Rand, limit *penstock.Plan, last penstock.Status) time.Duration {
	var d time.Duration
	switch rng.IntN(8) {
	case 0:
		d = time.Duration(rng.Int64N(int64(limit.Limit().Period)/limit.Limit().Count + 1))
	case 1:
		d = time.Duration(rng.Int64N(int64(limit.Limit().Period)))
	case 2:
		d = limit.Limit().Period
	case 3:
		d = last.ResetAfter
	case 4:
		if last.RetryAfter != penstock.Never {
			d = last.RetryAfter
		}
	}
	return d.Truncate(time.Microsecond)
}

// Bound returns the bound of limits that are used in turn for one counter: how many units all of
// them together admit in an interval. The returned function takes the length of this interval. If
// one limit has both the largest rate and the largest Burst or Count, the bound is that of this
// limit alone.
func Bound(limits []*penstock.Plan) func(interval time.Duration) int64 {
	name, burst := limits[0].Algorithm().Name(), int64(0) // all limits have an algorithm of this name
	isLeaky := name == penstock.LeakyBucket.Name()
	isExact := name == penstock.SlidingLog.Name() || name == penstock.SubWindow(1).Name() // never exceeds its Count
	type kind struct {
		algorithm *algorithm.Algorithm
		period    time.Duration
	}
	windows := map[kind]int64{} // the largest Count of each kind of window
	for _, l := range limits {
		size := l.Limit().Count
		if l.Limit().Burst > 0 {
			size = l.Limit().Burst
		}
		if isLeaky {
			size = 1 // one unit leaves the queue immediately
		}
		burst = max(burst, size)
		k := kind{l.Algorithm(), l.Limit().Period}
		windows[k] = max(windows[k], l.Limit().Count)
	}
	refill := func(interval time.Duration) int64 {
		most := int64(0)
		for _, l := range limits {
			most = max(most, muldiv(l.Limit().Count, int64(interval), int64(l.Limit().Period)))
		}
		return most
	}
	windowUnits := func(interval time.Duration) int64 {
		sum := int64(0)
		for k, n := range windows {
			length := interval + time.Microsecond // both ends of the interval count
			count := (length + k.period - 1) / k.period
			sum += muldiv(n, int64(count), 1)
		}
		return sum
	}
	switch {
	case name == penstock.Concurrency.Name():
		return func(time.Duration) int64 { return burst }
	case isLeaky: // moments are rounded up to whole microseconds
		return func(interval time.Duration) int64 { return burst + refill(interval+time.Microsecond) }
	case isExact && len(windows) == 1:
		return windowUnits
	case isExact, name == penstock.FixedWindow.Name():
		return func(interval time.Duration) int64 { return burst + windowUnits(interval) }
	}
	return func(interval time.Duration) int64 { return burst + refill(interval) }
}

// muldiv returns a·b/c, rounded down. The result is at most a quarter of MaxInt64, so that the sum
// of up to four results does not overflow.
func muldiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64 / 4
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64/4))
}

// SomeLimits returns limits for a Test: of each algorithm, with several bursts, rates and periods.
func SomeLimits() [][]*penstock.Plan {
	var all [][]*penstock.Plan
	add := func(limits ...penstock.Limit) {
		var plans []*penstock.Plan
		for _, limit := range limits {
			plans = append(plans, limit.WithName("turns").MustCompile())
		}
		all = append(all, plans)
	}
	add(penstock.PerSecond(10).WithBurst(600), penstock.PerSecond(10).WithBurst(20))
	add(penstock.PerSecond(100).WithBurst(50), penstock.PerMinute(7).WithBurst(5), penstock.PerHour(1000))
	add(penstock.PerSecond(10).With(penstock.LeakyBucket).WithBurst(30), penstock.PerSecond(10).With(penstock.LeakyBucket).WithBurst(3))
	add(penstock.PerSecond(7).With(penstock.LeakyBucket).WithBurst(10), penstock.PerMinute(30).With(penstock.LeakyBucket).WithBurst(5))
	for _, a := range []*algorithm.Algorithm{
		penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(6), penstock.SlidingLog,
	} {
		add(penstock.PerMinute(100).With(a), penstock.PerMinute(5).With(a))
		add(penstock.PerHour(100).With(a), penstock.PerSecond(10).With(a))
		add(penstock.PerHour(100).With(a), penstock.PerMinute(7).With(a), penstock.PerSecond(3).With(a))
	}
	add(penstock.InFlight(20, time.Minute), penstock.InFlight(3, time.Minute), penstock.InFlight(5, time.Second))
	return all
}
