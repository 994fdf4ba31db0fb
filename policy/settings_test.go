package policy

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

func TestSettingsAreFoundByTheNameOfALimit(t *testing.T) {
	rules := rulesOf(t, `on_failure: closed
tiers: {free: {method: GET}, paid: otherwise}
rules:
  - {name: a, per: everyone, limits: [{rate: {free: 1/s, paid: 2/s}, candidate: {rate: 5/s}, name: second}, {rate: 1/min, on_failure: open}, {rate: 1/h, shadow: true}]}
  - {name: b, always: true, per: everyone, limits: [{rate: 1/s, on_failure: local}]}
`)
	settings := make(map[string]guard.Failure)
	for _, rule := range rules.Rules() {
		for _, l := range rule.Limits {
			for _, form := range l.Forms() {
				settings[l.Policy] = rules.Settings(&form).OnFailure
			}
			if l.Candidate != nil {
				settings[l.Candidate.Policy] = rules.Settings(&l.Candidate.Forms()[0]).OnFailure
			}
		}
	}
	for name, want := range map[string]guard.Failure{
		"a.second": guard.Closed, "a.second.candidate": guard.Open, "a.minute": guard.Open, "a.hour": guard.Open, "b.second": guard.Local,
	} {
		if got := settings[name]; got != want {
			t.Errorf("%s fails %v; want %v", name, got, want)
		}
	}
	stranger := penstock.PerSecond(1)
	if s := rules.Settings(&stranger); s != (guard.Settings{}) {
		t.Errorf("a limit that is not of the rules has settings: %+v", s)
	}
	form := rules.Rules()[0].Limits[0].Forms()[0]
	if n := testing.AllocsPerRun(100, func() { rules.Settings(&form) }); n != 0 {
		t.Errorf("to find settings takes %v allocations; want 0", n)
	}
}
