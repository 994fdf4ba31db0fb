// Package many decides lists of independent batches. A transport that has many requests at hand
// passes them on as one list: then the guards and the store share locks, timers and goroutines.
package many

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
)

// A Call is a batch of a list, and its result.
type Call struct {
	Charges  []penstock.Charge
	Decision penstock.Decision // if Err is nil
	Err      error
	Cause    error // why the store gave no answer, although there is a decision
}

// A Store decides lists. DecideMany sets Decision or Err of each call, as concurrent calls of
// Decide would. No two calls of a list depend on each other.
type Store interface {
	penstock.Store
	DecideMany(ctx context.Context, calls []*Call)
}

// Decide has a store decide a list. A store that is no Store gets the calls at the same time.
func Decide(ctx context.Context, store penstock.Store, calls []*Call) {
	if s, ok := store.(Store); ok && len(calls) > 1 {
		s.DecideMany(ctx, calls)
		return
	}
	Each(ctx, store, calls)
}

// Try is Decide. A panic becomes an error of all calls that wraps penstock.ErrUnavailable.
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

// Each has a store decide the calls one by one, all at the same time. A panic becomes an error of
// its call, as in Try.
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

// Divided has a function decide some calls of a list together, while a store decides others one by
// one.
func Divided(ctx context.Context, alone penstock.Store, singles []*Call, together func(context.Context, []*Call), calls []*Call) {
	if len(singles) > 0 {
		var done sync.WaitGroup
		defer done.Wait()
		done.Go(func() { Each(ctx, alone, singles) })
	}
	if len(calls) > 0 {
		together(ctx, calls)
	}
}

// Fail sets the error of all calls.
func Fail(calls []*Call, err error) {
	for _, c := range calls {
		c.Decision, c.Err = penstock.Decision{}, err
	}
}
