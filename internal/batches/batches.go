// Package batches decides lists of independent batches in one pass. A transport that has received
// many requests passes them on as one list. Then the guards and the store share locks, timers and
// goroutines.
//
// A store of this module has a Func, which decides a list. Its Decide, as penstock.Store has it,
// decides a list of one. Of finds the Func of a store.
package batches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
)

// A Batch is charges that are all made or none, and the decision on them.
type Batch struct {
	Charges []penstock.Charge

	// Shadows are batches that the store may decide in the call of this one. Guards neither see nor
	// decide them. Their Err is ErrUndecided until the store decides them. It stays ErrUndecided if a
	// guard decides the batch, or if the store cannot decide both in one call.
	Shadows []*Batch

	Decision penstock.Decision // valid if Err is nil
	Err      error
	Cause    error // if a fallback made the decision: why the store gave no answer
}

var ErrUndecided = errors.New("the shadow was not decided in the call of its batch")

// A Func decides the batches of a list as concurrent calls of Decide would. No two batches of a
// list depend on each other. A Func sets Err of each batch, and Decision if Err is nil. It does not
// change the list. After it returns, it keeps neither the list nor the batches.
type Func func(ctx context.Context, list []*Batch)

// A single is a list of one batch. Its memory is reused: a variable would be allocated for each
// decision, because its address is passed to a Func.
type single struct {
	batch Batch
	list  [1]*Batch
}

var singlePool = sync.Pool{New: func() any {
	s := new(single)
	s.list[0] = &s.batch
	return s
}}

// Decide implements penstock.Store.
func (f Func) Decide(ctx context.Context, charges []penstock.Charge) (d penstock.Decision, err error) {
	s := singlePool.Get().(*single)
	b := &s.batch
	b.Charges = charges
	f(ctx, s.list[:])
	if err = b.Err; err == nil {
		d = b.Decision
	}
	b.Charges, b.Err, b.Cause = nil, nil, nil
	singlePool.Put(s)
	return d, err
}

// A ListDecider lets Of find the Func of an exported type of store. The type embeds a ListDecider
// by an unexported name, so its documentation does not show it. Only this package can call the
// method lists, which the type gets by embedding.
type ListDecider struct {
	owner  penstock.Store
	decide Func
}

// NewListDecider is for an owner whose Decide is that of the Func.
func NewListDecider(owner penstock.Store, decide Func) ListDecider { return ListDecider{owner, decide} }

func (d *ListDecider) lists() *ListDecider { return d }

// Of returns the Func of a store. If the store has only Decide, the Func calls Decide for each
// batch of a list concurrently. Decorators of users are such stores.
func Of(store penstock.Store) Func {
	if decide := Find(store); decide != nil {
		return decide
	}
	var decide Func
	decide = func(ctx context.Context, list []*Batch) {
		if len(list) > 1 {
			Each(ctx, decide, list)
			return
		}
		b := list[0]
		b.Decision, b.Err = store.Decide(ctx, b.Charges)
	}
	return decide
}

// Find returns the Func of a store that is a Func or embeds a ListDecider, and nil for other
// stores.
func Find(store penstock.Store) Func {
	switch s := store.(type) {
	case Func:
		return s
	case interface{ lists() *ListDecider }:
		// If the owner is an embedded store, the outer store may have a Decide of its own.
		if d := s.lists(); d.owner == store {
			return d.decide
		}
	}
	return nil
}

// Alone returns a Func for lists of several batches. A batch for which isSingle returns true is
// decided alone, by a call of decideOne. One call of decideList decides all others.
func Alone(isSingle func(*Batch) bool, decideOne, decideList Func) Func {
	return func(ctx context.Context, list []*Batch) {
		first := slices.IndexFunc(list, isSingle)
		if first < 0 {
			decideList(ctx, list)
			return
		}
		singles, rest := []*Batch{list[first]}, slices.Clone(list[:first])
		for _, b := range list[first+1:] {
			if isSingle(b) {
				singles = append(singles, b)
			} else {
				rest = append(rest, b)
			}
		}
		Divide(ctx, decideOne, singles, decideList, rest)
	}
}

// Divide decides two lists at the same time. Each batch of singles is decided by a call of
// decideOne. All batches of rest are decided by one call of decideList.
func Divide(ctx context.Context, decideOne Func, singles []*Batch, decideList Func, rest []*Batch) {
	if len(singles) > 0 {
		var done sync.WaitGroup
		defer done.Wait()
		for i := range singles {
			done.Go(func() { Try(ctx, decideOne, singles[i:i+1]) })
		}
	}
	if len(rest) > 0 {
		decideList(ctx, rest)
	}
}

// Each decides the batches of a list concurrently, each by a call of decide. If the decision on one
// of several batches panics, that batch gets an error that wraps penstock.ErrUnavailable.
func Each(ctx context.Context, decide Func, list []*Batch) {
	if len(list) == 1 {
		decide(ctx, list)
		return
	}
	Divide(ctx, decide, list, nil, nil)
}

// Try decides a list. If that panics, all batches get an error that wraps penstock.ErrUnavailable.
func Try(ctx context.Context, decide Func, list []*Batch) {
	isDone := false
	defer func() {
		if !isDone {
			Fail(list, errPanic)
		}
	}()
	defer panicked.Recover("a store decides")
	decide(ctx, list)
	isDone = true
}

var errPanic = fmt.Errorf("%w: panic", penstock.ErrUnavailable)

func Fail(list []*Batch, err error) {
	for _, b := range list {
		b.Decision, b.Err = penstock.Decision{}, err
	}
}
