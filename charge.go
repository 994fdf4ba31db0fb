package penstock

import (
	"fmt"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// A Mode says what a charge does with its cost.
type Mode = algorithm.Mode

// The modes. See the constants of package algorithm.
const (
	Spend  = algorithm.Spend  // all of the cost, or deny
	Draw   = algorithm.Draw   // as much of the cost as fits, at least one unit, or deny
	Peek   = algorithm.Peek   // spend nothing: answer what Spend would
	Force  = algorithm.Force  // spend even what does not fit, for costs that are known only afterwards; never denied
	Refund = algorithm.Refund // give units back, at most what is used; never denied
	Reset  = algorithm.Reset  // forget all that was used; never denied
)

// What a charge may be at most.
const (
	MaxCost    = algorithm.Max / 2 // units
	MaxKey     = 1 << 16           // bytes
	MaxHolder  = 512               // bytes
	MaxCharges = 64                // in a batch
)

// A Charge asks to spend Cost units of a Limit under a Key.
type Charge struct {
	// Key says who pays: any bytes, up to 64 KiB. The empty key is everybody's. Charges with one Key
	// are always decided atomically.
	Key string

	Limit Limit

	// Cost is how many units the charge is about. A Spend of 0 asks only, and is always granted.
	Cost int64

	Mode Mode

	// Patience is how long the caller would wait to be let in; 0 means now or never. Only TokenBucket
	// and LeakyBucket can book the future; the others do as if it were 0, as does a Draw of a
	// TokenBucket. See Plan.MaxPatience for the most.
	Patience time.Duration

	// Holder is who holds the slot (Concurrency; needed unless Mode is Peek or Reset), or who owns the
	// place in the queue (LeakyBucket; needed to give it back). Up to 512 bytes, unique per hold.
	Holder string
}

// Ask writes the charge as the question that its limit's algorithm is asked.
func (c *Charge) Ask(a *algorithm.Ask) {
	a.Mode = c.Mode
	a.Cost = c.Cost
	a.Patience = c.Patience.Microseconds()
	a.Holder = c.Holder
}

// Prepare checks a batch and appends the plans of its limits to plans. Every Store begins with it.
// The error wraps ErrInvalid and says which charge is wrong.
func Prepare(charges []Charge, plans []*Plan) ([]*Plan, error) {
	if len(charges) == 0 || len(charges) > MaxCharges {
		return nil, fmt.Errorf("%w: a batch of %d charges; it must have 1 to %d", ErrInvalid, len(charges), MaxCharges)
	}
	if len(charges) == 1 && charges[0].usual() {
		return append(plans, charges[0].Limit.plan), nil
	}
	for i := range charges {
		c := &charges[i]
		plan := c.Limit.plan
		if plan == nil {
			var err error
			if plan, err = c.Limit.Plan(); err != nil {
				return nil, err
			}
		}
		if err := c.check(plan); err != nil {
			return nil, fmt.Errorf("%w: charge %d, limit %q: %w", ErrInvalid, i, c.Limit.Name, err)
		}
		for j, other := range plans {
			if other.Tag != plan.Tag || charges[j].Key != c.Key || other.Limit.Group != plan.Limit.Group {
				continue
			}
			if other.Limit.Name == plan.Limit.Name {
				return nil, fmt.Errorf("%w: charges %d and %d are for one limit, %q, under one key; charge their sum at once, or rename one limit",
					ErrInvalid, j, i, c.Limit.Name)
			}
			return nil, fmt.Errorf("%w: limits %q and %q of group %q have the same tag by an unlucky chance; rename one of them",
				ErrInvalid, other.Limit.Name, plan.Limit.Name, plan.Limit.Group)
		}
		plans = append(plans, plan)
	}
	return plans, nil
}

// usual tells a charge of the most frequent kind: with it nothing is wrong.
func (c *Charge) usual() bool {
	return c.Limit.plan != nil && c.Mode == Spend && uint64(c.Cost) <= MaxCost && len(c.Key) <= MaxKey && c.Patience == 0 &&
		c.Holder == "" && !c.Limit.plan.Limit.Algorithm.Holds
}

func (c *Charge) check(plan *Plan) error {
	switch {
	case c.Cost < 0:
		return fmt.Errorf("the cost is %d; to give units back, use Refund", c.Cost)
	case c.Cost > MaxCost:
		return fmt.Errorf("the cost is %d; the largest is %d", c.Cost, int64(MaxCost))
	case c.Mode > Reset:
		return fmt.Errorf("the mode is %d; there are Spend, Draw, Peek, Force, Refund and Reset", c.Mode)
	case len(c.Key) > MaxKey:
		return fmt.Errorf("the key has %d bytes; the longest has %d", len(c.Key), MaxKey)
	case len(c.Holder) > MaxHolder:
		return fmt.Errorf("the holder has %d bytes; the longest has %d", len(c.Holder), MaxHolder)
	case c.Patience < 0:
		return fmt.Errorf("the patience is %v; it must not be negative", c.Patience)
	case c.Patience > 0 && c.Patience > plan.MaxPatience():
		return fmt.Errorf("the patience is %v; at this rate the longest is %v", c.Patience, plan.MaxPatience())
	case c.Holder == "" && plan.Limit.Algorithm.Holds && c.Mode != Peek && c.Mode != Reset:
		return fmt.Errorf("%s needs a Holder; use Limiter.Acquire, or set Charge.Holder", plan.Limit.Algorithm.Title)
	}
	return nil
}
