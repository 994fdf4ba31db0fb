package admission_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

const grantRules = `
rules: [{name: search, per: {user: header X-User}, limits: [{name: day, rate: 3/day, on_status: 401}, {in_flight: 2, ttl: 1m}]}]`

// grantController decides by grantRules, and fails over to this process.
func grantController(t *testing.T, store penstock.Store) *admission.Controller {
	t.Helper()
	rules := rulesOf(t, grantRules)
	store = penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{Limits: rules.Settings}))
	c, err := admission.New(store, func() *policy.Rules { return rules }, admission.Options{HasFallback: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// named calls the rule of grantRules.
func named(key string, cost int64) *policy.NamedCall {
	return &policy.NamedCall{Rule: "search", Key: key, Cost: cost, CanEnd: true}
}

func TestGrantsThatAreTakenStayAsTheyAre(t *testing.T) {
	store := memstore.New(memstore.Options{})
	c := grantController(t, store)
	a, outcome, err := c.Admit(context.Background(), admission.Request{Named: named("user:1", 1), Holder: "me"})
	if outcome != admission.Allowed || err != nil {
		t.Fatalf("the request is %v, %v; want allowed", outcome, err)
	}
	grants := a.TakeGrants()
	a.Done(admission.Result{Status: 200}) // it would refund the day, and return the slot
	if len(grants) != 2 || grants[0].Limit.Name != "day" || grants[1].Charge.Holder != "me" || !grants[1].RefundableUntil.IsZero() {
		t.Fatalf("the grants are %+v; want those of the day, and of the slot of me", grants)
	}
	if until := time.Until(grants[0].RefundableUntil); until < 7*time.Hour || until > 8*time.Hour {
		t.Errorf("a third of a day can be refunded for %v; want 8 hours", until)
	}
	for i, left := range []int64{2, 1} {
		peek := grants[i].Charge
		peek.Mode, peek.Cost = penstock.Peek, 0
		if d, err := store.Decide(context.Background(), []penstock.Charge{peek}); err != nil || d.Remaining() != left {
			t.Errorf("%d of limit %s are left, %v; want %d", d.Remaining(), grants[i].Limit.Name, err, left)
		}
	}
}

func TestOnlySlotsAreTakenWithoutTheStore(t *testing.T) {
	c := grantController(t, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	}))
	a, outcome, _ := c.Admit(context.Background(), admission.Request{Named: named("user:1", 1)})
	if grants := a.TakeGrants(); outcome != admission.Allowed || len(grants) != 1 || grants[0].Limit.Name != "in-flight" {
		t.Errorf("%v: the grants are %+v; want the slot only", outcome, grants)
	}
	a.Done(admission.Result{})
}

// A refund may not cancel newer charges, so the grant of a repeat is as old as the first.
func TestTheGrantOfARepeatIsAsOldAsTheFirst(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := onceController(t, memstore.New(memstore.Options{Now: func() time.Time { return now }}))
	var until [2]time.Time
	var names [2]string
	for i := range until {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Named: &policy.NamedCall{Rule: "search", Key: "user:1", Cost: 1}, ID: "a"})
		if outcome != admission.Allowed || err != nil || a.Age() != time.Duration(i)*5*time.Minute {
			t.Fatalf("call %d: %v, %v, age %v; want allowed, age %v", i, outcome, err, a.Age(), time.Duration(i)*5*time.Minute)
		}
		until[i], names[i] = a.TakeGrants()[0].RefundableUntil, a.OnceName()
		a.Done(admission.Result{})
		now = now.Add(5 * time.Minute)
	}
	if d := until[0].Sub(until[1]); d < 4*time.Minute || d > 6*time.Minute {
		t.Errorf("the repeat can be refunded until %v before the first; want 5 minutes", d)
	}
	if names[0] != names[1] || len(names[0]) != 26 {
		t.Errorf("the names of a request and its repeat are %q; want the same, with 26 characters", names)
	}
}

func TestCheckLimitsRunsBeforeAnythingIsCharged(t *testing.T) {
	store := memstore.New(memstore.Options{})
	c := grantController(t, store)
	reason := errors.New("this transport has no status")
	a, outcome, err := c.Admit(context.Background(), admission.Request{Named: named("user:1", 1), CheckLimits: func(limits []*policy.Limit) error {
		if len(limits) != 2 {
			t.Errorf("CheckLimits gets %d limits; want 2", len(limits))
		}
		return reason
	}})
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail != reason.Error() {
		t.Errorf("a request that CheckLimits rejects: %v, %v; want malformed, with the reason", outcome, err)
	}
	a.Done(admission.Result{})
	if n := store.Len(); n != 0 {
		t.Errorf("the store has %d counters; want none", n)
	}
}
