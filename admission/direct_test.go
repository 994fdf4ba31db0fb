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

// directCall makes a call with one charge for each of the counts, which are limits per hour.
// onFailure is their failure mode.
func directCall(t *testing.T, onFailure guard.FailureMode, counts ...int64) *policy.DirectCall {
	t.Helper()
	rule := &policy.Rule{Name: "direct"}
	c := new(policy.DirectCall)
	for i, count := range counts {
		name := string(rune('a' + i))
		plan, err := penstock.Limit{Group: rule.Name, Name: name, Count: count, Period: time.Hour}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		c.Charges = append(c.Charges, penstock.Charge{Key: "user:42", Plan: plan, Cost: 1})
		c.Limits = append(c.Limits, &policy.Limit{Rule: rule, Name: name, Policy: "direct." + name, InHeaders: true, Guard: guard.Settings{OnFailure: onFailure}})
	}
	return c
}

func TestADirectCallIsDecidedAsOneBatch(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var events []admission.Event
	c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{
		HasFallback: true, Observe: func(e *admission.Event) { events = append(events, *e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	call := directCall(t, guard.FailClosed, 5, 2)
	for i, want := range []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied, admission.Denied} {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: call})
		if outcome != want || err != nil {
			t.Errorf("call %d is %v, %v; want %v", i, outcome, err, want)
		}
		if d, ok := a.Decision(); !ok || d.Status(0).Remaining != max(4-int64(i), 3) {
			t.Errorf("after call %d, limit a has %d left, %t; want %d: a denial charges nothing", i, d.Status(0).Remaining, ok, max(4-i, 3))
		}
		if want == admission.Denied && (len(a.Rejection().Policies) != 1 || a.Rejection().Policies[0] != "direct.b") {
			t.Errorf("call %d is denied by %v; want direct.b", i, a.Rejection().Policies)
		}
		a.Done(admission.Result{})
	}
	if len(events) != 4 || events[3].Rule != "direct" || events[3].Limit != "b" || events[3].Outcome != admission.Denied {
		t.Errorf("the events are %+v; want four, the last a denial by limit b of rule direct", events)
	}
}

func TestAnInvalidDirectCallIsMalformed(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{HasFallback: true})
	if err != nil {
		t.Fatal(err)
	}
	withoutLimits, negative, withoutRule := directCall(t, guard.FailClosed, 5), directCall(t, guard.FailClosed, 5), directCall(t, guard.FailClosed, 5)
	withoutLimits.Limits = nil
	negative.Charges[0].Cost = -1
	withoutRule.Limits[0].Rule = nil
	for name, call := range map[string]*policy.DirectCall{"empty": {}, "without limits": withoutLimits, "negative cost": negative, "without a rule": withoutRule} {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: call})
		if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail == "" {
			t.Errorf("%s: %v, %v; want malformed with a reason", name, outcome, err)
		}
		a.Done(admission.Result{})
	}
}

func TestADirectCallFailsAsItsLimitsSay(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	unavailable := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	for onFailure, want := range map[guard.FailureMode]admission.Outcome{guard.FailOpen: admission.FailedOpen, guard.FailClosed: admission.FailedClosed} {
		c, err := admission.New(unavailable, func() *policy.Rules { return rules }, admission.Options{
			HasFallback: true, Settings: func(*penstock.Plan) guard.Settings { return guard.Settings{OnFailure: onFailure} },
		})
		if err != nil {
			t.Fatal(err)
		}
		a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: directCall(t, onFailure, 5)})
		if outcome != want || err != nil {
			t.Errorf("%v: %v, %v; want %v", onFailure, outcome, err, want)
		}
		a.Done(admission.Result{})
	}
}

// A call may have shadows. They are counted for every request, and the caller can read their
// decisions.
func TestADirectCallReadsItsShadows(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var mu sync.Mutex
	outcomes := make(map[admission.Outcome]int)
	c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{
		HasFallback: true, Observe: func(e *admission.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Outcome]++
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	call, shadow := directCall(t, guard.FailClosed, 1), directCall(t, guard.FailClosed, 9, 2)
	call.Shadows = []policy.Shadow{{Charges: shadow.Charges[1:], Limits: shadow.Limits[1:]}}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Denied, admission.Denied} {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: call})
		if outcome != want || err != nil {
			t.Errorf("call %d is %v, %v; want %v", i, outcome, err, want)
		}
		if d, ok := a.ShadowDecision(0); !ok || d.Allowed != (i < 2) {
			t.Errorf("the shadow of call %d is %v, %t; want it allowed twice, also for a denied request", i, d, ok)
		}
		if _, ok := a.ShadowDecision(1); ok {
			t.Error("ShadowDecision(1) of a call with one shadow returned a decision; want none")
		}
		a.Done(admission.Result{})
		if _, ok := a.ShadowDecision(0); ok {
			t.Error("ShadowDecision after Done returned a decision; want none")
		}
	}
	call.Charges, call.Limits = nil, nil
	a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: call})
	if d, ok := a.ShadowDecision(0); outcome != admission.Unlimited || err != nil || !ok || d.Allowed {
		t.Errorf("with shadows only it is %v, %v, the shadow %v, %t; want unlimited, and a denied shadow", outcome, err, d, ok)
	}
	a.Done(admission.Result{})
	call.Shadows[0].Limits = nil
	a, outcome, _ = c.Admit(context.Background(), admission.Request{Direct: call})
	if a.Done(admission.Result{}); outcome != admission.Malformed {
		t.Errorf("a shadow without limits is %v; want malformed", outcome)
	}
	if outcomes[admission.ShadowAllowed] != 2 || outcomes[admission.ShadowDenied] != 2 || outcomes[admission.Denied] != 2 {
		t.Errorf("the events are %v; want two shadows allowed, two denied, and two requests denied", outcomes)
	}
}

// A transport may deny by the state of charges that are made in any case.
func TestForcedChargesCanDenyTheirRequest(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	var mu sync.Mutex
	var outcomes []admission.Outcome
	c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{
		HasFallback: true, Observe: func(e *admission.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes = append(outcomes, e.Outcome)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	call := directCall(t, guard.FailClosed, 3)
	call.Charges[0].Mode, call.Charges[0].Cost = penstock.Force, 2
	isOver := func(charges []penstock.Charge, d *penstock.Decision) bool {
		return charges[0].Mode == penstock.Force && d.Remaining() == 0
	}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Denied} {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Direct: call, IsOver: isOver})
		if a.Done(admission.Result{}); outcome != want || err != nil || len(outcomes) != i+1 || outcomes[i] != want {
			t.Errorf("call %d is %v, %v, the events are %v; want %v", i, outcome, err, outcomes, want)
		}
	}
	call = &policy.DirectCall{Shadows: []policy.Shadow{{Charges: call.Charges, Limits: call.Limits}}}
	a, outcome, _ := c.Admit(context.Background(), admission.Request{Direct: call, IsOver: isOver})
	if a.Done(admission.Result{}); outcome != admission.Unlimited || len(outcomes) != 4 || !slices.Contains(outcomes, admission.ShadowDenied) {
		t.Errorf("with a shadow it is %v, the events are %v; want a shadow that denies", outcome, outcomes)
	}
}
