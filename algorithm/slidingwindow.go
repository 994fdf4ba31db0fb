package algorithm

import (
	_ "embed"
	"fmt"
)

//go:embed slidingwindow.lua
var slidingWindowLua string

// SlidingWindow admits Count units per Period by a weighted estimate over two windows. It adds the
// units of the current window and a fraction of those of the previous one. The fraction is the part
// of the previous window that the sliding window still covers. Burst is not used.
//
//	Bound   Count in each window of Period (aligned to the epoch, unless repaired), and below 2·Count
//	        in any interval of Period: Count·(1+f) when a fraction f of a window has passed. The
//	        window does not slide exactly; that of [SubWindow] never has more than Count
//	State   4 numbers: start, current, width, previous; a fifth, owner, while the windows have
//	        another limit's Period; absent while nothing is used
//	Time    O(1)
//	Choose  for a cheap limit without the fixed window's burst at a boundary, if its worst case (that
//	        of a token bucket) is acceptable
//	Clock   a step back of up to 5 s stops the windows for no longer than the step; after a longer
//	        step, the used units count from now
//
// Source: the counter described by Cloudflare, "How we built rate limiting capable of scaling to
// millions of domains", 2017. Here the weight is an exact fraction, rounded up to whole units. If
// Count·Period exceeds 2^51, the elapsed time is counted in ticks of ⌈Period/⌊2^51/Count⌋⌉ µs,
// rounded against the caller. A tick is 39 µs for a million per day, and a whole Period for a Count
// of 2^51. If Force used more than Count units, a tick is ⌈Period/⌊2^52/used⌋⌉ µs.
//
// When Period changes, used units fade in their own windows or in windows of k Periods of the
// present limit, whichever lets them fade sooner. k·Count is the smallest multiple of Count that
// covers the used units. The next grant moves the used units into windows of the present limit, as
// if they were spent now. So in an interval of length w, limits that share one counter admit at
// most the largest Count + w·the largest rate.
var SlidingWindow = define("slidingwindow", slidingWindowLua, slidingWindow,
	func(l Limit) (Params, error) {
		if err := l.check(); err != nil {
			return Params{}, err
		}
		tick := tickOf(l.Count, l.Period)
		return Params{l.Count, l.Period, tick, cdiv(l.Period, tick)}, nil
	},
	Title("sliding-window"), CanRefund(), countsDenied(), exactRefunds(1), additive(), windowsDiffer(),
	Leasable(DecayAfterPeriod, func(l Limit) int64 { return l.Period }),
	divisible(splitCount),
	Bounded(func(l Limit, rate string) string {
		return fmt.Sprintf("%s by estimate, and less than %d in any period of that length", rate, 2*l.Count)
	}))

// tickOf is the least number of µs per tick for which count·ticks is at most 2^51.
func tickOf(count, period int64) int64 {
	return max(cdiv(period, Max/2/count), 1)
}

// windowPair is the state of SlidingWindow: the current and the previous window.
type windowPair struct {
	Start    int64 // of the current window, in µs since the epoch
	Current  int64 // units used in the current window
	Width    int64 // of each window, in µs
	Previous int64 // units used in the previous window
	Owner    int64 // Period of the limit that decided last, if the windows have another width; else 0
}

func slidingWindow(s windowPair, p Params, r Request, now int64) (Outcome, windowPair) {
	count, period, tick, ticks := p[0], p[1], p[2], p[3]
	start, current, width, previous, repaired := slide(s, period, now)

	var out Outcome
	if r.Mode == Refund {
		fromCurrent, fromPrevious := current, previous // the most units to return from each window
		if r.Receipt != 0 && r.Receipt != start {
			fromCurrent = 0
		}
		if r.Receipt != 0 && r.Receipt != start-width {
			fromPrevious = 0
		}
		out.Granted = min(r.Cost, fromCurrent+fromPrevious)
		previous -= max(out.Granted-fromCurrent, 0)
		current -= min(out.Granted, fromCurrent)
	} else if r.Mode == Reset {
		current, previous = 0, 0
	}
	// The windows have another limit's width, and another limit has decided last.
	if width != period && s.Owner != period {
		start, current, width, previous = gather(count, period, now, start, current, width, previous)
		repaired = true
	}
	// The limit's own ticks are for its own width, and for at most count units.
	if width != period || previous > count {
		tick = cdiv(width, Max/max(count, previous))
		ticks = cdiv(width, tick)
	}
	// fading is how many units of the previous window still count.
	fading := cdiv(previous*(ticks-max(now-start, 0)/tick), ticks)
	if r.Mode == Force {
		out.Granted = min(r.Cost, Max/2-current)
		current += out.Granted
	} else if r.Mode < Force || r.Mode == Attempt { // Spend, Draw, Peek or Attempt
		granted, _, fits := take(r, current+fading, count)
		if never(r, count) {
			out.RetryAfter = Never
		} else if !fits {
			// The request fits once at most mayStay units of the fading window count. The previous window
			// fades from start on. If the current units alone leave no room, the current window must fade,
			// from its end on. units is how many units the fading window has. elapsed is how long it must
			// fade, in ticks.
			mayStay, windows, units := count-r.leastCost()-current, int64(0), previous
			if mayStay < 0 {
				mayStay, windows, units = mayStay+current, 1, current
				if width != period || units > count {
					tick = cdiv(width, Max/max(count, units))
				} else {
					tick = tickOf(count, period)
				}
				ticks = cdiv(width, tick)
			}
			elapsed := ticks - mayStay*ticks/units
			if elapsed == ticks {
				windows, elapsed = windows+1, 0
			}
			out.RetryAfter = start + windows*width + elapsed*tick - now
		}
		out.Granted = granted
		if granted > 0 && width != period && r.Mode != Attempt {
			start, current, width, previous, fading = now, current+fading, period, 0, 0
		}
		current += granted
	}

	out.Remaining = max(count-current-fading, 0)
	if current > 0 {
		out.ResetAfter = start + 2*width - now
	} else if previous > 0 {
		out.ResetAfter = start + width - now
	}
	// A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
	savesRepair := repaired && (r.Mode != Peek || !out.OK())
	if out.Granted == 0 && !savesRepair && r.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	if r.IsRefundable && out.Granted > 0 && r.Mode != Refund {
		out.Receipt = start
	}
	owner := period
	if width == period {
		owner = 0
	}
	return out, windowPair{start, current, width, previous, owner}
}

// slide advances both windows to now. If the state was too far in the future, repaired is true, and
// the current window was moved, so that it begins now.
func slide(s windowPair, period, now int64) (start, current, width, previous int64, repaired bool) {
	start, current, width, previous = s.Start, s.Current, s.Width, s.Previous
	if width == 0 || start+2*width <= now || (start+width <= now && current == 0) {
		return now - now%period, 0, period, 0, false
	}
	if start+width <= now {
		start, current, previous = start+width, 0, current
	}
	if start-now > MaxStall {
		start, repaired = now, true
	}
	return start, current, width, previous, repaired
}

// gather moves the used units into windows that begin now and last k Periods each, where k·count
// covers the used units. If the used units fade sooner in their present windows, gather moves
// nothing. It returns the new start, current, width and previous.
func gather(count, period, now, start, current, width, previous int64) (int64, int64, int64, int64) {
	tick := cdiv(width, Max/max(count, previous)) // of the present windows, in µs
	ticks := cdiv(width, tick)
	fading := cdiv(previous*(ticks-max(now-start, 0)/tick), ticks)
	used := min(current+fading, Max/2)
	faded := start + width // when the used units have faded
	if current > 0 {
		faded += width
	}
	windows := max(cdiv(used, count), 1)
	if windows > MaxPeriod/period || now+2*windows*period >= faded {
		return start, current, width, previous
	}
	return now, used, windows * period, 0
}
