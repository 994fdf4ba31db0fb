package algorithm

import (
	_ "embed"
	"sort"
)

//go:embed slidinglog.lua
var slidingLogLua string

// SlidingLog remembers every grant for Period and admits Count units in any Period, exactly. Burst is not used.
//
//	Bound   Count in every interval of length Period; Count·⌈w/Period⌉ in length w; each unit is free again
//	        exactly Period after it was spent
//	State   a sorted set with one entry per grant, whatever its cost: its time and the running sum of all cost
//	Cost    O(log n) for n entries; a refund O(log n + removed)
//	Choose  for few, precious units where to-the-microsecond windows matter: critical, authenticated endpoints with
//	        short windows. Memory grows with the grants; prefer SubWindow where a fraction of a Period does not matter
//	Clock   a step back of δ dates grants up to 5 s ahead at most; beyond, what was used counts from now
//
// A running sum makes every entry unique (two grants in one microsecond are two entries) and answers "how much is
// used" and "when is enough free" by looking at few entries instead of all. Refund gives back the newest cost first.
var SlidingLog = func() *Algorithm {
	a := Define("slidinglog", slidingLogLua, slidingLog, func(l Limit) (Params, error) {
		return Params{l.Count, l.Period}, l.check()
	})
	a.Title = "sliding-log"
	a.Collection = true
	return a
}()

// record is the state of a sliding log: grants in order of time and sum. Some may have expired; the last of those is kept
// because the sum of what is used counts from it.
type record struct {
	grants []grant
}

type grant struct {
	at  int64
	sum int64 // of all costs up to this one
}

func slidingLog(s record, p Params, a Ask, now int64) (Outcome, record) {
	count, period := p[0], p[1]
	last, base := grant{at: now}, int64(0)
	if n := len(s.grants); n > 0 {
		last = s.grants[n-1]
	}
	mended := last.at-now > MaxStall
	expired := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at > now-period })
	if expired > 0 {
		base = s.grants[expired-1].sum
	}
	used := last.sum - base

	var out Outcome
	granted, after, fits := take(a, used, count)
	if never(a, count) {
		out.RetryAfter = Never
	} else if !fits {
		enough := last.sum + a.need() - count
		i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].sum >= enough })
		at := s.grants[i].at
		if mended {
			at = min(at, now)
		}
		out.RetryAfter = at + period - now
	}
	if a.Mode == Force {
		granted = min(granted, Max/2-min(used, Max/2))
		after = used + granted
	}

	out.Granted = granted
	out.Remaining = max(count-after, 0)
	if after == used && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.ResetAfter = resetOfLog(last.at, period, now, mended, used)
		out.Keep = Unchanged
		return out, s
	}
	next := trim(s, expired, base)
	at := max(now, last.at)
	if mended {
		next, at = gatherGrants(next, now), now
	}
	if after > used {
		if last.sum+granted > Max {
			next, last.sum = rebase(next, base), last.sum-base
		}
		next = record{append(next.grants, grant{at, last.sum + granted})}
	} else if after > 0 && after < used {
		next, at = cut(next, base+after)
	}
	if after == 0 {
		next = record{}
	}
	out.ResetAfter = resetOfLog(at, period, now, false, after)
	out.Keep = out.ResetAfter
	return out, next
}

func resetOfLog(last, period, now int64, mended bool, used int64) int64 {
	if used == 0 {
		return 0
	}
	if mended {
		last = min(last, now)
	}
	return last + period - now
}

// trim drops the expired grants but the last, whose sum is the base. As what it stands for is gone, it must stay expired
// even if the period grows.
func trim(s record, expired int, base int64) record {
	if expired <= 1 {
		return record{s.grants[:len(s.grants):len(s.grants)]}
	}
	grants := make([]grant, 1, len(s.grants)-expired+2)
	grants[0] = grant{-MaxPeriod, base}
	return record{append(grants, s.grants[expired:]...)}
}

// gatherGrants dates every grant of the future now.
func gatherGrants(s record, now int64) record {
	i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].at > now })
	if i == len(s.grants) {
		return s
	}
	return record{append(s.grants[:i:i], grant{now, s.grants[len(s.grants)-1].sum})}
}

// rebase makes the sums count from base.
func rebase(s record, base int64) record {
	var live []grant
	for _, g := range s.grants {
		if g.sum > base {
			live = append(live, grant{g.at, g.sum - base})
		}
	}
	return record{live}
}

// cut takes the newest cost off until the running sum is top. It returns the time of the newest grant left.
func cut(s record, top int64) (record, int64) {
	i := sort.Search(len(s.grants), func(i int) bool { return s.grants[i].sum >= top })
	at := s.grants[i].at
	return record{append(s.grants[:i:i], grant{at, top})}, at
}
