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

// A faulty store works until it is given a fault: what then stands between the caller and the
// store.
type faulty struct {
	store penstock.Store
	fault atomic.Pointer[fault]
	asked atomic.Int64
}

type fault func(context.Context, []penstock.Charge) (penstock.Decision, error)

func newFaulty() *faulty { return &faulty{store: memstore.New(memstore.Options{})} }

func (f *faulty) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	f.asked.Add(1)
	if fault := f.fault.Load(); fault != nil {
		return (*fault)(ctx, charges)
	}
	return f.store.Decide(ctx, charges)
}

// breaks gives the store a fault, or with nil repairs it.
func (f *faulty) breaks(by fault) {
	if by == nil {
		f.fault.Store(nil)
		return
	}
	f.fault.Store(&by)
}

// fails answers every question with an error.
func fails(err error) fault {
	return func(context.Context, []penstock.Charge) (penstock.Decision, error) { return penstock.Decision{}, err }
}

// hangs answers no question, as a server that was stopped: the store ends with the context.
func hangs(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
	<-ctx.Done()
	return penstock.Decision{}, ctx.Err()
}

var errDown = fmt.Errorf("%w: connection refused", penstock.ErrUnavailable)

// ready is a limit as a Limiter has it.
func ready(t testing.TB, limit penstock.Limit) *penstock.Plan {
	t.Helper()
	plan, err := limit.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// one is a batch of one unit under a key.
func one(limit *penstock.Plan, key string) []penstock.Charge {
	return []penstock.Charge{{Key: key, Plan: limit, Cost: 1}}
}

type traceKey struct{}

func traced(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return store.Decide(context.WithValue(ctx, traceKey{}, "a span"), charges)
	})
}

// standard is guard.Standard around a store of one instance, unless the options say otherwise. A
// decorator around the store forwards Decide only, and wraps the context as tracing does: nothing
// else may be found there.
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
