package coalesce

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A Flight is a script call that decides the batches of several waiters. Equal batches are one
// request.
type Flight struct {
	Script Script

	requests      []Request
	firstOfSeries map[series]int // the index of the first request of each series
	recentRequest int            // the index of the request that the next waiter probably has too
	waiters       int            // how many there are
	cost          int            // at most maxCost

	dueAt            int                // the flight must be sent when this many scripts have ended
	wakeup           *wakeup            // nil when all waiters have their answers
	earliestDeadline time.Time          // of the deadlines that have no timer of their own; zero: there is none
	latestDeadline   time.Time          // of the waiters' deadlines
	isUnbounded      bool               // a waiter has no deadline
	departed         int                // waiters that have left since the script was sent
	ctx              context.Context    // of the script, once it is sent
	cancel           context.CancelFunc // of ctx
}

// A Request is a batch, and all waiters for this batch. It has a copy of the charges, because
// waiters may leave.
type Request struct {
	Charges []penstock.Charge
	Waiters []*Waiter

	isFirst bool // of its series
	next    int  // the index of the next request of its series; -1: there is none
}

// A series identifies the requests that a script decides one after another. They have the same key
// and group, and the same limits in the same order.
type series struct {
	key, group string
	tags       [maxUniformCharges]uint32 // of the limits
}

// maxUniformCharges is the most charges of a batch that has a uniform script.
const maxUniformCharges = 4

// The server's cost of a flight is bounded. Costs are roughly µs of server time. A request takes
// the server about 3 µs. A further charge, or another waiter for the same request, takes less than
// 1 µs. Equal batches are usually decided together, so a further waiter rarely costs that much.
const (
	maxCost     = 256 // about 200 µs
	requestCost = 3   // and one for each of its charges
)

var flightPool = sync.Pool{New: func() any { return &Flight{firstOfSeries: make(map[series]int)} }}

// NewFlight returns an empty flight. Release it after use.
func NewFlight(script Script) *Flight {
	f := flightPool.Get().(*Flight)
	f.Script = script
	return f
}

// Release makes the flight available for reuse. The caller must not use it afterwards.
func (f *Flight) Release() {
	for i := range f.requests {
		r := &f.requests[i]
		clear(r.Charges)
		clear(r.Waiters)
		r.Charges, r.Waiters = r.Charges[:0], r.Waiters[:0]
	}
	clear(f.firstOfSeries)
	*f = Flight{requests: f.requests[:0], firstOfSeries: f.firstOfSeries}
	flightPool.Put(f)
}

func (f *Flight) Len() int { return f.waiters }

// Requests iterates over the requests in the order in which the script decides them: those of a
// series follow each other. isFirst reports whether a request is the first of its series.
func (f *Flight) Requests(yield func(isFirst bool, r *Request) bool) {
	for i := range f.requests {
		if !f.requests[i].isFirst {
			continue
		}
		isFirst := true
		for j := i; j >= 0; j = f.requests[j].next {
			if len(f.requests[j].Waiters) == 0 { // all have left
				continue
			}
			if !yield(isFirst, &f.requests[j]) {
				return
			}
			isFirst = false
		}
	}
}

// Join adds a waiter. It returns false if the flight with this waiter would cost the server too
// much.
func (f *Flight) Join(w *Waiter) bool {
	if f.Script == nil {
		return f.addRequest(w) >= 0
	}
	own := series{key: w.Charges[0].Key, group: w.Charges[0].Plan.Group()}
	for i := range w.Charges {
		own.tags[i] = w.Charges[i].Plan.Tag()
	}
	last := -1 // the last request of the series; -1: there is none
	if first, isKnown := f.firstOfSeries[own]; isKnown {
		for i := first; i >= 0; i = f.requests[i].next {
			if areEqual(f.requests[i].Charges, w.Charges) {
				return f.joinRequest(w, i)
			}
			last = i
		}
	}
	i := f.addRequest(w)
	switch {
	case i < 0:
		return false
	case last < 0:
		f.firstOfSeries[own], f.requests[i].isFirst = i, true
	default:
		f.requests[last].next = i
	}
	return true
}

// joinRecent adds a waiter if its batch equals the recent request, and if the flight has room. If
// not, it returns false.
func (f *Flight) joinRecent(w *Waiter) bool {
	if f.Script == nil {
		return false
	}
	recent := f.requests[f.recentRequest].Charges
	if len(w.Charges) != len(recent) {
		return false
	}
	for i := range recent {
		if recent[i].Plan != w.Charges[i].Plan || recent[i].Key != w.Charges[i].Key {
			return false
		}
	}
	return areEqual(recent, w.Charges) && f.joinRequest(w, f.recentRequest)
}

// addRequest adds a waiter with a request of its own. It returns the index of the request, or -1 if
// the flight has no room.
func (f *Flight) addRequest(w *Waiter) int {
	cost := requestCost + len(w.Charges)
	if len(f.requests) > 0 && f.cost+cost > maxCost {
		return -1
	}
	i := len(f.requests)
	if i < cap(f.requests) {
		f.requests = f.requests[:i+1]
	} else {
		f.requests = append(f.requests, Request{})
	}
	r := &f.requests[i]
	r.Charges = append(r.Charges, w.Charges...)
	r.isFirst, r.next = f.Script == nil, -1
	f.add(w, i, cost)
	return i
}

// joinRequest adds a waiter to the request at index i. It returns false if the flight has no room.
func (f *Flight) joinRequest(w *Waiter, i int) bool {
	cost := len(f.requests[i].Charges)
	if f.cost+cost > maxCost {
		return false
	}
	f.add(w, i, cost)
	return true
}

// add records a waiter of the request at index i, and the cost of the waiter.
func (f *Flight) add(w *Waiter, i, cost int) {
	w.flight, w.request = f, i
	f.requests[i].Waiters = append(f.requests[i].Waiters, w)
	f.recentRequest = i
	f.waiters++
	f.cost += cost
	if w.deadline.IsZero() {
		f.isUnbounded = true
	} else if w.deadline.After(f.latestDeadline) {
		f.latestDeadline = w.deadline
	}
	if w.lazy != nil {
		f.earliestDeadline = earlier(f.earliestDeadline, w.deadline)
	}
}

// start gives the flight a context. The context's deadline is the latest of the waiters' deadlines,
// but only cancel ends the context.
func (f *Flight) start() {
	f.ctx, f.cancel = context.WithCancel(context.Background())
	if !f.isUnbounded {
		f.ctx = deadlineContext{f.ctx, f.latestDeadline}
	}
}

// A deadlineContext has a deadline that does not end it.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

func (c deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (f *Flight) hasWaiter(w *Waiter) bool {
	return slices.ContainsFunc(f.requests, func(r Request) bool { return slices.Contains(r.Waiters, w) })
}

func (f *Flight) remove(w *Waiter) bool {
	for i := range f.requests {
		r := &f.requests[i]
		if j := slices.Index(r.Waiters, w); j >= 0 {
			r.Waiters = slices.Delete(r.Waiters, j, j+1)
			f.waiters--
			return true
		}
	}
	return false
}

// areEqual reports whether two batches of one series are the same request.
func areEqual(a, b []penstock.Charge) bool {
	for i := range a {
		if a[i].Cost != b[i].Cost || a[i].Mode != b[i].Mode || a[i].Patience != b[i].Patience || a[i].Holder != b[i].Holder {
			return false
		}
		if a[i].IsRefundable != b[i].IsRefundable || a[i].Receipt != b[i].Receipt || !a[i].Plan.Equal(b[i].Plan) {
			return false
		}
	}
	return true
}
