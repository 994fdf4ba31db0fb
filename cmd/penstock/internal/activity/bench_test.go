package activity

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// BenchmarkObserve measures what an event costs.
func BenchmarkObserve(b *testing.B) {
	plan := rulesOf(b, testPolicy).Plans()[0]
	allowed := penstock.Single(penstock.Status{Granted: 1, Remaining: 9})
	near := penstock.Single(penstock.Status{Granted: 1, Remaining: 1})
	denied := penstock.Single(penstock.Status{RetryAfter: 1})
	two := penstock.NewDecision([]penstock.Status{{Granted: 1, Remaining: 9}, {Granted: 1, Remaining: 9}})
	charge := penstock.Charge{Plan: plan, Cost: 1}
	for _, c := range []struct {
		name    string
		outcome admission.Outcome
		d       *penstock.Decision
		charges []penstock.Charge
	}{
		{"allowed", admission.Allowed, &allowed, []penstock.Charge{charge}},
		{"two limits", admission.Allowed, &two, []penstock.Charge{charge, charge}},
		{"near", admission.Allowed, &near, []penstock.Charge{charge}},
		{"denied", admission.Denied, &denied, []penstock.Charge{charge}},
		{"shadow", admission.ShadowDenied, &denied, []penstock.Charge{charge}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := New(Options{Names: plainNames})
			r.SetLimits([]*penstock.Plan{plan})
			var keys [1000]string
			for i := range keys {
				keys[i] = fmt.Sprint("client:", i)
			}
			e := admission.Event{Outcome: c.outcome, Decision: c.d, Charges: c.charges}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				e.Key = keys[i%len(keys)]
				e.Charges[0].Key = e.Key
				e.Random = uint32(i)*2654435761 | 1
				r.Observe(&e)
			}
		})
	}
}
