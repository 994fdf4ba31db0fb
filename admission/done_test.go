package admission_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

const twoPaths = `
rules:
  - {name: a, match: {path: /a}, per: global, limits: [{rate: 1/h, cost: {units: 1, actual: X-Cost}}]}
  - {name: b, match: {path: /b}, per: global, limits: [{rate: 1/h}]}
`

func attributesOf(path string) attributes { return attributes{jsonRequest{Path: path}} }

func TestSecondDoneChangesNothing(t *testing.T) {
	c, _ := memoryControllerOf(t, twoPaths)
	first, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/other")})
	first.Done(admission.Result{})
	first.Done(admission.Result{})
	// If the second Done had released the memory too, these two requests would share it.
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/a")})
	b, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/b")})
	if a.Strictest().Rule.Name != "a" || b.Strictest().Rule.Name != "b" {
		t.Errorf("the limits of the two requests are of the rules %q and %q; want \"a\" and \"b\"", a.Strictest().Rule.Name, b.Strictest().Rule.Name)
	}
	if first.Strictest() != nil {
		t.Error("Strictest of a request without limits returned a limit; want nil")
	}
}

func TestCostsAreBounded(t *testing.T) {
	c, _ := memoryControllerOf(t, twoPaths)
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/a")})
	for cost, isValid := range map[int64]bool{-1: false, 0: true, penstock.MaxCost: true, penstock.MaxCost + 1: false} {
		if err := a.Settle(cost); (err == nil) != isValid || err != nil && !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Settle(%d) returned %v; want no error: %t, otherwise one that wraps ErrInvalid", cost, err, isValid)
		}
	}
}

func TestCostThatNeedsNoCorrectionSendsNoCharge(t *testing.T) {
	rules := rulesOf(t, twoPaths)
	var sent []penstock.Charge
	inner := memstore.New(memstore.Options{})
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		sent = append(sent, charges...)
		return inner.Decide(ctx, charges)
	})
	// With Now, Done returns only when all corrections are made.
	c, err := admission.New(store, rules, admission.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		cost int64 // that Settle sets; the charge was 1
		want int   // charges
	}{{cost: 1, want: 1}, {cost: 0, want: 2}} {
		sent = nil
		a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/a")})
		if err := a.Settle(row.cost); err != nil {
			t.Fatal(err)
		}
		a.Done(admission.Result{})
		if len(sent) != row.want {
			t.Errorf("a cost of %d: the store got the charges %+v; want %d", row.cost, sent, row.want)
		}
		inner.Decide(t.Context(), []penstock.Charge{{Key: sent[0].Key, Plan: sent[0].Plan, Mode: penstock.Reset}})
	}
}

func TestPeekReportsWhetherLimitsApply(t *testing.T) {
	c, _ := memoryControllerOf(t, twoPaths)
	c.Admit(t.Context(), admission.Request{Attributes: attributesOf("/b")})
	for path, want := range map[string]admission.Outcome{"/a": admission.Allowed, "/b": admission.Denied, "/other": admission.Unlimited} {
		a, outcome, _ := c.Admit(t.Context(), admission.Request{Attributes: attributesOf(path), RequestOptions: admission.RequestOptions{Peek: true}})
		if _, isLimited := a.Decision(); outcome != want || isLimited != (want != admission.Unlimited) {
			t.Errorf("a peek for %s is %v, and has a decision: %t; want %v, and a decision unless that is unlimited", path, outcome, isLimited, want)
		}
		a.Done(admission.Result{})
	}
}
