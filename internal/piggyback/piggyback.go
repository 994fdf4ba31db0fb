// Package piggyback passes the batches of shadows through the guards, so that a store can decide
// them in one call with the enforced batch.
package piggyback

import (
	"context"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// Batches has the batches of shadows that a store may decide together with the enforced batch.
type Batches struct {
	Enforced []penstock.Charge
	Shadows  []*Batch
}

// A Batch is decided once: by a store together with the enforced batch, or by DecideAlone.
type Batch struct {
	Charges []penstock.Charge

	// DecideAlone starts a separate call for the batch, and does not wait for its end. If a store has
	// taken the batch and cannot decide it, the store must call DecideAlone.
	DecideAlone func()

	// A store that has taken the batch sets one of these before it returns from the enforced batch.
	Decision penstock.Decision
	Err      error

	isTaken atomic.Bool
}

// Take returns true for the first caller only. That caller must decide the batch, or call
// DecideAlone.
func (b *Batch) Take() bool { return b.isTaken.CompareAndSwap(false, true) }

// Key is the context key of *Batches. Each context of this module that can hold batches has a Value
// method that handles this key, and does not look it up in the parent context even if there are no
// batches.
type Key struct{}

// Offered returns the shadows that may be decided together with charges. If charges is not the same
// slice as the enforced batch, Offered returns no shadows: a guard or decorator has then changed
// the batch, but not the shadows.
func Offered(ctx context.Context, charges []penstock.Charge) []*Batch {
	b, _ := ctx.Value(Key{}).(*Batches)
	if b == nil || len(b.Enforced) != len(charges) || &b.Enforced[0] != &charges[0] {
		return nil
	}
	return b.Shadows
}
