package penstockprom

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
)

// A decision with metrics allocates as often as without metrics.
func TestObservingAllocatesNothing(t *testing.T) {
	effort.WithoutRace(t)
	s := newScrapedMetrics(Options{})
	limit := penstock.PerSecond(1_000_000).WithName("second")
	limiter := func(store penstock.Store) func() {
		l, err := penstock.NewLimiter(store, "mail", limit)
		if err != nil {
			t.Fatal(err)
		}
		s.SetRulesOf("limiter", observe.RulesOfPlans(l.Plans()...))
		return func() { l.Allow(t.Context(), "user:42") }
	}
	requests := func(observe func(*admission.Event)) func() {
		spec, err := policy.Simple("search", policy.Global(), guard.FailLocal, limit)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := policy.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{HasFallback: true, Observe: observe})
		if err != nil {
			t.Fatal(err)
		}
		a, call := new(admission.Admission), &policy.NamedCall{Rule: "search", Key: "user:42", Cost: 1}
		return func() {
			*a = admission.Admission{}
			c.Admit(t.Context(), admission.Request{Named: call, Into: a})
			a.Done(admission.Result{})
		}
	}
	store := memstore.New(memstore.Options{})
	s.SetRules([]observe.Rule{{Name: "search", Limit: "second", Algorithm: "token-bucket"}})
	for name, decide := range map[string][2]func(){
		"a Limiter":   {limiter(store), limiter(guard.Observe(s.ObserveDecision)(store))},
		"a request":   {requests(nil), requests(s.ObserveRequest)},
		"an error":    {func() {}, func() { s.ObserveStoreError(guard.Event{Err: errShed, Reason: "shed"}) }},
		"only events": {func() {}, func() { s.count(search, admission.Denied, 3*time.Millisecond) }},
	} {
		without, with := testing.AllocsPerRun(1000, decide[0]), testing.AllocsPerRun(1000, decide[1])
		if with > without {
			t.Errorf("%s: %v allocations with metrics; want at most %v as without", name, with, without)
		}
	}
	if got, _ := s.sums(t); got["rate_limiter_allowed_total"] < 2000 || got["rate_limiter_latency_seconds"] < 2000 {
		t.Errorf("the counts are %v; want some decisions", got)
	}
}

var errShed = penstock.NewStoreError(penstock.ReasonShed, nil)
