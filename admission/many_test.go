package admission_test

import (
	"context"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

func TestEachRequestOfAListIsDecided(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	settings := func(*penstock.Plan) guard.Settings { return guard.Settings{OnFailure: guard.FailClosed} }
	down := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	for _, hasFallback := range []bool{true, false} {
		for _, c := range []struct {
			name  string
			store penstock.Store
			want  [2]admission.Outcome // of a request within its limit, and of one over its limit
		}{
			{name: "memory", store: memstore.New(memstore.Options{}), want: [2]admission.Outcome{admission.Allowed, admission.Denied}},
			{name: "no answer", store: down, want: [2]admission.Outcome{admission.FailedClosed, admission.FailedClosed}},
		} {
			controller, err := admission.New(c.store, func() *policy.Rules { return rules }, admission.Options{HasFallback: hasFallback, Settings: settings})
			if err != nil {
				t.Fatal(err)
			}
			within, over := directCall(t, guard.FailClosed, 1), directCall(t, guard.FailClosed, 1)
			over.Charges[0].Key, over.Charges[0].Cost = "user:43", 2
			list := []*admission.Admittance{{Request: admission.Request{Direct: within}}, {Request: admission.Request{Direct: over}}}
			controller.AdmitMany(t.Context(), list)
			for i, item := range list {
				if item.Outcome != c.want[i] || item.Err != nil {
					t.Errorf("%s, HasFallback %v: request %d is %v, error %v; want %v, and no error", c.name, hasFallback, i, item.Outcome, item.Err, c.want[i])
				}
				item.Admission.Done(admission.Result{})
			}
		}
	}
}
