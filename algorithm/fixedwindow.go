package algorithm

import (
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

//go:embed fixedwindow.lua
var fixedWindowLua string

// FixedWindow admits Count units per window of Period; the windows are aligned to the Unix epoch.
// [AnchoredWindow] starts a key's window at its first spend instead, and [CalendarWindow] aligns to
// days, weeks or months of a time zone. Burst is not used.
//
//	Bound   Count in each window; in an interval of length w at most Count·(⌈w/Period⌉+1): twice
//	        Count across a boundary, however short the interval
//	State   3 numbers: end, used, kind (the Period, or the calendar unit); absent while nothing is
//	        used
//	Time    O(1)
//	Choose  for quotas that people know ("10,000 per day"), if a burst at the boundary does no harm
//	Clock   after a step back, used units count until their window ends. Its end is at most that of
//	        the window after the current one, or a Period and 5 s from now if that is later. So a
//	        step back never adds a third Count to the two that the bound allows around a boundary.
//	        If Force used more than the Count, the window may last for k Periods, where k·Count
//	        covers the used units
//
// When the limit changes, the units used in the current window stay used. A window of another
// length ends at its own end or after k windows of the present limit, whichever comes first.
// k·Count is the smallest multiple of Count that covers the used units. The next grant makes that
// window a window of the present limit. So limits that share one counter admit at most the largest
// Count at first. Each time that a window ends, they admit at most the Count of its limit in
// addition.
var FixedWindow = defineFixedWindow("fixed-window", func(l Limit) (Params, error) {
	return Params{l.Count, l.Period, 0, alignEpoch}, l.check()
}, exchanged(1, true))

// AnchoredWindow is [FixedWindow] with windows that begin at a key's first spend and last for
// Period. Its bound is the same. The windows of different keys do not end at the same moment.
var AnchoredWindow = defineFixedWindow("anchored-window", func(l Limit) (Params, error) {
	return Params{l.Count, l.Period, 0, alignFirst}, l.check()
})

// defineFixedWindow defines one of the algorithms that share the step of fixed windows.
func defineFixedWindow(title string, prepare func(Limit) (Params, error), options ...Option) *Algorithm {
	return define("fixedwindow", fixedWindowLua, fixedWindow, prepare, append([]Option{
		Title(title), CanRefund(), countsDenied(), exactRefunds(1), additive(), windowsDiffer(),
		Leasable(DecayAtReset, func(l Limit) int64 { return l.Period }),
		divisible(splitCount),
		Bounded(func(l Limit, rate string) string {
			return fmt.Sprintf("%s in each window, so up to %d around its end", rate, 2*l.Count)
		}),
	}, options...)...)
}

// A CalendarUnit is the length of a calendar window.
type CalendarUnit uint8

const (
	Day   CalendarUnit = iota // from midnight
	Week                      // from midnight on Monday (ISO 8601)
	Month                     // from midnight on the first
)

// calendarUnits has for each unit its name and its longest length. The length includes the hour
// that a zone repeats at the end of daylight saving time.
var calendarUnits = [...]struct {
	name   string
	period time.Duration
}{
	Day:   {"day", 25 * time.Hour},
	Week:  {"week", 169 * time.Hour},
	Month: {"month", (31*24 + 1) * time.Hour},
}

// Period is the longest length of the unit. It is also the Period of a limit of calendar windows.
// An unknown unit has the Period 0.
func (u CalendarUnit) Period() time.Duration {
	if int(u) < len(calendarUnits) {
		return calendarUnits[u].period
	}
	return 0
}

func (u CalendarUnit) String() string {
	if int(u) < len(calendarUnits) {
		return calendarUnits[u].name
	}
	return fmt.Sprintf("calendar-unit(%d)", uint8(u))
}

// CalendarWindow is [FixedWindow] with windows that are calendar units in a time zone. Their
// lengths differ: a day of 23 or 25 hours is one day. The limit's Period is ignored.
//
// A unit begins at the first moment that has its date. If a zone skips midnight, the unit begins
// later, for example at 01:00. If midnight comes twice, the unit begins at the first one. The hour
// before midnight that the zone repeats belongs to the new unit. A day that a zone skipped has no
// window.
//
// The store has the time, and the caller has the calendar. The caller sends the ends of the
// windows nearest to its own clock. If both clocks agree within half a window, the answer is exact.
func CalendarWindow(unit CalendarUnit, zone *time.Location) *Algorithm {
	var cached atomic.Pointer[calendarEnds]
	return defineFixedWindow("calendar-window", func(l Limit) (Params, error) {
		if zone == nil {
			return Params{}, errors.New("a calendar window needs a time zone; use time.UTC")
		}
		if int(unit) >= len(calendarUnits) {
			return Params{}, fmt.Errorf("the calendar unit %v is unknown; use Day, Week or Month", unit)
		}
		l.Period = unit.Period().Microseconds()
		return Params{l.Count}, l.check()
	}, Bounded(func(l Limit, _ string) string {
		return fmt.Sprintf("%d in each calendar window, so up to %d around its end", l.Count, 2*l.Count)
	}), exchanged(1, true), calendar("calendar "+unit.String(), func(p Params, now int64) Params {
		e := cached.Load()
		if e == nil || now < e.from || now >= e.until {
			e = unit.ends(now, zone)
			cached.Store(e)
		}
		p[1], p[2], p[3] = e.first, e.second, e.third
		return p
	}))
}

// calendarEnds are the ends of three successive windows. The ends are valid while from ≤ now <
// until. In this half of a window, first and second are the nearest two ends.
type calendarEnds struct{ first, second, third, from, until int64 }

// ends returns the ends of the two windows nearest to now, and of the one after them.
func (u CalendarUnit) ends(now int64, zone *time.Location) *calendarEnds {
	year, month, day := time.UnixMicro(now).In(zone).Date()
	start := func(units int) int64 { // the beginning of the unit that is this many units after today's
		switch u {
		case Day:
			return startOfDay(year, month, day+units, zone)
		case Week:
			weekday := int(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday())
			return startOfDay(year, month, day-(weekday+6)%7+7*units, zone)
		default:
			return startOfDay(year, month+time.Month(units), 1, zone)
		}
	}
	units := 0
	next := func(begin int64) int64 { // the first beginning of a unit after begin
		for {
			units++
			if later := start(units); later > begin {
				return later
			}
		}
	}
	first := start(0)
	second := next(first)
	for second <= now { // now is in a repeated hour of yesterday
		first, second = second, next(second)
	}
	third, middle := next(second), first+(second-first+1)/2
	if now < middle {
		return &calendarEnds{first, second, third, first, middle}
	}
	return &calendarEnds{second, third, next(third), middle, second}
}

// startOfDay is the first moment that has the given date, or a later one, in a zone.
func startOfDay(year int, month time.Month, day int, zone *time.Location) int64 {
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC) // the loop subtracts the zone's offset
	at := midnight.AddDate(0, 0, -2).In(zone)                     // before the day begins, since no zone is two days from UTC
	for {
		_, offset := at.Zone()
		begin, end := at.ZoneBounds()
		if !end.IsZero() && !end.After(at) { // Go 1.26 returns a wrong end on the last day of future leap years
			end = at.Add(time.Hour)
		}
		moment := midnight.Add(-time.Duration(offset) * time.Second)
		if moment.Before(begin) { // the zone skipped this day
			moment = begin
		}
		if end.IsZero() || moment.Before(end) {
			return moment.UnixMicro()
		}
		at = end
	}
}

// The fourth of a limit's parameters says how windows are aligned.
const (
	alignEpoch int64 = iota // to the Unix epoch
	alignFirst              // they begin at a key's first spend
	// Any other value is the third end of a calendar window's parameters.
)

// window is the state of FixedWindow.
type window struct {
	End  int64 // µs since the epoch
	Used int64 // units
	Kind int64 // the length of the window in µs, or the kind of a calendar window
}

// The kinds of calendar windows.
const (
	kindDay   = 1
	kindWeek  = 2
	kindMonth = 3
)

func fixedWindow(s window, p Params, r Request, now int64) (Outcome, window) {
	count, first, second, align := p[0], p[1], p[2], p[3]
	currentEnd, nextEnd, length, kind := windowEnd(first, second, align, now)
	end, used, repaired := s.End, s.Used, false
	if end <= now {
		end, used = currentEnd, 0
	}
	if r.Mode == Refund && r.Receipt != 0 && r.Receipt != end { // the window of these units has ended
		r.Cost = 0
	}
	granted, after, fits := take(r, used, count)
	// The window is of another limit, or the clock has stepped back: bound the window's end.
	if end > nextEnd || s.Kind != kind {
		latest := end
		windows := max(cdiv(min(used, after), count), 1) // how many windows of this limit have room for the used units
		// The used units count no longer than these windows last.
		if end > currentEnd && windows-1 < cdiv(end-currentEnd, length) {
			latest = currentEnd + (windows-1)*length
		}
		if s.Kind == kind && end-length-now <= MaxStall { // a small step back changes nothing
			latest = end
		} else if s.Kind == kind {
			latest = max(latest, nextEnd)
		}
		if end > latest {
			end, repaired = latest, true
		}
	}

	var out Outcome
	if !fits {
		out.RetryAfter = end - now
		if never(r, count) {
			out.RetryAfter = Never
		}
	}
	// A grant makes the window one of this limit.
	if after > used && (s.Kind != kind || align != alignFirst) {
		end = max(end, currentEnd)
	}
	out.Granted = granted
	out.Remaining = max(count-after, 0)
	if after > 0 {
		out.ResetAfter = end - now
	}
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || !fits)
	if after == used && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	if r.IsRefundable && after > used {
		out.Receipt = end
	}
	return out, window{end, after, kind}
}

// windowEnd returns the end of the window that contains now, the end and the length of the window
// after it, and the kind of window. The end of a window is the first moment of the next. first,
// second and align are the limit's parameters. For calendar windows the three parameters are the
// ends of three successive windows. For other windows first is the Period, and second is not used.
func windowEnd(first, second, align, now int64) (end, next, length, kind int64) {
	if align == alignFirst {
		return now + first, now + first, first, first
	}
	if align == alignEpoch {
		end = now - now%first + first
		return end, end + first, first, first
	}
	kind, length = calendarKind(align-first), align-second
	switch {
	case now < first:
		return first, second, second - first, kind
	case now < second:
		return second, align, length, kind
	case now < align:
		return align, align + length, length, kind
	}
	end = now - (now-align)%length + length
	return end, end + length, length, kind
}

// calendarKind returns the Kind of calendar windows, given the length of two of them in µs. Two
// calendar days last less than 4 days, two weeks less than 20, and two months longer.
func calendarKind(two int64) int64 {
	const day = 86_400_000_000 // µs
	if two < 4*day {
		return kindDay
	}
	if two < 20*day {
		return kindWeek
	}
	return kindMonth
}
