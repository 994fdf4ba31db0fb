package admission_test

import (
	"context"
	"errors"
	"slices"
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

// grantController makes a Controller for grantRules, with a local fallback.
func grantController(t *testing.T, store penstock.Store) *admission.Controller {
	t.Helper()
	rules := rulesOf(t, grantRules)
	store = penstock.Wrap(store, guard.Fallback(guard.FallbackOptions{Limits: rules.Settings}))
	c, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// namedCall returns a call of the rule of grantRules.
func namedCall(key string, cost int64) admission.RuleCall {
	return admission.RuleCall{Rule: "search", Key: key, Cost: cost, CanEnd: true}
}

func TestDoneDoesNotCorrectTakenGrants(t *testing.T) {
	store := memstore.New(memstore.Options{})
	c := grantController(t, store)
	call := namedCall("user:1", 1)
	call.Holder = "me"
	a, outcome, err := c.AdmitRule(context.Background(), call)
	if outcome != admission.Allowed || err != nil {
		t.Fatalf("the request is %v, error %v; want allowed, and no error", outcome, err)
	}
	grants := a.TakeGrants()
	a.Done(admission.Result{Status: 200}) // without TakeGrants, it would refund the day and return the slot
	if len(grants) != 2 || grants[0].Limit.Name != "day" || grants[1].Charge.Holder != "me" {
		t.Fatalf("the grants are %+v; want one of the limit \"day\", and one of the slot of the holder \"me\"", grants)
	}
	if grants[0].Charge.Receipt == 0 {
		t.Errorf("the grant of the limit \"day\" has no Receipt; want one, for its refund")
	}
	for i, left := range []int64{3 - 1, 2 - 1} { // units of the day, and slots
		peek := grants[i].Charge
		peek.Mode, peek.Cost = penstock.Peek, 0
		if d, err := store.Decide(context.Background(), []penstock.Charge{peek}); err != nil || d.Remaining() != left {
			t.Errorf("%d units of limit %s are left, error %v; want %d, and no error", d.Remaining(), grants[i].Limit.Name, err, left)
		}
	}
}

func TestOnlySlotsAreTakenWithoutTheStore(t *testing.T) {
	c := grantController(t, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	}))
	a, outcome, _ := c.AdmitRule(context.Background(), namedCall("user:1", 1))
	if grants := a.TakeGrants(); outcome != admission.Allowed || len(grants) != 1 || grants[0].Limit.Name != "in-flight" {
		t.Errorf("the request is %v with the grants %+v; want allowed, with only the slot", outcome, grants)
	}
	a.Done(admission.Result{})
}

// A repeat charges nothing. Its grants are those of the first request, with the same receipts.
func TestTheGrantsOfARepeatAreThoseOfTheFirstRequest(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := onceController(t, memstore.New(memstore.Options{Now: func() time.Time { return now }}))
	var receipts [2][]int64
	var names [2]string
	for i := range receipts {
		age := time.Duration(i) * 5 * time.Minute
		a, outcome, err := c.AdmitRule(context.Background(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: 1, RequestOptions: admission.RequestOptions{IdempotencyKey: "a", IsRefundable: true}})
		if outcome != admission.Allowed || err != nil || a.Age() != age {
			t.Fatalf("call %d is %v, error %v, age %v; want allowed, no error, age %v", i, outcome, err, a.Age(), age)
		}
		for _, g := range a.TakeGrants() {
			receipts[i] = append(receipts[i], g.Charge.Receipt)
		}
		names[i] = a.SharedName()
		a.Done(admission.Result{})
		now = now.Add(5 * time.Minute)
	}
	if slices.Contains(receipts[0], 0) || !slices.Equal(receipts[0], receipts[1]) {
		t.Errorf("the receipts of a request are %d, and of its repeat %d; want the same, and none 0", receipts[0], receipts[1])
	}
	if names[0] != names[1] || len(names[0]) != 26 {
		t.Errorf("SharedName of a request and of its repeat are %q; want the same name of 26 characters", names)
	}
}

func TestCheckLimitsRunsBeforeAnythingIsCharged(t *testing.T) {
	store := memstore.New(memstore.Options{})
	c := grantController(t, store)
	reason := errors.New("this transport has no status")
	call := namedCall("user:1", 1)
	call.CheckLimits = func(limits []*policy.Limit) error {
		if len(limits) != 2 {
			t.Errorf("CheckLimits is called with %d limits; want 2", len(limits))
		}
		return reason
	}
	a, outcome, err := c.AdmitRule(context.Background(), call)
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || a.Rejection().Detail != reason.Error() {
		t.Errorf("a request that CheckLimits rejects is %v, error %v; want malformed, with the error of CheckLimits as its Detail", outcome, err)
	}
	a.Done(admission.Result{})
	if n := store.Len(); n != 0 {
		t.Errorf("the store has %d counters; want none", n)
	}
}
