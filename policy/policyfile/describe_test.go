package policyfile

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

func TestDescriptionsContainNoSecrets(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/keys.txt", "SECRET-in-file\n")
	rules := rulesIn(t, dir+"/policy.yaml", `
identities:
  key: {first_of: [{key: {header X-API-Key: [SECRET-issued, SECRET-other]}}, {key: {cookie key: SECRET-cookie}}, {key: {query key: {file: keys.txt}}}]}
tokens: {secret: SECRET-0123456789-0123456789-0123456789-0123456789}
tiers:
  paid: [{header X-API-Key: {file: keys.txt}}, {header Authorization: Bearer SECRET-of-the-monitor}]
  free: default
allow: [{header X-Probe: SECRET-of-the-probe}, {cookie admin: [SECRET, SECRET-2]}]
deny: [{key: ["key:SECRET-stolen"]}, {query token: SECRET-leaked}]
server: {secret: SECRET-of-keys, store: "redis://user:SECRET@redis", upstream: "http://user:SECRET@localhost"}
rules:
  - {name: a, match: {path: /a, header X-Plan: SECRET-plan}, per: key, limits: [{rate: 10/s}]}
  - {name: b, per: {both: {header X-Shared: SECRET-shared}}, limits: [{rate: {paid: 10/s, free: 1/s}}]}
`)
	if text := descriptionOf(rules); strings.Contains(text, "SECRET") {
		t.Errorf("the description contains a secret:\n%s", text)
	}
	rules = rulesOf(t, `
tokens: {jwks_url: "https://SECRET-user:SECRET@issuer.example/keys?code=SECRET#SECRET"}
rules: [{name: a, per: {user: claim sub}, limits: [{rate: 10/s}]}]
`)
	if text := descriptionOf(rules); strings.Contains(text, "SECRET") || !strings.Contains(text, "https://issuer.example/keys,") {
		t.Errorf("the description contains a secret, or lacks the origin of keys:\n%s", text)
	}
}

// A description contains no control characters from the file, because they could change the
// terminal's state.
func TestDescriptionsArePrintable(t *testing.T) {
	env := func(string) (string, bool) { return "\x1b[31m\xff\u202e", true }
	config, err := parse("policy\x1b.yaml", []byte(`
tokens: {secret: 0123456789012345678901234567890123456789, issuer: "${X}", audience: "a${X}"}
tiers: {paid: [{"claim a\e": "b${X}"}, {"claim \u202e": "\a\b"}], free: default}
rules: [{name: a, match: {host: a, path: "/a\uFFFD/\u202e"}, per: {a: "query \x1b"}, limits: [{rate: 10/s}]}]
`), env, allSections)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.compile()
	if err != nil {
		t.Fatal(err)
	}
	rules := p.Rules
	for _, line := range strings.Split(descriptionOf(rules), "\n") {
		if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\u202e' || c == '\uFFFD' }) {
			t.Errorf("the line %q has unprintable characters", line)
		}
	}
}

func TestDescriptionsAreAtMost120ColumnsWide(t *testing.T) {
	lines := 0
	for _, g := range goldens(t) {
		t.Run(g.policy, func(t *testing.T) {
			_, p := g.compile(t)
			rules := p.Rules
			for _, line := range strings.Split(descriptionOf(rules), "\n") {
				lines++
				if len(line) > 120 || strings.HasSuffix(line, " ") {
					t.Errorf("the line %q has %d bytes; want at most 120, and no space at the end", line, len(line))
				}
			}
		})
	}
	t.Logf("counted: %d lines of descriptions", lines)
}

func TestTheSamePolicyHasOneDescription(t *testing.T) {
	const text = `
tiers: {paid: {ip: [10.0.0.0/8, "::1", 192.0.2.1, 198.51.100.0/24], host: [a, b, c, d]}, free: default}
rules: [{name: a, per: global, limits: [{rate: 100/s, cost: {methods: {GET: 1, PUT: 2, POST: 3, PATCH: 4, DELETE: 5}}, on_status: [5xx, 401]}]}]
`
	first := descriptionOf(rulesOf(t, text))
	for range 50 {
		if again := descriptionOf(rulesOf(t, text)); again != first {
			t.Fatalf("a later description is\n%s\nwant the first one\n%s", again, first)
		}
	}
}

func TestRulesMadeInCodeAreDescribed(t *testing.T) {
	spec, err := policy.Simple("code", policy.ByFunc(func(policy.Attributes) string { return "x" }), guard.FailClosed,
		penstock.PerSecond(10).WithBurst(20), penstock.PerDay(100).With(penstock.SubWindow(24)), penstock.InFlight(5, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"rule code", "a function of the program", "10 per 1s, burst 20", "sub-window", "5 in flight", "store fails     rejected", "corrected by the handler"} {
		if !strings.Contains(descriptionOf(rules), part) {
			t.Errorf("the description lacks %q:\n%s", part, descriptionOf(rules))
		}
	}
}
