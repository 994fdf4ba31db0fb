package admission_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/flaky"
	"github.com/penstock/penstock/memstore"
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
			if hasFallback {
				c.store = failsafe{c.store, settings}
			}
			controller, err := admission.New(c.store, rules, admission.Options{Settings: settings})
			if err != nil {
				t.Fatal(err)
			}
			within, over := chargesOf(t, guard.FailClosed, 1), chargesOf(t, guard.FailClosed, 1)
			over.Charges[0].Key, over.Charges[0].Cost = "user:43", 2
			list := []*admission.BatchItem{{Charges: *within}, {Charges: *over}}
			controller.AdmitMany(t.Context(), list)
			for i, item := range list {
				if item.Outcome != c.want[i] || item.Err != nil {
					t.Errorf("%s, fallback in the store %v: request %d is %v, error %v; want %v, and no error", c.name, hasFallback, i, item.Outcome, item.Err, c.want[i])
				}
				item.Admission.Done(admission.Result{})
			}
		}
	}
}

// The events of a list have the error of the store, however long the list is.
func TestEventsOfAListHaveTheErrorOfTheStore(t *testing.T) {
	rules := rulesOf(t, `rules: [{name: all, per: global, limits: [{name: hour, rate: 1/hour}]}]`)
	settings := func(*penstock.Plan) guard.Settings { return guard.Settings{OnFailure: guard.FailClosed} }
	bare := flaky.New(memstore.New(memstore.Options{}))
	bare.IsDown.Store(true)
	for _, hasFallback := range []bool{true, false} {
		store := penstock.Store(bare)
		if hasFallback {
			store = failsafe{bare, settings}
		}
		for length := 1; length <= 3; length++ {
			t.Run(fmt.Sprintf("fallback in the store %t, %d requests", hasFallback, length), func(t *testing.T) {
				seen := new(events)
				c, err := admission.New(store, rules, admission.Options{Settings: settings, Observe: seen.add})
				if err != nil {
					t.Fatal(err)
				}
				var list []*admission.BatchItem
				for range length {
					list = append(list, &admission.BatchItem{Charges: *chargesOf(t, guard.FailClosed, 1)})
				}
				c.AdmitMany(t.Context(), list)
				for _, item := range list {
					item.Admission.Done(admission.Result{})
				}
				for _, e := range seen.take() {
					if !errors.Is(e.Err, flaky.ErrDown) {
						t.Errorf("the event %v has the error %v; want that of the store", e.Outcome, e.Err)
					}
				}
			})
		}
	}
}
