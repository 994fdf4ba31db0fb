package main

import (
	_ "embed"
	"errors"
	"fmt"

	"github.com/penstock/penstock/algorithm"
)

//go:embed backoff.lua
var backoffLua string

// Backoff admits one unit, then pauses for Period. Each further unit doubles the pause, at most
// Burst times. A pause is followed by a time of the same length. If no unit comes in that time, the
// next pause is Period again. Use it for attempts that should become rarer, such as logins.
var Backoff = algorithm.Define("backoff", backoffLua, backoff, func(l algorithm.Limit) (algorithm.Params, error) {
	if l.Count != 1 {
		return algorithm.Params{}, errors.New("a backoff admits one at a time; set the count to 1")
	}
	if l.Period < 1 || l.Burst < 0 || l.Burst > 30 || l.Period > algorithm.MaxPeriod>>l.Burst {
		return algorithm.Params{}, errors.New("the longest pause, Period doubled Burst times, must be from 1µs to 8 years")
	}
	return algorithm.Params{l.Period, l.Period << l.Burst}, nil
}, algorithm.Burst(algorithm.BurstIsSpecial), algorithm.Bounded(func(l algorithm.Limit, rate string) string {
	return fmt.Sprintf("%s, then a pause that doubles up to %d times", rate, l.Burst)
}))

// A state is the state of one key. The zero value is the state of a new key.
type state struct {
	Ends  int64 // when the pause ends, in µs since the epoch
	Pause int64 // how long it is, in µs
}

func backoff(s state, p algorithm.Params, r algorithm.Request, now int64) (algorithm.Outcome, state) {
	first, longest := p[0], p[1]
	ends, pause := s.Ends, min(s.Pause, longest)
	if ends+pause <= now {
		ends, pause = now, 0
	}
	wasRepaired := ends-now > pause+algorithm.MaxStall
	if wasRepaired {
		ends = now + pause
	}

	var out algorithm.Outcome
	switch r.Mode {
	case algorithm.Spend, algorithm.Peek, algorithm.Draw:
		if r.Cost > 1 && r.Mode != algorithm.Draw {
			out.RetryAfter = algorithm.Never
		} else if r.Cost > 0 && ends > now {
			out.RetryAfter = ends - now
		} else if r.Cost > 0 && r.Mode != algorithm.Peek {
			out.Granted = 1
		}
	case algorithm.Force:
		out.Granted = r.Cost
	case algorithm.Reset:
		ends, pause = now, 0
	}
	if out.Granted > 0 {
		pause = min(max(2*pause, first), longest)
		ends = max(ends, now+pause)
	}

	if ends <= now {
		out.Remaining = 1
	}
	if pause > 0 {
		out.ResetAfter = ends + pause - now
	}
	savesRepair := wasRepaired && (r.Mode != algorithm.Peek || !out.OK())
	if out.Granted == 0 && !savesRepair && r.Mode != algorithm.Reset {
		out.Keep = algorithm.Unchanged
		return out, s
	}
	out.Keep = out.ResetAfter
	return out, state{ends, pause}
}
