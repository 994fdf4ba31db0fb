package algorithm

import _ "embed"

//go:embed leakybucket.lua
var leakyBucketLua string

// LeakyBucket is a queue with a constant outflow: units leave Period/Count apart, and at most Burst of them wait
// (default 0: nobody waits). An answer carries the Wait until the caller's turn; what finds the queue full, or a wait longer than
// its patience, is denied. A cost of c takes c places in a row and leaves at the first. Source: the leaky
// bucket as a queue, A. Tanenbaum, "Computer Networks", §5.4.
//
//	Bound   departures of cost 1 in any interval of length w: at most 1 + w·Count/Period; two of them are at least
//	        Period/Count apart, to the microsecond; a wait is at most Burst·Period/Count
//	State   6 numbers: level, at, unit, debt (as TokenBucket), tail and places: the last holder in the queue and what it
//	        took; absent while idle
//	Cost    O(1)
//	Choose  in front of something that must never see two requests at once: shaping, outbound calls, batch jobs
//	Clock   a step back of δ makes the queue stand still for min(δ, 5 s) at most
//
// A place can only be given back by the last in the queue, under its Holder, before the next one's turn, and by one that did
// not go: whoever waits behind has been told when to go. Any other Refund changes nothing and is answered with Granted 0.
var LeakyBucket = func() *Algorithm {
	a := Define("leakybucket", leakyBucketLua, leakyBucket, func(l Limit) (Params, error) { return prepareBucket(l, 1) })
	a.Bookable = true
	return a
}()

type queue struct {
	bucket
	Tail   int64 // HolderID of the last in the queue; 0 if unknown
	Places int64 // that it took
}

func leakyBucket(s queue, p Params, a Ask, now int64) (Outcome, queue) {
	rate, unit, places, who := p[0], p[1], p[2], HolderID(a.Holder)
	capacity, tail, taken := places*unit, s.Tail, s.Places
	level, at, ahead, mended := drain(s.bucket, rate, unit, places, now)
	room := capacity - level
	before := level

	var out Outcome
	switch a.Mode {
	case Spend, Peek, Draw:
		need := a.need()
		if need > places {
			out.RetryAfter = Never
		} else if need > 0 {
			if level > 0 {
				out.Wait = cdiv(level, rate) + ahead
			}
			if need*unit > room {
				out.RetryAfter = cdiv(need*unit-room, rate) + ahead
			}
			out.RetryAfter = max(out.RetryAfter, out.Wait-a.Patience)
			if out.RetryAfter > 0 {
				out.Wait = 0
			} else if a.Mode != Peek {
				out.Granted = min(a.Cost, room/unit)
				level += out.Granted * unit
				tail, taken = who, out.Granted
			}
		}
	case Force:
		out.Granted = a.Cost
		level = grow(level, a.Cost, unit)
		if a.Cost > 0 {
			tail, taken = who, a.Cost
		}
	case Refund:
		if who != 0 && who == tail {
			out.Granted = min(a.Cost, taken, cdiv(level, unit))
			level = shrink(level, out.Granted, unit)
			taken -= out.Granted
		}
	default: // Reset
		level = 0
	}

	if level < capacity {
		out.Remaining = (capacity - level) / unit
	}
	if level > 0 {
		out.ResetAfter = cdiv(level, rate) + ahead
	}
	if level == before && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, queue{bucket{min(level, capacity), at, unit, max(level-capacity, 0)}, tail, taken}
}
