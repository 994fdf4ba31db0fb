package coalesce

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lazy"
)

// A Waiter is a batch that waits to be decided. The memory of a Waiter can be reused.
type Waiter struct {
	Charges []penstock.Charge

	Decision penstock.Decision // valid if Err is nil
	Err      error

	flight     *Flight
	request    int // the index of its request in flight
	wakeup     *wakeup
	canceled   <-chan struct{} // the context's; nil: it never ends by itself
	lazy       lazy.Context    // the context, if it has no timer for its deadline
	deadline   time.Time       // zero: there is none
	hasExpired atomic.Bool     // the deadline of lazy has passed
}

// Reset drops the waiter's references.
func (w *Waiter) Reset() {
	w.Charges, w.flight, w.wakeup, w.lazy = nil, nil, nil, nil
}

// prepare records how long a waiter may wait.
func (w *Waiter) prepare(ctx context.Context) {
	w.Err = nil
	w.hasExpired.Store(false)
	w.lazy, _ = ctx.(lazy.Context)
	if w.lazy == nil {
		w.deadline, _ = ctx.Deadline()
		w.canceled = ctx.Done()
		return
	}
	w.canceled, w.deadline = w.lazy.Lazy()
}

// wait waits until the waiter has its answer. If ctx ends first, wait returns the error of ctx.
func (w *Waiter) wait(ctx context.Context) error {
	for wakeup := w.wakeup; ; wakeup = wakeup.next {
		if w.canceled == nil {
			<-wakeup.fired
		} else {
			select {
			case <-wakeup.fired:
			case <-w.canceled:
				return ctx.Err()
			}
		}
		if wakeup.next == nil {
			return nil
		}
		if w.hasExpired.Load() {
			return context.DeadlineExceeded
		}
	}
}

// A wakeup fires when the flight is decided, or when the deadlines of some of its waiters have
// passed. In the second case the other waiters wait for the next wakeup. So one timer serves all
// waiters of a Coalescer: a timer for each would cost more than the rest of the wait.
type wakeup struct {
	fired chan struct{}
	next  *wakeup // nil if the flight is decided
}

func newWakeup() *wakeup { return &wakeup{fired: make(chan struct{})} }

// minTimerInterval is the shortest time between two calls of wakeExpired, and so the longest that a
// caller waits beyond its deadline.
const minTimerInterval = time.Millisecond

// armTimerLocked makes the timer fire at that time or earlier.
func (c *Coalescer) armTimerLocked(at time.Time) {
	if !c.timerAt.IsZero() && !at.Before(c.timerAt) {
		return
	}
	c.timerAt = at
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(at), c.wakeExpired)
	} else {
		c.timer.Reset(time.Until(at))
	}
}

// wakeExpired wakes the waiters whose deadlines have passed, and arms the timer for the others.
func (c *Coalescer) wakeExpired() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	var next time.Time
	for _, list := range [...][]*Flight{c.flights, c.queue} {
		for _, f := range list {
			if f.wakeup == nil || f.earliestDeadline.IsZero() {
				continue
			}
			if !f.earliestDeadline.After(now) {
				f.wakeIfExpired(now)
			}
			next = earlier(next, f.earliestDeadline)
		}
	}
	c.timerAt = time.Time{}
	if soonest := now.Add(minTimerInterval); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	if !next.IsZero() {
		c.armTimerLocked(next)
	}
}

// wakeIfExpired wakes all waiters if the deadlines of some have passed.
func (f *Flight) wakeIfExpired(now time.Time) {
	f.earliestDeadline = time.Time{}
	someExpired := false
	for i := range f.requests {
		for _, w := range f.requests[i].Waiters {
			if w.lazy == nil || w.hasExpired.Load() {
				continue
			}
			if !w.deadline.After(now) {
				w.deadline, _ = w.lazy.Deadline() // it may have been extended
			}
			if w.deadline.After(now) {
				f.earliestDeadline = earlier(f.earliestDeadline, w.deadline)
			} else {
				w.hasExpired.Store(true)
				someExpired = true
			}
		}
	}
	if !someExpired {
		return
	}
	old := f.wakeup
	f.wakeup = newWakeup()
	old.next = f.wakeup
	close(old.fired)
}

// complete wakes all waiters: they have their answers.
func (c *Coalescer) complete(f *Flight) {
	c.mu.Lock()
	last := f.wakeup
	f.wakeup = nil
	c.mu.Unlock()
	close(last.fired)
}

// earlier returns the earlier of two times. The zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
