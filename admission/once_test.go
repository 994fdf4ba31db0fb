package admission_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// onceController makes a Controller that limits each user to 3 units a day and 9 units a week.
func onceController(t *testing.T, store penstock.Store) *admission.Controller {
	t.Helper()
	rules := rulesOf(t, `rules: [{name: search, per: {user: header X-User}, limits: [{name: day, rate: 3/day}, {name: week, rate: 9/week}]}]`)
	c, err := admission.New(store, policy.Fixed(rules), admission.Options{HasFallback: true})
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
		a, outcome, err := c.Admit(context.Background(), admission.Request{Named: &policy.NamedCall{Rule: "search", Key: "user:1", Cost: call.cost}, ID: call.id})
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

func TestTheStoreGetsTheIDInTheSameBatch(t *testing.T) {
	var batches [][]penstock.Charge
	inner := memstore.New(memstore.Options{})
	c := onceController(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		batches = append(batches, append([]penstock.Charge(nil), charges...))
		return inner.Decide(ctx, charges)
	}))
	a, _, _ := c.Admit(context.Background(), admission.Request{Named: &policy.NamedCall{Rule: "search", Key: "user:1", Cost: 1}, ID: "a"})
	a.Done(admission.Result{})
	if len(batches) != 1 || len(batches[0]) != 3 || batches[0][2].Key != "user:1" {
		t.Errorf("the store was called with the batches %v; want one batch of three charges, the last with the key of the first", batches)
	}
}

func TestALongIDIsMalformed(t *testing.T) {
	c := onceController(t, memstore.New(memstore.Options{}))
	a, outcome, err := c.Admit(context.Background(), admission.Request{Named: &policy.NamedCall{Rule: "search", Key: "user:1", Cost: 1}, ID: strings.Repeat("a", admission.MaxID+1)})
	if outcome != admission.Malformed || !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(a.Rejection().Detail, "512 bytes") {
		t.Errorf("a request with an ID that is too long is %v, error %v; want malformed, with the bound in its Detail", outcome, err)
	}
	a.Done(admission.Result{})
}

func TestCanceledRepeatRefundsNothing(t *testing.T) {
	c := onceController(t, memstore.New(memstore.Options{}))
	admit := func(id string) *admission.Admission {
		t.Helper()
		a, outcome, err := c.Admit(t.Context(), admission.Request{Named: &policy.NamedCall{Rule: "search", Key: "user:1", Cost: 1}, ID: id})
		if outcome != admission.Allowed || err != nil {
			t.Fatalf("the request %q is %v, error %v; want it allowed", id, outcome, err)
		}
		return a
	}
	admit("a").Done(admission.Result{})
	repeat := admit("a")
	repeat.Cancel()
	if !repeat.IsRepeat() {
		t.Error("the second request is no repeat; want one")
	}
	d, _ := admit("b").Decision()
	if left := d.Status(0).Remaining; left != 1 {
		t.Errorf("after a canceled repeat and another request, %d of 3 units are left; want 1", left)
	}
}
