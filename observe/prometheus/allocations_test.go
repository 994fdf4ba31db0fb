package penstockprom

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
)

// A decision makes as many allocations with metrics as without them.
func TestObservingAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	s := newScrapedMetrics(Options{})
	limit := penstock.PerSecond(1_000_000).WithName("second")
	// callLimiter returns a function that calls a Limiter of the store.
	callLimiter := func(store penstock.Store) func() {
		l, err := penstock.NewLimiter(store, "mail", limit)
		if err != nil {
			t.Fatal(err)
		}
		s.SetRulesOf("limiter", observe.RulesOfPlans(l.Plans()...))
		return func() { l.Allow(t.Context(), "user:42") }
	}
	// admitRequest returns a function that admits a request, and reports it to observe.
	admitRequest := func(observe func(*admission.Event)) func() {
		spec, err := policy.Simple("search", policy.Global(), guard.FailLocal, limit)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := policy.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{Observe: observe})
		if err != nil {
			t.Fatal(err)
		}
		a := new(admission.Admission)
		call := admission.RuleCall{Rule: "search", Key: "user:42", Cost: 1, RequestOptions: admission.RequestOptions{Reuse: a}}
		return func() {
			*a = admission.Admission{}
			c.AdmitRule(t.Context(), call)
			a.Done(admission.Result{})
		}
	}
	store := memstore.New(memstore.Options{})
	s.SetRules([]observe.Rule{{Name: "search", Limit: "second", Algorithm: "token-bucket"}})
	doNothing := func() {}
	for name, call := range map[string]struct{ withoutMetrics, withMetrics func() }{
		"a call of a Limiter":   {callLimiter(store), callLimiter(guard.Observe(s.ObserveDecision)(store))},
		"an admitted request":   {admitRequest(nil), admitRequest(s.ObserveRequest)},
		"an error of the store": {doNothing, func() { s.ObserveStoreError(guard.Event{Err: errShed, Reason: "shed"}) }},
		"an event of a request": {doNothing, func() { s.count(search, admission.Denied, 3*time.Millisecond) }},
	} {
		without := testing.AllocsPerRun(1000, call.withoutMetrics)
		with := testing.AllocsPerRun(1000, call.withMetrics)
		if with > without {
			t.Errorf("%s makes %v allocations with metrics; want at most %v, as without", name, with, without)
		}
	}
	if got, _ := s.sums(t); got["rate_limiter_allowed_total"] < 2000 || got["rate_limiter_latency_seconds"] < 2000 {
		t.Errorf("the counts are %v; want at least 2000 allowed requests and 2000 latencies", got)
	}
}

var errShed = penstock.NewStoreError(penstock.ReasonShed, nil)
