package storetest

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

// Turns is a trial of limits that take turns over one counter, as tiers do, or old and new limits
// during a reload. What one of them has used counts for all, so together they admit no more than
// InTurn says.
type Turns struct {
	Store penstock.Store

	// Limits have one Name, one Group and one algorithm, perhaps with other settings. A calendar is
	// not among them.
	Limits []penstock.Limit

	// Now is the clock that the store decides by, and Advance moves it.
	Now     func() time.Time
	Advance func(time.Duration)

	// Key is charged. Default: the empty key.
	Key string

	// Slack is how many units the store may admit beyond InTurn, for guards that state such a bound.
	// Default: 0.
	Slack int64
}

// Run makes n charges of limits chosen at random. The error says when too much was admitted, and
// what was asked before. After a denial, it checks RetryAfter on a store without slack: the same
// charge is granted then, and not 1 µs before.
func (t Turns) Run(ctx context.Context, rng *rand.Rand, n int) error {
	bound := InTurn(t.Limits)
	var admitted []admission
	var story []string
	held := map[string]time.Time{} // until when
	broken := func(format string, args ...any) error {
		return fmt.Errorf("%s; the limits are %v; before:\n%s", fmt.Sprintf(format, args...), t.Limits,
			strings.Join(story[max(len(story)-30, 0):], "\n"))
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
		story = append(story, fmt.Sprintf("  %s: %v %d of [%v] -> %+v", now.UTC().Format("15:04:05.000000"), charge.Mode, charge.Cost, limit, last))
		if !d.Allowed && t.Slack == 0 && last.RetryAfter < time.Hour && rng.IntN(4) == 0 {
			if last, err = t.retry(ctx, charge, last.RetryAfter); err != nil {
				return broken("%v", err)
			}
			now = t.Now()
			story = append(story, fmt.Sprintf("  %s: then -> %+v", now.UTC().Format("15:04:05.000000"), last))
		}
		if last.Granted == 0 {
			continue
		}
		if limit.Algorithm == penstock.Concurrency {
			held[charge.Holder] = now.Add(limit.Period)
			live := int64(0)
			for _, until := range held {
				if until.After(now) {
					live++
				}
			}
			if live > bound(0)+t.Slack {
				return broken("%d are held at once, at most %d", live, bound(0)+t.Slack)
			}
			continue
		}
		admitted = insert(admitted, admission{now.Add(last.Wait), last.Granted})
		if err := within(admitted, now.Add(last.Wait), bound, t.Slack); err != nil {
			return broken("%v", err)
		}
	}
	return nil
}

// insert keeps admissions in the order of their moments.
func insert(sorted []admission, a admission) []admission {
	i := len(sorted)
	for i > 0 && sorted[i-1].at.After(a.at) {
		i--
	}
	return slices.Insert(sorted, i, a)
}

// within checks the intervals that hold a moment.
func within(sorted []admission, moment time.Time, bound func(time.Duration) int64, slack int64) error {
	for last := len(sorted) - 1; last >= 0 && !sorted[last].at.Before(moment); last-- {
		sum := int64(0)
		for first := last; first >= 0; first-- {
			sum += sorted[first].units
			apart := sorted[last].at.Sub(sorted[first].at)
			if sorted[first].at.After(moment) {
				continue
			}
			if most := bound(apart) + slack; sum > most {
				return fmt.Errorf("%d admitted within %v, at most %d", sum, apart, most)
			}
		}
	}
	return nil
}

// An admission is units that were let in at a moment.
type admission struct {
	at    time.Time
	units int64
}

// retry asks again 1 µs before the time that a denial named, and at it.
func (t Turns) retry(ctx context.Context, charge penstock.Charge, after time.Duration) (penstock.Status, error) {
	if after > time.Microsecond {
		t.Advance(after - time.Microsecond)
		d, err := t.Store.Decide(ctx, []penstock.Charge{charge})
		if err == nil && d.RetryAfter() != time.Microsecond {
			err = fmt.Errorf("RetryAfter was %v, and 1 µs before, the answer is %v", after, d)
		}
		if err != nil {
			return penstock.Status{}, err
		}
	}
	t.Advance(time.Microsecond)
	d, err := t.Store.Decide(ctx, []penstock.Charge{charge})
	if err == nil && !d.Allowed {
		err = fmt.Errorf("RetryAfter was %v, and then the answer is %v", after, d)
	}
	return d.Status(0), err
}

func (t Turns) charge(rng *rand.Rand, limit penstock.Limit, i int) penstock.Charge {
	c := penstock.Charge{Key: t.Key, Limit: limit, Cost: 1}
	switch most := max(limit.Count, limit.Burst, 1); {
	case limit.Algorithm == penstock.LeakyBucket:
		if rng.IntN(2) == 0 {
			c.Patience = time.Hour
		}
	case limit.Algorithm == penstock.Concurrency:
		c.Holder = fmt.Sprint("h", i)
	case rng.IntN(2) == 0:
		c.Cost = 1 + rng.Int64N(most)
		if rng.IntN(2) == 0 {
			c.Mode = penstock.Draw
		}
	}
	return c
}

// pause is how long to wait before the next charge: often not at all, and often until something
// changes.
func (t Turns) pause(rng *rand.Rand, limit penstock.Limit, last penstock.Status) time.Duration {
	var d time.Duration
	switch rng.IntN(8) {
	case 0:
		d = time.Duration(rng.Int64N(int64(limit.Period)/limit.Count + 1))
	case 1:
		d = time.Duration(rng.Int64N(int64(limit.Period)))
	case 2:
		d = limit.Period
	case 3:
		d = last.ResetAfter
	case 4:
		if last.RetryAfter != penstock.Never {
			d = last.RetryAfter
		}
	}
	return d.Truncate(time.Microsecond)
}

// InTurn returns how much limits that take turns over one counter may admit in an interval, by how
// far its first and last moment are apart. If one limit has both the largest Burst or Count and the
// largest rate, it is the bound of that limit.
func InTurn(limits []penstock.Limit) func(apart time.Duration) int64 {
	common, burst := limits[0].Algorithm, int64(0)
	if common == nil {
		common = penstock.TokenBucket
	}
	type kind struct {
		algorithm *algorithm.Algorithm
		period    time.Duration
	}
	windows := map[kind]int64{} // units of each kind of window
	for _, l := range limits {
		size := l.Count
		if l.Burst > 0 && !common.Is(penstock.LeakyBucket) {
			size = l.Burst
		}
		if common.Is(penstock.LeakyBucket) {
			size = 1
		}
		burst = max(burst, size)
		k := kind{l.Algorithm, l.Period}
		windows[k] = max(windows[k], l.Count)
	}
	refill := func(apart time.Duration) int64 {
		most := int64(0)
		for _, l := range limits {
			most = max(most, muldiv(l.Count, int64(apart), int64(l.Period)))
		}
		return most
	}
	ends := func(apart time.Duration) int64 {
		sum := int64(0)
		for k, n := range windows {
			sum += muldiv(n, int64((apart+time.Microsecond+k.period-1)/k.period), 1)
		}
		return sum
	}
	switch {
	case common.Is(penstock.Concurrency):
		return func(time.Duration) int64 { return burst }
	case common.Is(penstock.LeakyBucket): // moments are rounded up to whole microseconds
		return func(apart time.Duration) int64 { return burst + refill(apart+time.Microsecond) }
	case len(windows) == 1 && (common.Is(penstock.SlidingLog) || common.Is(penstock.SubWindow(1))):
		return ends
	case common.Is(penstock.SlidingLog), common.Is(penstock.SubWindow(1)), common.Is(penstock.FixedWindow):
		return func(apart time.Duration) int64 { return burst + ends(apart) }
	}
	return func(apart time.Duration) int64 { return burst + refill(apart) }
}

// muldiv is a·b/c rounded down, at most a quarter of MaxInt64.
func muldiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return math.MaxInt64 / 4
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, math.MaxInt64/4))
}

// limitsInTurn is the law of limits that take turns, with limits whose units do not come back while
// it is checked.
func limitsInTurn(b *bench) {
	b.each(func(b *bench, k kind) {
		for round := range 4 {
			rng := rand.New(rand.NewPCG(11, uint64(round)))
			small, middle, large := b.counter(k, 2), b.counter(k, 7), b.counter(k, 20)
			for _, c := range []*counter{&small, &middle, &large} {
				if k.name == "token" {
					c.limit.Period = age / 256 // units so small that all can count the largest burst, also in 32 shards
				}
			}
			if round%2 == 1 && k.name != "leaky" && k.name != "calendar" { // two periods too
				small.limit.Period /= 2
				large.limit.Period -= time.Hour
			}
			granted := int64(0)
			for i := range 80 {
				c := []counter{small, middle, large}[rng.IntN(3)].at(fmt.Sprint("turns", round)).as(fmt.Sprint("holder", i))
				charge := c.spend(1 + rng.Int64N(3))
				if i%8 == 7 && k.name != "leaky" && k.name != "sliding" && !k.holds() {
					charge.Mode, charge.Cost = penstock.Refund, 1
				}
				if charge.Mode == penstock.Refund { // of a unit that has drained a little, Granted is 0
					before := b.left(large.at(charge.Key))
					b.decide(charge)
					granted -= b.left(large.at(charge.Key)) - before
					continue
				}
				d := b.decide(charge)
				granted += d.Status(0).Granted
				if granted > 20 {
					b.fatal("limits of 2, 7 and 20 units have admitted %d in turn", granted)
				}
			}
			rest := b.decide(large.at(fmt.Sprint("turns", round)).as("last").charge(penstock.Draw, 20))
			granted += rest.Status(0).Granted
			if granted > 20 || granted < 19 { // a level is rounded against the caller when the rate changes
				b.broken("limits of 2, 7 and 20 units have admitted %d in turn", granted)
			}
			b.deny(small.at(fmt.Sprint("turns", round)).as("late").spend(1))
		}
	})
}

// SomeTurns are limits for Turns: of each algorithm, with bursts, rates and periods that take
// turns.
func SomeTurns() [][]penstock.Limit {
	var all [][]penstock.Limit
	add := func(limits ...penstock.Limit) {
		for i := range limits {
			limits[i].Name = "turns"
		}
		all = append(all, limits)
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
