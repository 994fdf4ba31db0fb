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

// A gatherer has two scripts under way, or three if there is much to ask. Callers that come
// meanwhile wait, and go together in the next script: back-pressure gathers them, and no timer.
// Each has the answer that it would have had alone, in some order. Only a caller that asks after
// another has its answer is certain to be decided after it.
type gatherer struct {
	store   *Store
	mu      sync.Mutex
	flying  int         // scripts under way
	away    []*bunch    // of them, those that are for bunches
	queue   []*bunch    // the first goes next
	alarm   *time.Timer // that rings; nil before it was needed
	alarmAt time.Time   // when it does; zero: not at all
}

// What a bunch needs to go although others are under way, so that neither side waits for the other:
// as many asks cost the server some 25 µs, and a script 10; as many callers keep the client as
// busy. With a third under way the server finds the next when it has answered one, however long the
// client takes; it pays for itself only where there is much to ask.
const (
	secondAsks    = 8
	secondCallers = 24
	thirdAsks     = 16
)

// decide decides the call's charges as soon as they may fly.
func (g *gatherer) decide(ctx context.Context, c *call) (penstock.Decision, error) {
	g.mu.Lock()
	if g.flying < 2 && len(g.away) == 0 && len(g.queue) == 0 {
		g.flying++
		g.mu.Unlock()
		var d penstock.Decision
		var err error
		if len(c.trials) > 0 {
			d, err = g.store.aloneWithTrials(ctx, c)
		} else {
			d, err = g.store.alone(ctx, c)
		}
		if next := g.next(nil); next != nil {
			go g.fly(next)
		}
		return d, err
	}
	gone := c.waiting.expect(ctx)
	b := g.joinLocked(c)
	if g.worthyLocked(g.flying) {
		g.flying++
		go g.fly(g.takeLocked())
	}
	g.mu.Unlock()
	c.leaveTrialsAlone()
	if err := c.waiting.wait(ctx, gone, b); err != nil {
		return penstock.Decision{}, g.store.unavailable(ctx, g.leave(c, err))
	}
	if c.waiting.err != nil {
		return penstock.Decision{}, g.store.unavailable(ctx, c.waiting.err)
	}
	return c.waiting.decision, nil
}

// joinLocked puts the call into a bunch that is still to go, and says what tells that it is
// decided.
func (g *gatherer) joinLocked(c *call) *bell {
	w, beside := &c.waiting, c.trialEffort()
	if n := len(g.queue); n == 0 || !g.queue[n-1].hasRoom(beside) || !g.queue[n-1].joinRecent(w, c.charges) {
		g.findLocked(w, c.charges, beside)
	}
	c.joinTrials()
	if w.lazy != nil {
		g.watchLocked(w.until)
	}
	return w.bunch.bell
}

// findLocked puts a caller into a bunch of those that the same script decides, if it has room for
// the effort of the trials beside.
func (g *gatherer) findLocked(w *waiting, charges []charge, beside int) {
	var script *script
	if isRow(charges) {
		script = g.store.scripts.find(rows, charges)
	}
	for i := len(g.queue) - 1; i >= 0; i-- {
		if b := g.queue[i]; b.script == script { // the last of its kind: those before are full
			if b.hasRoom(beside) && b.join(w, charges) {
				return
			}
			break
		}
	}
	b := bunches.Get().(*bunch)
	b.script, b.bell = script, newBell()
	g.queue = append(g.queue, b)
	b.join(w, charges)
}

// leave takes out a caller that goes away before its charges were sent. If they are under way, it
// is unknown whether they were made; once all callers have gone, the script is abandoned.
func (g *gatherer) leave(c *call, cause error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := &c.waiting
	if b := w.bunch; slices.Contains(g.away, b) && b.has(w) {
		if b.left += 1 + c.joinedTrials(); b.left == b.callers {
			b.abandon()
		}
		return cause
	}
	i := slices.Index(g.queue, w.bunch)
	if i < 0 || !w.bunch.leave(w) {
		return cause
	}
	c.withdrawTrials()
	if w.bunch.callers == 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	return tooLate(cause)
}

// worthyLocked tells whether the next bunch goes although so many others are under way.
func (g *gatherer) worthyLocked(others int) bool {
	if len(g.queue) == 0 {
		return false
	}
	switch first := g.queue[0]; others {
	case 0:
		return true
	case 1:
		return len(g.queue) > 1 || len(first.asks) >= secondAsks || first.callers >= secondCallers
	case 2:
		return len(first.asks) >= thirdAsks
	}
	return false
}

func (g *gatherer) takeLocked() *bunch {
	b := g.queue[0]
	g.queue = slices.Delete(g.queue, 0, 1)
	g.away = append(g.away, b)
	b.begin()
	return b
}

// next takes the bunch that goes in place of a script that has come back, which was that of a bunch
// or, if it is nil, of one caller. If there is none, there is one script less under way.
func (g *gatherer) next(back *bunch) *bunch {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = slices.DeleteFunc(g.away, func(b *bunch) bool { return b == back })
	if !g.worthyLocked(len(g.away)) {
		g.flying--
		return nil
	}
	return g.takeLocked()
}

// fly decides a bunch, and then those that came meanwhile, until none is to go.
func (g *gatherer) fly(b *bunch) {
	c := new(call)
	for b != nil {
		var err error
		if b.script != nil {
			err = g.store.decideRows(b.life, c, b)
		} else {
			err = g.store.decideMany(b.life, c, b)
		}
		g.tell(b)
		b.abandon()
		if err != nil {
			c = new(call) // the client may still hold the old one, and send late what is in it then
		}
		runtime.Gosched() // those who have their answers ask again, and go along
		next := g.next(b)
		b.free()
		b = next
		c.forget()
	}
}

// decideMany decides batches of any kind in a script of many.lua. The error is that of the script.
func (s *Store) decideMany(ctx context.Context, c *call, b *bunch) error {
	c.charges, c.batches = c.charges[:0], c.batches[:0]
	for _, a := range b.inOrder {
		for range a.callers {
			c.charges = append(c.charges, a.charges...)
			c.batches = append(c.batches, len(a.charges))
		}
	}
	reply, err := s.eval(ctx, c, s.scripts.find(many, c.charges))
	for _, a := range b.inOrder {
		for _, w := range a.callers {
			if w.err = err; err == nil {
				size := statusSize * len(a.charges)
				w.decision = decode(reply[:size], a.charges)
				reply = reply[size:]
			}
		}
	}
	return err
}

// decideRows decides batches of one row in a script of rows.lua. The error is that of the script.
func (s *Store) decideRows(ctx context.Context, c *call, b *bunch) error {
	c.encodeRows(s, s.given(), b)
	reply, err := s.send(ctx, c, b.script)
	if err == nil {
		answers := answers{text: reply}
		for _, a := range b.inOrder {
			for _, w := range a.callers {
				answers.next(a.charges, w)
			}
		}
		if answers.text == "" && !answers.short {
			return nil
		}
		err = fmt.Errorf("the script replied %d bytes for %d batches", len(reply), b.callers)
	}
	for _, a := range b.inOrder {
		for _, w := range a.callers {
			w.err = err
		}
	}
	return err
}

// gatherer is where the call's charges may have to wait: one for a single server, one for each slot
// of a Cluster; nil if there is none.
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
	slot := s.slotOfKey(c.charges[0].Key)
	s.leaveOtherSlots(c, slot)
	return s.parts.of(s, slot), nil
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
