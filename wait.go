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

// Wait charges one unit, and blocks until it is granted or ctx ends. See WaitN.
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN charges n units. It blocks until they are granted, and then returns nil.
//
// TokenBucket and LeakyBucket can book the future: the store assigns a turn to the caller at once,
// and WaitN sleeps until then. If a call begins after another one has got its turn, it gets a later
// turn, whichever instances they come from. Calls that overlap in the store get their turns in any
// order. If the counter of a TokenBucket is split, all calls do.
//
// Windows cannot book. There WaitN tries again after RetryAfter and a little jitter, in no order
// between callers.
//
// If ctx ends first, WaitN refunds what was booked and returns ctx's error. It returns a
// DeniedError at once if n can never fit, if the turn would come after ctx's deadline, or if the
// queue is full.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	for {
		reservation, err := l.ReserveN(ctx, key, n)
		var denied *DeniedError
		if errors.As(err, &denied) && l.canRetrySucceed(ctx, denied.Decision) {
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

// canRetrySucceed tells whether a retry before ctx's deadline can be granted. If a limit that can
// book the future has denied, no retry can: the limit has considered all turns up to the deadline.
func (l *Limiter) canRetrySucceed(ctx context.Context, d Decision) bool {
	for i, plan := range l.plans {
		if d.Status(i).RetryAfter != 0 && plan.Algorithm().CanBook() {
			return false
		}
	}
	retry := d.RetryAfter()
	deadline, ok := ctx.Deadline()
	return retry != Never && (!ok || time.Until(deadline) > retry)
}

// refundTimeout bounds a refund, which must not end with its caller's context.
const refundTimeout = time.Second

// detach returns a context for a call that must reach the store even if ctx ends.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), refundTimeout)
}

// jitter adds a random time to a delay: up to a tenth of it, at most 100 ms, plus up to 1 ms. So
// callers that were denied together do not all retry together.
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

// ReserveN charges n units, now or for a later time before ctx's deadline. Without a deadline, it
// books as far ahead as the limits allow, at most a day. The caller must wait for the Reservation's
// Delay before it goes ahead. If the units are not available in that time, the error is a
// DeniedError and nothing is charged.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	if l.hasHolds {
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
		b.charges[i].Patience = min(patience, l.plans[i].MaxPatience())
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

// A Reservation is a cost that has been charged, and the time from which its caller may go ahead.
// Settle or Cancel may correct it once. If the cost was right, call neither.
type Reservation struct {
	Decision Decision

	limiter *Limiter
	key     string
	holder  string
	start   time.Time

	mu     sync.Mutex
	cost   int64
	isDone bool
}

// Delay is how long the caller must still wait.
func (r *Reservation) Delay() time.Duration { return max(time.Until(r.start), 0) }

// Settle corrects the cost to the actual one. It refunds the surplus, or charges what is missing
// even if it does not fit. It takes at most a second and works even if ctx has ended. Only the
// first Settle or Cancel has an effect. A Settle that returns ErrInvalid because actual is below 0
// or above MaxCost does not count. After an error that wraps ErrUnavailable it is unknown whether
// the cost was corrected, so a further call does nothing.
func (r *Reservation) Settle(ctx context.Context, actual int64) error {
	if actual < 0 || actual > MaxCost {
		return fmt.Errorf("%w: settle %d units; a cost is from 0 to %d", ErrInvalid, actual, int64(MaxCost))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDone || actual == r.cost {
		r.isDone = true
		return nil
	}
	r.isDone = true
	mode, n := Refund, r.cost-actual
	if n < 0 {
		mode, n = Force, -n
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	_, err := r.limiter.decide(ctx, r.key, r.holder, mode, n)
	return err
}

// Cancel refunds the whole cost, like a Settle of 0. In a LeakyBucket it frees the place only if no
// other caller is behind it in the queue.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }
