package admission

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/policy"
)

// withFallback returns a store around store that also decides while store gives no answer.
func (c *Controller) withFallback(store penstock.Store) batches.Func {
	return batches.Of(guard.Fallback(guard.FallbackOptions{Limits: c.options.Settings})(withCauses(c.withoutHiddenFallback(store))))
}

var errHiddenFallback = penstock.NewStoreError(penstock.ReasonUnknown,
	errors.New("a decorator hides the guards of the store, and they do not know the on_failure of a limit; give the decorator the method Settings, or the guards the option Limits"))

// withoutHiddenFallback returns a store around store. New cannot see guards that a decorator hides,
// so it cannot check that they know the settings of limits. If such guards decide locally about a
// limit that fails open or closed, the returned store fails.
func (c *Controller) withoutHiddenFallback(store penstock.Store) batches.Func {
	failsOtherwise := func(charge penstock.Charge) bool {
		mode := c.options.Settings(charge.Plan).OnFailure
		return mode == guard.FailOpen || mode == guard.FailClosed
	}
	decide := batches.Of(store)
	return func(ctx context.Context, list []*batches.Batch) {
		decide(ctx, list)
		for _, b := range list {
			if b.Err == nil && b.Decision.Source == penstock.FromFallback && slices.ContainsFunc(b.Charges, failsOtherwise) {
				b.Err = errHiddenFallback
			}
		}
	}
}

// withCauses returns a store around store that records why it gave no answer.
func withCauses(store penstock.Store) batches.Func {
	decide := batches.Of(store)
	return func(ctx context.Context, list []*batches.Batch) {
		decide(ctx, list)
		for _, b := range list {
			b.Cause = b.Err
		}
	}
}

// withLastResort returns a store around store that also decides if the fallback within store fails.
// Then limits that fail open admit the request, up to their ceiling. All other limits reject it.
//
// A guard.Fallback around the store would do this too, but would also count each of its grants.
// This count is not needed here, and would make decisions in memory a tenth slower.
func (c *Controller) withLastResort(store penstock.Store) batches.Func {
	unavailable := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	lastResort := penstock.Wrap(unavailable, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailClosed, Limits: c.settingsWithoutLocal}))
	decide := withCauses(store)
	return func(ctx context.Context, list []*batches.Batch) {
		decide(ctx, list)
		for _, b := range list {
			if errors.Is(b.Err, penstock.ErrUnavailable) {
				b.Decision, b.Err = lastResort.Decide(ctx, b.Charges)
			}
		}
	}
}

// settingsWithoutLocal returns the settings of a limit, with on_failure closed in place of local.
func (c *Controller) settingsWithoutLocal(plan *penstock.Plan) guard.Settings {
	s := c.options.Settings(plan)
	if s.OnFailure == guard.FailLocal {
		s.OnFailure = guard.FailClosed
	}
	return s
}

// isWithoutStore reports whether a decision from the source was made without an answer of the
// store. The store may have made the charges anyway.
func isWithoutStore(s penstock.Source) bool {
	return s == penstock.FromFallback || s == penstock.FromOpen || s == penstock.FromClosed
}

// isNotCounted reports whether a charge was counted nowhere, in a decision from the source.
func isNotCounted(l *policy.Limit, s penstock.Source) bool {
	if s == penstock.FromOpen {
		return true
	}
	hasCeiling := l.Guard.Ceiling != penstock.Limit{}
	return s == penstock.FromFallback && failsOpen(l) && !hasCeiling
}

func failsOpen(l *policy.Limit) bool { return l.Guard.OnFailure == guard.FailOpen }
