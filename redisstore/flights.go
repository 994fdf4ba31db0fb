package redisstore

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// run decides the call's batches, and the shadows that can share their script. If few scripts are
// in flight and one script can decide them all, it does so immediately. Otherwise they join
// flights, which decide the batches of several callers in one script. On a Cluster, the call has
// one batch, because a script can only use keys of one slot.
func (s *Store) run(ctx context.Context, c *call, isSharded bool) {
	if s.isUncoalesced {
		s.decideNow(ctx, c)
		return
	}
	coalescer := s.serverCoalescer
	if isSharded {
		coalescer = s.slotCoalescers.Of(s.keys.Slot(c.batches[0].Charges[0].Key))
	}
	s.addShadows(c, isSharded)
	c.prepareWaiters()
	if coalescer.Enter(ctx, c.waiterList) {
		defer coalescer.Exit()
		s.decideNow(ctx, c)
		return
	}
	for i, b := range c.batches {
		b.Decision, b.Err = s.await(ctx, coalescer, &c.waiters[i])
	}
}

// addShadows adds the shadows that a uniform script can decide together with their batch. The
// others are left.
func (s *Store) addShadows(c *call, isSharded bool) {
	for _, b := range c.batches {
		for _, shadow := range b.Shadows {
			if s.canShare(b.Charges, shadow.Charges, isSharded) {
				c.batches = append(c.batches, shadow)
			}
		}
	}
}

// canShare reports whether a uniform script can decide a batch and its shadow.
func (s *Store) canShare(charges, shadow []penstock.Charge, isSharded bool) bool {
	if !isCompact(charges) || penstock.Check(shadow) != nil || !isCompact(shadow) {
		return false
	}
	if isSharded && s.keys.Slot(charges[0].Key) != s.keys.Slot(shadow[0].Key) {
		return false
	}
	return s.scripts.find(uniform, charges).canDecide(shadow)
}

func (c *call) prepareWaiters() {
	n := len(c.batches)
	if cap(c.waiters) < n {
		c.waiters = make([]coalesce.Waiter, n)
	}
	c.waiters, c.waiterList = c.waiters[:n], c.waiterList[:0]
	for i, b := range c.batches {
		c.waiters[i].Charges = b.Charges
		c.waiterList = append(c.waiterList, &c.waiters[i])
	}
}

// decideNow decides the call's batches in a script of their own.
func (s *Store) decideNow(ctx context.Context, c *call) {
	if len(c.batches) == 1 {
		b := c.batches[0]
		b.Decision, b.Err = s.decideAlone(ctx, c, b.Charges)
		return
	}
	f := coalesce.NewFlight(decider{s}.ScriptFor(c.batches[0].Charges))
	defer f.Release()
	for _, w := range c.waiterList {
		f.Join(w)
	}
	_ = s.decideFlight(ctx, c, f) // which sets the error of each waiter
	for i, b := range c.batches {
		b.Decision, b.Err = s.resultOf(ctx, &c.waiters[i])
	}
}

func (s *Store) decideAlone(ctx context.Context, c *call, charges []penstock.Charge) (penstock.Decision, error) {
	kind := mixed
	if isCompact(charges) || len(charges) == 1 && hasSingleSet(charges[0].Plan) {
		kind = single
	}
	c.charges, c.batchSizes = charges, append(c.batchSizes[:0], len(charges))
	reply, err := s.eval(ctx, c, s.scripts.find(kind, charges))
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	if !isPossible(reply) {
		return penstock.Decision{}, s.unavailable(ctx, errCorrupt)
	}
	return decode(reply, charges), nil
}

// await returns the decision about a waiter that was queued.
func (s *Store) await(ctx context.Context, coalescer *coalesce.Coalescer, w *coalesce.Waiter) (penstock.Decision, error) {
	isSent, err := coalescer.Wait(ctx, w)
	if err != nil {
		if !isSent {
			err = redisclient.TooLate(err)
		}
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	return s.resultOf(ctx, w)
}

// resultOf returns the decision about a waiter whose script has ended.
func (s *Store) resultOf(ctx context.Context, w *coalesce.Waiter) (penstock.Decision, error) {
	if w.Err != nil {
		return penstock.Decision{}, s.unavailable(ctx, w.Err)
	}
	return w.Decision, nil
}

// ScriptsInFlight returns how many scripts of decisions are in flight, and how many are queued. A
// queued script is sent when those that were in flight before it have ended. So a longer queue
// delays decisions only if 64 scripts are in flight. On a Cluster, these are the sums of all slots.
func (s *Store) ScriptsInFlight() (inFlight, queued int) {
	inFlight, queued = s.serverCoalescer.Flights()
	ofSlots, queuedOfSlots := s.slotCoalescers.Flights()
	return inFlight + ofSlots, queued + queuedOfSlots
}

// A decider decides the flights of a store's coalescers.
type decider struct{ *Store }

func (d decider) ScriptFor(charges []penstock.Charge) coalesce.Script {
	if isCompact(charges) {
		return d.scripts.find(uniform, charges)
	}
	return nil
}

func (d decider) DecideFlight(ctx context.Context, f *coalesce.Flight) {
	c := d.calls.Get().(*call)
	if d.decideFlight(ctx, c, f) == nil {
		c.forget()
		d.calls.Put(c) // not after an error: the client may still send the call later
	}
}

// decideFlight decides a flight, and sets the results of its waiters. It returns the error of the
// script.
func (s *Store) decideFlight(ctx context.Context, c *call, f *coalesce.Flight) error {
	var err error
	if f.Script != nil {
		err = s.decideUniform(ctx, c, f)
	} else {
		err = s.decideMixed(ctx, c, f)
	}
	if err != nil {
		for _, r := range f.Requests {
			for _, w := range r.Waiters {
				w.Err = err
			}
		}
	}
	return err
}

// decideMixed decides batches of any kind by mixed.lua.
func (s *Store) decideMixed(ctx context.Context, c *call, f *coalesce.Flight) error {
	c.ownCharges, c.batchSizes = c.ownCharges[:0], c.batchSizes[:0]
	for _, r := range f.Requests {
		for range r.Waiters {
			c.ownCharges = append(c.ownCharges, r.Charges...)
			c.batchSizes = append(c.batchSizes, len(r.Charges))
		}
	}
	c.charges = c.ownCharges
	reply, err := s.eval(ctx, c, s.scripts.find(mixed, c.charges))
	if err != nil {
		return err
	}
	const size = statusSize + receiptSize
	if len(reply) != size*len(c.charges) { // eval accepts replies of single.lua too, which can be shorter
		return fmt.Errorf("the script replied %d bytes; expected %d for %d charges", len(reply), size*len(c.charges), len(c.charges))
	}
	for _, r := range f.Requests {
		for _, w := range r.Waiters {
			end := size * len(r.Charges)
			if w.Err = nil; !isPossible(reply[:end]) {
				w.Err = errCorrupt
			} else {
				w.Decision = decode(reply[:end], r.Charges)
			}
			reply = reply[end:]
		}
	}
	return nil
}

// decideUniform decides batches by uniform.lua. All of them have the same algorithms in the same
// order.
func (s *Store) decideUniform(ctx context.Context, c *call, f *coalesce.Flight) error {
	c.encodeFlight(s, s.fixedNow(), f)
	reply, err := s.send(ctx, c, f.Script.(*script))
	if err != nil {
		return err
	}
	reader := replyReader{text: reply}
	for _, r := range f.Requests {
		for _, w := range r.Waiters {
			reader.next(r.Charges, w)
		}
	}
	if reader.text != "" || reader.isTruncated {
		return fmt.Errorf("the script replied %d bytes, which are not the results of %d batches", len(reply), f.Len())
	}
	return nil
}
