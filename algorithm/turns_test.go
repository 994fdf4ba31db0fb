package algorithm

import (
	"testing"
)

// A variant is one of several limits that use one state in turn. They are the limits of tiers, or
// of an old and a new policy while instances reload.
type variant struct {
	limit    Limit
	prepare  func(Limit) (Params, error)
	at       func(Params, int64) Params
	kind     int   // index in the subject's kin; -1: the subject itself
	shortest int64 // the shortest window, in µs
}

// variants returns up to three limits that use one state in turn. These limits often differ in only
// one number.
func (r *run) variants() []variant {
	own := variant{limit: r.limit, prepare: r.prepare, at: r.calendarAt, kind: -1, shortest: r.shortest(r.limit)}
	variants := []variant{own}
	for range 6 {
		if len(variants) == 3 || len(variants) == 2 && r.roll.oneIn(2) {
			break
		}
		t := own
		switch r.roll(0, 5) {
		case 0:
			t.limit.Count = max(t.limit.Count/r.roll(2, 100), 1)
		case 1:
			t.limit.Period = max(t.limit.Period/r.roll(2, 1000), 1000)
		case 2:
			t.limit.Burst = r.roll(1, r.capacity(r.limit))
		case 3:
			t.limit.Burst = r.roll(1, 10)
			t.limit.Count = r.roll(1, 10)
		default:
			t.limit = r.anyLimit(r.roll)
		}
		if len(r.kin) > 0 && r.calendarAt == nil && r.roll.oneIn(4) {
			t.kind = int(r.roll(0, int64(len(r.kin)-1)))
			t.prepare, t.at = r.kin[t.kind].Prepare, r.kin[t.kind].paramsAt
		}
		if _, err := t.prepare(t.limit); err == nil && r.canCount(append(variants, t)) {
			t.shortest = r.shortest(t.limit)
			variants = append(variants, t)
		}
	}
	return variants
}

// canCount returns true if the state can count the units of the largest limit, whichever of the
// limits is in use.
func (a subject) canCount(variants []variant) bool {
	capacity, refillTime := most(variants, a.capacity), most(variants, a.refillTime)
	for _, t := range variants {
		p, err := t.prepare(t.limit)
		if err != nil {
			return false
		}
		rate, parts := p[0], p[1] // of a bucket or a queue: parts per µs, and parts of a token or a place
		if a.isQueue && times(refillTime+1, rate) > Max/2 {
			return false
		}
		if a.canBook && !a.isQueue && times(capacity, parts) > Max/2 {
			return false
		}
	}
	return true
}

// shortest is the shortest window of a limit.
func (a subject) shortest(l Limit) int64 {
	if a.calendarAt != nil {
		return a.shortestWindow
	}
	return l.Period
}

// switchTo makes the run continue with another limit.
func (r *run) switchTo(t variant) {
	r.prepare, r.calendarAt = t.prepare, t.at
	r.change(t.limit)
}

// most returns the largest value that valueOf returns for one of the limits.
func most(variants []variant, valueOf func(Limit) int64) int64 {
	n := int64(0)
	for _, t := range variants {
		n = max(n, valueOf(t.limit))
	}
	return n
}

// maxUnits bounds the terms of a sum, so that it does not overflow.
const maxUnits = 8 * Max

// boundByRates is the bound of algorithms that refill steadily: the largest capacity, and the
// largest rate.
func boundByRates(room func(Limit) int64) func([]variant, int64) int64 {
	return func(variants []variant, apart int64) int64 {
		return most(variants, room) + most(variants, func(l Limit) int64 { return min(muldiv(apart, l.Count, l.Period), maxUnits) })
	}
}

// boundByWindows is the bound of algorithms with windows: each kind of window may end once per its
// length, and admit its Count then.
func boundByWindows(variants []variant, apart int64) int64 {
	_, sum := sumOfWindows(variants, apart)
	return most(variants, count) + sum
}

// boundByStrictWindows is boundByWindows for algorithms of which one kind alone never exceeds its
// Count.
func boundByStrictWindows(variants []variant, apart int64) int64 {
	kinds, sum := sumOfWindows(variants, apart)
	if kinds == 1 {
		return sum
	}
	return most(variants, count) + sum
}

// sumOfWindows returns how many kinds of windows the variants have, and how many units the windows
// of all kinds that end within apart µs admit.
func sumOfWindows(variants []variant, apart int64) (kinds int, sum int64) {
	type kind struct {
		kind     int
		shortest int64
	}
	admitted := map[kind]int64{}
	for _, t := range variants {
		k := kind{t.kind, t.shortest}
		admitted[k] = max(admitted[k], min(times(cdiv(apart+1, t.shortest), t.limit.Count), maxUnits))
	}
	for _, n := range admitted {
		sum += n
	}
	return len(admitted), sum
}

// If several limits use one state in turn, the units that one has used count for the others.
// Together they admit as much as the largest admits. A denied request is granted at its RetryAfter
// and not before. RetryAfter is at most the time that the slowest limit needs to refill all used
// units.
var limitsInTurn = law{"limits in turn keep used units", func(a subject, roll dice) error {
	r := startRun(a, roll)
	variants := r.variants()
	refillTime := int64(0) // the longest of all limits
	for _, t := range variants {
		r.switchTo(t)
		refillTime = max(refillTime, min(a.refillTime(t.limit), MaxPeriod))
	}
	var events []event
	var tail string           // the last holder in a queue
	live := map[string]hold{} // by holder
	for range roll(1, 40) {
		t := pick(roll, variants...)
		r.switchTo(t)
		r.pass()
		request := r.anyRequest(Spend, Spend, Draw)
		request.Patience = 0
		if a.isQueue {
			request.Cost = 1
			request.Patience = min(pick(roll, 0, refillTime, roll(0, refillTime)), r.longestPatience())
			if tail != "" && roll.oneIn(5) {
				request.Mode, request.Holder = Refund, tail
			}
		}
		if a.needsHolder {
			request.Holder = r.newHolder()
		}
		out := r.decide(request)
		if request.Mode == Refund {
			if out.Granted > 0 {
				events = events[:len(events)-1]
			}
			tail = ""
			continue
		}
		if !out.OK() && out.RetryAfter != Never {
			if at := r.decideAt(request, r.now+out.RetryAfter); !at.OK() {
				return r.lawError("after its RetryAfter, the request is denied: %+v; want granted; the limits are %+v", at, variants)
			}
			if early := roll(1, out.RetryAfter); r.decideAt(request, r.now+out.RetryAfter-early).RetryAfter != early {
				return r.lawError("%d µs before its RetryAfter, the outcome is %+v; want a RetryAfter of that time; the limits are %+v", early,
					r.decideAt(request, r.now+out.RetryAfter-early), variants)
			}
			capacity := most(variants, a.capacity)
			longest := most(variants, func(l Limit) int64 { return times(capacity/a.capacity(l)+2, a.refillTime(l)) })
			if a.isQueue || a.needsHolder {
				longest = a.refillTime(r.limit) + refillTime
			}
			if out.RetryAfter > longest {
				return r.lawError("RetryAfter is %d µs; want at most %d µs, in which all units refill; the limits are %+v", out.RetryAfter, longest, variants)
			}
		}
		if out.Granted == 0 {
			continue
		}
		if a.needsHolder {
			used := int64(0)
			live[request.Holder] = hold{expires: r.now + t.limit.Period, cost: out.Granted}
			for _, h := range live {
				if h.expires > r.now {
					used += h.cost
				}
			}
			if slots := most(variants, a.capacity); used > slots {
				return r.lawError("%d slots are held; want at most %d; the limits are %+v", used, slots, variants)
			}
			continue
		}
		tail = request.Holder
		events = append(events, event{at: r.now + out.Wait, admitted: out.Granted})
	}
	if a.needsHolder {
		return nil
	}
	if err := checkBound(events, func(apart int64) int64 { return a.boundOfVariants(variants, apart) }); err != nil {
		return r.lawError("%v; the limits are %+v", err, variants)
	}
	return nil
}}

func TestLimitsInTurnKeepUsedUnits(t *testing.T) { prove(t, limitsInTurn, allSubjects()) }
