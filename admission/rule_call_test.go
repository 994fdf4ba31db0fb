package admission_test

import (
	"context"
	"errors"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// A RuleCall charges the rule that it names. The deny list does not apply to it.
func TestRuleCallsAreDecidedByTheirRule(t *testing.T) {
	rules := rulesOf(t, `
deny: [{header X-User: eve}]
rules:
- {name: search, match: {path: /search}, per: {user: header X-User}, limits: [{name: day, rate: 3/day}]}`)
	var outcomes []admission.Outcome
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{
		Observe: func(e *admission.Event) { outcomes = append(outcomes, e.Outcome) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	call := admission.RuleCall{Rule: "search", Key: "user:eve", Cost: 2}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Denied} {
		a, outcome, err := c.AdmitRule(ctx, call)
		if outcome != want || err != nil {
			t.Errorf("call %d is %v, error %v; want %v, and no error", i, outcome, err, want)
		}
		if d, isLimited := a.Decision(); !isLimited || d.Remaining() != 1 {
			t.Errorf("after call %d, %d units remain, and there is a decision: %t; want 1, and true", i, d.Remaining(), isLimited)
		}
		a.Done(admission.Result{})
	}
	a, outcome, err := c.AdmitRule(ctx, admission.RuleCall{Rule: "none"})
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail == "" {
		t.Errorf("a call of a rule that does not exist is %v, error %v; want malformed, an error that wraps ErrInvalid, and a Detail", outcome, err)
	}
	a.Done(admission.Result{})
	if len(outcomes) != 3 {
		t.Errorf("the outcomes of the events are %v; want 3, one for each call", outcomes)
	}
}
