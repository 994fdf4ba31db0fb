package penstock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A Limiter enforces one or several limits together. It allows a request if all limits allow it,
// and charges all of them or none. Many goroutines may use one Limiter at the same time.
//
// Every method takes a context and the key that is charged: a user, an API key, an address. The
// call ends when the context ends. Errors wrap ErrInvalid or ErrUnavailable, or are the context's
// own. Methods that return no Decision return a *DeniedError if the limit denies.
type Limiter struct {
	store      Store
	name       string
	plans      []*Plan
	hasHolds   bool      // at least one limit needs a Holder
	batches    sync.Pool // of *batch, with a charge for each plan
	adHocPlans planCache // plans of the limits that are passed to AllowWith
}

// NewLimiter makes a Limiter. The name says what is limited, such as "search" or "login". It
// becomes the Group of each limit without a Group. On one store, Limiters with the same name share
// the counters of limits with the same Name and algorithm. Limiters with different names share no
// counters, unless limits of both have the same Group.
func NewLimiter(store Store, name string, limits ...Limit) (*Limiter, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: limiter %q: the store is nil; memstore.New makes one", ErrInvalid, name)
	}
	if err := checkName("name", name); err != nil {
		return nil, fmt.Errorf("%w: limiter %q: %w", ErrInvalid, name, err)
	}
	if len(limits) == 0 {
		return nil, fmt.Errorf("%w: limiter %q has no limits; PerSecond makes one", ErrInvalid, name)
	}
	l := &Limiter{store: store, name: name, plans: make([]*Plan, len(limits))}
	var errs []error
	for i, limit := range limits {
		limit.Group = cmp.Or(limit.Group, name)
		plan, err := limit.Compile()
		if err != nil {
			errs = append(errs, fmt.Errorf("limiter %q: %w", name, err))
			continue
		}
		l.plans[i] = plan
		l.hasHolds = l.hasHolds || plan.Algorithm().NeedsHolder()
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	l.batches.New = func() any {
		b := &batch{charges: make([]Charge, len(l.plans))}
		for i := range b.charges {
			b.charges[i].Plan = l.plans[i]
		}
		return b
	}
	b := l.takeBatch("", noHolder, Peek, 1) // only for Check, which finds limits with the same name
	defer l.putBatch(b)
	if err := Check(b.charges); err != nil {
		return nil, fmt.Errorf("limiter %q: %w", name, err)
	}
	return l, nil
}

const noHolder = "" // for charges that need no Holder

// Plans returns the limits that the Limiter enforces, in the order of a Decision's statuses.
func (l *Limiter) Plans() []*Plan { return slices.Clone(l.plans) }

// Allow charges one unit, now or never.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, noHolder, Spend, 1)
}

// AllowN charges n units, now or never. AllowN of 0 charges nothing and is always allowed.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.decide(ctx, key, noHolder, Spend, n)
}

// Peek returns the decision that Allow would return, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, noHolder, Peek, 1)
}

// Refund gives n units back, but no more than are used. It does not matter which caller used them.
// Refund does not know when the units were charged. So a late Refund of a charge refunds units of
// later charges. A Reservation can be canceled or settled exactly at any time. Refund does not free
// a place in the queue of a LeakyBucket, because others wait behind it.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	return l.decide(ctx, key, noHolder, Refund, n)
}

// Reset clears all that the key has used.
func (l *Limiter) Reset(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, noHolder, Reset, 0)
}

func (l *Limiter) decide(ctx context.Context, key, holder string, mode Mode, n int64) (d Decision, err error) {
	b := l.takeBatch(key, holder, mode, n)
	d, err = l.store.Decide(ctx, b.charges)
	l.putBatch(b)
	return d, err
}

// A batch is a slice of charges. Batches are reused, because a Store keeps no charges.
type batch struct{ charges []Charge }

// takeBatch returns a batch with a charge of n units for each limit. Its caller must call putBatch.
func (l *Limiter) takeBatch(key, holder string, mode Mode, n int64) *batch {
	b := l.batches.Get().(*batch)
	for i := range b.charges {
		c := &b.charges[i]
		c.Key, c.Cost, c.Mode, c.Patience, c.Holder = key, n, mode, 0, holder
		c.IsRefundable, c.IsFreeIfDenied, c.Receipt = false, false, 0
	}
	return b
}

func (l *Limiter) putBatch(b *batch) { l.batches.Put(b) }
