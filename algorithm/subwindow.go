package algorithm

import (
	_ "embed"
	"fmt"
)

//go:embed subwindow.lua
var subWindowLua string

// MaxParts is the most parts that a [SubWindow] may have.
const MaxParts = 60

// SubWindow splits Period into n parts (1 to 60) and counts the current part and the n before it, so that no
// interval of Period ever holds more than Count. A unit is free again Period to Period·(1+1/n) after it was spent. Burst
// is not used.
//
//	Bound   Count in every interval of length Period, wherever it begins; Count·⌈w/Period⌉ in length w
//	State   up to n+4 numbers: start, count, width, one more per part in use; absent while nothing is used
//	Cost    O(n)
//	Choose  for a strict sliding window over many requests, where a log's memory would be too much
//	Clock   a step back of δ makes the windows stand still for min(δ, 5 s) at most; beyond, what was used counts from now
//
// Counting the current part and n−1 before it, as Figma's "An alternative approach to rate limiting" (2017) does, frees
// units up to Period/n early and admits up to twice Count in a Period; the n-th part more makes the bound hold.
// When Period or n changes, everything used counts as used now.
func SubWindow(n int) *Algorithm {
	a := Define("subwindow", subWindowLua, subWindow, func(l Limit) (Params, error) {
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
	})
	a.Title = "sub-window"
	a.Numbers = MaxParts + 4
	return a
}

type parts struct {
	Start int64               // of the current part
	Count int64               // of parts before the current one
	Width int64               // of a part
	Used  [MaxParts + 1]int64 // the current part first
}

func subWindow(s parts, p Params, a Ask, now int64) (Outcome, parts) {
	count, width, n := p[0], p[1], p[2]
	next, mended := roll(s, width, n, now)
	used := int64(0)
	for _, c := range next.Used {
		used += c
	}

	var out Outcome
	granted, after, fits := take(a, used, count)
	if never(a, count) {
		out.RetryAfter = Never
	} else if !fits {
		left := used + a.need() - count
		k := n + 1
		for left -= next.Used[n]; left > 0; left -= next.Used[k-1] {
			k--
		}
		out.RetryAfter = next.Start + (n+2-k)*width - now
	}
	out.Granted = granted
	if after >= used {
		next.Used[0] += granted
	} else {
		for i, back := 0, used-after; back > 0; i++ {
			taken := min(back, next.Used[i])
			next.Used[i] -= taken
			back -= taken
		}
	}

	out.Remaining = max(count-after, 0)
	if after > 0 {
		newest := int64(0)
		for next.Used[newest] == 0 {
			newest++
		}
		out.ResetAfter = next.Start + (n+1-newest)*width - now
	}
	if after == used && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, next
}

// roll brings the parts up to now. It tells whether the state was mended: gathered into one part of another
// width, or back from too far in the future.
func roll(s parts, width, n, now int64) (next parts, mended bool) {
	aligned := now - now%width
	passed := int64(0)
	if s.Width > 0 && s.Start <= now {
		passed = (now - s.Start) / s.Width
	}
	if s.Width == 0 || passed > s.Count {
		return parts{Width: width, Count: n, Start: aligned}, false
	}
	next = parts{Width: width, Count: n, Start: s.Start + passed*s.Width}
	copy(next.Used[passed:s.Count+1], s.Used[:])
	if s.Width == width && s.Count == n && next.Start-now <= MaxStall {
		return next, false
	}
	used := int64(0)
	for _, c := range next.Used {
		used += c
	}
	next = parts{Width: width, Count: n, Start: aligned}
	next.Used[0] = used
	return next, used > 0
}
