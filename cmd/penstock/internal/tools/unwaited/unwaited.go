// Package unwaited makes requests that would wait for their turn continue at once. A simulated
// clock does not move while a request waits.
package unwaited

import (
	"context"

	"github.com/penstock/penstock"
)

// Wrap returns a store whose decisions have no Wait. It calls note with each wait that it removes,
// and the charges that would wait.
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
