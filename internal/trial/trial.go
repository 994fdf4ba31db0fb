// Package trial passes batches that are never enforced through the guards, so that a store can
// decide them in one call with the enforced batch.
package trial

import (
	"context"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// Batches are offered to the store that decides the enforced batch.
type Batches struct {
	Enforced []penstock.Charge
	Trials   []*Batch
}

// A Batch is decided once, by whoever takes it: a store together with the enforced batch, or Alone.
type Batch struct {
	Charges []penstock.Charge

	// Alone starts a call of its own for the batch, and returns at once. Whoever has taken the batch
	// and cannot decide it calls it.
	Alone func()

	// A store that has taken the batch writes one of these before it returns from the enforced batch.
	Decision penstock.Decision
	Err      error

	taken atomic.Bool
}

// Take tells whether the caller is the first to take the batch.
func (b *Batch) Take() bool { return b.taken.CompareAndSwap(false, true) }

// Key is under which a context carries *Batches. A context of this module that may carry them
// answers for it, so that nobody searches further.
type Key struct{}

// Offered are the trials that may be decided with charges. There are none if charges are not the
// enforced batch itself, the same slice: a guard or decorator that changes the batch would have
// changed the trials too.
func Offered(ctx context.Context, charges []penstock.Charge) []*Batch {
	b, _ := ctx.Value(Key{}).(*Batches)
	if b == nil || len(b.Enforced) != len(charges) || &b.Enforced[0] != &charges[0] {
		return nil
	}
	return b.Trials
}
