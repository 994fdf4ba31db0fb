package algorithm

import (
	_ "embed"
	"math"
)

//go:embed slidingwindow.lua
var slidingWindowLua string

// SlidingWindow admits Count units per Period by the weighted two-window estimate: what the previous window used, in
// proportion to how much of it the sliding window still covers, plus what the current one has. Burst is not used.
//
//	Bound   Count in each window of Period (aligned to the epoch, unless mended), and below 2·Count in any interval
//	        of Period: Count·(1+f) at offset f into a window. It is not an exact sliding window; [SubWindow] never exceeds Count
//	State   4 numbers: start, current, width, previous; absent while nothing is used
//	Cost    O(1)
//	Choose  for a cheap limit without the fixed window's cliff, where its worst case (that of a token bucket) is fine
//	Clock   a step back of δ makes the windows stand still for min(δ, 5 s) at most; beyond, what was used counts from now
//
// Source: the counter described by Cloudflare, "How we built rate limiting capable of scaling to millions of
// domains", 2017. Here the weight is an exact fraction, rounded up to whole units. Where Count·Period passes 2^51 the
// elapsed time is read in ticks of ⌈Count·Period/2^51⌉ µs (39 µs for a million per day), rounded against the caller.
// When Period changes, both windows' use is carried over, at the same share of a window gone by.
var SlidingWindow = titled("sliding-window", additive(Define("slidingwindow", slidingWindowLua, slidingWindow, func(l Limit) (Params, error) {
	if err := l.check(); err != nil {
		return Params{}, err
	}
	tick := tickOf(l.Count, l.Period)
	return Params{l.Count, l.Period, tick, cdiv(l.Period, tick)}, nil
})))

// tickOf is the least number of µs per tick at which count·ticks stays within 2^51.
func tickOf(count, period int64) int64 {
	return max(cdiv(period, Max/2/count), 1)
}

type pair struct {
	Start    int64 // of the current window
	Current  int64
	Width    int64 // of the windows
	Previous int64
}

func slidingWindow(s pair, p Params, a Ask, now int64) (Outcome, pair) {
	count, period, tick, ticks := p[0], p[1], p[2], p[3]
	start, current, previous, mended := slide(s, period, ticks, now)
	weight := ticks - max(now-start, 0)/tick
	before := current + previous

	var out Outcome
	switch a.Mode {
	case Force:
		out.Granted = min(a.Cost, Max/ticks-current)
		current += out.Granted
	case Refund:
		out.Granted = min(a.Cost, before)
		previous -= max(out.Granted-current, 0)
		current = max(current-out.Granted, 0)
	case Reset:
		current, previous = 0, 0
	default:
		granted, _, fits := take(a, current+cdiv(previous*weight, ticks), count)
		if never(a, count) {
			out.RetryAfter = Never
		} else if !fits {
			windows, elapsed := fade(count-a.need(), current, previous, ticks)
			out.RetryAfter = start + windows*period + elapsed*tick - now
		}
		out.Granted = granted
		current += granted
	}

	out.Remaining = max(count-current-cdiv(previous*weight, ticks), 0)
	if current > 0 {
		out.ResetAfter = start + 2*period - now
	} else if previous > 0 {
		out.ResetAfter = start + period - now
	}
	if current+previous == before && !(mended && a.Mode != Peek) && a.Mode != Reset {
		out.Keep = Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, pair{start, current, period, previous}
}

// slide brings both windows up to now. It tells whether the state was mended: carried over to windows of another width, of
// which the same share has elapsed, or back from too far in the future, to a window that begins now.
func slide(s pair, period, ticks, now int64) (start, current, previous int64, mended bool) {
	width, start, current, previous := s.Width, s.Start, min(s.Current, Max/ticks), min(s.Previous, Max/ticks)
	if width == 0 || start+2*width <= now || (start+width <= now && current == 0) {
		return now - now%period, 0, 0, false
	}
	if start+width <= now {
		start, current, previous = start+width, 0, current
	}
	if start-now > MaxStall {
		start, mended = now, true
	}
	if width != period {
		start, mended = now-stretch(max(now-start, 0), width, period), true
	}
	return start, current, previous, mended
}

// stretch is as much of a period as elapsed is of width, rounded down. It is computed in doubles, as the twin must, and
// is too little by less than three µs.
func stretch(elapsed, width, period int64) int64 {
	return max(int64(math.Ceil(float64(float64(elapsed)/float64(width))*float64(period)))-2, 0)
}

// fade finds when the use of both windows has fallen to room: so many windows and ticks after the start of the
// current one. It is asked only while they use more.
func fade(room, current, previous, ticks int64) (windows, elapsed int64) {
	if room >= current {
		windows, elapsed = 0, ticks-(room-current)*ticks/previous
	} else {
		windows, elapsed = 1, ticks-room*ticks/current
	}
	if elapsed == ticks {
		windows, elapsed = windows+1, 0
	}
	return windows, elapsed
}
