package policyfile

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock"
)

// An alias may replace a value at every place, and means the same as that value.
func TestAliasMeansTheSameAsItsValue(t *testing.T) {
	const withAliases = `
identities:
  a: {key: &source {header X-API-Key: &values [k1, k2]}}
  b: &whole {all_of: [{key: *source}, &word ip]}
  c: {first_of: [*whole, {other: {query q: *values}}, *word]}
tiers: {paid: &when [{header X-Plan: [&paid paid]}], free: &rest default}
deny: [{header X-Bad: *values}, {ip: &file {file: plans.txt}}]
rules:
  - {name: a, match: &match {path: &paths [/a, /b], method: GET, header X: *values}, per: *whole, limits: &limits [{rate: {*paid : &rate 20/s, default: 10/s}, cost: &cost {units: 2}}]}
  - {name: b, match: {path: [/c, /d], &name header Y: *values}, per: c, limits: *limits}
  - {name: c, match: {path: /e, *name : z}, per: *word, limits: [{rate: *rate, cost: *cost}]}
`
	const withoutAliases = `
identities:
  a: {key: {header X-API-Key: [k1, k2]}}
  b: {all_of: [{key: {header X-API-Key: [k1, k2]}}, ip]}
  c: {first_of: [{all_of: [{key: {header X-API-Key: [k1, k2]}}, ip]}, {other: {query q: [k1, k2]}}, ip]}
tiers: {paid: [{header X-Plan: [paid]}], free: default}
deny: [{header X-Bad: [k1, k2]}, {ip: {file: plans.txt}}]
rules:
  - {name: a, match: {path: [/a, /b], method: GET, header X: [k1, k2]}, per: {all_of: [{key: {header X-API-Key: [k1, k2]}}, ip]}, limits: [{rate: {paid: 20/s, default: 10/s}, cost: {units: 2}}]}
  - {name: b, match: {path: [/c, /d], header Y: [k1, k2]}, per: c, limits: [{rate: {paid: 20/s, default: 10/s}, cost: {units: 2}}]}
  - {name: c, match: {path: /e, header Y: z}, per: ip, limits: [{rate: 20/s, cost: {units: 2}}]}
`
	t.Chdir(t.TempDir())
	if err := os.WriteFile("plans.txt", []byte("192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	describeText := func(text string) string {
		config, err := parse("policy.yaml", []byte(text), nil, allSections)
		if err != nil {
			t.Fatal(err)
		}
		rules, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		defer rules.Close()
		return descriptionOf(rules.Rules)
	}
	if got, want := describeText(withAliases), describeText(withoutAliases); got != want {
		t.Errorf("the policy with aliases is described as\n%s\nwant that of the policy without aliases\n%s", got, want)
	}
}

// FuzzAliases turns values of a policy into anchors and aliases, at places that the fuzzer
// chooses. An alias may stand inside its own anchor.
func FuzzAliases(f *testing.F) {
	f.Add("identities: {a: {key: 0{header X-API-Key: [k1]}}, b: {key: 1}}\n", uint64(0x1001))
	f.Add("identities: 0{a: 1}\n", uint64(3))
	f.Add(strings.ReplaceAll(richPolicy, "{", "0{"), uint64(0x5555))
	f.Add("deny: {header X: {0file: 1}}\nallow: 2[{1: 3}, 4]\n", uint64(12345))
	f.Fuzz(func(t *testing.T, text string, names uint64) {
		if strings.Contains(text, "/dev") || strings.Contains(text, "/proc") || len(text) > 1<<14 {
			t.Skip("the policy may name a file that never ends, or is too long for this test")
		}
		// Even digits become anchors, and odd ones aliases. Each has one of the names a to d, which the
		// lowest two bits of names choose.
		var s strings.Builder
		for _, c := range text {
			if c < '0' || c > '9' {
				s.WriteRune(c)
				continue
			}
			mark := "&"
			if c%2 == 1 {
				mark = "*"
			}
			s.WriteString(mark + string(rune('a'+names&3)) + " ")
			names = names>>2 | names<<62
		}
		if err := mistakesOf("policy.yaml", s.String(), nil); err != nil {
			if !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("the error %v has the type %[1]T; want one that wraps ErrInvalid", err)
			}
		}
	})
}
