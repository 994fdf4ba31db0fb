package redisstore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lazy"
)

// A caller that is waiting, and later has its answer.
type waiting struct {
	bunch    *bunch
	lazy     lazy.Context // its context, if that has no timer
	until    time.Time    // its deadline; zero: it has none
	over     atomic.Bool  // the deadline has passed
	decision penstock.Decision
	err      error
}

// expect notes how long a caller waits. What it returns tells when it goes away before.
func (w *waiting) expect(ctx context.Context) (gone <-chan struct{}) {
	w.err = nil
	w.over.Store(false)
	w.lazy, _ = ctx.(lazy.Context)
	if w.lazy == nil {
		w.until, _ = ctx.Deadline()
		return ctx.Done()
	}
	gone, w.until = w.lazy.Lazy()
	return gone
}

// wait returns nil when the caller has its answer, or what ended its patience before.
func (w *waiting) wait(ctx context.Context, gone <-chan struct{}, b *bell) error {
	for {
		if gone == nil {
			<-b.rung
		} else {
			select {
			case <-b.rung:
			case <-gone:
				return ctx.Err()
			}
		}
		if b.next == nil {
			return nil
		}
		if w.over.Load() {
			return context.DeadlineExceeded
		}
		b = b.next
	}
}

// A bell wakes those who wait for a bunch: they have their answers, or the time of some is over,
// and the others wait for the next bell. So a timer serves all of a gatherer's callers: one for
// each would cost more than the rest of the wait.
type bell struct {
	rung chan struct{}
	next *bell // nil if they have their answers
}

func newBell() *bell { return &bell{rung: make(chan struct{})} }

// alarmPause is between two alarms at least, and so the most that a caller waits beyond its
// deadline.
const alarmPause = time.Millisecond

// watchLocked sees to it that an alarm comes at a time, or before.
func (g *gatherer) watchLocked(at time.Time) {
	if !g.alarmAt.IsZero() && !at.Before(g.alarmAt) {
		return
	}
	g.alarmAt = at
	if g.alarm == nil {
		g.alarm = time.AfterFunc(time.Until(at), g.ring)
	} else {
		g.alarm.Reset(time.Until(at))
	}
}

// ring wakes those whose time is over, and sets the next alarm.
func (g *gatherer) ring() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	var next time.Time
	for _, list := range [...][]*bunch{g.away, g.queue} {
		for _, b := range list {
			if b.bell == nil || b.earliest.IsZero() {
				continue
			}
			if !b.earliest.After(now) {
				b.ring(now)
			}
			next = earlier(next, b.earliest)
		}
	}
	g.alarmAt = time.Time{}
	if soonest := now.Add(alarmPause); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	if !next.IsZero() {
		g.watchLocked(next)
	}
}

// ring wakes all who wait, if the time of some is over.
func (b *bunch) ring(now time.Time) {
	b.earliest = time.Time{}
	over := false
	for i := range b.asks {
		for _, w := range b.asks[i].callers {
			if w.lazy == nil || w.over.Load() {
				continue
			}
			if !w.until.After(now) {
				_, w.until = w.lazy.Lazy() // it may have been put off
			}
			if w.until.After(now) {
				b.earliest = earlier(b.earliest, w.until)
			} else {
				w.over.Store(true)
				over = true
			}
		}
	}
	if !over {
		return
	}
	old := b.bell
	b.bell = newBell()
	old.next = b.bell
	close(old.rung)
}

// tell wakes all who wait: they have their answers.
func (g *gatherer) tell(b *bunch) {
	g.mu.Lock()
	last := b.bell
	b.bell = nil
	g.mu.Unlock()
	close(last.rung)
}

// earlier is the earlier of two times; the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
