// Package redisclient sets up clients of Redis. It reads URLs, connects in the background, and
// corrects what rueidis does with connections. It also lets callers return at their deadlines.
package redisclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/internal/lazy"
)

var (
	// ErrNotSent marks errors that occurred before anything was sent.
	ErrNotSent = errors.New("nothing was sent")

	// ErrLate marks calls that were not sent because their deadline had passed, whether or not a
	// server could be reached.
	ErrLate = errors.New("the deadline passed before it was sent")

	// ErrClosed is the error of calls after Close.
	ErrClosed = errors.New("the store was closed")
)

// NotSent marks an error by ErrNotSent.
func NotSent(err error) error { return fmt.Errorf("%w: %w", ErrNotSent, err) }

// TooLate marks an error by ErrLate and ErrNotSent.
func TooLate(err error) error { return NotSent(fmt.Errorf("%w: %w", ErrLate, err)) }

// Await returns nil when done is closed or has a value. Await returns an error if ctx ends first,
// or if clientClosed is closed first. A lazy.Context has a deadline but no timer; Await makes
// one for it.
func Await(ctx context.Context, done, clientClosed <-chan struct{}) error {
	l, ok := ctx.(lazy.Context)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-clientClosed:
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
		case <-clientClosed:
			return ErrClosed
		case <-time.After(time.Until(at)):
		}
		if at, _ = l.Deadline(); time.Until(at) <= 0 { // it may have been extended
			return context.DeadlineExceeded
		}
	}
}
