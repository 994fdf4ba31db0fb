package admission_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// The latency of an event is real time, also of a shadow, and also if Options.Now is another clock.
func TestLatencyIsRealTimeWithAnotherClock(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - name: a
    per: global
    limits: [{name: same, rate: 9/h, candidate: {rate: 5/h}}, {name: other, rate: 9/h, algorithm: fixed-window, shadow: true}]
`)
	now := func() time.Time { return time.Unix(1_000_000_000, 0) }
	seen := new(events)
	c, err := admission.New(memstore.New(memstore.Options{Now: now}), rules, admission.Options{Now: now, Observe: seen.add})
	if err != nil {
		t.Fatal(err)
	}
	a, _, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
	a.Done(admission.Result{})
	list := seen.take()
	if len(list) != 3 {
		t.Fatalf("%d events were observed; want 3: of the request and of its two shadows", len(list))
	}
	for _, e := range list {
		if e.Latency < 0 || e.Latency > time.Hour {
			t.Errorf("the event %v of limit %s has the latency %v; want the real time of the call", e.Outcome, e.Limit, e.Latency)
		}
	}
}
