package admission_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// A further message of a stream is charged, but takes no slot, because its stream has one already.
func TestContinuedRequestsTakeNoSlots(t *testing.T) {
	rules := rulesOf(t, `rules: [
		{name: calls, per: global, limits: [{name: slots, in_flight: 1}, {name: hour, rate: 3/hour}]},
		{name: seen, always: true, shadow: true, per: global, limits: [{name: slots, in_flight: 1}]}]`)
	store := memstore.New(memstore.Options{})
	decidedShadows := 0
	c, err := admission.New(store, rules, admission.Options{Observe: func(e *admission.Event) {
		if e.Outcome == admission.ShadowAllowed || e.Outcome == admission.ShadowDenied {
			decidedShadows++
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	admit := func(isContinued bool) (*admission.Admission, admission.Outcome) {
		a, outcome, err := c.Admit(context.Background(), admission.Request{Attributes: attributes{}, IsPartOfStream: isContinued})
		if err != nil {
			t.Fatal(err)
		}
		return a, outcome
	}
	admitStream := func() (*admission.Admission, admission.Outcome) { return admit(false) }
	admitMessage := func() (*admission.Admission, admission.Outcome) { return admit(true) }
	stream, outcome := admitStream()
	if outcome != admission.Allowed {
		t.Fatalf("the stream is %v; want allowed", outcome)
	}
	if a, outcome := admitStream(); outcome != admission.Denied {
		t.Errorf("a second stream is %v; want denied, because no slot is free", outcome)
	} else {
		a.Done(admission.Result{})
	}
	for i, want := range []admission.Outcome{admission.Allowed, admission.Allowed, admission.Denied} {
		a, outcome := admitMessage()
		if outcome != want {
			t.Errorf("message %d of the stream is %v; want %v", i, outcome, want)
		}
		a.Done(admission.Result{})
	}
	stream.Done(admission.Result{})
	if decidedShadows != 2 {
		t.Errorf("%d shadows were decided; want 2, those of the two streams", decidedShadows)
	}
}

// A request may have a Patience even if its limits have no max_wait.
func TestRequestsHaveAPatienceOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := rulesOf(t, `rules: [{name: calls, per: global, limits: [{name: bucket, rate: 1/s}, {name: window, rate: 100/h, algorithm: fixed-window}]}]`)
		c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i, want := range []struct {
			patience time.Duration
			after    time.Duration // the time from the start of the test to the decision
			outcome  admission.Outcome
		}{
			{patience: 0, after: 0, outcome: admission.Allowed},
			{patience: 0, after: 0, outcome: admission.Denied},
			{patience: time.Second, after: time.Second, outcome: admission.Allowed},
			{patience: time.Second / 2, after: time.Second, outcome: admission.Denied},
			{patience: penstock.Never, after: 2 * time.Second, outcome: admission.Allowed},
		} {
			a, outcome, err := c.Admit(context.Background(), admission.Request{Attributes: attributes{}, Patience: want.patience})
			if after := time.Since(start); outcome != want.outcome || after != want.after || err != nil {
				t.Errorf("request %d is %v after %v, error %v; want %v after %v, and no error", i, outcome, after, err, want.outcome, want.after)
			}
			a.Done(admission.Result{})
		}
	})
}
