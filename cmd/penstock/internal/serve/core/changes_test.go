package core

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A reload names the rules and limits that it adds, removes and changes.
func TestReloadNamesItsChanges(t *testing.T) {
	const tiers, deny = "tiers: {gold: {ip: 192.0.2.7}, free: default}\n", "deny: {ip: 192.0.2.1}\n"
	const a, b = "{name: a, match: {path: /a}, per: global, limits: [{rate: {gold: 9/s, free: 1/s}}, {rate: 99/h}]}", "{name: a.b, match: {path: /b}, per: ip, new_identities: 9/min, limits: [{rate: 8/s}]}"
	rulesOf := func(list ...string) string { return tiers + deny + "rules: [" + strings.Join(list, ", ") + "]\n" }
	var many []string
	for i := range 14 {
		many = append(many, fmt.Sprintf("{name: r%02d, match: {path: /r%d}, per: global, limits: [{rate: 9/s}]}", i, i))
	}
	load := func(text string) *policy.Rules {
		t.Helper()
		file := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := policyfile.Load(file, policyfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p.Rules
	}
	all := rulesOf(a, b)
	for _, c := range []struct{ before, after, changes string }{
		{all, all, "[]"},
		{rulesOf(a), all, "[added rule a.b]"},
		{all, rulesOf(b), "[removed rule a]"},
		{all, strings.Replace(all, "gold: 9/s", "gold: 90/s", 1), "[changed limit a.second]"},
		{all, strings.Replace(all, "9/min", "8/min", 1), "[changed rule a.b]"},
		{all, strings.Replace(all, "path: /b", "path: /c", 1), "[changed rule a.b]"},
		{all, strings.Replace(all, "rate: 99/h", "rate: 99/h, shadow: true", 1), "[changed limit a.hour]"},
		{all, strings.Replace(all, "rate: 8/s", "rate: 8/s, on_failure: closed", 1), "[changed limit a.b.second]"},
		{all, strings.Replace(all, ", {rate: 99/h}", ", {name: day, rate: 99/d}", 1), "[added limit a.day removed limit a.hour]"},
		{all, strings.Replace(all, "192.0.2.7", "192.0.2.8", 1), "[changed settings outside the rules]"},
		{all, strings.Replace(all, deny, "", 1), "[changed settings outside the rules]"},
		{strings.Replace(all, deny, "deny: {header X-Key: k1}\n", 1), strings.Replace(all, deny, "deny: {header X-Key: k2}\n", 1), "[changed settings outside the rules]"},
		{strings.Replace(all, "gold: {ip: 192.0.2.7}", "gold: {header X-Key: k1}", 1), strings.Replace(all, "gold: {ip: 192.0.2.7}", "gold: {header X-Key: k2}", 1), "[changed settings outside the rules]"},
		{strings.Replace(all, "path: /b}", "path: /b, header X-Key: k1}", 1), strings.Replace(all, "path: /b}", "path: /b, header X-Key: k2}", 1), "[changed rule a.b]"},
		{strings.Replace(all, "per: ip", "per: {key: {header X-Key: [k1]}}", 1), strings.Replace(all, "per: ip", "per: {key: {header X-Key: [k2]}}", 1), "[changed limit a.b.second]"},
		{all, strings.NewReplacer("192.0.2.1}", "192.0.2.2}", "path: /a", "path: /x", "8/s", "7/s").Replace(all), "[changed settings outside the rules; rule a; limit a.b.second]"},
		{rulesOf(many[0]), rulesOf(many...), "[added rules r01, r02, r03, r04, r05, r06, r07, r08, r09, r10 and 3 more]"},
	} {
		if got := fmt.Sprint(policyChanges(load(c.before), load(c.after))); got != c.changes {
			t.Errorf("from\n%sto\n%sthe changes are %s; want %s", c.before, c.after, got, c.changes)
		}
	}
	if parts := slices.SortedFunc(maps.Keys(partsOf(load(all))), compareParts); len(parts) != 6 {
		t.Errorf("the parts of a policy are %+v; want 6", parts)
	}
}
