// Package many decides lists of independent batches. A transport that has received many requests
// passes them on as one list. Then the guards and the store share locks, timers and goroutines.
package many

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
)

// A Call is one batch of a list, and its result.
type Call struct {
	Charges  []penstock.Charge
	Decision penstock.Decision // valid if Err is nil
	Err      error
	Cause    error // if a fallback made the decision: why the store gave no answer
}

// A Store decides lists. DecideMany sets Decision or Err of each call, like concurrent calls of
// Decide. No two calls of a list depend on each other.
type Store interface {
	penstock.Store
	DecideMany(ctx context.Context, calls []*Call)
}

// Decide decides a list with a store. If the store has no DecideMany, each call becomes a
// concurrent call of Decide.
func Decide(ctx context.Context, store penstock.Store, calls []*Call) {
	if s, ok := store.(Store); ok && len(calls) > 1 {
		s.DecideMany(ctx, calls)
		return
	}
	Each(ctx, store, calls)
}

// Try is like Decide, but recovers from a panic. All calls then get an error that wraps
// penstock.ErrUnavailable.
func Try(ctx context.Context, store penstock.Store, calls []*Call) {
	isDone := false
	defer func() {
		if !isDone {
			Fail(calls, errPanic)
		}
	}()
	defer panicked.Recover("a store decides")
	Decide(ctx, store, calls)
	isDone = true
}

var errPanic = fmt.Errorf("%w: panic", penstock.ErrUnavailable)

// Each calls store.Decide for each call of the list, concurrently. If one panics, its call gets an
// error that wraps penstock.ErrUnavailable.
func Each(ctx context.Context, store penstock.Store, calls []*Call) {
	if len(calls) == 0 {
		return
	}
	var others sync.WaitGroup
	for _, c := range calls[1:] {
		others.Go(func() { c.Decision, c.Err = panicked.Decide(ctx, store, c.Charges) })
	}
	first := calls[0]
	first.Decision, first.Err = panicked.Decide(ctx, store, first.Charges)
	others.Wait()
}

// DecideDivided decides a list that was divided in two. It passes the calls to decideTogether as
// one list. At the same time, the store decides each of the singles in a call of its own.
func DecideDivided(ctx context.Context, store penstock.Store, singles []*Call, decideTogether func(context.Context, []*Call), calls []*Call) {
	if len(singles) > 0 {
		var done sync.WaitGroup
		defer done.Wait()
		done.Go(func() { Each(ctx, store, singles) })
	}
	if len(calls) > 0 {
		decideTogether(ctx, calls)
	}
}

// Fail sets the error of all calls.
func Fail(calls []*Call, err error) {
	for _, c := range calls {
		c.Decision, c.Err = penstock.Decision{}, err
	}
}
