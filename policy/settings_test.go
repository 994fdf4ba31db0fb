package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

func TestSettingsAreWhatTheFileSays(t *testing.T) {
	rules := rulesOf(t, `on_failure: open
rules:
  - {name: a, per: everyone, limits: [{rate: 100/s, ceiling: "500/s, burst 50", lease: 20, deny_for: 5s}, {rate: 100/min, lease: 9, shards: 4, deny_for: 0s}, {rate: 1/h, shadow: true}]}
  - {name: b, always: true, per: everyone, shadow: true, limits: [{rate: 100/s, lease: 20, shards: 4, deny_for: 5s, on_failure: local}]}
  - {name: c, always: true, per: everyone, limits: [{rate: 100/s, shards: 4, candidate: {rate: 5/s}}]}
`)
	ceiling, err := penstock.Limit{Name: "second", Group: "a", Count: 500, Period: time.Second, Burst: 50}.Ready()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]guard.Settings{
		"a.second":           {OnFailure: guard.Open, Ceiling: ceiling, Lease: 20, DenyFor: 5 * time.Second},
		"a.minute":           {OnFailure: guard.Open, Lease: 9, Shards: 4, DenyFor: -1},
		"b.second":           {OnFailure: guard.Open, DenyFor: 5 * time.Second},
		"c.second":           {OnFailure: guard.Open, Shards: 4},
		"c.second.candidate": {OnFailure: guard.Open},
	}
	for name, want := range wants {
		group, limit, _ := strings.Cut(name, ".")
		got := rules.Settings(&penstock.Limit{Group: group, Name: limit})
		if got.Ceiling.String() != want.Ceiling.String() || got.Ceiling.Group != want.Ceiling.Group {
			t.Errorf("%s: the ceiling is %v; want %v", name, got.Ceiling, want.Ceiling)
		}
		if got.Ceiling, want.Ceiling = (penstock.Limit{}), (penstock.Limit{}); got != want {
			t.Errorf("%s: settings %+v; want %+v", name, got, want)
		}
	}
}

// What the compiler lets be leased or split, the guards lease and split; what it refuses, they
// would not.
func TestCompilerKnowsWhatGuardsCan(t *testing.T) {
	asked := 0
	for _, rate := range []string{"rate: %d/s", "rate: %d/s, algorithm: leaky-bucket, burst: 50, wait: 1ms", "rate: %d/s, algorithm: fixed-window",
		"rate: %d/s, algorithm: anchored-window", "rate: %d/s, algorithm: sliding-window", "rate: %d/s, algorithm: sub-window", "rate: %d/s, algorithm: sliding-log",
		"rate: %d per calendar day", "in_flight: %d", "rate: %d/s, burst: 9"} {
		for _, count := range []int{1, 2, 3, 4, 7, 8, 9, 11, 12, 15, 16, 31, 32, 33, 1000} {
			limit := fmt.Sprintf(rate, count)
			compile := func(more string) (*Rules, error) {
				c, err := Parse("policy.yaml", []byte("rules: [{name: a, per: everyone, limits: [{"+limit+more+"}]}]"), nil)
				if err != nil {
					t.Fatal(err)
				}
				return c.Compile()
			}
			rules, err := compile("")
			if err != nil {
				t.Fatalf("%s: %v", limit, err)
			}
			form := rules.Rules()[0].Limits[0].Forms()[0]
			can := func(s guard.Settings, when, text string) bool {
				bounds := guard.Options{Limits: func(*penstock.Limit) guard.Settings { return s }}.Bounds(form)
				return slices.ContainsFunc(bounds, func(b guard.Bound) bool { return b.When == when && strings.Contains(b.Text, text) })
			}
			for _, lease := range []int64{1, 2, 3, 10} {
				asked++
				if _, err := compile(fmt.Sprintf(", lease: %d", lease)); (err == nil) != (can(guard.Settings{Lease: lease}, "leased", "")) {
					t.Errorf("%s, lease: %d: the compiler says %v, and the guards disagree", limit, lease, err)
				}
			}
			for shards := 2; shards <= 33; shards++ {
				asked++
				_, err := compile(fmt.Sprintf(", shards: %d", shards))
				if (err == nil) != can(guard.Settings{Shards: shards}, "split", fmt.Sprintf("each of %d counters", shards)) {
					t.Errorf("%s, shards: %d: the compiler says %v, and the guards disagree", limit, shards, err)
				}
			}
		}
	}
	t.Logf("counted: %d settings of guards that compiler and guards agree on", asked)
}

func TestLeasesWithoutEffectAreWarnedOf(t *testing.T) {
	const leased = "rules: [{name: a, match: {path: /a}, per: everyone, limits: [{rate: 100/s, lease: 10}]}, {name: b, per: everyone, limits: [{rate: 1/s}], %s}]"
	for other, warned := range map[string]bool{
		"always: true":                              true,
		"always: true, shadow: true":                false,
		"always: true, match: {method: GET}":        false,
		"always: true, match: {path: /b}":           false,
		"always: true, match: {path: [/b, /**]}":    true,
		"always: true, match: {address: 192.0.2.1}": false,
		"always: false":                             false,
	} {
		rules := rulesOf(t, fmt.Sprintf(leased, other))
		got := slices.ContainsFunc(rules.Warnings(), func(w *Error) bool { return strings.Contains(w.Message, "no effect") && w.Column == 83 })
		if got != warned {
			t.Errorf("beside a rule with %s: warned %v; want %v: %v", other, got, warned, rules.Warnings())
		}
	}
}
