package algorithm

import (
	_ "embed"
	"fmt"
)

//go:embed subwindow.lua
var subWindowLua string

// MaxParts is the most parts that a [SubWindow] may have.
const MaxParts = 60

// SubWindow splits Period into n parts (1 to 60). It counts the current part and the n parts before
// that part, so that no interval of Period ever has more than Count. A unit is free again Period to
// Period·(1+1/n) after it was spent. Burst is not used.
//
//	Bound   Count in every interval of length Period, wherever it begins; Count·⌈w/Period⌉ in every
//	        interval of length w
//	State   up to n+5 numbers: start, count, width, owner, one more per part in use; absent while
//	        nothing is used
//	Time    O(n)
//	Choose  for a strict sliding window over many requests, if a log would need too much memory
//	Clock   a step back of up to 5 s stops the windows for no longer than the step; after a longer
//	        step, the used units count from now
//
// Figma's "An alternative approach to rate limiting" (2017) counts the current part and n−1 before
// it. Units are then free up to Period/n early, and a Period admits up to twice Count. Counting one
// part more makes the bound hold.
//
// When Period or n changes, used units stay used until they expire as before, or for k Periods of
// the present limit, whichever is sooner. k·Count is the smallest multiple of Count that covers
// them. The next grant moves them into parts of the present limit, as if they were spent now. So
// limits that share one counter admit at most the largest Count at first. In addition, each of them
// admits at most its Count in each of its Periods. Limits with the same Period and n are one limit
// here, with the largest of their Counts.
func SubWindow(n int) *Algorithm {
	return define("subwindow", subWindowLua, subWindow, func(l Limit) (Params, error) {
		if n < 1 || n > MaxParts {
			return Params{}, fmt.Errorf("a sub-window has %d parts; it must have 1 to %d", n, MaxParts)
		}
		if err := l.check(); err != nil {
			return Params{}, err
		}
		if l.Period < int64(n) {
			return Params{}, fmt.Errorf("a period of %d µs cannot be split into %d parts", l.Period, n)
		}
		return Params{l.Count, cdiv(l.Period, int64(n)), int64(n)}, nil
	}, Title("sub-window"), numbers(MaxParts+5), CanRefund(), countsDenied(), exactRefunds(1), exchanged(1, false),
		Leasable(DecayAfterPeriod, func(l Limit) int64 { return cdiv(l.Period, int64(n)) }),
		divisible(splitCount), Bounded(slidingExactly))
}

// slidingExactly is the bound of algorithms that admit Count in any Period.
func slidingExactly(_ Limit, rate string) string { return rate + ", wherever the period begins" }

// parts is the state of SubWindow.
type parts struct {
	Start int64               // of the current part, in µs since the epoch
	Count int64               // how many parts before the current one count
	Width int64               // of a part, in µs
	Owner int64               // width·n of the limit that decided last, if the parts have another limit's width; else 0
	Used  [MaxParts + 1]int64 // units used in each part, the current part first
}

func subWindow(s parts, p Params, r Request, now int64) (Outcome, parts) {
	count, width, n := p[0], p[1], p[2]
	next, used, repaired := advanceParts(s, width, n, now)
	newest := 0 // the newest part from which a refund returns units
	if r.Mode == Refund && r.Receipt != 0 {
		if newest = next.indexOf(r.Receipt); newest < 0 {
			newest, r.Cost = 0, 0
		}
		r.Cost = min(r.Cost, next.Used[newest])
	}
	granted, after, fits := take(r, used, count)
	for i, returned := newest, used-after; returned > 0; i++ {
		taken := min(returned, next.Used[i])
		next.Used[i] -= taken
		returned -= taken
	}
	own := next.Width == width && next.Count == n // the parts are those of this limit
	if !own && s.Owner != width*n {
		next = next.gather(min(used, after), count, width, n, now)
		own, repaired = next.Width == width && next.Count == n, true
	}
	// A grant moves the used units into a part of this limit.
	if after > used && !own && r.Mode != Force && r.Mode != Attempt {
		next, own = parts{Width: width, Count: n, Start: now - now%width}, true
		next.Used[0] = used
	}
	if after > used {
		next.Used[0] += granted
	}

	var out Outcome
	if never(r, count) {
		out.RetryAfter = Never
	} else if !fits {
		missing := used + r.leastCost() - count // units that must become free, from the oldest part on
		k := next.Count + 1                     // the newest part that must expire; 1 is the current part
		for missing -= next.Used[k-1]; missing > 0; missing -= next.Used[k-1] {
			k--
		}
		out.RetryAfter = next.Start + (next.Count+2-k)*next.Width - now
	}
	out.Granted = granted
	out.Remaining = max(count-after, 0)
	if after > 0 {
		out.ResetAfter = next.emptyAt() - now
	}
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || !out.OK())
	if after == used && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	if r.IsRefundable && after > used {
		out.Receipt = next.Start
	}
	next.Owner = width * n
	if own {
		next.Owner = 0
	}
	return out, next
}

// advanceParts advances the parts to now. It returns the parts, the used units, and whether the
// state was repaired because it was too far in the future.
func advanceParts(s parts, width, n, now int64) (next parts, used int64, repaired bool) {
	passed := int64(0)
	if s.Width > 0 && s.Start <= now {
		passed = (now - s.Start) / s.Width
	}
	if s.Width == 0 || passed > s.Count {
		return parts{Width: width, Count: n, Start: now - now%width}, 0, false
	}
	next = parts{Width: s.Width, Count: s.Count, Start: s.Start + passed*s.Width}
	copy(next.Used[passed:s.Count+1], s.Used[:])
	for _, c := range next.Used {
		used += c
	}
	if next.Start-now > MaxStall {
		next = parts{Width: s.Width, Count: s.Count, Start: now - now%s.Width}
		next.Used[0], repaired = used, used > 0
	}
	return next, used, repaired
}

// indexOf returns the index of the part that starts at a time, or -1 if there is none.
func (s parts) indexOf(start int64) int {
	for i := range s.Count + 1 {
		if s.Start-i*s.Width == start {
			return int(i)
		}
	}
	return -1
}

// emptyAt is the time at which the newest part in use stops counting. Then nothing is used.
func (s parts) emptyAt() int64 {
	newest := int64(0)
	for newest < s.Count && s.Used[newest] == 0 {
		newest++
	}
	return s.Start + (s.Count+1-newest)*s.Width
}

// gather moves the used units into one part, as wide as k parts of the present limit, where k·count
// covers the used units. If they expire sooner in their present parts, it moves nothing.
func (s parts) gather(used, count, width, n, now int64) parts {
	k := max(cdiv(used, count), 1)
	if k > MaxPeriod/width {
		return s
	}
	wide := k * width
	start := now - now%wide
	if start+(n+1)*wide >= s.emptyAt() {
		return s
	}
	s = parts{Width: wide, Count: n, Start: start}
	s.Used[0] = used
	return s
}
