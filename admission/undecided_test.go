package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// If no guard handles an error of the store, a request fails unless all of its limits fail open.
func TestErrorsWithoutADecisionNameTheLimitThatRejects(t *testing.T) {
	errStore := fmt.Errorf("%w: no connection", penstock.ErrInvalid)
	store := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, errStore
	})
	c, seen := controllerOf(t, store, `
rules:
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 1/d, on_failure: open}]}
  - {name: mixed, match: {path: /mixed}, per: {user: header X-User}, limits: [{rate: 1/d, on_failure: open}, {rate: 9/h, on_failure: closed}]}
`)
	for _, want := range []struct {
		path, limit string
		outcome     admission.Outcome
		source      penstock.Source
	}{
		{path: "/open", limit: "day", outcome: admission.FailedOpen, source: penstock.FromOpen},
		{path: "/mixed", limit: "hour", outcome: admission.FailedClosed, source: penstock.FromClosed},
	} {
		a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: attributes{jsonRequest{Path: want.path, User: "a"}}})
		d, _ := a.Decision()
		if outcome != want.outcome || err != nil || d.Source != want.source || d.Allowed != outcome.IsAdmitted() || len(a.AppendVisible(nil)) > 0 {
			t.Errorf("the request for %s is %v, error %v, and its decision is from %v, allowed %t; want %v, no error, a decision from %v, and no visible limits",
				want.path, outcome, err, d.Source, d.Allowed, want.outcome, want.source)
		}
		e := seen.take()[0]
		if "/"+e.Rule != want.path || e.Limit != want.limit || e.Algorithm == "" || e.Source != want.source || !errors.Is(e.Err, errStore) || e.costs != nil {
			t.Errorf("the event of the request for %s is %+v; want the limit %s, the source %v, the store's error, and no charges", want.path, e, want.limit, want.source)
		}
		if outcome == admission.FailedClosed && (e.Key != "user:a" || !slices.Equal(a.Rejection().Policies, []string{"mixed.hour"})) {
			t.Errorf("the request for %s has the key %q and the rejection %+v; want \"user:a\", and only the limit \"mixed.hour\"", want.path, e.Key, a.Rejection())
		}
		a.Done(admission.Result{})
	}
	clientCtx, disconnect := context.WithCancel(t.Context())
	disconnect()
	c, _ = controllerOf(t, penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, ctx.Err()
	}), "rules: [{name: a, per: global, limits: [{rate: 1/d, on_failure: open}]}]")
	a, outcome, err := c.Admit(clientCtx, admission.Request{Attributes: attributes{}})
	if d, _ := a.Decision(); outcome != admission.Abandoned || err != context.Canceled || d.Source != penstock.FromClosed || d.Allowed {
		t.Errorf("the request of a client that left is %v, error %v, and its decision is from %v, allowed %t; want abandoned, context.Canceled, from closed, not allowed", outcome, err, d.Source, d.Allowed)
	}
	a.Done(admission.Result{})
}

func TestFullQueueNamesTheLimitOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := oneWaitingControllerOf(t, `
rules:
  - {name: jobs, per: global, limits: [{name: day, rate: 100/d}, {name: queue, rate: 1/s, algorithm: leaky-bucket, burst: 5, max_wait: 10s}]}
`)
		admit := func() []string {
			a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
			defer a.Done(admission.Result{})
			return a.Rejection().Policies
		}
		admit()
		var waits sync.WaitGroup
		waits.Go(func() { admit() })
		synctest.Wait()
		if got := admit(); !slices.Equal(got, []string{"jobs.queue"}) {
			t.Errorf("the third request is rejected by %v; want only \"jobs.queue\"", got)
		}
		waits.Wait()
	})
}
