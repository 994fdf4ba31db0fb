package redisstore

import (
	"context"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/trial"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// A trialBatch is the batch of a shadow limit or a candidate. The script that decides the request's
// own batch decides it too. Its result is only counted.
type trialBatch struct {
	batch  *trial.Batch // nil once it has a call of its own
	waiter coalesce.Waiter
}

// runWithTrials decides the call's charges and, in the same script, the trials that fit in it. Each
// other trial gets a call of its own.
func (s *Store) runWithTrials(ctx context.Context, c *call, offered []*trial.Batch) (penstock.Decision, error) {
	for _, b := range offered {
		if b.Take() && !s.addTrial(c, b) {
			b.Alone()
		}
	}
	d, err := s.run(ctx, c)
	for i := range c.trials {
		switch t := &c.trials[i]; {
		case t.batch == nil: // it has a call of its own
		case err != nil: // the script may still be in flight, so its answers must not be read
			t.batch.Err = err
		case t.waiter.Err != nil:
			t.batch.Err = s.unavailable(ctx, t.waiter.Err)
		default:
			t.batch.Decision = t.waiter.Decision
		}
	}
	return d, err
}

// addTrial adds a trial to the call, if batch.lua, written for the algorithms of the call's
// charges, can decide the trial too. Otherwise it returns false.
func (s *Store) addTrial(c *call, b *trial.Batch) bool {
	if s.isUncoalesced || !isCompact(c.charges) {
		return false
	}
	n := len(c.trials)
	if n < cap(c.trials) {
		c.trials = c.trials[:n+1]
	} else {
		c.trials = append(c.trials, trialBatch{})
	}
	t := &c.trials[n]
	t.batch = b
	if s.prepareTrial(c, t) {
		return true
	}
	t.forget()
	c.trials = c.trials[:n]
	return false
}

func (s *Store) prepareTrial(c *call, t *trialBatch) bool {
	if penstock.Check(t.batch.Charges) != nil {
		return false
	}
	t.waiter.Charges = t.batch.Charges
	return isCompact(t.waiter.Charges) && s.scripts.find(batch, c.charges).fits(t.waiter.Charges)
}

// sendTrialsOfOtherSlots starts a call of its own for each trial in another slot of a Cluster.
func (s *Store) sendTrialsOfOtherSlots(c *call, slot uint16) {
	for i := range c.trials {
		if t := &c.trials[i]; s.slotOfKey(t.waiter.Charges[0].Key) != slot {
			t.sendSeparately()
		}
	}
}

// sendTrialsWithoutRoom starts a call of its own for each trial for which the script had no room.
func (c *call) sendTrialsWithoutRoom() {
	for i := range c.trials {
		if t := &c.trials[i]; t.batch != nil && !t.waiter.HasJoined() {
			t.sendSeparately()
		}
	}
}

func (t *trialBatch) sendSeparately() {
	t.batch.Alone()
	t.batch = nil
}

// forget drops what the caller has passed in.
func (t *trialBatch) forget() {
	t.waiter.Reset()
	t.batch = nil
}

// prepareWaiter makes the call's charges and trials wait for a flight.
func (c *call) prepareWaiter() {
	c.waiter.Charges = c.charges
	for i := range c.trials {
		if t := &c.trials[i]; t.batch != nil {
			c.waiter.Extras = append(c.waiter.Extras, &t.waiter)
		}
	}
}

// decideWithTrials decides the call's charges and its trials in a script of their own.
func (s *Store) decideWithTrials(ctx context.Context, c *call) (penstock.Decision, error) {
	f := coalesce.NewFlight(s.scripts.find(batch, c.charges))
	defer f.Release()
	f.JoinAll(&c.waiter)
	c.sendTrialsWithoutRoom()
	err := s.decideFlight(ctx, c, f)
	if err == nil {
		err = c.waiter.Err
	}
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	return c.waiter.Decision, nil
}
