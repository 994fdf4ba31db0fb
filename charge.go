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
	Peek   = algorithm.Peek   // spend nothing; the answer is that of a Spend
	Force  = algorithm.Force  // all of the cost, even what does not fit; never denied. For costs that are known only afterwards
	Refund = algorithm.Refund // return units, at most what is used; never denied
	Reset  = algorithm.Reset  // clear the counter; never denied
)

// The bounds of a charge and of a batch.
const (
	MaxCost    = algorithm.Max / 2 // units
	MaxKey     = 1 << 16           // bytes
	MaxHolder  = 512               // bytes
	MaxCharges = 64                // in a batch
)

// A Charge requests Cost units of a limit under a Key.
type Charge struct {
	// Key names the client that is charged, such as a user or an address: any bytes, up to 64 KiB.
	// The empty key is allowed. The charges of a batch with the same Key are decided atomically.
	Key string

	// Plan is the limit. Limit.Compile makes it.
	Plan *Plan

	// Cost is the number of units. A Spend of 0 charges nothing and is always granted.
	Cost int64

	Mode Mode

	// Patience is the longest time that the caller will wait until it is admitted. 0 means now or
	// never. Only TokenBucket and LeakyBucket can grant units that become free later. Other
	// algorithms, and a Draw of a TokenBucket, ignore Patience. Its maximum is Plan.MaxPatience.
	Patience time.Duration

	// Holder identifies who holds a slot (Concurrency) or a place in the queue (LeakyBucket): up to
	// 512 bytes, unique per hold. Concurrency needs it unless Mode is Peek or Reset. LeakyBucket needs
	// it for a Refund.
	Holder string

	// IsRefundable says that a later Refund may return what this charge spends. Its Status then has a
	// Receipt. Concurrency and LeakyBucket have none: they return units by their Holder.
	IsRefundable bool

	// IsFreeIfDenied says that the charge counts nothing if it is denied, even if its limit has
	// ShouldCountDenied.
	IsFreeIfDenied bool

	// Receipt, in a Refund, is that of the Status of the charge whose units are returned. The Refund
	// is then exact: the counter becomes what it would be if these units had never been charged. So
	// nothing is returned if the counter has been full since, or if its window has ended. A Refund
	// without a Receipt lowers what is used now, even if others have used it. Other modes ignore it.
	Receipt int64

	// Serial orders the charges of several processes for one Holder of Concurrency. It is at most
	// 2^52, and may be the time in µs. A Refund with a Serial changes nothing if the hold was charged
	// with a higher one. So a late Refund of one process does not return what another has taken since.
	// Default: 0, with which each Refund of the Holder returns its slots.
	Serial int64
}

// MinCost returns the fewest units that must fit into the limit for the charge to be granted: Cost,
// or at most one for a Draw. For modes that are never denied, it returns Cost too.
func (c *Charge) MinCost() int64 {
	if c.Mode == Draw {
		return min(c.Cost, 1)
	}
	return c.Cost
}

// Request writes the charge to *r, in the form that an algorithm decides. It is for authors of a
// Store.
func (c *Charge) Request(r *algorithm.Request) {
	r.Mode = c.Mode
	r.Cost = c.Cost
	r.Patience = c.Patience.Microseconds()
	r.Holder = c.Holder
	r.IsRefundable = c.IsRefundable
	r.Receipt = c.StoreReceipt()
	r.Serial = c.Serial
}

// CountsDenial reports whether a store must charge the cost also if the batch is denied. Then it
// makes an algorithm.Attempt with this cost. The charge's Status is that of a Peek after the
// Attempt, with the same cost and Patience, and without a Wait. So its RetryAfter is above 0 if the
// charge does not fit any more, even if only another charge was denied. CountsDenial is for authors
// of a Store.
func (c *Charge) CountsDenial() bool {
	return c.Plan.limit.ShouldCountDenied && c.Mode == Spend && !c.IsFreeIfDenied
}

// StoreReceipt returns the Receipt. If a guard made the Receipt, it returns one that no charge has,
// so that the Refund returns nothing. It is for authors of a Store.
func (c *Charge) StoreReceipt() int64 {
	const ofNoCharge = 1
	if c.Receipt > algorithm.Max { // only guards make such a Receipt
		return ofNoCharge
	}
	return c.Receipt
}

// Check returns an error if the batch is invalid. The error wraps ErrInvalid and names the charge.
// Check is for authors of a Store, whose Decide must call it first.
func Check(charges []Charge) error {
	if len(charges) == 0 || len(charges) > MaxCharges {
		return fmt.Errorf("%w: a batch of %d charges; it must have 1 to %d", ErrInvalid, len(charges), MaxCharges)
	}
	if len(charges) == 1 && charges[0].isPlainSpend() {
		return nil
	}
	for i := range charges {
		c := &charges[i]
		if c.Plan == nil {
			return fmt.Errorf("%w: charge %d has no Plan; Limit.Compile makes one", ErrInvalid, i)
		}
		if err := c.check(); err != nil {
			return fmt.Errorf("%w: charge %d, limit %q: %w", ErrInvalid, i, c.Plan.Name(), err)
		}
		for j := range charges[:i] {
			if err := checkPair(charges, j, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPair returns an error if a store cannot keep the counters of charges i and j apart: they are
// one counter, or their limits have the same Tag by chance.
func checkPair(charges []Charge, i, j int) error {
	p, q := charges[i].Plan, charges[j].Plan
	if p.tag != q.tag || charges[i].Key != charges[j].Key || p.Group() != q.Group() {
		return nil
	}
	if p.Name() == q.Name() {
		return fmt.Errorf("%w: charges %d and %d are for one limit, %q, under one key; make one charge of their sum, or rename one limit",
			ErrInvalid, i, j, p.Name())
	}
	return fmt.Errorf("%w: limits %q and %q of group %q have the same hash (the tag of their state); rename one of them",
		ErrInvalid, p.Name(), q.Name(), p.Group())
}

// isPlainSpend recognizes the most frequent kind of valid charge with few comparisons. A negative
// cost becomes a huge uint64, so one comparison checks both bounds.
func (c *Charge) isPlainSpend() bool {
	return c.Plan != nil &&
		c.Mode == Spend &&
		uint64(c.Cost) <= MaxCost &&
		len(c.Key) <= MaxKey &&
		c.Patience == 0 &&
		c.Holder == "" &&
		!c.Plan.limit.Algorithm.NeedsHolder()
}

// isExchange reports whether the charge has one of the three modes by which regions exchange what
// they have granted. These modes follow Attempt. Only algorithms across regions have them.
func (c *Charge) isExchange() bool {
	isExchangeMode := c.Mode > algorithm.Attempt && c.Mode <= algorithm.Attempt+3
	a := c.Plan.limit.Algorithm
	return isExchangeMode && algorithm.Across(a) == a // Across returns an algorithm across regions as it is
}

func (c *Charge) check() error {
	plan := c.Plan
	switch {
	case c.Cost < 0:
		return fmt.Errorf("the cost is %d; to return units, use Refund", c.Cost)
	case c.Cost > MaxCost:
		return fmt.Errorf("the cost is %d; the largest is %d", c.Cost, int64(MaxCost))
	case c.Mode > Reset && !c.isExchange():
		return fmt.Errorf("the mode is %d; the modes are Spend, Draw, Peek, Force, Refund and Reset", c.Mode)
	case len(c.Key) > MaxKey:
		return fmt.Errorf("the key has %d bytes; the longest has %d", len(c.Key), MaxKey)
	case len(c.Holder) > MaxHolder:
		return fmt.Errorf("the holder has %d bytes; the longest has %d", len(c.Holder), MaxHolder)
	case c.Patience < 0:
		return fmt.Errorf("the patience is %v; it must not be negative", c.Patience)
	case c.Patience > 0 && c.Patience > plan.MaxPatience() && !c.isExchange():
		return fmt.Errorf("the patience is %v; at this rate the longest is %v", c.Patience, plan.MaxPatience())
	case (c.Mode == Refund || c.Mode > Reset) && c.Receipt < 0:
		return fmt.Errorf("the receipt is %d; use the Receipt of the Status that the charge had", c.Receipt)
	case c.Serial < 0 || c.Serial > algorithm.Max:
		return fmt.Errorf("the serial is %d; it must be from 0 to 2^52", c.Serial)
	case c.Holder == "" && plan.limit.Algorithm.NeedsHolder() && c.Mode != Peek && c.Mode != Reset:
		return fmt.Errorf("%s needs a Holder; use Limiter.Acquire, or set Charge.Holder", plan.limit.Algorithm.Title())
	}
	return nil
}
