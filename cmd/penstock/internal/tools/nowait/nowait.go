// Package nowait lets a request continue at once where it would wait for its turn. Simulations need
// this, because their clock does not move while a request waits.
package nowait

import (
	"context"

	"github.com/penstock/penstock"
)

// Wrap returns a store whose decisions have no Wait. It calls note with each decision whose Wait it
// removes, before it removes it.
func Wrap(store penstock.Store, note func(charges []penstock.Charge, d *penstock.Decision)) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if err != nil || !d.Allowed || d.Wait() == 0 {
			return d, err
		}
		note(charges, &d)
		statuses := make([]penstock.Status, d.Len())
		for i := range statuses {
			statuses[i] = d.Status(i)
			statuses[i].Wait = 0
		}
		return penstock.NewDecision(statuses), nil
	})
}
