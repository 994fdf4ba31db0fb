package redisstore

import (
	"context"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/trial"
)

// A tried batch is decided in the script of an enforced one, and never enforced.
type tried struct {
	batch   *trial.Batch // nil once it is decided alone
	plans   []*penstock.Plan
	charges []charge
	waiting waiting
	joined  bool // the script of the enforced batch
}

// runWithTrials decides the call's charges and, in the same script, the trials that fit in it. Each
// other trial gets a call of its own.
func (s *Store) runWithTrials(ctx context.Context, c *call, offered []*trial.Batch) (penstock.Decision, error) {
	for _, b := range offered {
		if b.Take() && !s.takeTrial(c, b) {
			b.Alone()
		}
	}
	d, err := s.run(ctx, c)
	for i := range c.trials {
		switch t := &c.trials[i]; {
		case t.batch == nil: // it is decided alone
		case err != nil: // the script may still be under way, so its answers must not be looked at
			t.batch.Err = err
		case t.waiting.err != nil:
			t.batch.Err = s.unavailable(ctx, t.waiting.err)
		default:
			t.batch.Decision = t.waiting.decision
		}
	}
	return d, err
}

// takeTrial adds a trial to the call, and tells whether the script that decides several batches
// like the call's can decide it.
func (s *Store) takeTrial(c *call, b *trial.Batch) bool {
	if s.apart || !isRow(c.charges) {
		return false
	}
	n := len(c.trials)
	if n < cap(c.trials) {
		c.trials = c.trials[:n+1]
	} else {
		c.trials = append(c.trials, tried{})
	}
	t := &c.trials[n]
	t.batch, t.joined = b, false
	if s.prepareTrial(c, t) {
		return true
	}
	t.forget()
	c.trials = c.trials[:n]
	return false
}

func (s *Store) prepareTrial(c *call, t *tried) bool {
	var err error
	if t.plans, err = penstock.Prepare(t.batch.Charges, t.plans[:0]); err != nil {
		return false
	}
	t.charges = t.charges[:0]
	for i := range t.batch.Charges {
		t.charges = append(t.charges, charge{&t.batch.Charges[i], t.plans[i]})
	}
	return isRow(t.charges) && s.scripts.find(rows, c.charges).fits(t.charges)
}

// leaveOtherSlots starts a call of its own for each trial in another slot of a Cluster.
func (s *Store) leaveOtherSlots(c *call, slot uint16) {
	for i := range c.trials {
		if t := &c.trials[i]; s.slotOfKey(t.charges[0].Key) != slot {
			t.leaveAlone()
		}
	}
}

// forget lets go of what the caller passed in.
func (t *tried) forget() {
	clear(t.plans)
	clear(t.charges)
	t.batch = nil
}

// trialEffort is the server's effort for the call's trials at most.
func (c *call) trialEffort() (effort int) {
	for i := range c.trials {
		effort += askEffort + len(c.trials[i].charges)
	}
	return effort
}

// joinTrials puts the call's trials into the script that the call is in, as far as there is room.
func (c *call) joinTrials() {
	b := c.waiting.bunch
	recent := b.recent // the next caller more likely asks what this one does
	for i := range c.trials {
		t := &c.trials[i]
		if t.batch == nil {
			continue
		}
		t.waiting.lazy, t.waiting.until = nil, c.waiting.until // the call's own timer serves both
		t.joined = b.join(&t.waiting, t.charges)
	}
	b.recent = recent
}

// leaveTrialsAlone starts a call for each of the trials that found no room.
func (c *call) leaveTrialsAlone() {
	for i := range c.trials {
		if t := &c.trials[i]; t.batch != nil && !t.joined {
			t.leaveAlone()
		}
	}
}

func (t *tried) leaveAlone() {
	t.batch.Alone()
	t.batch = nil
}

// joinedTrials is how many trials wait with the call.
func (c *call) joinedTrials() (n int) {
	for i := range c.trials {
		if c.trials[i].joined {
			n++
		}
	}
	return n
}

// withdrawTrials takes the trials out of a script that is still to be sent.
func (c *call) withdrawTrials() {
	for i := range c.trials {
		if t := &c.trials[i]; t.joined {
			t.waiting.bunch.leave(&t.waiting)
		}
	}
}

// aloneWithTrials decides the call's charges and its trials in a script of their own.
func (s *Store) aloneWithTrials(ctx context.Context, c *call) (penstock.Decision, error) {
	b := bunches.Get().(*bunch)
	defer b.free()
	b.script = s.scripts.find(rows, c.charges)
	b.join(&c.waiting, c.charges)
	c.joinTrials()
	c.leaveTrialsAlone()
	err := s.decideRows(ctx, c, b)
	if err == nil {
		err = c.waiting.err
	}
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	return c.waiting.decision, nil
}
