package penstock

import (
	"cmp"
	"context"
	"fmt"
	"sync"
)

// AllowWith charges one unit of the given limits instead of the Limiter's own. It is for limits
// that differ from key to key.
//
//	limiter.AllowWith(ctx, "user:42", penstock.PerSecond(customer.RequestsPerSecond))
//
// The Name identifies a limit. Limits with the same Name, algorithm and key share one counter, even
// if their rates differ. A limit of the Limiter with that Name and algorithm shares this counter
// too. What one of these limits has used counts for the others.
//
// The Limiter compiles a limit at its first use, and caches up to 1024 compiled limits. Call
// SubWindow and CalendarWindow once, not for each request: each call makes a new algorithm, and the
// cache does not have limits of a new algorithm.
func (l *Limiter) AllowWith(ctx context.Context, key string, limits ...Limit) (Decision, error) {
	return l.AllowNWith(ctx, key, 1, limits...)
}

// AllowNWith charges n units of the given limits. See AllowWith.
func (l *Limiter) AllowNWith(ctx context.Context, key string, n int64, limits ...Limit) (Decision, error) {
	if len(limits) == 0 {
		return Decision{}, fmt.Errorf("%w: limiter %q: the call has no limits; pass some, or use Allow", ErrInvalid, l.name)
	}
	b := adHocBatches.Get().(*batch)
	defer adHocBatches.Put(b)
	b.charges = b.charges[:0]
	for _, limit := range limits {
		plan, err := l.plan(limit)
		if err != nil {
			return Decision{}, err
		}
		b.charges = append(b.charges, Charge{Key: key, Plan: plan, Cost: n})
	}
	return l.store.Decide(ctx, b.charges)
}

// adHocBatches holds batches whose number of charges differs from call to call.
var adHocBatches = sync.Pool{New: func() any { return new(batch) }}

// maxPlans bounds a planCache: 1024 plans take about 300 kB.
const maxPlans = 1024

// A planCache caches the plans of limits. When it is full, it is emptied.
type planCache struct {
	mu    sync.RWMutex
	plans map[Limit]*Plan
}

// plan returns the plan of a limit from the cache, or compiles it. A limit without a Group gets the
// Limiter's name as its Group.
func (l *Limiter) plan(limit Limit) (*Plan, error) {
	limit.Group = cmp.Or(limit.Group, l.name)
	c := &l.adHocPlans
	c.mu.RLock()
	plan := c.plans[limit]
	c.mu.RUnlock()
	if plan != nil {
		return plan, nil
	}
	plan, err := limit.Compile()
	if err != nil {
		return nil, fmt.Errorf("limiter %q: %w", l.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plans == nil || len(c.plans) >= maxPlans {
		c.plans = make(map[Limit]*Plan)
	}
	c.plans[limit] = plan
	return plan, nil
}

// AllowAtMost charges as many of n units as fit, and denies if not even one fits. The Granted of
// the decision is the number of units charged.
//
// If there are several limits, each is charged the number of units that fits all of them. The first
// call to the store may charge a limit more. A second call then refunds this surplus, even if ctx
// has ended. The surplus stays charged if the second call fails, or if the limit is a LeakyBucket,
// which does not refund.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (Decision, error) {
	b := l.takeBatch(key, noHolder, Draw, n)
	defer l.putBatch(b)
	for i := range b.charges {
		b.charges[i].IsRefundable = len(b.charges) > 1
	}
	d, err := l.store.Decide(ctx, b.charges)
	if err != nil || !d.Allowed || d.Len() == 1 {
		return d, err
	}
	return l.refundSurplus(ctx, b.charges, d), nil
}

// refundSurplus refunds what each charge was granted beyond the least Granted of all charges. It
// returns the decision as it is after the refunds.
func (l *Limiter) refundSurplus(ctx context.Context, charges []Charge, d Decision) Decision {
	granted := d.Granted()
	statuses := make([]Status, len(charges))
	var refunds []Charge
	var refunded []int // the index of the refunded charge, for each refund
	for i := range statuses {
		statuses[i] = d.Status(i)
		if surplus := statuses[i].Granted - granted; surplus > 0 {
			refunds = append(refunds, Charge{Key: charges[i].Key, Plan: charges[i].Plan, Cost: surplus, Mode: Refund, Receipt: statuses[i].Receipt})
			refunded = append(refunded, i)
		}
		statuses[i].Granted = granted
	}
	if len(refunds) == 0 {
		return d
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	if after, err := l.store.Decide(ctx, refunds); err == nil {
		for n, i := range refunded {
			statuses[i].Remaining, statuses[i].ResetAfter = after.Status(n).Remaining, after.Status(n).ResetAfter
		}
	}
	corrected := NewDecision(statuses)
	corrected.Source = d.Source
	return corrected
}
