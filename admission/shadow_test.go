package admission_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/memstore"
)

// The store may decide a shadow in the call of the enforced batch if one script could do so. If it
// leaves the shadow, a call for the shadow follows. Other shadows get their call at the same time
// as the enforced batch, so that no request waits for two round trips.
func TestCallsOfShadows(t *testing.T) {
	const roundTrip = time.Second
	for name, row := range map[string]struct {
		rules string
		isOwn bool // the shadow gets a call of its own at once
	}{
		"the same algorithm": {rules: `[{name: a, per: global, limits: [{rate: 9/h, candidate: {rate: 5/h}}]}]`},
		"another key":        {rules: `[{name: a, per: global, limits: [{rate: 9/h}]}, {name: b, always: true, shadow: true, per: ip, limits: [{rate: 5/h}]}]`},
		"another algorithm":  {rules: `[{name: a, per: global, limits: [{rate: 9/h, candidate: {rate: 5/h, algorithm: fixed-window}}]}]`, isOwn: true},
		"collections":        {rules: `[{name: a, per: global, limits: [{rate: 9/h, algorithm: sliding-log, candidate: {rate: 5/h}}]}]`, isOwn: true},
		"denied ones count":  {rules: `[{name: a, per: global, limits: [{rate: 9/h, count_denied: true, candidate: {rate: 5/h}}]}]`, isOwn: true},
		"several keys": {rules: `[{name: a, per: global, limits: [{rate: 9/h}]}, {name: b, always: true, per: ip, limits: [{rate: 9/h}]},
			{name: c, always: true, shadow: true, per: global, limits: [{name: x, rate: 5/h}, {name: y, rate: 6/h}]}]`, isOwn: true},
	} {
		for _, isLeft := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				memory := batches.Of(memstore.New(memstore.Options{}))
				var mu sync.Mutex
				var calls []time.Duration // when they began
				shared := 0
				store := batches.Func(func(ctx context.Context, list []*batches.Batch) {
					mu.Lock()
					calls = append(calls, time.Since(begin))
					mu.Unlock()
					time.Sleep(roundTrip)
					memory(ctx, list)
					if shadows := list[0].Shadows; !isLeft && len(shadows) > 0 {
						shared += len(shadows)
						memory(ctx, shadows)
					}
				})
				seen := new(events)
				c, err := admission.New(store, rulesOf(t, "rules: "+row.rules), admission.Options{Observe: seen.add})
				if err != nil {
					t.Fatal(err)
				}
				a, outcome, _ := c.Admit(t.Context(), admission.Request{Attributes: attributes{}})
				a.Done(admission.Result{})
				want, second := 2, time.Duration(0)
				switch {
				case !row.isOwn && isLeft:
					second = roundTrip
				case !row.isOwn:
					want = 1
				}
				if len(calls) != want || want == 2 && calls[1] != second || shared != 2-want {
					t.Errorf("%s, the shadow is left %t: the calls began at %v, and shared %d shadows; want %d, the second at %v", name, isLeft, calls, shared, want, second)
				}
				if list := seen.take(); outcome != admission.Allowed || len(list) != 2 {
					t.Errorf("%s: %v and %d events; want allowed, and the events of the request and of its shadow", name, outcome, len(list))
				}
			})
		}
	}
}
