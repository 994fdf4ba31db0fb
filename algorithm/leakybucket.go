package algorithm

import (
	_ "embed"
	"fmt"
)

//go:embed leakybucket.lua
var leakyBucketLua string

// LeakyBucket is a queue with a constant outflow. Units leave Period/Count apart, and at most Burst
// of them wait (default 0: no unit waits). An outcome has the Wait until the caller's turn. A
// request is denied if the queue is full, or if the wait is longer than its patience. The queue has
// the order in which the store decides. A request that begins when another already has its outcome
// gets a later place. A cost of c takes c places in a row, and the caller's turn is that of the
// first. Source: the leaky bucket as a queue, A. Tanenbaum, "Computer Networks", §5.4.
//
//	Bound   departures of cost 1 in any interval of length w: at most 1 + w·Count/Period; two of them
//	        are at least Period/Count apart, to the microsecond; a wait is at most Burst·Period/Count
//	State   5 numbers: level, at, rate, tail (the HolderID of the last holder in the queue), taken
//	        (what this holder took); absent while the queue is empty
//	Time    O(1)
//	Choose  in front of something that must never receive two requests at the same time: shaping,
//	        outbound calls, batch jobs
//	Clock   a step back of any length stops the queue for at most this length, and at most 5 s
//
// Only the last holder in the queue can refund its place, and only until the queue is empty. Behind
// any other place, callers already know their turns. Any other Refund changes nothing and has
// Granted 0.
//
// When the limit changes, or several limits use one counter, every caller keeps its turn. A new
// caller waits until all earlier callers have left. The new caller is denied if that takes longer
// than the longest wait of the present limit, Burst·Period/Count. So departures are at least the
// shortest Period/Count apart. The time until all have left is converted to the present rate, and
// rounded up by less than two µs. Places that were taken under another limit are refunded in whole
// places of the present limit, never more than were taken.
var LeakyBucket = define("leakybucket", leakyBucketLua, leakyBucket,
	func(l Limit) (Params, error) {
		const leavesAtOnce = 1 // a unit that needs no waiting place
		p, err := prepareBucket(l, leavesAtOnce)
		// The rate p[0] is the third number of the state, which is at most MaxPeriod; see numbers.
		if err == nil && p[0] > MaxPeriod {
			return Params{}, fmt.Errorf("%d per %d µs is too fast for a queue: at most %d units may leave in a µs", l.Count, l.Period, int64(MaxPeriod))
		}
		return p, err
	},
	Title("leaky-bucket"), Burst(BurstIsQueue), refillsSteadily(), ownsRefunds(), CanBook(),
	Bounded(func(l Limit, rate string) string {
		return fmt.Sprintf("1 at once, and %s, evenly spaced; %d may wait", rate, l.Burst)
	}),
	shared(func(l Limit, n int64) []Limit {
		l.Burst = cdiv(l.Burst+1, n) - 1 // the queue has Burst+1 places: the unit in the first leaves immediately
		return slower(l, n)
	}))

// queue is the state of LeakyBucket. A place in it is divided into parts, as a token of TokenBucket
// is.
type queue struct {
	Level int64 // parts of all places in use; after Level/Rate µs all have left
	At    int64 // when the level was Level, in µs since the epoch
	Rate  int64 // parts per µs when the state was written
	Tail  int64 // HolderID of the last holder in the queue; 0 if unknown
	Taken int64 // parts that this holder took
}

func leakyBucket(s queue, p Params, r Request, now int64) (Outcome, queue) {
	rate, parts, places, holderID := p[0], p[1], p[2], HolderID(r.Holder)
	capacity := places * parts
	level, oldRate, tail, taken := s.Level, s.Rate, s.Tail, s.Taken
	if oldRate != 0 && oldRate != rate {
		level = convert(level, oldRate, rate)
		taken = convert(taken, oldRate, rate)
		taken = max(taken-3, 0) // convert rounded it up by less than 3
	}
	level, at, ahead, repaired := drain(rate, now, level, s.At) // ahead: how far at is after now
	room := capacity - level
	before := level

	var out Outcome
	switch r.Mode {
	case Spend, Peek, Draw:
		least := r.leastCost()
		if least > places {
			out.RetryAfter = Never
		} else if least > 0 {
			if level > 0 {
				out.Wait = cdiv(level, rate) + ahead
			}
			if least*parts > room {
				out.RetryAfter = cdiv(least*parts-room, rate) + ahead
			}
			out.RetryAfter = max(out.RetryAfter, out.Wait-r.Patience)
			if out.RetryAfter > 0 {
				out.Wait = 0
			} else if r.Mode != Peek {
				out.Granted = min(r.Cost, room/parts)
				level += out.Granted * parts
				tail, taken = holderID, out.Granted*parts
			}
		}
	case Force:
		out.Granted = min(r.Cost, (Max-level)/parts)
		level += out.Granted * parts
		if out.Granted > 0 {
			tail, taken = holderID, out.Granted*parts
		}
	case Refund:
		if holderID != 0 && holderID == tail {
			out.Granted = min(r.Cost, taken/parts, cdiv(level, parts))
			level = max(level-out.Granted*parts, 0)
			taken -= out.Granted * parts
		}
	default: // Reset
		level = 0
	}

	if level < capacity {
		out.Remaining = (capacity - level) / parts
	}
	if level > 0 {
		out.ResetAfter = cdiv(level, rate) + ahead
	}
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || !out.OK())
	if level == before && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, queue{level, at, rate, tail, taken}
}
