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
	"github.com/penstock/penstock/internal/lazy"
)

// TimeoutOptions configure Timeout. The zero value is useful.
type TimeoutOptions struct {
	// After is how long a decision may take, waiting for connections included. Time in which this
	// process did not run does not count, as when it is stopped, or its cores are busy with others.
	// Default: 250 ms. Below 0: any time.
	After time.Duration

	// InFlight is how many decisions may be under way at once. Default: 4096, which is 16,000 a
	// second of the default After each.
	InFlight int
}

// Timeout bounds how long a decision takes and how many are under way: a store that hangs can hold
// InFlight callers for After, and no more. It needs a store that ends with its context, as those of
// redisstore do.
//
// After counts time in which this process ran. A timer that fires late shows time that was lost,
// and extends the deadline by it, less an eighth of it or 25 ms, whichever is shorter. So a caller
// waits at most After if the process gets its CPU time, and at most eight times After if it is
// always starved. Only pauses of more than 200 ms make it longer, and there is at most one of them
// for each 25 ms of After.
//
// What takes longer ends with an error that wraps penstock.ErrUnavailable; its charges may have
// been made. What exceeds InFlight is not asked for at all: its error has ReasonShed. A breaker
// learns nothing from questions that had less than half of After, as of callers with deadlines of
// their own, or as the last of several for one decision.
func Timeout(o TimeoutOptions) penstock.Decorator {
	return o.timeout(&deadlines{after: o.after()})
}

func (o TimeoutOptions) timeout(d *deadlines) penstock.Decorator {
	if o.InFlight <= 0 {
		o.InFlight = 4096
	}
	return func(next penstock.Store) penstock.Store {
		return &timeout{next: next, deadlines: d, most: int64(o.InFlight), shed: penstock.NewStoreError(penstock.ReasonShed,
			fmt.Errorf("%d decisions are in flight; raise TimeoutOptions.InFlight, or find out why the store is slow", o.InFlight))}
	}
}

// defaultAfter is long enough for a process that shares its core with eight others:
// docs/decisions/0012.
const defaultAfter = 250 * time.Millisecond

func (o TimeoutOptions) after() time.Duration { return cmp.Or(o.After, defaultAfter) }

type timeout struct {
	next      penstock.Store
	deadlines *deadlines
	most      int64
	shed      error
	underWay  atomic.Int64
}

func (t *timeout) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	defer t.underWay.Add(-1)
	if t.underWay.Add(1) > t.most {
		if err := callersErr(ctx); err != nil {
			return penstock.Decision{}, err
		}
		return penstock.Decision{}, t.shed
	}
	after := t.deadlines.after
	if after < 0 {
		return t.next.Decide(ctx, charges)
	}
	left := after
	bounded, own := t.deadlines.deadlineOf(ctx)
	if own {
		defer bounded.end()
		ctx = bounded
	} else if left = bounded.left(); left <= 0 {
		return penstock.Decision{}, tooLate(after)
	}
	d, err := t.next.Decide(ctx, charges)
	if err == nil || ctx.Err() == nil {
		return d, err
	}
	switch callersErr(ctx) {
	case context.Canceled:
		return d, err
	case context.DeadlineExceeded: // the caller's own
		left -= bounded.left()
	case nil:
		if !errors.Is(err, penstock.ErrUnavailable) {
			err = penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("no answer within %v: %w", after, err))
		}
	}
	if left < after/2 {
		err = noFault(err)
	}
	return d, err
}

// deadlines say how long decisions may take, by a clock that stands still while this process does
// not run.
type deadlines struct {
	after    time.Duration
	lateness lateness
}

// within gives each decision one deadline, whatever the guards below make of it: several questions,
// one after the other, or one that waits for another. A Timeout below takes it over.
func (t *deadlines) within(next penstock.Store) penstock.Store {
	if t.after < 0 {
		return next
	}
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		bounded, own := t.deadlineOf(ctx)
		if own {
			defer bounded.end()
		}
		return next.Decide(bounded, charges)
	})
}

// deadlineOf is the decision's deadline. If it has none yet, the caller owns it, and ends it.
func (t *deadlines) deadlineOf(ctx context.Context) (d *deadline, own bool) {
	if d := deadlineIn(ctx); d != nil {
		return d, false
	}
	t.lateness.begin()
	now := time.Now()
	return &deadline{Context: ctx, lateness: &t.lateness, at: now.Add(t.after), lost: t.lateness.lost(now)}, true
}

// callersErr tells whether the caller has gone away, or wants to wait no longer. That the guards'
// own deadline has passed is not meant.
func callersErr(ctx context.Context) error {
	d := deadlineIn(ctx)
	if d == nil {
		return ctx.Err()
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	if ctx != context.Context(d) && ctx.Err() == context.Canceled { // by somebody in between
		return context.Canceled
	}
	return nil
}

// deadlineKey is the key of the decision's deadline in a context.
type deadlineKey struct{}

// deadlineIn is the decision's deadline, or nil if there is none yet.
func deadlineIn(ctx context.Context) *deadline {
	d, _ := ctx.Value(deadlineKey{}).(*deadline)
	return d
}

// detach is a context for work that goes on after the decision: it is never cancelled, and has the
// caller's values, but not the decision's deadline.
func detach(ctx context.Context) context.Context {
	if d := deadlineIn(ctx); d != nil {
		ctx = d.Context
	}
	return context.WithoutCancel(ctx)
}

// await waits until something is done, and tells whether it is; false: the caller has gone away, or
// the decision's time is over.
func await(ctx context.Context, done <-chan struct{}) bool {
	bounded := deadlineIn(ctx)
	if bounded == nil || ctx != context.Context(bounded) {
		select {
		case <-done:
			return true
		case <-ctx.Done():
			return false
		}
	}
	timer := time.NewTimer(bounded.left()) // without the timer, and the context, that its Done makes
	defer timer.Stop()
	for {
		select {
		case <-done:
			return true
		case <-bounded.Context.Done():
			return false
		case <-timer.C:
		}
		left := bounded.left()
		if left <= 0 {
			return false
		}
		timer.Reset(left)
	}
}

// noFault is a store's error that says nothing about its health, since the store had little time.
func noFault(err error) error {
	e := penstock.AsStoreError(err)
	if e == nil || !e.IsStoreFault {
		return err
	}
	other := *e
	other.IsStoreFault = false
	if error(e) != err {
		other.Err = err
	}
	return &other
}

// tooLate is the error of a decision whose time was over before the store was asked. The call that
// used up the time has reported the store's health.
func tooLate(after time.Duration) error {
	e := penstock.NewStoreError(penstock.ReasonLate, fmt.Errorf("%v have passed before the store was asked: %w", after, context.DeadlineExceeded))
	e.IsStoreFault = false
	return e
}

// A deadline is a context with a deadline that costs nothing before somebody asks for its Done. A
// store that has a cheaper way to wait than a timer for each caller uses Lazy instead.
//
// The deadline is extended by the time that this process loses. So whoever waits for it must check
// again when it has come.
type deadline struct {
	context.Context // the caller's
	lateness        *lateness
	at              time.Time     // if no time is lost
	lost            time.Duration // until it was made

	mu       sync.Mutex
	done     chan struct{} // once it was asked for
	timer    *time.Timer   // that closes done
	unfollow func() bool   // what closes done with the caller's context
	err      error         // why it is over
}

// left is how much of the decision's time is left, if no more of it is lost.
func (d *deadline) left() time.Duration {
	now := time.Now()
	return d.at.Sub(now) + d.lateness.lost(now) - d.lost
}

// until is when the decision's time is over, if no more of it is lost.
func (d *deadline) until() time.Time {
	return d.at.Add(d.lateness.lost(time.Now()) - d.lost)
}

var _ lazy.Context = (*deadline)(nil)

// Lazy returns the caller's Done, and the deadline.
func (d *deadline) Lazy() (done <-chan struct{}, at time.Time) {
	at, _ = d.Deadline()
	return d.Context.Done(), at
}

// Value finds the deadline itself, also in contexts that are made of this one.
func (d *deadline) Value(key any) any {
	if key == (deadlineKey{}) {
		return d
	}
	return d.Context.Value(key)
}

func (d *deadline) Deadline() (time.Time, bool) {
	until := d.until()
	if at, ok := d.Context.Deadline(); ok && at.Before(until) {
		return at, true
	}
	return until, true
}

func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done != nil {
		return d.done
	}
	d.done = make(chan struct{})
	if d.errLocked() != nil {
		close(d.done)
		return d.done
	}
	d.unfollow = context.AfterFunc(d.Context, d.look)
	d.timer = time.AfterFunc(d.left(), d.look)
	return d.done
}

// look closes done, if it is over.
func (d *deadline) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return
	}
	if d.errLocked() == nil { // it was extended
		d.timer.Reset(d.left())
		return
	}
	d.closeLocked()
}

func (d *deadline) closeLocked() {
	if d.done != nil {
		d.timer.Stop()
		d.unfollow()
		close(d.done)
	}
}

func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.err
	err := d.errLocked()
	if was == nil && err != nil {
		d.closeLocked()
	}
	return err
}

// errLocked returns why it is over, or nil. Once it is over, it stays over.
func (d *deadline) errLocked() error {
	if d.err == nil {
		d.err = d.Context.Err()
	}
	if d.err == nil && d.left() <= 0 {
		d.err = context.DeadlineExceeded
	}
	return d.err
}

// end cancels it: the decision is over.
func (d *deadline) end() {
	d.lateness.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return
	}
	d.err = context.Canceled
	d.closeLocked()
}
