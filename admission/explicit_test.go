package admission_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// chargesOf makes a call with one charge for each of the counts. A count is the limit of units per
// hour. The limits are named a, b and so on, and have this failure mode.
func chargesOf(t *testing.T, onFailure guard.FailureMode, counts ...int64) *admission.ExplicitCharges {
	t.Helper()
	rule := &policy.Rule{Name: "direct"}
	c := new(admission.ExplicitCharges)
	for i, count := range counts {
		name := string(rune('a' + i))
		plan, err := penstock.Limit{Group: rule.Name, Name: name, Count: count, Period: time.Hour}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		c.Charges = append(c.Charges, penstock.Charge{Key: "user:42", Plan: plan, Cost: 1})
		c.Limits = append(c.Limits, &policy.Limit{Rule: rule, Name: name, FullName: "direct." + name, InHeaders: true, Guard: guard.Settings{OnFailure: onFailure}})
	}
	return c
}

func TestExplicitChargesAreDecidedAsOneBatch(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var events []admission.Event
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{Observe: func(e *admission.Event) { events = append(events, *e) }})
	if err != nil {
		t.Fatal(err)
	}
	call := chargesOf(t, guard.FailClosed, 5, 2)
	for i, want := range []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied, admission.Denied} {
		a, outcome, err := c.AdmitCharges(context.Background(), *call)
		if outcome != want || err != nil {
			t.Errorf("call %d is %v, error %v; want %v, and no error", i, outcome, err, want)
		}
		left := max(4-int64(i), 3) // only two calls charge, because a denial charges nothing
		if d, isLimited := a.Decision(); !isLimited || d.Status(0).Remaining != left {
			t.Errorf("after call %d, limit a has %d left, and there is a decision: %t; want %d left, and true", i, d.Status(0).Remaining, isLimited, left)
		}
		if want == admission.Denied && (len(a.Rejection().Policies) != 1 || a.Rejection().Policies[0] != "direct.b") {
			t.Errorf("call %d is denied by %v; want only \"direct.b\"", i, a.Rejection().Policies)
		}
		a.Done(admission.Result{})
	}
	if len(events) != 4 || events[3].Rule != "direct" || events[3].Limit != "b" || events[3].Outcome != admission.Denied {
		t.Errorf("the events are %+v; want four, of which the last is a denial by limit b of rule direct", events)
	}
}

func TestInvalidExplicitChargesAreMalformed(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	withoutLimits, negative, withoutRule := chargesOf(t, guard.FailClosed, 5), chargesOf(t, guard.FailClosed, 5), chargesOf(t, guard.FailClosed, 5)
	withoutLimits.Limits = nil
	negative.Charges[0].Cost = -1
	withoutRule.Limits[0].Rule = nil
	for mistake, call := range map[string]*admission.ExplicitCharges{
		"no charges": {}, "no limits": withoutLimits, "a negative cost": negative, "no rule": withoutRule,
	} {
		a, outcome, err := c.AdmitCharges(context.Background(), *call)
		if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail == "" {
			t.Errorf("a call with %s is %v, error %v; want malformed, an error that wraps ErrInvalid, and a Detail", mistake, outcome, err)
		}
		a.Done(admission.Result{})
	}
}

func TestExplicitChargesFailAsTheirLimitsSay(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	unavailable := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	for onFailure, want := range map[guard.FailureMode]admission.Outcome{guard.FailOpen: admission.FailedOpen, guard.FailClosed: admission.FailedClosed} {
		settings := func(*penstock.Plan) guard.Settings { return guard.Settings{OnFailure: onFailure} }
		c, err := admission.New(failsafe{unavailable, settings}, rules, admission.Options{Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		a, outcome, err := c.AdmitCharges(context.Background(), *chargesOf(t, onFailure, 5))
		if outcome != want || err != nil {
			t.Errorf("a call with limits that fail %v is %v, error %v; want %v, and no error", onFailure, outcome, err, want)
		}
		a.Done(admission.Result{})
	}
}

// A call may have shadows. They are counted for every request, and the caller can read their
// decisions.
func TestShadowsOfExplicitChargesAreRead(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var mu sync.Mutex
	outcomes := make(map[admission.Outcome]int)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{
		Observe: func(e *admission.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Outcome]++
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	call := chargesOf(t, guard.FailClosed, 1)
	other := chargesOf(t, guard.FailClosed, 9, 2) // its second limit has another name than that of call
	call.Shadows = []policy.Shadow{{Charges: other.Charges[1:], Limits: other.Limits[1:]}}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Denied, admission.Denied} {
		a, outcome, err := c.AdmitCharges(context.Background(), *call)
		if outcome != want || err != nil {
			t.Errorf("call %d is %v, error %v; want %v, and no error", i, outcome, err, want)
		}
		isShadowAllowed := i < 2 // its limit is 2
		if d, isDecided := a.ShadowDecision(0); !isDecided || d.Allowed != isShadowAllowed {
			t.Errorf("the decision of the shadow of call %d is %v, and it is decided: %t; want it allowed: %t, and true", i, d, isDecided, isShadowAllowed)
		}
		if _, isDecided := a.ShadowDecision(1); isDecided {
			t.Error("ShadowDecision(1) of a call with one shadow returned a decision; want none")
		}
		a.Done(admission.Result{})
		if _, isDecided := a.ShadowDecision(0); isDecided {
			t.Error("ShadowDecision after Done returned a decision; want none")
		}
	}
	call.Charges, call.Limits = nil, nil
	a, outcome, err := c.AdmitCharges(context.Background(), *call)
	if d, isDecided := a.ShadowDecision(0); outcome != admission.Unlimited || err != nil || !isDecided || d.Allowed {
		t.Errorf("a call with only shadows is %v, error %v, its shadow's decision is %v, and that is decided: %t; want unlimited, no error, a denied shadow, and true", outcome, err, d, isDecided)
	}
	a.Done(admission.Result{})
	call.Shadows[0].Limits = nil
	a, outcome, _ = c.AdmitCharges(context.Background(), *call)
	if a.Done(admission.Result{}); outcome != admission.Malformed {
		t.Errorf("a call whose shadow has no limits is %v; want malformed", outcome)
	}
	if outcomes[admission.ShadowAllowed] != 2 || outcomes[admission.ShadowDenied] != 2 || outcomes[admission.Denied] != 2 {
		t.Errorf("the numbers of events by outcome are %v; want 2 of shadow_allowed, 2 of shadow_denied, and 2 of denied", outcomes)
	}
}

// DenyIf may deny a request whose charges of mode Force are granted.
func TestForcedChargesCanDenyTheirRequest(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var mu sync.Mutex
	var outcomes []admission.Outcome
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{
		Observe: func(e *admission.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes = append(outcomes, e.Outcome)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	call := chargesOf(t, guard.FailClosed, 3)
	call.Charges[0].Mode, call.Charges[0].Cost = penstock.Force, 2
	call.DenyIf = func(charges []penstock.Charge, d *penstock.Decision) bool {
		return charges[0].Mode == penstock.Force && d.Remaining() == 0
	}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Denied} {
		a, outcome, err := c.AdmitCharges(context.Background(), *call)
		if a.Done(admission.Result{}); outcome != want || err != nil || len(outcomes) != i+1 || outcomes[i] != want {
			t.Errorf("call %d is %v, error %v, and the outcomes of the events are %v; want %v, no error, and one event for each call", i, outcome, err, outcomes, want)
		}
	}
	call = &admission.ExplicitCharges{Shadows: []policy.Shadow{{Charges: call.Charges, Limits: call.Limits}}, DenyIf: call.DenyIf}
	a, outcome, _ := c.AdmitCharges(context.Background(), *call)
	if a.Done(admission.Result{}); outcome != admission.Unlimited || len(outcomes) != 4 || !slices.Contains(outcomes, admission.ShadowDenied) {
		t.Errorf("a call with only a shadow is %v, and the outcomes of the events are %v; want unlimited, and a fourth event, shadow_denied", outcome, outcomes)
	}
}
