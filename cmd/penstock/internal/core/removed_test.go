package core

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/logbuffer"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/policy/policyfile"
)

// A reload that removes a protection logs one warning with its name. One that only adds or changes
// numbers logs none.
func TestReloadNamesWhatIsNoLongerEnforced(t *testing.T) {
	const a, b = "{name: a, match: {path: /a}, per: global, limits: [{rate: 9/s}, {rate: 99/h}]}", "{name: a.b, match: {path: /b}, per: ip, new_identities: 9/min, limits: [{rate: 9/s}]}"
	const deny, tiers = "deny: {ip: 192.0.2.1}\n", "tiers: {gold: {ip: 192.0.2.7}, free: default}\n"
	rulesOf := func(list ...string) string { return "rules: [" + strings.Join(list, ", ") + "]\n" }
	var many []string
	for i := range 14 {
		many = append(many, fmt.Sprintf("{name: r%d, match: {path: /r%d}, per: global, limits: [{rate: 9/s}]}", i, i))
	}
	all := deny + tiers + rulesOf(a, b)
	for _, c := range []struct{ before, after, removed string }{
		{all, all, ""},
		{rulesOf(a), all, ""},
		{all, strings.ReplaceAll(all, "9/s", "1/s"), ""},
		{all, deny + tiers + rulesOf(b), "rule a"},
		{all, deny + tiers + rulesOf(a), "rule a.b"},
		{all, strings.Replace(all, ", {rate: 99/h}", "", 1), "limit a.hour"},
		{all, strings.Replace(all, "new_identities: 9/min, ", "", 1), "limit a.b.new-identities"},
		{all, strings.Replace(all, "{rate: 99/h}", "{rate: 99/h, shadow: true}", 1), "limit a.hour"},
		{all, strings.Replace(all, "{name: a,", "{name: a, shadow: true,", 1), "rule a"},
		{all, strings.Replace(all, "{name: a,", "{name: c,", 1), "rule a"},
		{all, deny + rulesOf(a, b), "tiers gold, free"},
		{all, tiers + rulesOf(a, b), "the deny list"},
		{all, rulesOf(b), "the deny list; rule a; tiers gold, free"},
		{rulesOf(many...), rulesOf(many[0]), "rules r1, r2, r3, r4, r5, r6, r7, r8, r9, r10 and 3 more"},
		{rulesOf("{name: a, shadow: true, per: global, limits: [{rate: 9/s}]}", "{name: b, match: {path: /b}, unlimited: true}"), rulesOf(many[0]), ""},
	} {
		log := logOfReload(t, c.before, c.after)
		lines := log.Lines("does not enforce all that the old one did")
		hasLine := len(lines) == 1 && strings.Contains(lines[0], "level=WARN") && (strings.Contains(lines[0], "removed="+fmt.Sprintf("%q", c.removed)))
		if c.removed == "" && len(lines) > 0 || c.removed != "" && !hasLine {
			t.Errorf("after a reload from\n%sto\n%sthe warnings are %q; want one that has removed %q", c.before, c.after, lines, c.removed)
		}
		if n := len(log.Lines("level=INFO", "policy reloaded")); n == 0 && c.before != c.after {
			t.Errorf("the reload to %s was not logged: %s", c.after, log)
		}
	}
}

// A reload that changes what a protection applies to logs one warning with its name.
func TestReloadNamesWhatIsEnforcedInAnotherWay(t *testing.T) {
	const a, b = "{name: a, match: {path: [/a, /x], method: GET}, per: global, limits: [{rate: 9/s}, {rate: 99/h}]}", "{name: b, match: {host: b.example, header X-Plan: [free, pro]}, per: ip, limits: [{rate: 9/s}]}"
	const allow = "allow: {ip: [192.0.2.1, 10.0.0.0/8]}\n"
	const all = allow + "rules: [" + a + ", " + b + "]\n"
	for _, c := range []struct{ old, new, changed string }{
		{"", "", ""},
		{"192.0.2.1, ", "", ""},
		{"192.0.2.1, ", "192.0.2.1, 192.0.2.2, ", "the allow list"},
		{"allow: {ip: [192.0.2.1, 10.0.0.0/8]}", "allow: {ip: [192.0.2.1, 10.0.0.0/8], header X-Plan: pro}", ""},
		{"allow: {ip: [192.0.2.1, 10.0.0.0/8]}", "allow: [{ip: [192.0.2.1, 10.0.0.0/8]}, {header X-Plan: pro}]", "the allow list"},
		{"[192.0.2.1, 10.0.0.0/8]", `"*"`, "the allow list"},
		{allow, "", ""},
		{"[/a, /x]", "/a", "match of rule a"},
		{"[/a, /x]", "[/x, /y, /a]", ""},
		{"[/a, /x]", "[/a, /y]", "match of rule a"},
		{", method: GET", "", ""},
		{"method: GET", "method: [GET, POST]", ""},
		{"method: GET", "method: POST", "match of rule a"},
		{"host: b.example", "host: c.example", "match of rule b"},
		{"host: b.example, ", "", ""},
		{"[free, pro]", "free", "match of rule b"},
		{"[free, pro]", "[free, pro, gold]", ""},
		{"X-Plan", "X-Tier", "match of rule b"},
		{"{rate: 99/h}", "{rate: 99/h, algorithm: fixed-window}", "algorithm of limit a.hour"},
		{"{rate: 99/h}", "{rate: 98/h, shadow: true, algorithm: fixed-window}", ""},
		{"path: [/a, /x], method: GET}, per: global, limits: [{rate: 9/s}", "path: /**}, per: global, limits: [{rate: 9/s, algorithm: fixed-window}", "algorithm of limit a.second"},
	} {
		after := strings.Replace(all, c.old, c.new, 1)
		log := logOfReload(t, all, after)
		lines := log.Lines("may admit requests that the old one denied")
		hasLine := len(lines) == 1 && strings.Contains(lines[0], "level=WARN") && (strings.Contains(lines[0], "changed="+fmt.Sprintf("%q", c.changed)))
		if c.changed == "" && len(lines) > 0 || c.changed != "" && !hasLine {
			t.Errorf("after a reload from\n%sto\n%sthe warnings are %q; want one that has changed %q", all, after, lines, c.changed)
		}
		if n := len(log.Lines("level=INFO", "policy reloaded")); n == 0 && all != after {
			t.Errorf("the reload to %s was not logged: %s", after, log)
		}
	}
}

// logOfReload returns the log of a process that reloads a policy.
func logOfReload(t *testing.T, before, after string) *logbuffer.Buffer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file+"~", []byte(text), 0o600), os.Rename(file+"~", file)); err != nil {
			t.Fatal(err)
		}
	}
	write(before)
	log := new(logbuffer.Buffer)
	r := &rules{settings: settings.Settings{Config: file}, metrics: metrics.New("", nil, 80), log: log.Logger()}
	if err := r.watch(func(*policyfile.Policy) {}); err != nil {
		t.Fatal(err)
	}
	write(after)
	r.watcher.Reload()
	r.close()
	return log
}
