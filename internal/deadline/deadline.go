// Package deadline gives each decision one deadline, shared by all guards.
package deadline

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/lazy"
)

// A Set gives decisions their deadlines. Its clock stops while this process does not run.
type Set struct {
	After  time.Duration // below 0: there are no deadlines
	stalls stallMeter
}

// Within gives each decision of a store one deadline, and the batches of a list one together. The
// deadline covers all calls that the guards below make for the decision, and the time in which they
// wait for other decisions. A Timeout below uses this deadline.
func (t *Set) Within(next penstock.Store) penstock.Store {
	if t.After < 0 {
		return next
	}
	decide := batches.Of(next)
	return batches.Func(func(ctx context.Context, list []*batches.Batch) {
		bounded, isOwn := t.Of(ctx)
		if isOwn {
			defer bounded.End()
		}
		decide(bounded, list)
	})
}

// Of returns the decision's deadline. If there is none yet, it makes one: then isOwn is true, and
// the caller must end it.
func (t *Set) Of(ctx context.Context) (d *Context, isOwn bool) {
	if d := From(ctx); d != nil {
		return d, false
	}
	return t.newContext(ctx, now()), true
}

// OfSince is Of for a decision that began at the given time, which has a monotonic reading. It does
// not read the clock.
func (t *Set) OfSince(ctx context.Context, began time.Time) (d *Context, isOwn bool) {
	if d := From(ctx); d != nil {
		return d, false
	}
	return t.newContext(ctx, began.Sub(start)), true
}

func (t *Set) newContext(ctx context.Context, began time.Duration) *Context {
	t.stalls.begin()
	at := began + min(t.After, maxDuration)
	if b, ok := ctx.Value(answerByKey{}).(*answerBy); ok {
		at = min(at, max(b.at.Sub(start), -maxDuration))
	}
	return &Context{Context: ctx, stalls: &t.stalls, baseDeadline: at, stalledBefore: t.stalls.stalled(began)}
}

// WithAnswerDeadline returns a context whose decisions end at the given time, or earlier.
func WithAnswerDeadline(ctx context.Context, at time.Time) context.Context { return &answerBy{ctx, at} }

type answerByKey struct{}

// An answerBy is a context with a time by which the store must have replied. The context does not
// end then: the time after that is for the fallback.
type answerBy struct {
	context.Context
	at time.Time
}

func (b *answerBy) Value(key any) any {
	if key == (answerByKey{}) {
		return b
	}
	return b.Context.Value(key)
}

// CallerErr returns the error of the caller's own context. The guards' deadline does not count.
func CallerErr(ctx context.Context) error {
	d := From(ctx)
	if d == nil {
		return ctx.Err()
	}
	if err := d.Context.Err(); err != nil {
		return err
	}
	if ctx != context.Context(d) && ctx.Err() == context.Canceled { // canceled by a guard in between
		return context.Canceled
	}
	return nil
}

// start is when the process began. Times count from here.
var start = time.Now()

// maxDuration bounds durations, so that adding them to a time does not overflow.
const maxDuration time.Duration = 1 << 61

// now returns the time by the monotonic clock. It takes half as long as time.Now, which reads the
// wall clock too.
func now() time.Duration { return time.Since(start) }

type contextKey struct{}

// From returns the decision's deadline, or nil if there is none yet.
func From(ctx context.Context) *Context {
	d, _ := ctx.Value(contextKey{}).(*Context)
	return d
}

// Detach returns a context for work that goes on after the decision. This context is never
// canceled, and has the caller's values, but not the decision's deadline.
func Detach(ctx context.Context) context.Context {
	if d := From(ctx); d != nil {
		ctx = d.Context
	}
	return context.WithoutCancel(ctx)
}

// A Context is a context with a deadline. It has no timer before the first call of Done. A store
// that needs no timer for each caller calls Lazy instead.
//
// The deadline is extended by the time that this process loses. So code that waits for the deadline
// must check it again when the wait ends.
type Context struct {
	context.Context // the caller's
	stalls          *stallMeter
	baseDeadline    time.Duration // the deadline if the process loses no time
	stalledBefore   time.Duration // what stallMeter.stalled returned when the Context was made

	mu            sync.Mutex
	done          chan struct{} // nil before the first call of Done
	timer         *time.Timer   // closes done
	stopFollowing func() bool   // after it, the end of the caller's context no longer closes done
	err           error         // why the context has ended
}

// Left returns how much time the decision still has, if the process loses no more time.
func (d *Context) Left() time.Duration {
	now := now()
	return d.baseDeadline - now + d.stalls.stalled(now) - d.stalledBefore
}

// Until returns when the decision's time is over, if the process loses no more time.
func (d *Context) Until() time.Time {
	return start.Add(d.baseDeadline + d.stalls.stalled(now()) - d.stalledBefore)
}

var _ lazy.Context = (*Context)(nil)

// Lazy returns the caller's Done, and the deadline as far as it is known without reading the clock.
func (d *Context) Lazy() (done <-chan struct{}, at time.Time) {
	at = start.Add(d.baseDeadline + max(d.stalls.stalledAtLastTick()-d.stalledBefore, 0))
	if callers, ok := d.Context.Deadline(); ok && callers.Before(at) {
		at = callers
	}
	return d.Context.Done(), at
}

// Value returns the Context itself for contextKey, also through contexts derived from it.
func (d *Context) Value(key any) any {
	if key == (contextKey{}) {
		return d
	}
	return d.Context.Value(key)
}

func (d *Context) Deadline() (time.Time, bool) {
	until := d.Until()
	if at, ok := d.Context.Deadline(); ok && at.Before(until) {
		return at, true
	}
	return until, true
}

func (d *Context) Done() <-chan struct{} {
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
	d.stopFollowing = context.AfterFunc(d.Context, d.closeIfEnded)
	d.timer = time.AfterFunc(d.Left(), d.closeIfEnded)
	return d.done
}

func (d *Context) closeIfEnded() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return
	}
	if d.errLocked() == nil { // the deadline was extended
		d.timer.Reset(d.Left())
		return
	}
	d.closeLocked()
}

func (d *Context) closeLocked() {
	if d.done != nil {
		d.timer.Stop()
		d.stopFollowing()
		close(d.done)
	}
}

func (d *Context) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	hadEnded := d.err != nil
	if d.errLocked() != nil && !hadEnded {
		d.closeLocked()
	}
	return d.err
}

// errLocked returns why the context has ended, or nil. Once set, the error never changes.
func (d *Context) errLocked() error {
	if d.err == nil {
		d.err = d.Context.Err()
	}
	if d.err == nil && d.Left() <= 0 {
		d.err = context.DeadlineExceeded
	}
	return d.err
}

// End cancels the context, because the decision has ended.
func (d *Context) End() {
	d.stalls.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return
	}
	d.err = context.Canceled
	d.closeLocked()
}
