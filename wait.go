package penstock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

// Wait blocks until the key may do one more, or ctx ends. See WaitN.
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN blocks until the key may do n more, charges them and returns nil.
//
// Where the limits' algorithms can book the future (TokenBucket, LeakyBucket), the caller is given
// its turn at once and sleeps until then. A caller that asks after another has been given its turn
// goes after it, on any instance. Callers that ask while the store decides on one another may go in
// any order, and so may those of a TokenBucket that is split in shards. Windows cannot book; there
// the caller asks again after RetryAfter and a little jitter, and no order is kept. If ctx ends
// first, what was booked is given back and ctx's error returned. A DeniedError comes at once when n
// can never fit, when its turn would come after ctx's deadline, or when the queue is full.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	for {
		reservation, err := l.ReserveN(ctx, key, n)
		var denied *DeniedError
		if errors.As(err, &denied) && l.worthWaiting(ctx, denied.Decision) {
			err = sleep(ctx, jitter(denied.Decision.RetryAfter()))
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := sleep(ctx, reservation.Delay()); err != nil {
			return errors.Join(err, reservation.Cancel(ctx))
		}
		return nil
	}
}

// worthWaiting tells whether asking again later, but before the deadline, can succeed. A limit that
// books the future has already said no to all the time there is.
func (l *Limiter) worthWaiting(ctx context.Context, d Decision) bool {
	for i, limit := range l.limits {
		if d.Status(i).RetryAfter != 0 && limit.Algorithm.Bookable {
			return false
		}
	}
	retry := d.RetryAfter()
	deadline, ok := ctx.Deadline()
	return retry != Never && (!ok || time.Until(deadline) > retry)
}

// giveBackTimeout bounds how long giving something back may take once its caller's context has
// ended.
const giveBackTimeout = time.Second

// outlive is a context for what must be told to the store even if ctx has ended, or ends meanwhile.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
}

// jitter lengthens a delay by up to a tenth, at most 100 ms, so that those who were denied together
// do not all come back together.
func jitter(d time.Duration) time.Duration {
	return d + mathrand.N(min(d/10, 100*time.Millisecond)+time.Millisecond)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reserve books one unit. See ReserveN.
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN charges n units, now or as far ahead as ctx's deadline allows (without a deadline: as
// the limits allow, at most a day). The caller must wait for the Reservation's Delay before it goes
// ahead. If the units cannot be had in that time, the error is a DeniedError and nothing is
// charged.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	if l.holds {
		return nil, fmt.Errorf("%w: a limit lends slots; use Acquire", ErrInvalid)
	}
	patience := 24 * time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		patience = max(time.Until(deadline), 0)
	}
	holder := rand.Text()
	b := l.charges(key, holder, Spend, n)
	defer l.release(b)
	for i := range b.charges {
		b.charges[i].Patience = min(patience, l.limits[i].plan.MaxPatience())
	}
	d, err := l.store.Decide(ctx, b.charges)
	if err != nil {
		return nil, err
	}
	if !d.Allowed {
		return nil, &DeniedError{d}
	}
	return &Reservation{limiter: l, key: key, holder: holder, cost: n, start: time.Now().Add(d.Wait()), Decision: d}, nil
}

// A Reservation is a cost that has been charged, and the moment from which its caller may go ahead.
// Settle or Cancel may correct it once; neither is needed if the cost was right.
type Reservation struct {
	Decision Decision

	limiter *Limiter
	key     string
	holder  string
	start   time.Time

	mu   sync.Mutex
	cost int64
	done bool
}

// Delay is how long the caller must still wait.
func (r *Reservation) Delay() time.Duration { return max(time.Until(r.start), 0) }

// Settle corrects the cost to what it turned out to be: the rest is given back, or what is missing
// is charged even if it does not fit. It takes a second at most and is done even if ctx has ended.
// Only the first Settle or Cancel counts, except for a Settle that is refused with ErrInvalid
// because actual is below 0 or above MaxCost. After an error that wraps ErrUnavailable it is
// unknown whether it was done, so it is not tried again.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	if actual < 0 || actual > MaxCost {
		return fmt.Errorf("%w: settle %d units; a cost is from 0 to %d", ErrInvalid, actual, int64(MaxCost))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done || actual == r.cost {
		r.done = true
		return nil
	}
	r.done = true
	mode, n := Refund, r.cost-actual
	if n < 0 {
		mode, n = Force, -n
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	_, err := r.limiter.decide(ctx, r.key, r.holder, mode, n)
	return err
}

// Cancel gives the whole cost back, as Settle of 0 does. In a LeakyBucket that frees the place only
// if nobody has queued up behind it.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }
