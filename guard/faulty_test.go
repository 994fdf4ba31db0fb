package guard_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// A faulty store works until it is given a fault, which then gets the calls instead of the store.
type faulty struct {
	store penstock.Store
	fault atomic.Pointer[fault]
	calls atomic.Int64
}

type fault func(context.Context, []penstock.Charge) (penstock.Decision, error)

func newFaulty() *faulty { return &faulty{store: memstore.New(memstore.Options{})} }

func (f *faulty) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	f.calls.Add(1)
	if fault := f.fault.Load(); fault != nil {
		return (*fault)(ctx, charges)
	}
	return f.store.Decide(ctx, charges)
}

// setFault gives the store a fault, or repairs the store if the fault is nil.
func (f *faulty) setFault(to fault) {
	if to == nil {
		f.fault.Store(nil)
		return
	}
	f.fault.Store(&to)
}

// failWith returns a fault that answers every call with an error.
func failWith(err error) fault {
	return func(context.Context, []penstock.Charge) (penstock.Decision, error) { return penstock.Decision{}, err }
}

// hang is a fault that answers no call, like a stopped server. A call ends with its context.
func hang(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
	<-ctx.Done()
	return penstock.Decision{}, ctx.Err()
}

var errDown = fmt.Errorf("%w: connection refused", penstock.ErrUnavailable)

// compiled returns the plan of a limit.
func compiled(t testing.TB, limit penstock.Limit) *penstock.Plan {
	t.Helper()
	plan, err := limit.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// one returns a batch with one charge of one unit.
func one(limit *penstock.Plan, key string) []penstock.Charge {
	return []penstock.Charge{{Key: key, Plan: limit, Cost: 1}}
}

type traceKey struct{}

// traced wraps a store as a tracing decorator does: it forwards only Decide, with another context.
func traced(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return store.Decide(context.WithValue(ctx, traceKey{}, "a span"), charges)
	})
}

// standard puts guard.Standard around a store, with one instance unless the options have a Server
// or another number. The store is traced, so guards cannot find its other methods.
func standard(t testing.TB, store penstock.Store, o guard.Options) *guard.Guarded {
	t.Helper()
	if o.Server == nil && o.Instances == 0 {
		o.Instances = 1
	}
	g, err := guard.Standard(traced(store), o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}
