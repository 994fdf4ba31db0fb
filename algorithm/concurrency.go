package algorithm

import (
	_ "embed"
	"errors"
	"fmt"
	"sort"
)

//go:embed concurrency.lua
var concurrencyLua string

// Concurrency lends Burst slots (default: Count) to holders. A hold ends when it is refunded, or
// Period after its last Spend. A Spend with the same Holder renews the hold. A hold's cost is the
// number of slots that it takes. A Spend with another cost changes that number, if it fits.
//
//	Bound   at every moment the live holds take at most Burst slots; a holder that continues after
//	        its hold has expired is not counted, so renew at least every Period/3
//	State   a sorted set: an entry per hold, another one if its cost is not 1 and another one if it
//	        has a Serial; one for the sum of the costs and one for the longest Period
//	Time    O(log n) for n holds, and O(1) for each that has expired; a denial O(n) at most
//	Choose  for what is occupied rather than consumed: requests in flight, connections, jobs
//	Clock   a step back of up to 5 s makes holds last longer by no more than the step; after a
//	        longer step, each hold ends within the longest Period
//
// RetryAfter is the time until enough holds have expired, if none is renewed or refunded before. A
// renewal has Granted 0, because it takes no further slots. A Refund returns up to Cost slots of
// its holder. A Refund of a hold that has ended changes nothing. A hold has the highest Serial of
// its charges. A Refund with a lower Serial changes nothing, unless it has none. If several limits
// use one counter, together they lend at most the largest Burst. Each hold lasts for the Period of
// the limit under which it was taken.
var Concurrency = define("concurrency", concurrencyLua, concurrency,
	func(l Limit) (Params, error) {
		if err := l.check(); err != nil {
			return Params{}, err
		}
		const shortestHold = 1000 // µs
		if l.Period < shortestHold {
			return Params{}, errors.New("a hold must last at least 1ms; set the period to how long a holder may go without renewing")
		}
		slots := l.Burst
		if slots == 0 {
			slots = l.Count
		}
		return Params{slots, l.Period}, nil
	},
	Title("in_flight"), collection(), NeedsHolder(), Burst(BurstIsCapacity),
	Bounded(func(l Limit, _ string) string { return fmt.Sprintf("%d at a time", l.Burst) }),
	divisible(func(l Limit, n, i int64) []Limit {
		// The Burst is the number of slots, so only it must be exact.
		return []Limit{{Count: max(l.Count/n, 1), Period: l.Period, Burst: piece(l.Burst, n, i)}}
	}))

// slots is the state of Concurrency.
type slots struct {
	holds   []hold // sorted by expiry, and then by holder
	longest int64  // the longest Period, in µs, of the limits under which they were taken
}

type hold struct {
	holder  string
	expires int64 // µs since the epoch
	cost    int64 // slots
	serial  int64 // the highest Serial of its charges
}

func (h hold) less(other hold) bool {
	return h.expires < other.expires || h.expires == other.expires && h.holder < other.holder
}

func concurrency(s slots, p Params, r Request, now int64) (Outcome, slots) {
	count, period := p[0], p[1]
	var live []hold               // the live holds of other holders
	var used int64                // the slots that the other holders take
	var last int64                // when the last of them expires
	own := hold{holder: r.Holder} // the caller's hold
	longest := max(s.longest, period)
	// If a hold ends later than any hold can, the clock has stepped back. Then holds end by
	// now+longest.
	repaired := len(s.holds) > 0 && s.holds[len(s.holds)-1].expires-now > longest+MaxStall
	for _, h := range s.holds {
		if repaired {
			h.expires = min(h.expires, now+longest)
		}
		switch {
		case h.expires <= now: // it has ended
		case h.holder == r.Holder:
			own = h
		default:
			live = append(live, h)
			used += h.cost
			last = h.expires
		}
	}

	var out Outcome
	before := own
	switch r.Mode {
	case Spend, Peek, Draw, Force:
		wanted := r.Cost
		if r.Mode == Draw {
			wanted = min(r.Cost, max(count-used, own.cost)) // a renewal keeps its slots, even if the limit was lowered
		} else if r.Mode == Force {
			wanted = min(r.Cost, max(Max/2-used, 0))
		}
		switch {
		case r.Cost == 0: // spends nothing
		case r.Cost > count && r.Mode != Draw && r.Mode != Force:
			out.RetryAfter = Never
		case wanted == 0 && r.Mode == Draw:
			out.RetryAfter = expiry(live, used+1-count) - now
		case r.Mode != Force && wanted > max(count-used, own.cost):
			out.RetryAfter = expiry(live, used+wanted-count) - now
		case r.Mode != Peek && wanted > 0:
			out.Granted = max(wanted-own.cost, 0)
			own = hold{r.Holder, now + period, wanted, max(own.serial, r.Serial)}
		}
	case Refund:
		if r.Serial == 0 || r.Serial >= own.serial {
			out.Granted = min(r.Cost, own.cost)
			own.cost -= out.Granted
		}
	default: // Reset
		live, used, last, own, repaired = nil, 0, 0, hold{}, false
	}

	if own.cost > 0 {
		used += own.cost
		last = max(last, own.expires)
	}
	out.Remaining = max(count-used, 0)
	if used > 0 {
		out.ResetAfter = last - now
	}
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || !out.OK())
	if own == before && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	if own.cost > 0 {
		live = append(live, own)
	}
	sort.Slice(live, func(i, j int) bool { return live[i].less(live[j]) })
	out.Keep = out.ResetAfter
	return out, slots{live, longest}
}

// expiry returns the earliest time at which expired holds have freed enough slots. needed is the
// number of these slots.
func expiry(holds []hold, needed int64) int64 {
	i := 0
	for needed -= holds[i].cost; needed > 0; needed -= holds[i].cost {
		i++
	}
	return holds[i].expires
}
