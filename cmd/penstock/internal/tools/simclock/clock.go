// Package simclock has a simulated clock, and what happens at its times.
package simclock

import (
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/priority"
	"github.com/penstock/penstock/internal/lease"
)

// A Clock moves only from one event to the next.
type Clock struct {
	now       time.Time
	due       *priority.Queue[event]
	scheduled int64 // events so far
}

type event struct {
	at    time.Time
	order int64 // of the events of one time, the one with the lower order comes first
	do    func()
}

func New(start time.Time) *Clock {
	return &Clock{now: start, due: priority.NewQueue(func(a, b event) bool {
		return a.at.Before(b.at) || a.at.Equal(b.at) && a.order < b.order
	})}
}

func (c *Clock) Now() time.Time { return c.now }

// Schedule lets something happen at a time.
func (c *Clock) Schedule(at time.Time, do func()) {
	c.scheduled++
	c.due.Push(event{at, c.scheduled, do})
}

// Next moves to the next time at which something happens, and lets it happen. It returns false if
// nothing is scheduled.
func (c *Clock) Next() bool {
	if c.due.Len() == 0 {
		return false
	}
	e := c.due.Pop()
	c.now = e.at
	e.do()
	return true
}

// Advance moves to a time, and lets everything happen until then.
func (c *Clock) Advance(to time.Time) {
	for c.due.Len() > 0 && !c.due.First().at.After(to) {
		c.Next()
	}
	if to.After(c.now) {
		c.now = to
	}
}

// AfterFunc schedules a function as time.AfterFunc does.
func (c *Clock) AfterFunc(d time.Duration, do func()) lease.Timer {
	t := &timer{clock: c, do: do}
	t.Reset(d)
	return t
}

type timer struct {
	clock     *Clock
	do        func()
	resets    int
	isPending bool
}

func (t *timer) Stop() (wasPending bool) {
	wasPending, t.isPending = t.isPending, false
	return wasPending
}

func (t *timer) Reset(d time.Duration) bool {
	wasPending := t.isPending
	t.resets++
	t.isPending = true
	reset := t.resets
	t.clock.Schedule(t.clock.now.Add(d), func() {
		if t.isPending && t.resets == reset {
			t.isPending = false
			t.do()
		}
	})
	return wasPending
}
