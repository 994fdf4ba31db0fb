package admission

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/many"
	"github.com/penstock/penstock/internal/piggyback"
	"github.com/penstock/penstock/policy"
)

// withFallback returns a Store around store that also decides while store gives no answer.
func (c *Controller) withFallback(store penstock.Store) penstock.Store {
	if c.options.HasFallback {
		return c.addLastResort(store)
	}
	return penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{Limits: c.options.Settings}), recordErrors)
}

// addLastResort returns a Store around store that also decides if the fallback within store fails.
// Then limits that fail open admit the request, up to their ceiling. All other limits reject it.
//
// A guard.Fallback around store would do this too, but would also count each grant of store. This
// count is not needed here, and would make decisions in memory a tenth slower.
func (c *Controller) addLastResort(store penstock.Store) penstock.Store {
	unavailable := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	lastResort := penstock.Wrap(unavailable, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailClosed, Limits: c.settingsWithoutLocal}))
	return &withLastResort{recordErrors(store), lastResort}
}

type withLastResort struct{ store, lastResort penstock.Store }

func (s *withLastResort) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	d, err := s.store.Decide(ctx, charges)
	if errors.Is(err, penstock.ErrUnavailable) {
		return s.lastResort.Decide(ctx, charges)
	}
	return d, err
}

// DecideMany decides independent batches.
func (s *withLastResort) DecideMany(ctx context.Context, calls []*many.Call) {
	many.Decide(ctx, s.store, calls)
	for _, c := range calls {
		if errors.Is(c.Err, penstock.ErrUnavailable) {
			c.Decision, c.Err = s.lastResort.Decide(ctx, c.Charges)
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

// A call is the context that the store gets with a request's charges.
type call struct {
	context.Context
	storeErr error // why the store gave no answer, although there is a decision

	// shadows are batches that the store may decide together with the enforced batch, or nil. The
	// pointer is atomic because a guard may still use the context in the background.
	shadows atomic.Pointer[piggyback.Batches]
}

// callKey is the key of the call in a context.
type callKey struct{}

func (c *call) Value(key any) any {
	switch key {
	case piggyback.Key{}:
		return c.shadows.Load()
	case callKey{}:
		return c
	}
	return c.Context.Value(key)
}

// recordErrors records the store's error in the call, for the event.
func recordErrors(store penstock.Store) penstock.Store {
	return errorRecorder{store}
}

type errorRecorder struct{ store penstock.Store }

func (r errorRecorder) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	d, err := r.store.Decide(ctx, charges)
	if err != nil {
		if c, ok := ctx.Value(callKey{}).(*call); ok {
			c.storeErr = err
		}
	}
	return d, err
}

// DecideMany decides independent batches.
func (r errorRecorder) DecideMany(ctx context.Context, calls []*many.Call) {
	many.Decide(ctx, r.store, calls)
	for _, c := range calls {
		c.Cause = c.Err
	}
}

// isWithoutStore reports whether a decision from the source was made without an answer of the
// store. The store may have made the charges anyway.
func isWithoutStore(s penstock.Source) bool {
	return s == penstock.FromFallback || s == penstock.FromOpen || s == penstock.FromClosed
}

// isNotCounted reports whether a charge of the limit was not counted anywhere, in a decision from
// the source.
func isNotCounted(l *policy.Limit, s penstock.Source) bool {
	if s == penstock.FromOpen {
		return true
	}
	hasCeiling := l.Guard.Ceiling != penstock.Limit{}
	return s == penstock.FromFallback && failsOpen(l) && !hasCeiling
}

func failsOpen(l *policy.Limit) bool { return l.Guard.OnFailure == guard.FailOpen }
