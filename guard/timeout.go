package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// ErrShed says that too many decisions were under way for one more to be asked for. Nothing was charged. It comes with
// penstock.ErrUnavailable.
var ErrShed = errors.New("too many decisions are under way")

// TimeoutOptions configure Timeout. The zero value is useful.
type TimeoutOptions struct {
	// After is how long a decision may take, waiting for connections included. Default: 25 ms. Below 0: any time.
	After time.Duration

	// InFlight is how many decisions may be under way at once. Default: 4096, which is 160,000 a second of the default After each.
	InFlight int
}

// Timeout bounds how long a decision takes and how many are under way: a store that hangs can hold InFlight callers for After, and no
// more. It needs a store that ends with its context, as those of redisstore do.
//
// What takes longer ends with an error that wraps penstock.ErrUnavailable; its charges may have been made. What exceeds InFlight is not
// asked for at all: its error wraps ErrShed too. A breaker learns nothing from questions that had less than half of After, as of callers with
// deadlines of their own, or as the last of several for one decision.
func Timeout(o TimeoutOptions) penstock.Decorator {
	if o.InFlight <= 0 {
		o.InFlight = 4096
	}
	return func(next penstock.Store) penstock.Store {
		return &timeout{next: next, after: o.after(), most: int64(o.InFlight), shed: &shedError{o.InFlight}}
	}
}

func (o TimeoutOptions) after() time.Duration { return cmp.Or(o.After, 25*time.Millisecond) }

type timeout struct {
	next     penstock.Store
	after    time.Duration
	most     int64
	shed     error
	underWay atomic.Int64
}

func (t *timeout) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	defer t.underWay.Add(-1)
	if t.underWay.Add(1) > t.most {
		if err := callersErr(ctx); err != nil {
			return penstock.Decision{}, err
		}
		return penstock.Decision{}, t.shed
	}
	if t.after < 0 {
		return t.next.Decide(ctx, charges)
	}
	left := t.after
	bounded, own := deadlineOf(ctx, t.after)
	if own {
		defer bounded.end()
	} else if left = time.Until(bounded.at); left <= 0 {
		return penstock.Decision{}, &lateError{t.after}
	}
	d, err := t.next.Decide(bounded, charges)
	if err == nil || bounded.Err() == nil {
		return d, err
	}
	switch callersErr(bounded) {
	case context.Canceled:
		return d, err
	case context.DeadlineExceeded: // the caller's own
		left -= time.Until(bounded.at)
	case nil:
		if !errors.Is(err, penstock.ErrUnavailable) {
			err = fmt.Errorf("%w: no answer within %v: %w", penstock.ErrUnavailable, t.after, err)
		}
	}
	if left < t.after/2 {
		err = &uncounted{err}
	}
	return d, err
}

// within gives each decision one deadline, whatever the guards below make of it: several questions, one after the other, or one that waits for
// another. A Timeout below takes it over.
func within(after time.Duration) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if after < 0 {
			return next
		}
		return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			bounded, own := deadlineOf(ctx, after)
			if own {
				defer bounded.end()
			}
			return next.Decide(bounded, charges)
		})
	}
}

// deadlineOf is the decision's deadline. If it has none yet, the caller owns it, and ends it.
func deadlineOf(ctx context.Context, after time.Duration) (d *deadline, own bool) {
	if d, inherited := ctx.(*deadline); inherited {
		return d, false
	}
	return &deadline{Context: ctx, at: time.Now().Add(after)}, true
}

// callersErr tells whether the caller has gone away, or wants to wait no longer. That the guards' own deadline has passed is not meant.
func callersErr(ctx context.Context) error {
	if bounded, ok := ctx.(*deadline); ok {
		ctx = bounded.Context
	}
	return ctx.Err()
}

// await waits until something is done, and tells whether it is; false: the caller has gone away, or the decision's time is over.
func await(ctx context.Context, done <-chan struct{}) bool {
	var late <-chan time.Time
	if bounded, ok := ctx.(*deadline); ok { // without the timer, and the context, that its Done makes
		timer := time.NewTimer(time.Until(bounded.at))
		defer timer.Stop()
		ctx, late = bounded.Context, timer.C
	} else if ctx.Done() == nil {
		<-done
		return true
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-late:
	}
	return false
}

// An uncounted error tells nothing of the store, so no breaker counts it: it had little time.
type uncounted struct{ error }

// Counts tells that the error is not the store's.
func (*uncounted) Counts() bool { return false }

func (e *uncounted) Unwrap() error { return e.error }

// A deadline is a context with a deadline that costs nothing before somebody asks for its Done. A store that has a cheaper way to wait than a
// timer for each caller uses Lazy instead.
type deadline struct {
	context.Context // the caller's
	at              time.Time

	mu     sync.Mutex
	real   context.Context // once it was asked for
	cancel context.CancelFunc
	ended  bool
}

// Lazy is what Done would tell: the caller's Done, and the deadline.
func (d *deadline) Lazy() (done <-chan struct{}, at time.Time) {
	if done = d.Context.Done(); done == nil {
		return nil, d.at
	}
	at, _ = d.Deadline()
	return done, at
}

func (d *deadline) Deadline() (time.Time, bool) {
	if at, ok := d.Context.Deadline(); ok && at.Before(d.at) {
		return at, true
	}
	return d.at, true
}

func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.real == nil {
		d.real, d.cancel = context.WithDeadline(d.Context, d.at)
		if d.ended {
			d.cancel()
		}
	}
	return d.real.Done()
}

func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.real != nil {
		return d.real.Err()
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	if time.Until(d.at) <= 0 {
		return context.DeadlineExceeded
	}
	if d.ended {
		return context.Canceled
	}
	return nil
}

func (d *deadline) Value(key any) any {
	d.mu.Lock()
	real := d.real
	d.mu.Unlock()
	if real != nil {
		return real.Value(key)
	}
	return d.Context.Value(key)
}

// end cancels it: the decision is over.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.cancel != nil {
		d.cancel()
	}
}

// A lateError says that the decision's time was over before the store was asked.
type lateError struct{ after time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("%v: %v have passed before the store was asked", penstock.ErrUnavailable, e.after)
}

func (e *lateError) Unwrap() []error {
	return []error{penstock.ErrUnavailable, context.DeadlineExceeded}
}

// Counts tells that the error is not the store's: whoever used up the time has told of it.
func (e *lateError) Counts() bool { return false }

// ClassName is that of redisstore's errors of this kind: nothing was charged.
func (e *lateError) ClassName() string { return "late" }

// A shedError tells nothing of the store, so no breaker counts it.
type shedError struct{ most int }

func (e *shedError) Error() string {
	return fmt.Sprintf("%v: %v: %d; raise TimeoutOptions.InFlight, or find out why the store is slow", penstock.ErrUnavailable, ErrShed, e.most)
}

func (e *shedError) Unwrap() []error { return []error{penstock.ErrUnavailable, ErrShed} }

// Counts tells that the error is not the store's.
func (e *shedError) Counts() bool { return false }
