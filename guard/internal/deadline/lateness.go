package deadline

import (
	"sync"
	"sync/atomic"
	"time"
)

// A lateness measures for how long this process could not run. Other processes had its cores, a CPU
// quota or a signal stopped it, or it collected garbage. Deadlines are extended by that time,
// because the store did not cause it: the store's answer may have arrived without being read.
//
// A lateness has a timer that fires every tick while decisions are in flight. If the timer fires
// late, the delay is the time that was lost.
type lateness struct {
	inFlight atomic.Int64 // decisions
	tally    atomic.Pointer[tally]

	mu    sync.Mutex // for starting and stopping the timer
	timer *time.Timer
}

// A tally is the time that was lost so far.
type tally struct {
	lost time.Duration
	due  time.Time // of the next tick; zero: the timer is stopped
}

const (
	tick          = 5 * time.Millisecond // the time between two firings of the timer
	usualLateness = time.Millisecond     // how late a timer may fire on an idle machine

	// An eighth of the lost time still counts toward the deadline, but at most 25 ms for each
	// pause. So a process that is always starved waits at most eight times its deadline. A process
	// that was paused for long still has time to read the answer.
	countedDivisor     = 8
	maxCountedPerPause = 25 * time.Millisecond
)

// begin starts the timer, unless decisions are in flight already. Call end when the decision has
// ended.
func (l *lateness) begin() {
	if l.inFlight.Add(1) > 1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tally.Load(); t == nil || t.due.IsZero() {
		l.nextLocked(time.Now())
	}
}

func (l *lateness) end() { l.inFlight.Add(-1) }

// tick records how late the timer fired. It starts the timer again if decisions are in flight.
func (l *lateness) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.inFlight.Load() > 0 {
		l.nextLocked(now)
	} else {
		l.tally.Store(&tally{lost: l.lost(now)})
	}
}

func (l *lateness) nextLocked(now time.Time) {
	l.tally.Store(&tally{l.lost(now), now.Add(tick)})
	if l.timer == nil {
		l.timer = time.AfterFunc(tick, l.tick)
	} else {
		l.timer.Reset(tick)
	}
}

// lostAtLastTick returns the time that was lost until the last tick.
func (l *lateness) lostAtLastTick() time.Duration {
	if t := l.tally.Load(); t != nil {
		return t.lost
	}
	return 0
}

// lost returns the time that was lost until now, without the part that counts toward deadlines.
// The difference of two calls is what was lost between them.
func (l *lateness) lost(now time.Time) time.Duration {
	t := l.tally.Load()
	if t == nil {
		return 0
	}
	late := now.Sub(t.due)
	if t.due.IsZero() || late <= usualLateness {
		return t.lost
	}
	return t.lost + late - min(late/countedDivisor, maxCountedPerPause)
}
