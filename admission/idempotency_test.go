package admission_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// onceController makes a Controller that limits each user to 3 units a day and 9 units a week.
func onceController(t *testing.T, store penstock.Store) *admission.Controller {
	t.Helper()
	rules := rulesOf(t, `rules: [{name: search, per: {user: header X-User}, limits: [{name: day, rate: 3/day}, {name: week, rate: 9/week}]}]`)
	c, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestARepeatOfAGrantedRequestChargesNothing(t *testing.T) {
	c := onceController(t, memstore.New(memstore.Options{}))
	for i, call := range []struct {
		id        string
		cost      int64
		want      admission.Outcome
		isRepeat  bool
		remaining int64
	}{
		{id: "a", cost: 2, want: admission.Allowed, isRepeat: false, remaining: 1},
		{id: "a", cost: 2, want: admission.Allowed, isRepeat: true, remaining: 1},
		{id: "b", cost: 2, want: admission.Denied, isRepeat: false, remaining: 1},
		// A denial charges nothing, so its repeat is decided anew.
		{id: "b", cost: 2, want: admission.Denied, isRepeat: false, remaining: 1},
		// A request with other charges is not a repeat.
		{id: "a", cost: 1, want: admission.Allowed, isRepeat: false, remaining: 0},
		{id: "a", cost: 2, want: admission.Allowed, isRepeat: true, remaining: 0},
		{id: "", cost: 1, want: admission.Denied, isRepeat: false, remaining: 0},
	} {
		a, outcome, err := c.AdmitRule(context.Background(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: call.cost, RequestOptions: admission.RequestOptions{IdempotencyKey: call.id}})
		d, _ := a.Decision()
		if outcome != call.want || err != nil || a.IsRepeat() != call.isRepeat || d.Len() != 2 || d.Status(0).Remaining != call.remaining {
			t.Errorf("call %d is %v, error %v, IsRepeat is %t, and the decision has %d statuses, the first with %d left; want no error, 2 statuses, and %+v",
				i, outcome, err, a.IsRepeat(), d.Len(), d.Status(0).Remaining, call)
		}
		if got := a.Rejection().Policies; outcome == admission.Denied && strings.Join(got, " ") != "search.day" {
			t.Errorf("call %d is denied by %v; want only \"search.day\"", i, got)
		}
		if n := len(a.AppendVisible(nil)); n != 2 {
			t.Errorf("AppendVisible of call %d returned %d limits; want 2", i, n)
		}
		a.Done(admission.Result{})
	}
}

// A limit that counts denied requests counts neither a repeat nor a denied request with an ID.
func TestRequestsWithAnIDDoNotCountIfDenied(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: search, per: {user: header X-User}, limits: [{name: day, rate: 3/day, count_denied: true}, {name: week, rate: 9/week, count_denied: true}]}]`)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, call := range []struct {
		id        string
		cost      int64
		want      admission.Outcome
		remaining int64 // of the week
	}{
		{id: "a", cost: 2, want: admission.Allowed, remaining: 7},
		{id: "a", cost: 2, want: admission.Allowed, remaining: 7},
		{id: "b", cost: 2, want: admission.Denied, remaining: 7},
		{id: "", cost: 2, want: admission.Denied, remaining: 5},
		{id: "a", cost: 2, want: admission.Allowed, remaining: 5},
	} {
		a, outcome, err := c.AdmitRule(context.Background(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: call.cost, RequestOptions: admission.RequestOptions{IdempotencyKey: call.id}})
		d, _ := a.Decision()
		if outcome != call.want || err != nil || d.Status(1).Remaining != call.remaining {
			t.Errorf("call %d is %v, error %v, with %d left of the week; want %+v", i, outcome, err, d.Status(1).Remaining, call)
		}
		a.Done(admission.Result{})
	}
}

func TestTheStoreGetsTheIDInTheSameBatch(t *testing.T) {
	var batches [][]penstock.Charge
	inner := memstore.New(memstore.Options{})
	c := onceController(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		batches = append(batches, append([]penstock.Charge(nil), charges...))
		return inner.Decide(ctx, charges)
	}))
	a, _, _ := c.AdmitRule(context.Background(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: 1, RequestOptions: admission.RequestOptions{IdempotencyKey: "a"}})
	a.Done(admission.Result{})
	if len(batches) != 1 || len(batches[0]) != 3 || batches[0][2].Key != "user:1" {
		t.Errorf("the store was called with the batches %v; want one batch of three charges, the last with the key of the first", batches)
	}
}

func TestALongIDIsMalformed(t *testing.T) {
	c := onceController(t, memstore.New(memstore.Options{}))
	a, outcome, err := c.AdmitRule(context.Background(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: 1, RequestOptions: admission.RequestOptions{IdempotencyKey: strings.Repeat("a", 513)}})
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(a.Rejection().Detail, "512 bytes") {
		t.Errorf("a request with an ID that is too long is %v, error %v; want malformed, with the bound in its Detail", outcome, err)
	}
	a.Done(admission.Result{})
}

// Done of a repeat would refund the same charge again.
func TestDoneOfARepeatCorrectsNothing(t *testing.T) {
	c := grantController(t, memstore.New(memstore.Options{}))
	admit := func(id string) *admission.Admission {
		t.Helper()
		call := namedCall("user:1", 1)
		call.IdempotencyKey = id
		a, outcome, err := c.AdmitRule(t.Context(), call)
		if outcome != admission.Allowed || err != nil {
			t.Fatalf("the request %q is %v, error %v; want it allowed", id, outcome, err)
		}
		return a
	}
	admit("other").Done(admission.Result{Status: 401})
	admit("a").Done(admission.Result{Status: 401})
	admit("a").Done(admission.Result{Status: 200}) // 200 is not counted, but this request was charged with the first
	a := admit("b")
	if d, _ := a.Decision(); d.Status(0).Remaining != 0 {
		t.Errorf("after two requests and a repeat, another leaves %d of 3 units; want 0", d.Status(0).Remaining)
	}
	a.Done(admission.Result{})
}

// The handler of a repeat need not know that it is one.
func TestSettleOfARepeatIsNoError(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: tokens, per: {user: header X-User}, limits: [{name: day, rate: 9/day, cost: {units: 4, actual: X-Cost}}]}]`)
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	request := admission.RuleCall{Rule: "tokens", Key: "user:1", Cost: 4, CanEnd: true, RequestOptions: admission.RequestOptions{IdempotencyKey: "a"}}
	for i, want := range []int64{5, 8, 8} { // left when the request is admitted: the first is settled to 1 unit, then come repeats
		a, outcome, err := c.AdmitRule(t.Context(), request)
		d, _ := a.Decision()
		if outcome != admission.Allowed || err != nil || d.Status(0).Remaining != want {
			t.Fatalf("call %d is %v, error %v, with %d units left; want it allowed with %d", i, outcome, err, d.Status(0).Remaining, want)
		}
		if err := a.Settle(1); err != nil {
			t.Errorf("Settle of call %d returned %v; want no error", i, err)
		}
		a.Done(admission.Result{})
	}
}

func TestSettledReservationIsNotRepeated(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	c := onceController(t, store)
	const settleable = time.Hour
	reserve := func() (*admission.Admission, admission.Outcome) {
		a, outcome, _ := c.AdmitRule(t.Context(), admission.RuleCall{Rule: "search", Key: "user:1", Cost: 1, RequestOptions: admission.RequestOptions{IdempotencyKey: "a", Settleable: settleable}})
		return a, outcome
	}
	first, _ := reserve()
	now = now.Add(settleable - time.Second)
	if repeat, outcome := reserve(); outcome != admission.Allowed || !repeat.IsRepeat() || repeat.SharedName() != first.SharedName() || repeat.Age() != settleable-time.Second {
		t.Errorf("a repeat near the end of the reservation is %v, IsRepeat %t, age %v; want an allowed repeat", outcome, repeat.IsRepeat(), repeat.Age())
	}
	settled, err := admission.SettledCharge(first.SharedName(), "user:1", settleable)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Decide(t.Context(), []penstock.Charge{settled}); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, settleable - time.Second} { // then the charge "once" has ended
		now = now.Add(after)
		a, outcome := reserve()
		if outcome != admission.Malformed || !strings.Contains(a.Rejection().Detail, "was settled; reserve with a new id") || len(a.TakeGrants()) != 0 {
			t.Errorf("a repeat %v after the reservation was settled is %v, with %q; want malformed, because it was settled", after, outcome, a.Rejection().Detail)
		}
		a.Done(admission.Result{})
	}
	now = now.Add(time.Second)
	if a, outcome := reserve(); outcome != admission.Allowed || a.IsRepeat() {
		t.Errorf("a reservation after the settled one is forgotten is %v, IsRepeat %t; want it allowed and charged", outcome, a.IsRepeat())
	}
}

func TestReservationNeedsRoomForTwoCharges(t *testing.T) {
	c := onceController(t, memstore.New(memstore.Options{}))
	call := new(admission.ExplicitCharges)
	for i := range penstock.MaxCharges - 1 {
		plan := penstock.Limit{Group: "stated", Name: fmt.Sprintf("limit-%d", i), Count: 9, Period: time.Hour}.MustCompile()
		call.Charges = append(call.Charges, penstock.Charge{Key: "a", Plan: plan, Cost: 1})
		call.Limits = append(call.Limits, &policy.Limit{Rule: &policy.Rule{}, Variants: []*penstock.Plan{plan}})
	}
	for _, row := range []struct {
		charges    int
		settleable time.Duration
		want       admission.Outcome
	}{{63, 0, admission.Allowed}, {63, time.Hour, admission.Malformed}, {62, time.Hour, admission.Allowed}} {
		a, outcome, err := c.AdmitCharges(t.Context(), admission.ExplicitCharges{
			Charges: call.Charges[:row.charges], Limits: call.Limits[:row.charges],
			RequestOptions: admission.RequestOptions{IdempotencyKey: "a", Settleable: row.settleable},
		})
		if outcome != row.want || (err != nil) != (row.want == admission.Malformed) {
			t.Errorf("a request with an IdempotencyKey, %d charges, and Settleable %v is %v, error %v; want %v", row.charges, row.settleable, outcome, err, row.want)
		}
		a.Done(admission.Result{})
	}
}
