// Package lazy lets a guard give a deadline to a store without starting a timer for it.
package lazy

import (
	"context"
	"errors"
	"time"
)

// A Context has a deadline, but makes a timer for it only when Done is called. A store that can
// wait without this timer calls Lazy instead. If a decorator wraps the context, the store does not
// recognize it and calls Done; this only costs a timer.
type Context interface {
	context.Context

	// Lazy returns the Done channel of the parent context, and the deadline as far as it is known
	// without reading a clock. The deadline may be extended later. So call Deadline when it is
	// reached.
	Lazy() (done <-chan struct{}, deadline time.Time)
}

// Err returns the error of ctx at the time since after base, which has a monotonic reading. It
// reads the clock only if the deadline of a Context may have passed.
func Err(ctx context.Context, base time.Time, since time.Duration) error {
	if l, ok := ctx.(Context); ok {
		if canceled, at := l.Lazy(); since < at.Sub(base) {
			select {
			case <-canceled:
			default:
				return nil
			}
		}
	}
	return ctx.Err()
}

// ErrClosed is the error of Await if the store was closed.
var ErrClosed = errors.New("the store was closed")

// Await returns nil when done is closed or has a value. It returns an error if ctx ends first, or
// if storeClosed is closed first. Await makes a timer for the deadline of a Context, which is
// cheaper than its Done.
func Await(ctx context.Context, done, storeClosed <-chan struct{}) error {
	l, ok := ctx.(Context)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-storeClosed:
			return ErrClosed
		}
	}
	canceled, at := l.Lazy()
	for {
		select {
		case <-done:
			return nil
		case <-canceled:
			return ctx.Err()
		case <-storeClosed:
			return ErrClosed
		case <-time.After(time.Until(at)):
		}
		if at, _ = l.Deadline(); time.Until(at) <= 0 { // it may have been extended
			return context.DeadlineExceeded
		}
	}
}
