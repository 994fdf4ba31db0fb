package algorithm

import (
	_ "embed"
	"fmt"
	"math"
)

//go:embed tokenbucket.lua
var tokenBucketLua string

// TokenBucket refills Count tokens per Period, up to Burst (default: Count), and starts full. A
// Spend takes its cost in tokens. With patience it may book future tokens, and the Wait of its
// outcome says when they are there. GCRA (the generic cell rate algorithm of ATM, ITU-T I.371)
// describes the same limiter by the time at which the bucket is full again. So it is a synonym
// here. Source: J. Turner, "New directions in communications", 1986.
//
//	Bound   in any interval of length w: admitted cost ≤ Burst + w·Count/Period, plus what was
//	        refunded in w; booked cost counts at the end of its Wait
//	State   3 numbers: level (used units), at, unit; absent while the bucket is full
//	Cost    O(1)
//	Choose  for almost everything: smooth, allows bursts, smallest state, exact retry times
//	Clock   a step back of δ stalls the refill for min(δ, 5 s) at most and never makes tokens
//
// A token is Unit units, and a microsecond refills Rate units. Rate/Unit is Count/Period, reduced.
// So no interval between tokens is ever rounded. Burst·Unit must not exceed 2^51.
//
// When the limit changes, or several limits use one counter, used tokens stay used. For the time
// since the last grant, the bucket refills at the rate of the requested limit. A limit with a
// smaller Burst denies until the level has fallen below it. So limits that share one counter admit
// at most the largest Burst + w·the largest rate. If they book, w counts from the booking.
//
// The level is converted to the unit of the requested limit and rounded against the caller. So if
// two grants in a row are of different limits, the second costs less than one unit too much, or
// less than two if the product of the two units exceeds 2^52. A level is at most 2^52 units, and
// the rest is dropped. 2^52 units are at least twice the largest Burst that the present rate
// allows.
var TokenBucket = define("tokenbucket", tokenBucketLua, tokenBucket,
	func(l Limit) (Params, error) { return prepareBucket(l, 0) },
	Title("token-bucket"), Burst(BurstIsCapacity), RefillsSteadily(), CanRefund(), CanBook(), Additive(),
	RetryAfterGrant(tokensAfterGrant), Leasable(DecayContinuous, nil),
	Bounded(func(l Limit, rate string) string { return fmt.Sprintf("%d at once, and %s", l.Burst, rate) }),
	Shared(func(l Limit, n int64) []Limit {
		l.Burst = cdiv(l.Burst, n)
		return slower(l, n)
	}),
	Divisible(func(l Limit, n, i int64) []Limit {
		l.Burst = piece(l.Burst, n, i)
		parts := []Limit{{piece(l.Count, n, i), l.Period, l.Burst}}
		if l.Period <= MaxPeriod/n { // the rate of each is the same, and they add up exactly
			parts = append([]Limit{{l.Count, l.Period * n, l.Burst}}, parts...)
		}
		return parts
	}))

// prepareBucket returns rate, unit and capacity in tokens; extra is the capacity beyond Burst.
func prepareBucket(l Limit, extra int64) (Params, error) {
	if err := l.check(); err != nil {
		return Params{}, err
	}
	burst := l.Burst
	if burst == 0 && extra == 0 {
		burst = l.Count
	}
	g := gcd(l.Count, l.Period)
	rate, unit := l.Count/g, l.Period/g
	if _, ok := product(burst+extra, unit, Max/2); !ok {
		return Params{}, fmt.Errorf("burst %d is too large to count exactly at this rate; the largest is %d", burst, Max/2/unit-extra)
	}
	return Params{rate, unit, burst + extra}, nil
}

// bucket is the state of a token bucket. The zero value is fresh: nothing used.
type bucket struct {
	Level int64 // units used; above capacity if booked, forced, or used under a larger limit
	At    int64 // the time at which Level holds
	Unit  int64 // units per token when it was written
}

func tokenBucket(s bucket, p *Params, a *Request, now int64, out *Outcome) bucket {
	rate, unit, burst := p[0], p[1], p[2]
	capacity := burst * unit
	level, old := s.Level, s.Unit
	if old != 0 && old != unit {
		level = convert(level, old, unit)
	}
	level, at, ahead, repaired := drain(rate, now, level, s.At)
	room := capacity - level
	before := level

	var granted, remaining, retry, reset, wait int64
	switch a.Mode {
	case Spend, Peek:
		if a.Cost > burst {
			retry = Never
		} else if a.Cost > 0 {
			short := a.Cost*unit - room
			if short > 0 {
				wait = cdiv(short, rate) + ahead
			}
			if wait > a.Patience {
				retry, wait = wait-a.Patience, 0
			} else if a.Mode == Spend {
				granted = a.Cost
				level += a.Cost * unit
			}
		}
	case Draw:
		if room >= unit {
			granted = min(a.Cost, room/unit)
			level += granted * unit
		} else if a.Cost > 0 {
			retry = cdiv(unit-room, rate) + ahead
		}
	case Force:
		granted = min(a.Cost, (Max-level)/unit)
		level += granted * unit
	case Refund:
		granted = min(a.Cost, level/unit)
		level = shrink(level, a.Cost, unit)
	default: // Reset
		level = 0
	}

	if level < capacity {
		remaining = (capacity - level) / unit
	}
	if level > 0 {
		reset = cdiv(level, rate) + ahead
	}
	// The fields are set one by one, because a composite literal would be built and then copied.
	out.Granted, out.Remaining, out.RetryAfter, out.ResetAfter, out.Wait, out.Keep = granted, remaining, retry, reset, wait, reset
	if level == before && !(repaired && (a.Mode != Peek || retry != 0)) && a.Mode != Reset {
		out.Keep = Unchanged
		return s
	}
	return bucket{level, at, unit}
}

// tokensAfterGrant counts back from the time at which the bucket is full, to the time at which it
// has cost tokens.
func tokensAfterGrant(p *Params, cost, remaining, reset int64) int64 {
	rate, unit, burst := p[0], p[1], p[2]
	if cost <= remaining || cost > burst {
		return 0
	}
	return max(reset-cdiv((burst-cost)*unit, rate), 0)
}

// drain advances a level to now. It returns the level, the time of that level, how far this time is
// ahead of now, and whether the state was too far in the future and was repaired.
func drain(rate, now, level, at int64) (drained, since, ahead int64, repaired bool) {
	if level == 0 {
		return 0, now, 0, false
	}
	repaired = at-now > MaxStall
	if repaired {
		at = now
	}
	if at > now {
		return level, at, at - now, repaired
	}
	if float64(now-at)*float64(rate) >= float64(level) { // a product too large to be exact is larger than any level
		return 0, now, 0, repaired
	}
	return level - (now-at)*rate, now, 0, repaired
}

// convert changes the unit of a level from 1/old of a token to 1/parts of a token. It rounds up, to
// at most Max. If the product is too large to be exact, it computes in doubles, as the twin must,
// with an error of less than two of the new units.
func convert(level, old, parts int64) int64 {
	whole := level / old
	if whole >= Max/parts {
		return Max
	}
	rest := level - whole*old
	if rest > Max/parts {
		rest = min(parts, int64(math.Ceil(float64(float64(rest)/float64(old))*float64(parts)))+1)
	} else if rest > 0 {
		rest = cdiv(rest*parts, old)
	}
	return whole*parts + rest
}

// shrink removes tokens from a level, but not below zero.
func shrink(level, tokens, unit int64) int64 {
	if tokens >= cdiv(level, unit) {
		return 0
	}
	return level - tokens*unit
}
