package algorithm

import (
	_ "embed"
	"errors"
	"time"
)

//go:embed fixedwindow.lua
var fixedWindowLua string

// FixedWindow admits Count units per window of Period; the windows are aligned to the Unix epoch.
// [AnchoredWindow] starts a key's window at its first spend instead, and [CalendarWindow] aligns to days, weeks or months
// of a time zone. Burst is not used.
//
//	Bound   Count in each window; in an interval of length w at most Count·(⌈w/Period⌉+1): twice Count
//	        across a boundary, however short the interval
//	State   2 numbers: end, used; absent while nothing is used
//	Cost    O(1)
//	Choose  for quotas that people reckon by ("10,000 per day"), where the boundary burst does no harm
//	Clock   a step back of δ keeps the window for min(δ, 5 s) longer at most; beyond that, what was used
//	        counts in the window that the clock now shows
//
// When the limit changes, what was used in the running window stays used, in the window that the new limit names.
var FixedWindow = titled("fixed-window", additive(Define("fixedwindow", fixedWindowLua, fixedWindow, func(l Limit) (Params, error) {
	return Params{l.Count, l.Period, 0, alignEpoch}, l.check()
})))

// AnchoredWindow is [FixedWindow] with windows that begin at a key's first spend and last for Period.
// Its bound is the same; clients do not all start over at the same moment.
var AnchoredWindow = titled("anchored-window", additive(Define("fixedwindow", fixedWindowLua, fixedWindow, func(l Limit) (Params, error) {
	return Params{l.Count, l.Period, 0, alignFirst}, l.check()
})))

// A CalendarUnit is the length of a calendar window.
type CalendarUnit uint8

const (
	Day   CalendarUnit = iota // from midnight
	Week                      // from midnight on Monday (ISO 8601)
	Month                     // from midnight on the first
)

// Period is the unit's longest length; limits of calendar windows state it.
func (u CalendarUnit) Period() time.Duration {
	return [...]time.Duration{25 * time.Hour, 169 * time.Hour, (31*24 + 1) * time.Hour}[u]
}

func (u CalendarUnit) String() string { return [...]string{"day", "week", "month"}[u] }

// CalendarWindow is [FixedWindow] with windows that begin with each calendar unit in a time zone, whatever its length: a
// day of 23 or 25 hours is one day. The limit's Period is ignored.
//
// The time is the store's and the calendar the caller's: the caller names the two windows nearest to its own
// clock. While both clocks agree within half a window the answer is exact.
func CalendarWindow(unit CalendarUnit, zone *time.Location) *Algorithm {
	a := additive(Define("fixedwindow", fixedWindowLua, fixedWindow, func(l Limit) (Params, error) {
		if zone == nil {
			return Params{}, errors.New("a calendar window needs a time zone; use time.UTC")
		}
		l.Period = unit.Period().Microseconds()
		return Params{l.Count, 0, 0, alignCalendar}, l.check()
	}))
	a.Title, a.Windows = "calendar-window", "calendar "+unit.String()
	a.At = func(p Params, now int64) Params {
		p[1], p[2] = unit.edges(time.UnixMicro(now).In(zone))
		return p
	}
	return a
}

// edges returns the ends of the two windows nearest to now.
func (u CalendarUnit) edges(now time.Time) (first, second int64) {
	year, month, day := now.Date()
	start := func(step int) time.Time {
		switch u {
		case Day:
			return time.Date(year, month, day+step, 0, 0, 0, 0, now.Location())
		case Week:
			monday := day - (int(now.Weekday())+6)%7
			return time.Date(year, month, monday+7*step, 0, 0, 0, 0, now.Location())
		default:
			return time.Date(year, month+time.Month(step), 1, 0, 0, 0, 0, now.Location())
		}
	}
	begin, end := start(0), start(1)
	if now.Sub(begin) < end.Sub(now) {
		return begin.UnixMicro(), end.UnixMicro()
	}
	return end.UnixMicro(), start(2).UnixMicro()
}

const (
	alignEpoch int64 = iota
	alignFirst
	alignCalendar
)

type window struct {
	End  int64
	Used int64
}

func fixedWindow(s window, p Params, a Ask, now int64) (Outcome, window) {
	count, first, second, align := p[0], p[1], p[2], p[3]
	ends, length := windowEnd(first, second, align, now)
	end, used := s.End, s.Used
	mended := false
	if end <= now {
		end, used = ends, 0
	} else if (end > ends && end-length-now > MaxStall) || (end < ends && align != alignFirst) {
		end, mended = ends, true
	}

	var out Outcome
	granted, after, fits := take(a, used, count)
	if !fits {
		out.RetryAfter = end - now
		if never(a, count) {
			out.RetryAfter = Never
		}
	}
	out.Granted = granted
	out.Remaining = max(count-after, 0)
	if after > 0 {
		out.ResetAfter = end - now
	}
	if after == used && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, window{end, after}
}

// windowEnd is the end of the window that holds now, which is the first moment that belongs to the next, and the length
// of the next.
func windowEnd(first, second, align, now int64) (end, length int64) {
	if align == alignFirst {
		return now + first, first
	}
	if align == alignEpoch {
		return now - now%first + first, first
	}
	length = second - first
	if now < first {
		return first, length
	}
	if now < second {
		return second, length
	}
	return now - (now-second)%length + length, length
}
