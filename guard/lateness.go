package guard

import (
	"sync"
	"sync/atomic"
	"time"
)

// A lateness measures for how long this process was to run and did not: its cores were busy with
// others, a quota or a signal stopped it, or it collected garbage. Deadlines are longer by that
// time, since a store cannot be blamed for it: the answer may be there, unread.
//
// It has a timer that fires every tick, as long as decisions are under way. How late the timer
// fires is the time that was lost.
type lateness struct {
	underWay atomic.Int64 // decisions
	tally    atomic.Pointer[tally]

	mu    sync.Mutex // for starting and stopping the timer
	timer *time.Timer
}

// A tally is what was lost so far.
type tally struct {
	lost time.Duration
	due  time.Time // of the next tick; zero: the timer is stopped
}

const (
	tick      = 5 * time.Millisecond
	usualLate = time.Millisecond // what a timer may be late on a machine that is idle

	// Of lost time an eighth counts all the same, up to 25 ms for each time that the process was
	// stopped. So a process that is starved for ever waits for eight times its deadline at most;
	// one that was stopped for long still has time to read the answer.
	lostShare = 8
	lostMost  = 25 * time.Millisecond
)

// begin has the time measured until the end of a decision.
func (l *lateness) begin() {
	if l.underWay.Add(1) > 1 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tally.Load(); t == nil || t.due.IsZero() {
		l.nextLocked(time.Now())
	}
}

func (l *lateness) end() { l.underWay.Add(-1) }

// tick notes how late it is. Without decisions under way, it is the last.
func (l *lateness) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.underWay.Load() > 0 {
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

// lost is how much time was lost until now, of which nobody else is told. Two of them tell what was
// lost in between.
func (l *lateness) lost(now time.Time) time.Duration {
	t := l.tally.Load()
	if t == nil {
		return 0
	}
	late := now.Sub(t.due)
	if t.due.IsZero() || late <= usualLate {
		return t.lost
	}
	return t.lost + late - min(late/lostShare, lostMost)
}
