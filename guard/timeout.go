package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
)

// TimeoutOptions configure Timeout. The zero value is useful.
type TimeoutOptions struct {
	// After is how long a decision may take, including the wait for a connection. Time in which this
	// process did not run does not count: it was stopped, or other processes had its cores.
	// Default: 250 ms. Below 0: any time.
	After time.Duration

	// InFlight is the largest number of decisions in flight. Default: 4096, enough for 16,000
	// decisions a second if each takes the default After.
	InFlight int
}

// Timeout bounds how long a decision takes and how many are in flight. So a store that hangs blocks
// at most InFlight callers, each for After. The store must return when its context ends, as
// redisstore does.
//
// After counts time in which this process ran. If a timer fires late, the process has lost time.
// Then the deadline is extended by seven eighths of the lost time, or by the lost time minus 25 ms,
// whichever is longer. So a caller waits at most After if the process gets its CPU time, and at
// most eight times After if it is always starved. Only pauses of more than 200 ms make the wait
// longer than that, and each of them uses up 25 ms of After.
//
// A decision that takes longer ends with an error that wraps penstock.ErrUnavailable. Its charges
// may have been made. If InFlight decisions are in flight, a further decision is not sent, and ends
// with an error of ReasonShed. A call has less than After if the caller had its own deadline, if
// WithAnswerDeadline set an earlier time, or if the call was not the first of its decision. A
// breaker ignores timeouts of calls that had less than half of After.
func Timeout(o TimeoutOptions) penstock.Decorator {
	return o.timeout(&deadline.Set{After: o.after()})
}

func (o TimeoutOptions) timeout(d *deadline.Set) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return batches.Func(newTimeout(next, o, d).decide) }
}

func newTimeout(next penstock.Store, o TimeoutOptions, d *deadline.Set) *timeout {
	if o.InFlight <= 0 {
		o.InFlight = 4096
	}
	return &timeout{next: batches.Of(next), deadlines: d, maxInFlight: int64(o.InFlight), errShed: penstock.NewStoreError(penstock.ReasonShed,
		fmt.Errorf("%d decisions are in flight; raise TimeoutOptions.InFlight, or find out why the store is slow", o.InFlight))}
}

// defaultAfter is long enough for a process that shares its core with eight others:
// docs/decisions/0012.
const defaultAfter = 250 * time.Millisecond

func (o TimeoutOptions) after() time.Duration { return cmp.Or(o.After, defaultAfter) }

// WithAnswerDeadline returns a context for a caller that needs a decision by the time at. If the
// store has not replied then, its call ends as if TimeoutOptions.After had passed, and a Fallback
// decides. If ctx itself ends, no Fallback decides. WithAnswerDeadline has an effect only on stores
// inside a Timeout.
func WithAnswerDeadline(ctx context.Context, at time.Time) context.Context {
	return deadline.WithAnswerDeadline(ctx, at)
}

type timeout struct {
	next        batches.Func
	deadlines   *deadline.Set
	maxInFlight int64
	errShed     error
	inFlight    atomic.Int64
}

func (t *timeout) decide(ctx context.Context, list []*batches.Batch) {
	n := int64(len(list))
	if over := min(t.inFlight.Add(n)-t.maxInFlight, n); over > 0 {
		t.inFlight.Add(-over)
		n -= over
		batches.Fail(list[n:], cmp.Or(deadline.CallerErr(ctx), t.errShed))
	}
	defer t.inFlight.Add(-n)
	if n > 0 {
		t.send(ctx, list[:n])
	}
}

func (t *timeout) send(ctx context.Context, list []*batches.Batch) {
	if t.deadlines.After < 0 {
		t.next(ctx, list)
		return
	}
	bounded, isOwn := t.deadlines.Of(ctx)
	if isOwn {
		defer bounded.End()
		ctx = bounded
	}
	left := bounded.Left()
	if left <= 0 {
		batches.Fail(list, errTooLate)
		return
	}
	t.next(ctx, list)
	for _, b := range list {
		b.Err = t.errorOf(ctx, bounded, left, b.Err)
	}
}

// errorOf returns the error of a decision, or nil. leftAtCall is the time that the decision had
// when the store was called.
func (t *timeout) errorOf(ctx context.Context, bounded *deadline.Context, leftAtCall time.Duration, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	switch deadline.CallerErr(ctx) {
	case context.Canceled:
		return err
	case context.DeadlineExceeded: // the caller's own deadline, so the store had only the time until then
		leftAtCall -= bounded.Left()
	case nil:
		if !errors.Is(err, penstock.ErrUnavailable) {
			err = penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("no answer within %v: %w", leftAtCall.Round(100*time.Microsecond), err))
		}
	}
	if leftAtCall < t.deadlines.After/2 {
		err = withoutFault(err)
	}
	return err
}

// withoutFault returns a copy of a store's error with IsStoreFault false, because the store had too
// little time.
func withoutFault(err error) error {
	e := penstock.AsStoreError(err)
	if e == nil || !e.IsStoreFault {
		return err
	}
	faultless := *e
	faultless.IsStoreFault = false
	if error(e) != err { // keep the errors that wrap e
		faultless.Err = err
	}
	return &faultless
}

// errTooLate is the error of a decision whose deadline passed before the store was called. The call
// that used up the time has reported the store's health.
var errTooLate = func() error {
	e := penstock.NewStoreError(penstock.ReasonLate, fmt.Errorf("the deadline passed before the store was called: %w", context.DeadlineExceeded))
	e.IsStoreFault = false
	return e
}()
