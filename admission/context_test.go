package admission_test

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

type requestKey struct{}

// Every event has the context of its request, also the events of shadows and of malformed requests.
// The third request here is malformed, because its rule does not exist.
func TestEventsHaveTheContextOfTheirRequest(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: a, match: {path: /a}, per: global, limits: [{name: x, rate: 1/h}, {name: y, rate: 1/h, shadow: true}]}
`)
	var mu sync.Mutex
	eventsByOutcome := make(map[string]int)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{Observe: func(e *admission.Event) {
		mu.Lock()
		defer mu.Unlock()
		if id, _ := e.Context.Value(requestKey{}).(string); id == "r1" {
			eventsByOutcome[e.Outcome.String()]++
		} else {
			t.Errorf("an event with outcome %s has the context of request %q; want \"r1\"", e.Outcome, id)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), requestKey{}, "r1")
	for _, call := range []admission.RuleCall{{Rule: "a", Key: "user:1", Cost: 1}, {Rule: "a", Key: "user:1", Cost: 1}, {Rule: "none", Key: "user:1", Cost: 1}} {
		a, _, _ := c.AdmitRule(ctx, call)
		a.Done(admission.Result{})
	}
	for _, outcome := range []string{"allowed", "denied", "shadow_allowed", "shadow_denied", "malformed"} {
		if n := eventsByOutcome[outcome]; n != 1 {
			t.Errorf("%d events have the outcome %s; want 1. All events: %v", n, outcome, eventsByOutcome)
		}
	}
}
