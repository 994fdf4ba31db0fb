package admission_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/flaky"
	"github.com/penstock/penstock/memstore"
)

// An admitted request has the rule of the first limit that failed open, whatever decided the
// request. A rejected request has none, because it did no harm.
func TestEventsNameTheLimitThatFailedOpen(t *testing.T) {
	const text = `
tokens: {secret: 0123456789abcdef0123456789abcdef, audience: api}
rules:
  - {name: first, match: {path: [/first, /first/rest]}, before_auth: true, per: global, limits: [{rate: 9/d, on_failure: open}]}
  - {name: rest, match: {path: /first/rest}, per: {first_of: [{user: claim sub}, global]}, limits: [{rate: 9/d}]}
  - {name: vip, match: {path: /first, claim plan: vip}, per: global, limits: [{rate: 9/d}]}
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 1/d, on_failure: open}]}
  - {name: mixed, match: {path: /mixed}, per: global, limits: [{name: l, rate: 1/d}, {name: o, rate: 9/d, on_failure: open}]}
  - {name: ceiling, match: {path: /ceiling}, per: global, limits: [{rate: 9/d, on_failure: open, ceiling: 1/d}]}
  - {name: closed, match: {path: /closed}, per: global, limits: [{name: c, rate: 9/d, on_failure: closed}, {name: o, rate: 9/d, on_failure: open}]}
  - {name: local, match: {path: /local}, per: global, limits: [{rate: 9/d}]}
`
	type seen struct {
		outcome admission.Outcome
		skipped string
	}
	const allowed, denied, open, closed, unlimited = admission.Allowed, admission.Denied, admission.FailedOpen, admission.FailedClosed, admission.Unlimited
	for _, isDown := range []bool{false, true} {
		bare := flaky.New(memstore.New(memstore.Options{}))
		bare.IsDown.Store(isDown)
		guarded, err := guard.Standard(bare, guard.Options{Limits: rulesOf(t, text).Settings, Instances: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer guarded.Close()
		c, events := controllerOf(t, guarded, text)
		results := map[string][]seen{
			"/first":      {{unlimited, "first"}, {unlimited, "first"}},
			"/first/rest": {{allowed, "first"}, {allowed, "first"}},
			"/open":       {{open, "open"}, {open, "open"}},
			"/mixed":      {{allowed, "mixed"}, {denied, ""}},
			"/ceiling":    {{allowed, ""}, {denied, ""}},
			"/closed":     {{closed, ""}, {closed, ""}},
			"/local":      {{allowed, ""}, {allowed, ""}},
		}
		for _, path := range slices.Sorted(maps.Keys(results)) { // a known token changes the outcome of /first
			for i, want := range results[path] {
				a, _, err := c.Admit(t.Context(), admission.Request{Attributes: forged{attributes{jsonRequest{Path: path, User: fmt.Sprint(isDown, i)}}}})
				if err != nil {
					t.Fatal(err)
				}
				a.Done(admission.Result{})
				e := events.take()[0]
				if !isDown {
					want = seen{e.Outcome, ""}
				}
				if got := (seen{e.Outcome, e.SkippedRule}); got != want {
					t.Errorf("the store is down: %v: request %d for %s has the outcome %v and the skipped rule %q; want %v and %q", isDown, i+1, path, got.outcome, got.skipped, want.outcome, want.skipped)
				}
			}
		}
	}
}
