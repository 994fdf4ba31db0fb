package penstock

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"
)

// Acquire occupies one slot of each Concurrency limit. See AcquireN.
func (l *Limiter) Acquire(ctx context.Context, key string) (*Hold, error) {
	return l.AcquireN(ctx, key, 1)
}

// AcquireN occupies n slots of each of the Limiter's Concurrency limits, and charges n units to its
// other limits, all or nothing. A denial is a DeniedError. The hold ends with Release, or the
// limit's Period after the last Renew; work that takes longer must renew it, at least every third
// of the Period.
func (l *Limiter) AcquireN(ctx context.Context, key string, n int64) (*Hold, error) {
	if !l.holds {
		return nil, fmt.Errorf("%w: no limit lends slots; InFlight makes one that does", ErrInvalid)
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

// A Hold is what Acquire occupied.
type Hold struct {
	Decision Decision

	limiter *Limiter
	key     string
	holder  string
	cost    int64

	mu       sync.Mutex
	released bool
}

// Renew makes the hold last for another Period from now. If it had expired, it is taken anew where
// slots are free, and a DeniedError says that there are none: the work must stop, since others have
// its slots.
func (h *Hold) Renew(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return fmt.Errorf("%w: renew a hold that was released", ErrInvalid)
	}
	d, err := h.decide(ctx, Spend)
	if err == nil && !d.Allowed {
		err = &DeniedError{d}
	}
	return err
}

// Release gives the slots back; what was charged to other limits stays charged. It takes a second
// at most and is done even if ctx has ended. Releasing again does nothing. If the store cannot be
// reached, the hold ends by itself when its Period is over.
func (h *Hold) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return nil
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	_, err := h.decide(ctx, Refund)
	h.released = err == nil
	return err
}

// Lasts is how long the hold lasts from a Renew, or from its beginning: the shortest Period of its
// limits.
func (h *Hold) Lasts() time.Duration {
	shortest := time.Duration(0)
	for _, limit := range h.limiter.limits {
		if limit.Algorithm.Holds && (shortest == 0 || limit.Period < shortest) {
			shortest = limit.Period
		}
	}
	return shortest
}

func (h *Hold) decide(ctx context.Context, mode Mode) (Decision, error) {
	var charges []Charge
	for _, limit := range h.limiter.limits {
		if limit.Algorithm.Holds {
			charges = append(charges, Charge{Key: h.key, Limit: limit, Cost: h.cost, Mode: mode, Holder: h.holder})
		}
	}
	return h.limiter.store.Decide(ctx, charges)
}
