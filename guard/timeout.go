// Package guard wraps stores: each guard is a Store around a Store, and gives an answer, or a better one, where the store alone would not.
package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Timeout gives a decision this long, waiting for connections included. Later than that the error wraps penstock.ErrUnavailable; the
// charges may have been made. A d of 0 or less sets no bound.
func Timeout(d time.Duration) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if d <= 0 {
			return next
		}
		return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			bounded, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			decision, err := next.Decide(bounded, charges)
			if err != nil && bounded.Err() != nil && ctx.Err() == nil && !errors.Is(err, penstock.ErrUnavailable) {
				err = fmt.Errorf("%w: no answer within %v: %w", penstock.ErrUnavailable, d, err)
			}
			return decision, err
		})
	}
}
