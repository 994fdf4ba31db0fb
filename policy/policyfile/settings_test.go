package policyfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
)

func TestSettingsAreFoundByTheNameOfALimit(t *testing.T) {
	rules := rulesOf(t, `on_failure: closed
tiers: {free: {method: GET}, paid: default}
rules:
  - {name: a, per: global, limits: [{rate: {free: 1/s, paid: 2/s}, candidate: {rate: 5/s}, name: second}, {rate: 1/min, on_failure: open}, {rate: 1/h, shadow: true}]}
  - {name: b, always: true, per: global, limits: [{rate: 1/s, on_failure: local}]}
`)
	settings := make(map[string]guard.FailureMode)
	for _, rule := range rules.Spec().Rules {
		for _, l := range rule.Limits {
			for _, plan := range l.Variants {
				settings[l.FullName] = rules.Settings(plan).OnFailure
			}
			if l.Candidate != nil {
				settings[l.Candidate.FullName] = rules.Settings(l.Candidate.Variants[0]).OnFailure
			}
		}
	}
	for name, want := range map[string]guard.FailureMode{
		"a.second": guard.FailClosed, "a.second.candidate": guard.FailOpen, "a.minute": guard.FailOpen, "a.hour": guard.FailOpen, "b.second": guard.FailLocal,
	} {
		if got := settings[name]; got != want {
			t.Errorf("%s has the failure mode %v; want %v", name, got, want)
		}
	}
	unknown := penstock.PerSecond(1).MustCompile()
	if s := rules.Settings(unknown); s != (guard.Settings{}) {
		t.Errorf("an unknown limit has the settings %+v; want none", s)
	}
	plan := rules.Spec().Rules[0].Limits[0].Variants[0]
	if n := testing.AllocsPerRun(100, func() { rules.Settings(plan) }); n != 0 {
		t.Errorf("Settings makes %v allocations; want 0", n)
	}
}

func TestSettingsAreThoseOfTheFile(t *testing.T) {
	rules := rulesOf(t, `on_failure: open
rules:
  - {name: a, per: global, limits: [{rate: 100/s, ceiling: "500/s, burst 50", lease: 20, deny_cache_ttl: 5s}, {rate: 100/min, lease: 9, split_into: 4, deny_cache_ttl: 0s}, {rate: 1/h, shadow: true}]}
  - {name: b, always: true, per: global, shadow: true, limits: [{rate: 100/s, lease: 20, split_into: 4, deny_cache_ttl: 5s, on_failure: local}]}
  - {name: c, always: true, per: global, limits: [{rate: 100/s, split_into: 4, candidate: {rate: 5/s}}]}
`)
	ceiling, err := penstock.Limit{Name: "second", Group: "a", Count: 500, Period: time.Second, Burst: 50}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]guard.Settings{
		"a.second":           {OnFailure: guard.FailOpen, Ceiling: ceiling.Limit(), Lease: 20, DenyCacheTTL: 5 * time.Second},
		"a.minute":           {OnFailure: guard.FailOpen, Lease: 9, SplitInto: 4, DenyCacheTTL: -1},
		"b.second":           {OnFailure: guard.FailOpen, DenyCacheTTL: 5 * time.Second},
		"c.second":           {OnFailure: guard.FailOpen, SplitInto: 4},
		"c.second.candidate": {OnFailure: guard.FailOpen},
	}
	for name, want := range wants {
		group, limit, _ := strings.Cut(name, ".")
		got := rules.Settings(penstock.Limit{Group: group, Name: limit, Count: 1, Period: time.Second}.MustCompile())
		if got.Ceiling.String() != want.Ceiling.String() || got.Ceiling.Group != want.Ceiling.Group {
			t.Errorf("%s: the ceiling is %v; want %v", name, got.Ceiling, want.Ceiling)
		}
		got.Ceiling, want.Ceiling = penstock.Limit{}, penstock.Limit{} // compared above
		if got != want {
			t.Errorf("%s: the settings are %+v; want %+v", name, got, want)
		}
	}
}

// The compiler accepts lease and split_into only for limits that guards can lease and split, and
// for all of these.
func TestCompilerAndGuardsAgreeOnLeasesAndSplits(t *testing.T) {
	effort.SkipUnderRace(t)
	compared := 0
	for _, rate := range []string{"rate: %d/s", "rate: %d/s, algorithm: leaky-bucket, burst: 50, max_wait: 1ms", "rate: %d/s, algorithm: fixed-window",
		"rate: %d/s, algorithm: anchored-window", "rate: %d/s, algorithm: sliding-window", "rate: %d/s, algorithm: sub-window", "rate: %d/s, algorithm: sliding-log",
		"rate: %d per calendar day", "in_flight: %d", "rate: %d/s, burst: 9", "rate: %d/s, count_denied: true"} {
		for _, count := range []int{1, 2, 3, 4, 7, 8, 9, 11, 12, 15, 16, 31, 32, 33, 1000} {
			limit := fmt.Sprintf(rate, count)
			compile := func(more string) (*Policy, error) {
				c, err := parse("policy.yaml", []byte("rules: [{name: a, per: global, limits: [{"+limit+more+"}]}]"), nil, allSections)
				if err != nil {
					t.Fatal(err)
				}
				return c.compile()
			}
			p, err := compile("")
			if err != nil {
				t.Fatalf("%s is invalid: %v", limit, err)
			}
			plan := p.Rules.Spec().Rules[0].Limits[0].Variants[0]
			// hasBound reports whether the guards lease or split a limit with these settings.
			hasBound := func(s guard.Settings, when, text string) bool {
				bounds := guard.Options{Limits: func(*penstock.Plan) guard.Settings { return s }}.Bounds(plan)
				return slices.ContainsFunc(bounds, func(b guard.Bound) bool { return b.When == when && strings.Contains(b.Text, text) })
			}
			for _, lease := range []int64{1, 2, 3, 10} {
				compared++
				if _, err := compile(fmt.Sprintf(", lease: %d", lease)); (err == nil) != hasBound(guard.Settings{Lease: lease}, "leased", "") {
					t.Errorf("%s, lease: %d: the compiler returns %v, and the guards disagree", limit, lease, err)
				}
			}
			for counters := 2; counters <= 33; counters++ {
				compared++
				_, err := compile(fmt.Sprintf(", split_into: %d", counters))
				if (err == nil) != hasBound(guard.Settings{SplitInto: counters}, "split", fmt.Sprintf("each of %d counters", counters)) {
					t.Errorf("%s, split_into: %d: the compiler returns %v, and the guards disagree", limit, counters, err)
				}
			}
		}
	}
	t.Logf("counted: %d settings of guards that compiler and guards agree on", compared)
}

func TestLeasesWithoutEffectHaveAWarning(t *testing.T) {
	const columnOfLease = 81
	const leased = "rules: [{name: a, match: {path: /a}, per: global, limits: [{rate: 100/s, lease: 10}]}, {name: b, per: global, limits: [{rate: 1/s}], %s}]"
	for other, hasWarning := range map[string]bool{
		"always: true":                           true,
		"always: true, shadow: true":             false,
		"always: true, match: {method: GET}":     false,
		"always: true, match: {path: /b}":        false,
		"always: true, match: {path: [/b, /**]}": true,
		"always: true, match: {ip: 192.0.2.1}":   false,
		"always: false":                          false,
	} {
		p := policyIn(t, "policy.yaml", fmt.Sprintf(leased, other))
		got := slices.ContainsFunc(p.Warnings, func(w *Error) bool { return strings.Contains(w.Message, "no effect") && w.Column == columnOfLease })
		if got != hasWarning {
			t.Errorf("beside a rule with %s: there is a warning about the lease: %t; want %t. The warnings are %v", other, got, hasWarning, p.Warnings)
		}
	}
}
