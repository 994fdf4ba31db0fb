// Package coalesce decides the batches of several concurrent callers in one script call. Batches
// that arrive while scripts are in flight wait, and are sent together in the next script. No timer
// is involved, so a call to an idle server is not delayed.
package coalesce

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/hashslot"
)

// A Script decides batches with one sequence of algorithms. This package only compares Scripts with
// ==.
type Script any

type Decider interface {
	// ScriptFor returns the uniform script for a batch, or nil if only a mixed script can decide it. A
	// batch with a uniform script has at most four charges, all of one key and one group.
	ScriptFor(charges []penstock.Charge) Script

	// DecideFlight decides a flight, and sets Decision or Err of each waiter.
	DecideFlight(ctx context.Context, f *Flight)
}

// A Coalescer keeps two scripts in flight, or three if many callers wait, or more if the round trip
// is long. While these scripts are in flight, further callers wait. The next script decides their
// batches. Each caller gets the answer that it would have got if the batches had been decided one
// by one. If call B begins after call A has returned, B is decided after A. Concurrent calls are
// decided in any order.
//
// A queued flight is sent, at the latest, when the scripts that were in flight before it have
// ended. So it waits for at most one round trip, and a decision takes at most two, unless
// maxFlights are in flight. Ended scripts are counted, and no time is measured: replies of a busy
// server are as late as those of a distant one, but only a distant one needs more scripts. If a
// server hangs, no script ends, and no further script is sent.
type Coalescer struct {
	decider Decider

	mu       sync.Mutex
	inFlight int         // how many scripts are in flight
	ended    int         // how many scripts have ended
	flights  []*Flight   // of the scripts in flight; a script that a caller decides itself has none
	queue    []*Flight   // the first is sent next
	timer    *time.Timer // calls wakeExpired; nil until it is needed
	timerAt  time.Time   // when timer fires; zero: it is stopped
}

// The thresholds for sending another script while others are in flight. A script of 8 requests
// takes the server about 35 µs: 10 µs for the script and 25 µs for the requests. 24 waiters take
// the client about 35 µs too. With a third script in flight, the server always has work after a
// reply, however long the client takes. A third script helps only if many callers wait.
//
// The larger the flights that are already sent, the more requests the next flight needs, up to 24.
// So the batches of many callers are divided into few large scripts. In a measurement with 64
// callers, this rule made scripts a third larger, and a decision a tenth cheaper.
const (
	secondFlightMinRequests = 8
	secondFlightMinWaiters  = 24
	thirdFlightMinRequests  = 16
	maxFlightMinRequests    = 24 // the most that a second flight needs; a third needs up to twice as many
)

// maxFlights is the largest number of flights that are in flight at the same time. They decide
// 4,096 different requests of one charge, as many as guard.Timeout admits by default.
const maxFlights = 64

func New(d Decider) *Coalescer { return &Coalescer{decider: d} }

// Enter takes the waiters of one caller, who may have several batches. If Enter returns true, the
// caller must decide them itself in one script, and then call Exit. If it returns false, they are
// queued, and the caller must call Wait for each.
func (c *Coalescer) Enter(ctx context.Context, list []*Waiter) (shouldDecide bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isIdle := c.inFlight < 2 && len(c.flights) == 0 && len(c.queue) == 0
	if isIdle && c.fitOneScript(list) {
		c.inFlight++
		return true
	}
	for _, w := range list {
		w.prepare(ctx)
		c.joinLocked(w)
	}
	// The next caller more likely has the same first batch than the same last one.
	list[0].flight.recentRequest = list[0].request
	for c.shouldSendLocked(c.inFlight) {
		c.inFlight++
		go c.run(c.takeLocked())
	}
	return false
}

// fitOneScript reports whether one script can decide all waiters of a caller.
func (c *Coalescer) fitOneScript(list []*Waiter) bool {
	if len(list) == 1 {
		return true
	}
	script, cost := c.decider.ScriptFor(list[0].Charges), 0
	for _, w := range list {
		cost += requestCost + len(w.Charges)
		if cost > maxCost || script == nil || c.decider.ScriptFor(w.Charges) != script {
			return false
		}
	}
	return true
}

// Exit ends a decision that the caller made itself after Enter.
func (c *Coalescer) Exit() {
	if next := c.next(nil); next != nil {
		go c.run(next)
	}
}

// Wait waits until the waiter has its answer. If ctx ends first, Wait returns the error of ctx, and
// isSent is false if the batch was certainly not sent.
func (c *Coalescer) Wait(ctx context.Context, w *Waiter) (isSent bool, err error) {
	if err := w.wait(ctx); err != nil {
		return c.leave(w), err
	}
	return true, nil
}

// Waiting returns how many waiters are queued.
func (c *Coalescer) Waiting() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.queue {
		n += f.waiters
	}
	return n
}

// Flights returns how many scripts are in flight, and how many are queued.
func (c *Coalescer) Flights() (inFlight, queued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight, len(c.queue)
}

func (c *Coalescer) joinLocked(w *Waiter) {
	if n := len(c.queue); n == 0 || !c.queue[n-1].joinRecent(w) {
		c.joinFlightLocked(w)
	}
	if w.lazy != nil {
		c.armTimerLocked(w.deadline)
	}
	w.wakeup = w.flight.wakeup
}

// joinFlightLocked adds a waiter to the last flight of its script, or to a new one.
func (c *Coalescer) joinFlightLocked(w *Waiter) {
	script := c.decider.ScriptFor(w.Charges)
	for i := len(c.queue) - 1; i >= 0; i-- {
		if f := c.queue[i]; f.Script == script { // earlier flights of this script are full
			if f.Join(w) {
				return
			}
			break
		}
	}
	f := NewFlight(script)
	f.wakeup, f.dueAt = newWakeup(), c.ended+c.inFlight
	c.queue = append(c.queue, f)
	f.Join(w)
}

// leave removes a waiter whose context has ended. isSent is false if the waiter's batch was not
// sent. If all waiters of a script have left, the script is canceled.
func (c *Coalescer) leave(w *Waiter) (isSent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := w.flight
	if slices.Contains(c.flights, f) && f.hasWaiter(w) {
		w.lazy = nil // the caller may reuse its context when it returns
		if f.departed++; f.departed == f.waiters {
			f.cancel()
		}
		return true
	}
	i := slices.Index(c.queue, f)
	if i < 0 || !f.remove(w) {
		return true // the script has ended
	}
	if f.waiters == 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	return false
}

// shouldSendLocked reports whether to send the first flight of the queue, while this many other
// scripts are in flight.
func (c *Coalescer) shouldSendLocked(others int) bool {
	if len(c.queue) == 0 {
		return false
	}
	largest := 0
	for _, f := range c.flights {
		largest = max(largest, len(f.requests))
	}
	largest = min(largest, maxFlightMinRequests)
	switch first := c.queue[0]; others {
	case 0:
		return true
	case 1:
		hasManyRequests := len(first.requests) >= max(secondFlightMinRequests, largest)
		hasManyWaiters := first.waiters >= secondFlightMinWaiters
		return len(c.queue) > 1 || hasManyRequests || hasManyWaiters || c.isDueLocked()
	case 2:
		return len(first.requests) >= max(thirdFlightMinRequests, 2*largest) || c.isDueLocked()
	}
	return c.isDueLocked()
}

// isDueLocked reports whether the first flight of the queue must wait no longer.
func (c *Coalescer) isDueLocked() bool {
	return len(c.queue) > 0 && c.queue[0].dueAt <= c.ended && len(c.flights) < maxFlights
}

// takeLocked takes the first flight from the queue, to be sent.
func (c *Coalescer) takeLocked() *Flight {
	f := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	c.flights = append(c.flights, f)
	f.start()
	return f
}

// next is called when a script has ended. ended is its flight, or nil if a caller decided the
// script itself. next returns the next flight to send, or nil if there is none. It sends further
// flights that are due.
func (c *Coalescer) next(ended *Flight) (next *Flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flights = slices.DeleteFunc(c.flights, func(f *Flight) bool { return f == ended })
	c.inFlight--
	c.ended++
	// Scripts that callers decide themselves do not count: beside them, a flight of any size is sent.
	others := len(c.flights)
	if !c.shouldSendLocked(others) {
		return nil
	}
	c.inFlight++
	next = c.takeLocked()
	for c.isDueLocked() {
		c.inFlight++
		go c.run(c.takeLocked())
	}
	return next
}

// run decides a flight, and then further flights of the queue, until no flight should be sent.
func (c *Coalescer) run(f *Flight) {
	for f != nil {
		c.decider.DecideFlight(f.ctx, f)
		c.complete(f)
		f.cancel()
		runtime.Gosched() // lets callers that have their answers call again and join the next flight
		next := c.next(f)
		f.Release()
		f = next
	}
}

// Slots has a Coalescer for each slot of a Cluster. Of makes it when it is first needed.
type Slots struct {
	decider Decider
	bySlot  atomic.Pointer[[hashslot.Slots]atomic.Pointer[Coalescer]]
}

func NewSlots(d Decider) *Slots { return &Slots{decider: d} }

func (s *Slots) Of(slot uint16) *Coalescer {
	bySlot := s.bySlot.Load()
	if bySlot == nil {
		s.bySlot.CompareAndSwap(nil, new([hashslot.Slots]atomic.Pointer[Coalescer]))
		bySlot = s.bySlot.Load()
	}
	found := bySlot[slot].Load()
	if found == nil {
		bySlot[slot].CompareAndSwap(nil, New(s.decider))
		found = bySlot[slot].Load()
	}
	return found
}

// Waiting returns how many waiters are queued in all slots.
func (s *Slots) Waiting() (n int) {
	for c := range s.all {
		n += c.Waiting()
	}
	return n
}

// Flights returns how many scripts of all slots are in flight, and how many are queued.
func (s *Slots) Flights() (inFlight, queued int) {
	for c := range s.all {
		n, m := c.Flights()
		inFlight, queued = inFlight+n, queued+m
	}
	return inFlight, queued
}

func (s *Slots) all(yield func(*Coalescer) bool) {
	if bySlot := s.bySlot.Load(); bySlot != nil {
		for i := range bySlot {
			if c := bySlot[i].Load(); c != nil && !yield(c) {
				return
			}
		}
	}
}
