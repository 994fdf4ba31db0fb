package algorithm

import (
	_ "embed"
	"fmt"
	"math"
)

//go:embed tokenbucket.lua
var tokenBucketLua string

// TokenBucket refills Count tokens per Period, up to Burst (default: Count), and starts full. A Spend takes its cost in
// tokens; with patience it may book tokens that are yet to come and is answered with the Wait until they have.
// GCRA (the generic cell rate algorithm of ATM, ITU-T I.371) is the same limiter described by the time at which the
// bucket is full again, so it is a synonym here. Source: J. Turner, "New directions in communications", 1986.
//
//	Bound   in any interval of length w: admitted cost ≤ Burst + w·Count/Period, plus what was given back meanwhile;
//	        patience moves cost to when its Wait ends, and the bound holds for those moments
//	State   4 numbers: level (used units), at, unit, debt; absent while the bucket is full
//	Cost    O(1)
//	Choose  for almost everything: smooth, allows bursts, cheapest state, exact retry times
//	Clock   a step back of δ stalls the refill for min(δ, 5 s) at most and never makes tokens
//
// A token is Unit units, a microsecond refills Rate units, Rate/Unit = Count/Period reduced: no emission interval is
// ever rounded. Burst·Unit must not pass 2^51. When the limit changes, used tokens stay used: they are
// converted to the new unit, rounded against the caller by less than three units, and what exceeds a lowered burst is forgiven.
var TokenBucket = func() *Algorithm {
	a := define("tokenbucket", tokenBucketLua, tokenBucket, func(l Limit) (Params, error) { return prepareBucket(l, 0) })
	a.Bookable = true
	a.Additive = true
	a.Again = tokensAgain
	return a
}()

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
		return Params{}, fmt.Errorf("burst %d with a period of %d µs per %d reduced is too fine to count exactly; "+
			"the largest burst at this rate is %d", burst, unit, rate, Max/2/unit-extra)
	}
	return Params{rate, unit, burst + extra}, nil
}

// bucket is the state of the token and leaky buckets. The zero value is fresh: nothing used.
type bucket struct {
	Level int64 // units used of the capacity
	At    int64 // when Level was right
	Unit  int64 // units per token when it was written
	Debt  int64 // units beyond the capacity: booked, or forced
}

func tokenBucket(s bucket, p *Params, a *Ask, now int64, out *Outcome) bucket {
	rate, unit, burst := p[0], p[1], p[2]
	capacity := burst * unit
	level, at, ahead, mended := drain(s, rate, unit, burst, now)
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
		granted = a.Cost
		level = grow(level, a.Cost, unit)
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
	// One by one: a whole Outcome would be made elsewhere first.
	out.Granted, out.Remaining, out.RetryAfter, out.ResetAfter, out.Wait, out.Keep = granted, remaining, retry, reset, wait, reset
	if level == before && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.Keep = Unchanged
		return s
	}
	if level > capacity {
		return bucket{capacity, at, unit, level - capacity}
	}
	return bucket{level, at, unit, 0}
}

// tokensAgain counts back from when the bucket is full: all tokens but the cost may be missing then.
func tokensAgain(p *Params, cost, remaining, reset int64) int64 {
	rate, unit, burst := p[0], p[1], p[2]
	if cost <= remaining || cost > burst {
		return 0
	}
	return max(reset-cdiv((burst-cost)*unit, rate), 0)
}

// drain brings a bucket up to now. It returns the level with its debt, the time at which it is right, how far that is
// ahead of now, and whether the state came from too far in the future and was mended.
func drain(s bucket, rate, unit, burst, now int64) (level, at, ahead int64, mended bool) {
	level, debt, at := s.Level, s.Debt, s.At
	if s.Unit != unit && s.Unit != 0 {
		level = convert(level, s.Unit, unit, burst*unit)
		debt = convert(debt, s.Unit, unit, Max/2)
	}
	level = min(level, burst*unit) + debt
	mended = at-now > MaxStall
	if mended {
		at = now
	}
	if at > now {
		return level, at, at - now, mended
	}
	if float64(now-at)*float64(rate) >= float64(level) { // a product too large to be exact is larger than any level
		level = 0
	} else {
		level -= (now - at) * rate
	}
	return level, now, 0, mended
}

// convert expresses a level counted in units of old per token in the present unit, rounded up, at most limit. The
// fraction of a token is converted in doubles, as the twin must, with an error of less than two units.
func convert(level, old, unit, limit int64) int64 {
	tokens := level / old
	if tokens >= limit/unit {
		return limit
	}
	part := level - tokens*old
	if part > 0 {
		part = min(unit, int64(math.Ceil(float64(float64(part)/float64(old))*float64(unit)))+1)
	}
	return tokens*unit + part
}

// grow adds tokens to a level that never passes Max.
func grow(level, tokens, unit int64) int64 {
	if tokens > (Max-level)/unit {
		return Max
	}
	return level + tokens*unit
}

// shrink takes tokens off a level that never passes zero.
func shrink(level, tokens, unit int64) int64 {
	if tokens >= cdiv(level, unit) {
		return 0
	}
	return level - tokens*unit
}
