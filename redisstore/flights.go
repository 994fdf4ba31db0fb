package redisstore

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/many"
	"github.com/penstock/penstock/redisstore/internal/client"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// coalescer returns the coalescer of the call's charges: one for a single server, one for each slot
// of a Cluster. It returns nil if the store does not coalesce. On a Cluster, coalescer also sends
// the shadows of other slots separately, because a script can only use keys of one slot.
func (s *Store) coalescer(ctx context.Context, c *call) (*coalesce.Coalescer, error) {
	isSharded, err := s.client.Sharded(ctx)
	if err != nil {
		return nil, err
	}
	if isSharded {
		s.topology.isCluster.Store(true)
	}
	switch {
	case s.isUncoalesced:
		return nil, nil
	case !isSharded:
		return s.serverCoalescer, nil
	}
	slot := s.slotOfKey(c.charges[0].Key)
	s.sendShadowsOfOtherSlots(c, slot)
	return s.slotCoalescers.Of(slot), nil
}

// coalesce decides the call's charges immediately if few scripts are in flight. If many are in
// flight, it adds the charges to a flight, which decides the charges of several callers in one
// script.
func (s *Store) coalesce(ctx context.Context, coalescer *coalesce.Coalescer, c *call) (penstock.Decision, error) {
	c.prepareWaiter()
	if coalescer.Enter(ctx, &c.waiter) {
		defer coalescer.Exit()
		if len(c.shadows) > 0 {
			return s.decideWithShadows(ctx, c)
		}
		return s.decideNow(ctx, c)
	}
	c.sendShadowsThatDoNotFit()
	return s.await(ctx, coalescer, c)
}

// await returns the decision about a call that was queued.
func (s *Store) await(ctx context.Context, coalescer *coalesce.Coalescer, c *call) (penstock.Decision, error) {
	isSent, err := coalescer.Wait(ctx, &c.waiter)
	switch {
	case err != nil && !isSent:
		return penstock.Decision{}, s.unavailable(ctx, client.TooLate(err))
	case err != nil:
		return penstock.Decision{}, s.unavailable(ctx, err)
	case c.waiter.Err != nil:
		return penstock.Decision{}, s.unavailable(ctx, c.waiter.Err)
	}
	return c.waiter.Decision, nil
}

// DecideMany decides independent batches as concurrent calls of Decide would. On a single server,
// the batches share scripts and wait together.
func (s *Store) DecideMany(ctx context.Context, batches []*many.Call) {
	isSharded, err := s.client.Sharded(ctx)
	canShare := err == nil && !isSharded && !s.isUncoalesced && s.now == nil && ctx.Err() == nil
	if !canShare {
		many.Each(ctx, s, batches) // by Decide, which handles these cases
		return
	}
	calls, waiters := make([]*call, len(batches)), make([]*coalesce.Waiter, 0, len(batches))
	for i, batch := range batches {
		batch.Decision, batch.Err = penstock.Decision{}, penstock.Check(batch.Charges)
		if batch.Err != nil {
			continue
		}
		c := s.calls.Get().(*call)
		c.charges, c.waiter.Charges = batch.Charges, batch.Charges
		calls[i], waiters = c, append(waiters, &c.waiter)
	}
	s.serverCoalescer.EnterAll(ctx, waiters)
	for i, c := range calls {
		if c == nil { // the batch is invalid
			continue
		}
		batches[i].Decision, batches[i].Err = s.await(ctx, s.serverCoalescer, c)
		if batches[i].Err != nil {
			continue // the client may still use the memory of the call
		}
		c.forget()
		s.calls.Put(c)
	}
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
			w.Decision, w.Err = decode(reply[:end], r.Charges), nil
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
	if reader.text != "" || reader.isShort {
		return fmt.Errorf("the script replied %d bytes, which are not the results of %d batches", len(reply), f.Len())
	}
	return nil
}
