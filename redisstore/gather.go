package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A gatherer has two scripts under way at most. Callers that come meanwhile wait, and go together in the next script: back-pressure
// gathers them, and no timer. Each has the answer that it would have had alone, in some order.
type gatherer struct {
	store  *Store
	mu     sync.Mutex
	flying int
	queue  []*waiting
}

const (
	maxFlying   = 2
	maxTogether = 64 // batches in a script: some 200 µs of the server
)

// A waiting batch. It has charges of its own, as its caller may leave and use theirs again.
type waiting struct {
	charges  []charge
	copies   []penstock.Charge
	script   *script // of rows.lua; nil if the batch is not of a row
	deadline time.Time
	gone     bool // out of the queue
	done     chan struct{}

	decision penstock.Decision
	err      error
}

var waitings = sync.Pool{New: func() any { return &waiting{done: make(chan struct{}, 1)} }}

// decide decides the call's charges as soon as they may fly.
func (g *gatherer) decide(ctx context.Context, c *call) (penstock.Decision, error) {
	g.mu.Lock()
	if g.flying < maxFlying {
		g.flying++
		g.mu.Unlock()
		d, err := g.store.alone(ctx, c)
		if next := g.next(nil); next != nil {
			go g.fly(next)
		}
		return d, err
	}
	w := g.enqueueLocked(ctx, c)
	g.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
		return penstock.Decision{}, unavailable(ctx, g.leave(w, ctx.Err()))
	}
	d, err := w.decision, w.err
	w.free()
	if err != nil {
		return penstock.Decision{}, unavailable(ctx, err)
	}
	return d, nil
}

func (g *gatherer) enqueueLocked(ctx context.Context, c *call) *waiting {
	w := waitings.Get().(*waiting)
	w.copies = w.copies[:0]
	for i := range c.charges {
		w.copies = append(w.copies, *c.charges[i].Charge)
	}
	w.charges = w.charges[:0]
	for i := range c.charges {
		w.charges = append(w.charges, charge{&w.copies[i], c.charges[i].plan})
	}
	if isRow(w.charges) {
		w.script = g.store.scripts.find(rows, w.charges)
	}
	w.deadline, _ = ctx.Deadline()
	g.queue = append(g.queue, w)
	return w
}

// leave takes a batch out whose caller goes away. If it is under way it is left to itself, and nobody knows what became of it.
func (g *gatherer) leave(w *waiting, cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.gone {
		return cause
	}
	i := slices.Index(g.queue, w)
	g.queue = slices.Delete(g.queue, i, i+1)
	return notSent(cause)
}

// next takes those out of the queue that go together next: the first, and others of its row. If there are none, there is one script less
// under way.
func (g *gatherer) next(batch []*waiting) []*waiting {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 {
		g.flying--
		return nil
	}
	charges, rest := 0, g.queue[:0]
	for i, w := range g.queue {
		if len(batch) == maxTogether {
			rest = append(rest, g.queue[i:]...)
			break
		}
		if len(batch) > 0 && (w.script != batch[0].script || charges+len(w.charges) > 4*maxTogether) {
			rest = append(rest, w)
			continue
		}
		w.gone = true
		charges += len(w.charges)
		batch = append(batch, w)
	}
	clear(g.queue[len(rest):])
	g.queue = rest
	return batch
}

// fly decides batches together, and then those that came meanwhile, until nobody waits.
func (g *gatherer) fly(batch []*waiting) {
	c := new(call)
	for batch != nil {
		ctx, cancel := patience(batch)
		if script := batch[0].script; script != nil {
			g.store.decideRows(ctx, c, batch, script)
		} else {
			g.store.decideMany(ctx, c, batch)
		}
		cancel()
		if slices.ContainsFunc(batch, func(w *waiting) bool { return w.err != nil }) {
			c = new(call) // the client may still hold the old one, and send late what is in it then
		}
		for _, w := range batch {
			w.done <- struct{}{}
		}
		runtime.Gosched() // those who have their answers ask again, and go along
		batch = g.next(batch[:0])
		c.forget()
	}
}

// patience is a context for a script that several wait for: it lasts as long as the most patient does.
func patience(batch []*waiting) (context.Context, context.CancelFunc) {
	latest := time.Time{}
	for _, w := range batch {
		if w.deadline.IsZero() {
			return context.Background(), func() {}
		}
		if w.deadline.After(latest) {
			latest = w.deadline
		}
	}
	return context.WithDeadline(context.Background(), latest)
}

// decideMany decides batches of any kind in a script of many.lua.
func (s *Store) decideMany(ctx context.Context, c *call, batch []*waiting) {
	c.charges, c.batches = c.charges[:0], c.batches[:0]
	for _, w := range batch {
		c.charges = append(c.charges, w.charges...)
		c.batches = append(c.batches, len(w.charges))
	}
	reply, err := s.eval(ctx, c, s.scripts.find(many, c.charges))
	for _, w := range batch {
		if w.err = err; err == nil {
			size := statusSize * len(w.charges)
			w.decision = decode(reply[:size], w.charges)
			reply = reply[size:]
		}
	}
}

// decideRows decides batches of one row in a script of rows.lua.
func (s *Store) decideRows(ctx context.Context, c *call, batch []*waiting, script *script) {
	order := c.encodeRows(s, s.given(), batch)
	reply, err := s.send(ctx, c, script)
	if err == nil && !rowsFit(reply, batch, order) {
		err = fmt.Errorf("the script replied %d bytes for %d batches", len(reply), len(batch))
	}
	for _, i := range order {
		w := batch[i]
		if w.err = err; err != nil {
			continue
		}
		kind := getNumber(reply)
		n := rowSize(kind, len(w.charges))
		if kind == rowPoisoned {
			w.err = ReplyError("POISONED the state is malformed")
		} else {
			w.decision = decode(reply[numberSize:n], w.charges)
		}
		reply = reply[n:]
	}
}

// What rows.lua replies to a batch begins with a number.
const (
	rowPlain    = 0 // plainSize bytes follow per charge
	rowFull     = 1 // statusSize bytes
	rowPoisoned = 2 // none

	numberSize = 8
)

func rowSize(kind int64, charges int) int {
	switch kind {
	case rowPlain:
		return numberSize + plainSize*charges
	case rowFull:
		return numberSize + statusSize*charges
	}
	return numberSize
}

func rowsFit(reply string, batch []*waiting, order []int) bool {
	for _, i := range order {
		if len(reply) < numberSize {
			return false
		}
		n := rowSize(getNumber(reply), len(batch[i].charges))
		if n > len(reply) {
			return false
		}
		reply = reply[n:]
	}
	return reply == ""
}

// gatherer is where the call's charges may have to wait: one for a single server, one for each slot of a Cluster; nil if there is none.
func (s *Store) gatherer(ctx context.Context, c *call) (*gatherer, error) {
	sharded, err := s.client.Sharded(ctx)
	if err != nil {
		return nil, err
	}
	if sharded {
		s.where.sharded.Store(true)
	}
	switch {
	case s.apart:
		return nil, nil
	case !sharded:
		return &s.whole, nil
	}
	return s.parts.of(s, s.slotOfKey(c.charges[0].Key)), nil
}

// gatherers are those of a Cluster's slots, made as they are needed.
type gatherers struct {
	list atomic.Pointer[[slots]atomic.Pointer[gatherer]]
}

func (g *gatherers) of(s *Store, slot uint16) *gatherer {
	list := g.list.Load()
	if list == nil {
		g.list.CompareAndSwap(nil, new([slots]atomic.Pointer[gatherer]))
		list = g.list.Load()
	}
	found := list[slot].Load()
	if found == nil {
		list[slot].CompareAndSwap(nil, &gatherer{store: s})
		found = list[slot].Load()
	}
	return found
}

func (w *waiting) free() {
	w.script, w.gone, w.err = nil, false, nil
	w.decision = penstock.Decision{}
	clear(w.copies)
	clear(w.charges)
	waitings.Put(w)
}
