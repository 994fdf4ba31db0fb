package penstock

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
)

// Acquire occupies one slot of each Concurrency limit. See AcquireN.
func (l *Limiter) Acquire(ctx context.Context, key string) (*Hold, error) {
	return l.AcquireN(ctx, key, 1)
}

// AcquireN occupies n slots of each of the Limiter's Concurrency limits, and charges n units to its
// other limits, all or nothing. A denial is a DeniedError. The hold ends with Release, or one
// Period of the limit after Acquire or the last Renew. For longer work, call Renew at least three
// times in a Period.
func (l *Limiter) AcquireN(ctx context.Context, key string, n int64) (*Hold, error) {
	if !l.hasHolds {
		return nil, fmt.Errorf("%w: limiter %q has no limit of slots; InFlight makes one", ErrInvalid, l.name)
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: acquire %d slots; a hold has at least 1", ErrInvalid, n)
	}
	h := &Hold{limiter: l, key: key, holder: rand.Text(), cost: n}
	d, err := l.decide(ctx, key, h.holder, Spend, n)
	if err != nil {
		return nil, err
	}
	if !d.Allowed {
		return nil, &DeniedError{d}
	}
	h.Decision = d
	return h, nil
}

// A Hold is the slots that Acquire has occupied.
type Hold struct {
	Decision Decision // of the Acquire

	limiter *Limiter
	key     string
	holder  string
	cost    int64 // slots of each Concurrency limit

	mu         sync.Mutex
	isReleased bool
}

// Renew makes the hold last for a Period from now. If the hold has expired, Renew acquires its
// slots again if enough are free. A DeniedError means that other holds have these slots now: the
// work must stop.
func (h *Hold) Renew(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isReleased {
		return fmt.Errorf("%w: renew a hold that was released", ErrInvalid)
	}
	d, err := h.decide(ctx, Spend)
	if err == nil && !d.Allowed {
		err = &DeniedError{d}
	}
	return err
}

// Release frees the slots. Charges to other limits stay. Release takes at most a second, and works
// even if ctx has ended. A second Release does nothing. If the store cannot be reached, the hold
// ends when its Period is over.
func (h *Hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isReleased {
		return nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	_, err := h.decide(ctx, Refund)
	h.isReleased = err == nil
	return err
}

// decide charges only the limits that have slots.
func (h *Hold) decide(ctx context.Context, mode Mode) (Decision, error) {
	var charges []Charge
	for _, plan := range h.limiter.plans {
		if plan.Algorithm().NeedsHolder() {
			charges = append(charges, Charge{Key: h.key, Plan: plan, Cost: h.cost, Mode: mode, Holder: h.holder})
		}
	}
	return h.limiter.store.Decide(ctx, charges)
}
