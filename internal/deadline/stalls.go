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
	due     time.Duration // of the next tick; 0: the timer is stopped
}

const (
	tickInterval = 5 * time.Millisecond // the time between two firings of the timer
	usualDelay   = time.Millisecond     // how late a timer may fire on an idle machine

	// An eighth of a stall still counts toward the deadline, but at most 25 ms for each
	// pause. So a process that is always starved waits at most eight times its deadline. A process
	// that was paused for long still has time to read the answer.
	countedDivisor     = 8
	maxCountedPerPause = 25 * time.Millisecond
)

// begin starts the timer, unless decisions are in flight already. Call end when the decision has
// ended.
func (s *stallMeter) begin() {
	if s.inFlight.Add(1) > 1 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.measured.Load(); m == nil || m.due == 0 {
		s.nextLocked(now())
	}
}

func (s *stallMeter) end() { s.inFlight.Add(-1) }

// tick records how late the timer fired. It starts the timer again if decisions are in flight.
func (s *stallMeter) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := now()
	if s.inFlight.Load() > 0 {
		s.nextLocked(now)
	} else {
		s.measured.Store(&measurement{stalled: s.stalled(now)})
	}
}

func (s *stallMeter) nextLocked(now time.Duration) {
	s.measured.Store(&measurement{s.stalled(now), now + tickInterval})
	if s.timer == nil {
		s.timer = time.AfterFunc(tickInterval, s.tick)
	} else {
		s.timer.Reset(tickInterval)
	}
}

// stalledAtLastTick returns for how long the process had stalled at the last tick.
func (s *stallMeter) stalledAtLastTick() time.Duration {
	if m := s.measured.Load(); m != nil {
		return m.stalled
	}
	return 0
}

// stalled returns for how long the process has stalled until now, without the part that counts
// toward deadlines. Subtract two results to get the stall between them.
func (s *stallMeter) stalled(now time.Duration) time.Duration {
	m := s.measured.Load()
	if m == nil {
		return 0
	}
	late := now - m.due
	if m.due == 0 || late <= usualDelay {
		return m.stalled
	}
	return m.stalled + late - min(late/countedDivisor, maxCountedPerPause)
}
