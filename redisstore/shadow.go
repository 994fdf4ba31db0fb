package redisstore

import (
	"context"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/piggyback"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// A shadowBatch is the batch of a shadow. The script of the enforced batch decides it too. Its
// result is only counted.
type shadowBatch struct {
	offer  *piggyback.Batch // nil once it has a call of its own
	waiter coalesce.Waiter
}

// runWithShadows decides the call's charges and, in the same script, the shadows that fit in it.
// Each other shadow gets a call of its own.
func (s *Store) runWithShadows(ctx context.Context, c *call, offered []*piggyback.Batch) (penstock.Decision, error) {
	for _, b := range offered {
		if b.Take() && !s.addShadow(c, b) {
			b.DecideAlone()
		}
	}
	d, err := s.run(ctx, c)
	for i := range c.shadows {
		switch t := &c.shadows[i]; {
		case t.offer == nil: // it has a call of its own
		case err != nil: // the script may still be in flight, so its answers must not be read
			t.offer.Err = err
		case t.waiter.Err != nil:
			t.offer.Err = s.unavailable(ctx, t.waiter.Err)
		default:
			t.offer.Decision = t.waiter.Decision
		}
	}
	return d, err
}

// addShadow adds a shadow to the call, if uniform.lua, written for the algorithms of the call's
// charges, can decide the shadow too. Otherwise it returns false.
func (s *Store) addShadow(c *call, b *piggyback.Batch) bool {
	if s.isUncoalesced || !isCompact(c.charges) {
		return false
	}
	n := len(c.shadows)
	if n < cap(c.shadows) {
		c.shadows = c.shadows[:n+1]
	} else {
		c.shadows = append(c.shadows, shadowBatch{})
	}
	t := &c.shadows[n]
	t.offer = b
	if s.prepareShadow(c, t) {
		return true
	}
	t.forget()
	c.shadows = c.shadows[:n]
	return false
}

func (s *Store) prepareShadow(c *call, t *shadowBatch) bool {
	if penstock.Check(t.offer.Charges) != nil {
		return false
	}
	t.waiter.Charges = t.offer.Charges
	return isCompact(t.waiter.Charges) && s.scripts.find(uniform, c.charges).fits(t.waiter.Charges)
}

// sendShadowsOfOtherSlots starts a call of its own for each shadow in another slot of a Cluster.
func (s *Store) sendShadowsOfOtherSlots(c *call, slot uint16) {
	for i := range c.shadows {
		if t := &c.shadows[i]; s.slotOfKey(t.waiter.Charges[0].Key) != slot {
			t.sendSeparately()
		}
	}
}

// sendShadowsThatDoNotFit starts a separate call for each shadow that did not fit into the script.
func (c *call) sendShadowsThatDoNotFit() {
	for i := range c.shadows {
		if t := &c.shadows[i]; t.offer != nil && !t.waiter.HasJoined() {
			t.sendSeparately()
		}
	}
}

func (t *shadowBatch) sendSeparately() {
	t.offer.DecideAlone()
	t.offer = nil
}

// forget drops the references to the caller's values.
func (t *shadowBatch) forget() {
	t.waiter.Reset()
	t.offer = nil
}

// prepareWaiter makes the call's charges and shadows wait for a flight.
func (c *call) prepareWaiter() {
	c.waiter.Charges = c.charges
	for i := range c.shadows {
		if t := &c.shadows[i]; t.offer != nil {
			c.waiter.Extras = append(c.waiter.Extras, &t.waiter)
		}
	}
}

// decideWithShadows decides the call's charges and its shadows in a script of their own.
func (s *Store) decideWithShadows(ctx context.Context, c *call) (penstock.Decision, error) {
	f := coalesce.NewFlight(s.scripts.find(uniform, c.charges))
	defer f.Release()
	f.JoinAll(&c.waiter)
	c.sendShadowsThatDoNotFit()
	err := s.decideFlight(ctx, c, f)
	if err == nil {
		err = c.waiter.Err
	}
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	return c.waiter.Decision, nil
}
