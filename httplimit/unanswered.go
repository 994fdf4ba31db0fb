package httplimit

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/trial"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// guard makes the Gate's store of one that may have no guards.
func (g *Gate) guard(store penstock.Store) {
	if _, guarded := store.(*guard.Guarded); guarded {
		g.store = store
		return
	}
	if _, memory := store.(*memstore.Store); memory {
		g.store = spare(noteErrors(store), guard.Fallback(guard.FallbackOptions{OnFailure: guard.Closed, Limits: g.settingsOfMemory}))
		return
	}
	g.store = penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{Limits: g.settings}), noteErrors)
}

// spare has a guard answer where the store gives no answer, by the guard's own rules for contexts
// too. The guard does not see the store's answers, so it must not need them. A Fallback around the
// store would do the same, but look up the settings of each limit for each request: that would make
// a decision in memory a tenth slower.
func spare(store penstock.Store, guard penstock.Decorator) penstock.Store {
	failed := guard(penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	}))
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if errors.Is(err, penstock.ErrUnavailable) {
			return failed.Decide(ctx, charges)
		}
		return d, err
	})
}

func (g *Gate) settings(limit *penstock.Limit) guard.Settings {
	return g.setup.Load().rules.Settings(limit)
}

// settingsOfMemory are the settings where there is no other memory to fall back to.
func (g *Gate) settingsOfMemory(limit *penstock.Limit) guard.Settings {
	s := g.settings(limit)
	if s.OnFailure == guard.Local {
		s.OnFailure = guard.Closed
	}
	return s
}

// A question is the context in which a request is decided. Below a Fallback of the Gate, it notes
// why there was no answer.
type question struct {
	context.Context
	err    error
	trials atomic.Pointer[trial.Batches] // that the store may decide in the same call; nil: none. What a guard has left behind asks too
}

// questionKey is the key of the question in a context.
type questionKey struct{}

func (q *question) Value(key any) any {
	switch key {
	case trial.Key{}:
		return q.trials.Load()
	case questionKey{}:
		return q
	}
	return q.Context.Value(key)
}

func noteErrors(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if q, ok := ctx.Value(questionKey{}).(*question); ok {
			q.err = err
		}
		return d, err
	})
}

// unanswered tells whether a decision was made without the store. The store may have been asked all
// the same, and may have done it.
func unanswered(s penstock.Source) bool {
	return s == penstock.FromFallback || s == penstock.FromOpen || s == penstock.FromClosed
}

// uncounted tells whether nobody has counted a charge of the limit, in a decision from there.
func uncounted(l *policy.Limit, s penstock.Source) bool {
	return s == penstock.FromOpen || s == penstock.FromFallback && l.Guard.OnFailure == guard.Open && l.Guard.Ceiling == (penstock.Limit{})
}

// undecided answers a request that has no decision: its caller went away, or the store has an error
// that guards do not answer for. Then one limit that is not open closes the gate.
func (a *Admission) undecided(w http.ResponseWriter, s *setup, err error, latency time.Duration) bool {
	v, ctx := a.verdict, a.Request.Context()
	deciding, e := v.Limits[0], Event{Outcome: FailedOpen, Source: penstock.FromOpen, Latency: latency, Err: err}
	for _, l := range v.Limits {
		if l.Guard.OnFailure != guard.Open {
			deciding, e.Outcome, e.Source = l, FailedClosed, penstock.FromClosed
			break
		}
	}
	a.Decision, a.limited = penstock.Decision{Allowed: e.Outcome == FailedOpen, Source: e.Source}, true
	canceled := ctx.Err() != nil && errors.Is(err, ctx.Err())
	if canceled {
		a.Decision = penstock.Decision{Source: penstock.FromClosed}
		e.Outcome, e.Source = Abandoned, penstock.FromStore
	}
	e.Rule, e.Limit, e.Algorithm = deciding.Rule.Name, deciding.Name, deciding.Algorithm
	a.gate.observe(e)
	a.noteHolds(v.Charges, v.Limits)
	if a.Decision.Allowed {
		return true
	}
	a.returnHolds(0)
	if canceled {
		a.gate.turnAway(w, a.Request, s, denial{reason: callerCanceled})
	} else {
		a.shut(w, s, deciding)
	}
	return false
}

// shut answers a request that may not be let in while nobody knows its limits.
func (a *Admission) shut(w http.ResponseWriter, s *setup, deciding *policy.Limit) {
	a.header["Retry-After"] = []string{"1"}
	a.gate.turnAway(w, a.Request, s, denial{
		reason: limitsUnknown, rule: deciding.Rule.Name, policies: []string{deciding.Policy}, retryAfter: time.Second, retrySeconds: 1,
	})
}
