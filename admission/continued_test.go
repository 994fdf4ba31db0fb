package admission_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A further message of a stream is charged, and needs no slot: its stream has one.
func TestContinuedRequestsTakeNoSlots(t *testing.T) {
	rules := rulesOf(t, `rules: [
		{name: calls, per: global, limits: [{name: slots, in_flight: 1}, {name: hour, rate: 3/hour}]},
		{name: seen, always: true, shadow: true, per: global, limits: [{name: slots, in_flight: 1}]}]`)
	store := memstore.New(memstore.Options{})
	shadows := 0
	c, err := admission.New(store, func() *policy.Rules { return rules }, admission.Options{HasFallback: true, Observe: func(e *admission.Event) {
		if e.Outcome == admission.ShadowAllowed || e.Outcome == admission.ShadowDenied {
			shadows++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	admit := func(isContinued bool) (*admission.Admission, admission.Outcome) {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Attributes: attributes{}, IsContinued: isContinued})
		if err != nil {
			t.Fatal(err)
		}
		return a, outcome
	}
	stream, outcome := admit(false)
	if outcome != admission.Allowed {
		t.Fatalf("the stream is %v; want allowed", outcome)
	}
	if a, outcome := admit(false); outcome != admission.Denied {
		t.Errorf("a second stream: %v; want denied, because no slot is free", outcome)
	} else {
		a.Done(admission.Result{})
	}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied} {
		a, outcome := admit(true)
		if outcome != want {
			t.Errorf("message %d of the stream: %v; want %v", i, outcome, want)
		}
		a.Done(admission.Result{})
	}
	stream.Done(admission.Result{})
	if shadows != 2 {
		t.Errorf("%d shadows were decided; want 2, those of the two streams", shadows)
	}
}

// Patience lets a request wait at limits that can let requests wait.
func TestRequestsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := rulesOf(t, `rules: [{name: calls, per: global, limits: [{name: bucket, rate: 1/s}, {name: window, rate: 100/h, algorithm: fixed-window}]}]`)
		c, err := admission.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, admission.Options{HasFallback: true})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i, want := range []struct {
			patience, after time.Duration
			outcome         admission.Outcome
		}{
			{0, 0, admission.Allowed},
			{0, 0, admission.Denied},
			{time.Second, time.Second, admission.Allowed},
			{time.Second / 2, time.Second, admission.Denied},
			{penstock.Never, 2 * time.Second, admission.Allowed},
		} {
			a, outcome, err := c.Admit(context.Background(), admission.Request{Attributes: attributes{}, Patience: want.patience})
			if took := time.Since(start); outcome != want.outcome || took != want.after || err != nil {
				t.Errorf("request %d: %v after %v, %v; want %v after %v", i, outcome, took, err, want.outcome, want.after)
			}
			a.Done(admission.Result{})
		}
	})
}
