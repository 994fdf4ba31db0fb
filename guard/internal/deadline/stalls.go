package deadline

import (
	"sync"
	"sync/atomic"
	"time"
)

// A stallMeter measures for how long this process could not run. Other processes had its cores, a
// CPU quota or a signal stopped it, or it collected garbage. Deadlines are extended by that time,
// because the store did not cause it: the store's answer may have arrived without being read.
//
// A stallMeter has a timer that fires every tick while decisions are in flight. If the timer fires
// late, the process has stalled for this delay.
type stallMeter struct {
	inFlight atomic.Int64 // decisions
	measured atomic.Pointer[measurement]

	mu    sync.Mutex // for starting and stopping the timer
	timer *time.Timer
}

// A measurement is for how long the process has stalled so far.
type measurement struct {
	stalled time.Duration
	due     time.Time // of the next tick; zero: the timer is stopped
}

const (
	tick       = 5 * time.Millisecond // the time between two firings of the timer
	usualDelay = time.Millisecond     // how late a timer may fire on an idle machine

	// An eighth of this time still counts toward the deadline, but at most 25 ms for each
	// pause. So a process that is always starved waits at most eight times its deadline. A process
	// that was paused for long still has time to read the answer.
	countedDivisor     = 8
	maxCountedPerPause = 25 * time.Millisecond
)

// begin starts the timer, unless decisions are in flight already. Call end when the decision has
// ended.
func (l *stallMeter) begin() {
	if l.inFlight.Add(1) > 1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.measured.Load(); t == nil || t.due.IsZero() {
		l.nextLocked(time.Now())
	}
}

func (l *stallMeter) end() { l.inFlight.Add(-1) }

// tick records how late the timer fired. It starts the timer again if decisions are in flight.
func (l *stallMeter) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.inFlight.Load() > 0 {
		l.nextLocked(now)
	} else {
		l.measured.Store(&measurement{stalled: l.stalled(now)})
	}
}

func (l *stallMeter) nextLocked(now time.Time) {
	l.measured.Store(&measurement{l.stalled(now), now.Add(tick)})
	if l.timer == nil {
		l.timer = time.AfterFunc(tick, l.tick)
	} else {
		l.timer.Reset(tick)
	}
}

// stalledAtLastTick returns for how long the process had stalled at the last tick.
func (l *stallMeter) stalledAtLastTick() time.Duration {
	if t := l.measured.Load(); t != nil {
		return t.stalled
	}
	return 0
}

// stalled returns for how long the process has stalled until now, without the part that counts
// toward deadlines. The difference of two calls is for how long it stalled between them.
func (l *stallMeter) stalled(now time.Time) time.Duration {
	t := l.measured.Load()
	if t == nil {
		return 0
	}
	late := now.Sub(t.due)
	if t.due.IsZero() || late <= usualDelay {
		return t.stalled
	}
	return t.stalled + late - min(late/countedDivisor, maxCountedPerPause)
}
