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
// TokenBucket and LeakyBucket can book the future: the store assigns a turn to the caller
// immediately, and WaitN sleeps until this turn. A call that begins when another call already has
// its turn gets a later turn, even on another instance. Calls that overlap in the store get their
// turns in any order. If the counter of a TokenBucket is split, all calls get their turns in any
// order.
//
// Windows cannot book. There WaitN tries again after RetryAfter and a little jitter. Callers are
// then admitted in any order.
//
// If ctx ends first, WaitN refunds what was booked and returns ctx's error. WaitN returns a
// DeniedError without waiting if n can never fit, if the turn would come after ctx's deadline, or
// if the queue is full.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	for {
		reservation, err := l.ReserveN(ctx, key, n)
		if denied, ok := errors.AsType[*DeniedError](err); ok && l.canRetrySucceed(ctx, denied.Decision) {
			if err := sleep(ctx, jitter(denied.Decision.RetryAfter())); err != nil {
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

// canRetrySucceed reports whether a retry before ctx's deadline can be granted. If a limit that can
// book the future has denied, no retry can succeed: the limit has considered all turns up to the
// deadline.
func (l *Limiter) canRetrySucceed(ctx context.Context, d Decision) bool {
	for i, plan := range l.plans {
		if d.Status(i).RetryAfter != 0 && plan.Algorithm().CanBook() {
			return false
		}
	}
	retryAfter := d.RetryAfter()
	if retryAfter == Never {
		return false
	}
	deadline, hasDeadline := ctx.Deadline()
	return !hasDeadline || time.Until(deadline) > retryAfter
}

// refundTimeout bounds a refund, which must not end with its caller's context.
const refundTimeout = time.Second

// detach returns a context for a call that must reach the store even if ctx ends.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), refundTimeout)
}

// jitter lengthens a delay by a random time, so that callers that were denied together do not all
// retry together. The random time is below a tenth of d (at most 100 ms) plus 1 ms.
func jitter(d time.Duration) time.Duration {
	longest := min(d/10, 100*time.Millisecond) + time.Millisecond
	return d + mathrand.N(longest)
}

// sleep returns after d, or ctx's error if ctx ends first.
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

// Reserve charges one unit, now or for a later time. See ReserveN.
func (l *Limiter) Reserve(ctx context.Context, key string) (*Reservation, error) {
	return l.ReserveN(ctx, key, 1)
}

// ReserveN charges n units, now or for a later time before ctx's deadline. Without a deadline, it
// books as far ahead as the limits allow, at most a day. So each further call succeeds with a
// longer Delay, although the units are used up. The caller must wait for the Reservation's Delay
// before it goes ahead. If the units do not become available before the deadline, the error is a
// DeniedError and nothing is charged.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64) (*Reservation, error) {
	if l.hasHolds {
		return nil, fmt.Errorf("%w: limiter %q has a limit of slots; use Acquire", ErrInvalid, l.name)
	}
	patience := maxPatience
	if deadline, ok := ctx.Deadline(); ok {
		patience = max(time.Until(deadline), 0)
	}
	holder := rand.Text()
	b := l.takeBatch(key, holder, Spend, n)
	defer l.putBatch(b)
	for i := range b.charges {
		b.charges[i].Patience = min(patience, l.plans[i].MaxPatience())
		b.charges[i].IsRefundable = true
	}
	d, err := l.store.Decide(ctx, b.charges)
	if err != nil {
		return nil, err
	}
	if !d.Allowed {
		return nil, &DeniedError{d}
	}
	return &Reservation{limiter: l, key: key, holder: holder, cost: n, turn: time.Now().Add(d.Wait()), Decision: d}, nil
}

// A Reservation is a cost that has been charged for a turn: the caller may go ahead from then on.
// Settle or Cancel may correct the cost once. If the cost was right, call neither.
type Reservation struct {
	Decision Decision // of the Reserve

	limiter *Limiter
	key     string
	holder  string
	turn    time.Time

	mu     sync.Mutex
	cost   int64
	isDone bool
}

// Delay returns how long the caller must still wait.
func (r *Reservation) Delay() time.Duration { return max(time.Until(r.turn), 0) }

// Settle corrects the cost to the actual one. It refunds the surplus, or charges what is missing
// even if that does not fit. A refund is exact at any time: the counter becomes what it would be if
// the surplus had never been charged. So nothing is refunded if the counter has been full since the
// Reserve, or if its window has ended. Settle takes at most a second, and works even if ctx has
// ended.
//
// Only the first Settle or Cancel has an effect. One that fails with ErrInvalid, because actual is
// below 0 or above MaxCost, does not count as the first. One that fails with ErrUnavailable does:
// the cost may have been corrected.
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
	mode, difference := Refund, r.cost-actual
	if difference < 0 {
		mode, difference = Force, -difference
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	b := r.limiter.takeBatch(r.key, r.holder, mode, difference)
	defer r.limiter.putBatch(b)
	for i := range b.charges {
		b.charges[i].Receipt = r.Decision.Status(i).Receipt
	}
	_, err := r.limiter.store.Decide(ctx, b.charges)
	return err
}

// Cancel refunds the whole cost, like a Settle of 0. In a LeakyBucket it frees the caller's place
// only if no other caller is behind it in the queue.
func (r *Reservation) Cancel(ctx context.Context) error { return r.Settle(ctx, 0) }
