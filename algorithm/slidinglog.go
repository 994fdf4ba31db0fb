package algorithm

import (
	_ "embed"
	"sort"
)

//go:embed slidinglog.lua
var slidingLogLua string

// SlidingLog stores every grant for Period and admits exactly Count units in any Period. Burst is
// not used.
//
//	Bound   Count in every interval of length Period; Count·⌈w/Period⌉ in length w; each unit is free
//	        again exactly Period after it was spent
//	State   a sorted set with one entry per grant, whatever its cost: its time, the running sum of
//	        all cost, and how long it is kept
//	Time    O(log² n) for n entries; a refund, and the first charge after a pause, also take time for
//	        each entry that they drop
//	Choose  for few units that need windows exact to the microsecond: critical, authenticated
//	        endpoints with short windows. Memory grows with the number of grants. Prefer SubWindow
//	        if a fraction of a Period does not matter
//	Clock   after a step back of up to 5 s, grants are dated ahead of the clock by no more than the
//	        step; after a longer step, the used units count from now
//
// The running sum makes every entry unique: two grants in one microsecond are two entries. The used
// units are the difference of two sums. A binary search over the sums finds the grant that must
// expire before a request fits. A Refund returns the newest cost first.
//
// When several limits use one counter, or Period changes, each limit counts all grants of its last
// Period, whichever limit made them. A grant is kept for the longest Period under which this grant
// or an earlier one was made. So such limits admit at most Count in every interval of length
// Period, for each of their Periods.
var SlidingLog = define("slidinglog", slidingLogLua, slidingLog,
	func(l Limit) (Params, error) { return Params{l.Count, l.Period}, l.check() },
	Title("sliding-log"), collection(), CanRefund(), countsDenied(), exactRefunds(3), divisible(splitCount), Bounded(slidingExactly))

// record is the state of a sliding log: the grants, ordered by time and then by sum. Some of them
// may have expired. The last expired one is kept, because used units are counted from its sum on.
type record struct {
	grants []grant
}

type grant struct {
	at   int64 // µs since the epoch
	sum  int64 // of all costs up to this one
	keep int64 // how long it is kept after at, in µs; it is never dropped before an earlier grant
}

func slidingLog(s record, p Params, r Request, now int64) (Outcome, record) {
	count, period := p[0], p[1]
	last, base := grant{at: now}, int64(0) // the newest grant, and the sum of the last expired one
	if n := len(s.grants); n > 0 {
		last = s.grants[n-1]
	}
	needsRepair := last.at-now > MaxStall
	expired := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at > now-period })
	if expired > 0 {
		base = s.grants[expired-1].sum
	}
	used := last.sum - base

	var out Outcome
	isExact := r.Mode == Refund && r.Receipt != 0
	if isExact && (needsRepair || r.Receipt <= now-period) {
		r.Cost = 0
	} else if isExact {
		first, end := s.chargedAt(r.Receipt)
		r.Cost = min(r.Cost, s.sumBefore(end)-s.sumBefore(first))
	}
	granted, after, fits := take(r, used, count)
	if never(r, count) {
		out.RetryAfter = Never
	} else if !fits {
		// The request fits once the grants up to this sum have expired.
		enough := last.sum + r.leastCost() - count
		i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].sum >= enough })
		at := s.grants[i].at
		if needsRepair {
			at = min(at, now)
		}
		out.RetryAfter = at + period - now
	}
	if r.Mode == Force { // at most Max/2 units are used, so that sums stay at most Max after a rebase
		granted = min(granted, Max/2-min(used, Max/2))
		after = used + granted
	}

	out.Granted = granted
	out.Remaining = max(count-after, 0)
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := needsRepair && (r.Mode != Peek || !out.OK())
	if after == used && !savesRepair && r.Mode != Reset {
		out.ResetAfter = resetOfLog(last.at, period, now, needsRepair, used)
		out.Keep = Unchanged
		return out, s
	}
	next := trim(s, expired, now)
	if isExact {
		next = next.returnUnits(r.Receipt, granted)
	}
	if needsRepair {
		next = gatherGrants(next, now)
	}
	if after > used {
		at, keep := max(now, last.at), period
		if needsRepair {
			at = now
		}
		// No grant is dropped before an earlier one.
		if n := len(next.grants); n > 0 {
			keep = max(keep, next.grants[n-1].at+next.grants[n-1].keep-at)
		}
		// The sums would become too large: count them from base on.
		if last.sum+granted > Max {
			next, last.sum = rebase(next, base), last.sum-base
		}
		next = record{append(next.grants, grant{at, last.sum + granted, keep})}
		if r.IsRefundable {
			out.Receipt = at
		}
	} else if after > 0 && after < used && !isExact {
		next = cut(next, base+after)
	}
	if after == 0 {
		out.Keep = 0
		return out, record{}
	}
	newest := next.grants[len(next.grants)-1]
	out.ResetAfter = newest.at + period - now
	out.Keep = max(out.ResetAfter, newest.at+newest.keep-now)
	return out, next
}

// resetOfLog is the ResetAfter of a log that stays as it is. last is the time of the newest grant.
func resetOfLog(last, period, now int64, needsRepair bool, used int64) int64 {
	if used == 0 {
		return 0
	}
	if needsRepair {
		last = min(last, now)
	}
	return last + period - now
}

// chargedAt returns the range of indexes of the grants that were made at a time.
func (s record) chargedAt(at int64) (first, end int) {
	first = sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at >= at })
	end = sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at > at })
	return first, end
}

// sumBefore returns the running sum of all costs before grant i.
func (s record) sumBefore(i int) int64 {
	if i == 0 {
		return 0
	}
	return s.grants[i-1].sum
}

// returnUnits removes units of the grants that were made at a time, the oldest first.
func (s record) returnUnits(at, units int64) record {
	first, _ := s.chargedAt(at)
	sum := s.sumBefore(first)
	grants := s.grants[:first:first]
	for _, g := range s.grants[first:] {
		if g.sum -= units; g.sum > sum { // some of its units are left
			grants, sum = append(grants, g), g.sum
		}
	}
	return record{grants}
}

// trim drops the expired grants that no other limit needs, except the last of them. The sum of this
// last grant is the base from which used units are counted. The time of this grant becomes
// -MaxPeriod, so that it stays expired even if the period grows.
func trim(s record, expired int, now int64) record {
	dropped := sort.Search(expired, func(i int) bool { return s.grants[i].at+s.grants[i].keep > now })
	if dropped <= 1 {
		return record{s.grants[:len(s.grants):len(s.grants)]}
	}
	grants := make([]grant, 1, len(s.grants)-dropped+2)
	grants[0] = grant{-MaxPeriod, s.grants[dropped-1].sum, 0}
	return record{append(grants, s.grants[dropped:]...)}
}

// gatherGrants merges all grants that are dated after now into one, dated now.
func gatherGrants(s record, now int64) record {
	i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at > now })
	if i == len(s.grants) {
		return s
	}
	keep := int64(0)
	for _, g := range s.grants[i:] {
		keep = max(keep, g.keep)
	}
	if i > 0 {
		keep = max(keep, s.grants[i-1].at+s.grants[i-1].keep-now)
	}
	return record{append(s.grants[:i:i], grant{now, s.grants[len(s.grants)-1].sum, keep})}
}

// rebase subtracts base from all sums, and drops the expired grants.
func rebase(s record, base int64) record {
	var live []grant
	for _, g := range s.grants {
		if g.sum > base {
			live = append(live, grant{g.at, g.sum - base, g.keep})
		}
	}
	return record{live}
}

// cut removes the newest grants, or parts of them, until the running sum is top.
func cut(s record, top int64) record {
	i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].sum >= top })
	return record{append(s.grants[:i:i], grant{s.grants[i].at, top, s.grants[i].keep})}
}
