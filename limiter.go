package penstock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// A Limiter enforces one or several limits together: a request is allowed if all of them allow it,
// and is charged to all or none. It is what applications hold. Its methods may be called by many
// goroutines at once.
//
// Every method takes the key that pays (a user, an API key, an address) and a context, whose end
// ends the call. Errors wrap ErrInvalid or ErrUnavailable, or are the context's own.
type Limiter struct {
	store  Store
	limits []Limit
	holds  bool // some limit needs a Holder
	pool   sync.Pool
}

// NewLimiter makes a Limiter. The name says what is limited ("search", "login"); it becomes the
// Group of limits that have none, so that Limiters of different names never share a counter, and
// Limiters of one name on one store always do.
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
	l := &Limiter{store: store, limits: make([]Limit, len(limits))}
	var errs []error
	for i, limit := range limits {
		if limit.Group == "" {
			limit.Group, limit.plan = name, nil
		}
		ready, err := limit.Ready()
		if err != nil {
			errs = append(errs, fmt.Errorf("limiter %q: %w", name, err))
			continue
		}
		l.limits[i] = ready
		l.holds = l.holds || ready.Algorithm.Holds
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	l.pool.New = func() any {
		b := &batch{charges: make([]Charge, len(l.limits))}
		for i := range b.charges {
			b.charges[i].Limit = l.limits[i]
		}
		return b
	}
	b := l.charges("", "", Peek, 1)
	defer l.release(b)
	if _, err := Prepare(b.charges, nil); err != nil {
		return nil, fmt.Errorf("limiter %q: %w", name, err)
	}
	return l, nil
}

// Limits are the limits that the Limiter enforces, in the order of a Decision's statuses.
func (l *Limiter) Limits() []Limit { return slices.Clone(l.limits) }

// Allow charges one unit, now or never.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, "", Spend, 1)
}

// AllowN charges n units, now or never. AllowN of 0 asks and charges nothing.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.decide(ctx, key, "", Spend, n)
}

// Peek answers what Allow would, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, "", Peek, 1)
}

// Refund gives n units back, at most what is used. A place in a LeakyBucket stays taken, since
// others wait behind it; give a Reservation back with its Cancel.
func (l *Limiter) Refund(ctx context.Context, key string, n int64) (Decision, error) {
	return l.decide(ctx, key, "", Refund, n)
}

// Reset forgets all that the key has used.
func (l *Limiter) Reset(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, key, "", Reset, 0)
}

func (l *Limiter) decide(ctx context.Context, key, holder string, mode Mode, n int64) (d Decision, err error) {
	b := l.charges(key, holder, mode, n)
	d, err = l.store.Decide(ctx, b.charges)
	l.release(b)
	return d, err
}

// A batch is a slice of charges that is used again: a Store keeps none. Their Limits stay.
type batch struct{ charges []Charge }

func (l *Limiter) charges(key, holder string, mode Mode, n int64) *batch {
	b := l.pool.Get().(*batch)
	for i := range b.charges {
		c := &b.charges[i]
		c.Key, c.Cost, c.Mode, c.Patience, c.Holder = key, n, mode, 0, holder
	}
	return b
}

func (l *Limiter) release(b *batch) {
	l.pool.Put(b)
}
