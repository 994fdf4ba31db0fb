package redisstore

import (
	"context"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/piggyback"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// A shadowBatch is the batch of a shadow, which the script of the enforced batch may decide too.
// The result of a shadow is only counted.
type shadowBatch struct {
	offer  *piggyback.Batch // nil once it has a call of its own
	waiter coalesce.Waiter
}

// runWithShadows decides the call's charges and, in the same script, the shadows that fit in it. A
// shadow that does not fit gets a call of its own.
func (s *Store) runWithShadows(ctx context.Context, c *call, offered []*piggyback.Batch) (penstock.Decision, error) {
	for _, offer := range offered {
		if offer.Take() && !s.addShadow(c, offer) {
			offer.DecideAlone()
		}
	}
	d, err := s.run(ctx, c)
	for i := range c.shadows {
		switch shadow := &c.shadows[i]; {
		case shadow.offer == nil: // it has a call of its own
		case err != nil: // the script may still be in flight, so its answers must not be read
			shadow.offer.Err = err
		case shadow.waiter.Err != nil:
			shadow.offer.Err = s.unavailable(ctx, shadow.waiter.Err)
		default:
			shadow.offer.Decision = shadow.waiter.Decision
		}
	}
	return d, err
}

// addShadow adds a shadow to the call, if one uniform script can decide the shadow and the call's
// charges. If none can, it returns false.
func (s *Store) addShadow(c *call, offer *piggyback.Batch) bool {
	if s.isUncoalesced || !isCompact(c.charges) {
		return false
	}
	n := len(c.shadows)
	if n < cap(c.shadows) { // reuse the memory of an earlier shadow
		c.shadows = c.shadows[:n+1]
	} else {
		c.shadows = append(c.shadows, shadowBatch{})
	}
	shadow := &c.shadows[n]
	shadow.offer = offer
	if s.prepareShadow(c, shadow) {
		return true
	}
	shadow.forget()
	c.shadows = c.shadows[:n]
	return false
}

// prepareShadow gives a shadow's charges to its waiter. It returns false if the uniform script of
// the call's charges cannot decide the shadow.
func (s *Store) prepareShadow(c *call, shadow *shadowBatch) bool {
	if penstock.Check(shadow.offer.Charges) != nil {
		return false
	}
	shadow.waiter.Charges = shadow.offer.Charges
	return isCompact(shadow.waiter.Charges) && s.scripts.find(uniform, c.charges).canDecide(shadow.waiter.Charges)
}

// sendShadowsOfOtherSlots starts a call of its own for each shadow in another slot of a Cluster.
func (s *Store) sendShadowsOfOtherSlots(c *call, slot uint16) {
	for i := range c.shadows {
		if shadow := &c.shadows[i]; s.slotOfKey(shadow.waiter.Charges[0].Key) != slot {
			shadow.sendSeparately()
		}
	}
}

// sendShadowsThatDoNotFit starts a separate call for each shadow that did not fit into the script.
func (c *call) sendShadowsThatDoNotFit() {
	for i := range c.shadows {
		if shadow := &c.shadows[i]; shadow.offer != nil && !shadow.waiter.HasJoined() {
			shadow.sendSeparately()
		}
	}
}

func (shadow *shadowBatch) sendSeparately() {
	shadow.offer.DecideAlone()
	shadow.offer = nil
}

// forget drops the references to the caller's values.
func (shadow *shadowBatch) forget() {
	shadow.waiter.Reset()
	shadow.offer = nil
}

// prepareWaiter gives the call's charges and shadows to its waiter, which can then join a flight.
func (c *call) prepareWaiter() {
	c.waiter.Charges = c.charges
	for i := range c.shadows {
		if shadow := &c.shadows[i]; shadow.offer != nil {
			c.waiter.Extras = append(c.waiter.Extras, &shadow.waiter)
		}
	}
}

// decideWithShadows decides the call's charges and its shadows in one script, without batches of
// other callers.
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
