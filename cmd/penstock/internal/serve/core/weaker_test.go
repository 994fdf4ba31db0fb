package core

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
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
		{all, deny + tiers + rulesOf(b), "removed rule a"},
		{all, deny + tiers + rulesOf(a), "removed rule a.b"},
		{all, strings.Replace(all, ", {rate: 99/h}", "", 1), "removed limit a.hour"},
		{all, strings.Replace(all, "new_identities: 9/min, ", "", 1), "removed limit a.b.new-identities"},
		{all, strings.Replace(all, "{rate: 99/h}", "{rate: 99/h, shadow: true}", 1), "now a shadow: limit a.hour"},
		{all, strings.Replace(all, "{name: a,", "{name: a, shadow: true,", 1), "now a shadow: rule a"},
		{all, strings.Replace(all, "{rate: 9/s}, {rate: 99/h}", "{rate: 9/s, shadow: true}, {rate: 99/h, shadow: true}", 1), "now a shadow: limits a.second, a.hour"},
		{rulesOf(many[0]), strings.Replace(rulesOf(many[0]), "{rate: 9/s}", "{rate: 9/s, shadow: true}", 1), "now a shadow: limit r0.second"},
		{rulesOf(a, b), rulesOf("{name: a, match: {path: /a}, unlimited: true}", b), "removed rule a"},
		{all, strings.Replace(all, "{name: a,", "{name: c,", 1), "removed rule a"},
		{all, deny + rulesOf(a, b), "removed tiers gold, free"},
		{all, tiers + rulesOf(a, b), "the deny list is gone"},
		{all, strings.Replace(all, "192.0.2.1}", "192.0.2.0/24}", 1), ""},
		{strings.Replace(all, "192.0.2.1}", "[192.0.2.0/24, 198.51.100.7]}", 1), strings.Replace(all, "192.0.2.1}", "[192.0.2.0/25, 198.51.100.7]}", 1), "the deny list has lost entries"},
		{strings.Replace(all, "192.0.2.1}", "[192.0.2.1, 198.51.100.7]}", 1), all, "the deny list has lost entries"},
		{strings.Replace(all, deny, "deny: [{ip: 192.0.2.1}, {header X-Key: bad}]\n", 1), all, "the deny list has lost entries"},
		{strings.Replace(all, deny, "deny: [{ip: 192.0.2.1}, {header X-Key: bad}]\n", 1), strings.Replace(all, deny, "deny: [{ip: 192.0.2.1}, {header X-Key: bad, method: DELETE}]\n", 1), "the deny list has lost entries"},
		{all, strings.Replace(all, deny, "deny: [{header X-Key: bad}, {ip: [192.0.2.1, 192.0.2.9]}]\n", 1), ""},
		{strings.Replace(all, "192.0.2.1}", "192.0.2.0/24}", 1), strings.Replace(all, "192.0.2.1}", "[192.0.2.0/25, 192.0.2.128/25]}", 1), ""},
		{strings.Replace(all, "192.0.2.1}", "192.0.2.0/24}", 1), strings.Replace(all, "192.0.2.1}", "[192.0.2.0/25, 192.0.2.128/26]}", 1), "the deny list has lost entries"},
		{strings.Replace(all, "192.0.2.1}", "'2001:db8::/32'}", 1), strings.Replace(all, deny, "deny: [{ip: '2001:db8::/33'}, {ip: ['2001:db8:8000::/33', 255.255.255.255]}]\n", 1), ""},
		{strings.Replace(all, "192.0.2.1}", "0.0.0.0/0}", 1), strings.Replace(all, deny, "deny: [{ip: 0.0.0.0/1}, {ip: 128.0.0.0/1}, {header X-Key: bad}]\n", 1), ""},
		{strings.Replace(all, "192.0.2.1}", "0.0.0.0/0}", 1), strings.Replace(all, deny, "deny: [{ip: 0.0.0.0/1}, {ip: 128.0.0.0/1, method: GET}]\n", 1), "the deny list has lost entries"},
		{all, rulesOf(b), "the deny list is gone; removed rule a; removed tiers gold, free"},
		{rulesOf(many...), rulesOf(many[0]), "removed rules r1, r2, r3, r4, r5, r6, r7, r8, r9, r10 and 3 more"},
		{rulesOf("{name: a, shadow: true, per: global, limits: [{rate: 9/s}]}", "{name: b, match: {path: /b}, unlimited: true}"), rulesOf(many[0]), ""},
	} {
		checkReload(t, c.before, c.after, c.removed)
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
		{"192.0.2.1, ", "192.0.2.1, 192.0.2.2, ", "the allow list has new entries"},
		{"allow: {ip: [192.0.2.1, 10.0.0.0/8]}", "allow: {ip: [192.0.2.1, 10.0.0.0/8], header X-Plan: pro}", ""},
		{"allow: {ip: [192.0.2.1, 10.0.0.0/8]}", "allow: [{ip: [192.0.2.1, 10.0.0.0/8]}, {header X-Plan: pro}]", "the allow list has new entries"},
		{"10.0.0.0/8", "10.1.0.0/16", ""},
		{"10.0.0.0/8", "10.0.0.0/8, 10.1.0.0/16, 10.2.3.4", ""},
		{"10.0.0.0/8", "10.0.0.0/7", "the allow list has new entries"},
		{"[192.0.2.1, 10.0.0.0/8]", `"*"`, "the allow list has new entries"},
		{allow, "", ""},
		{"[/a, /x]", "/a", "narrower match of rule a"},
		{"[/a, /x]", "[/x, /y, /a]", ""},
		{"[/a, /x]", "[/a, /y]", "narrower match of rule a"},
		{"[/a, /x]", "/**", ""},
		{"[/a, /x]", `"/*"`, ""},
		{"[/a, /x]", "/a/**", "narrower match of rule a"},
		{", method: GET", "", ""},
		{"method: GET", "method: [GET, POST]", ""},
		{"method: GET", "method: POST", "narrower match of rule a"},
		{"host: b.example", "host: c.example", "narrower match of rule b"},
		{"host: b.example, ", "", ""},
		{"host: b.example", `host: "*.example"`, ""},
		{"host: b.example", `host: "*.b.example"`, "narrower match of rule b"},
		{"[free, pro]", "free", "narrower match of rule b"},
		{"[free, pro]", "[free, pro, gold]", ""},
		{"X-Plan", "X-Tier", "narrower match of rule b"},
		{"{rate: 99/h}", "{rate: 99/h, algorithm: fixed-window}", "new algorithm of limit a.hour"},
		{"{rate: 99/h}", "{rate: 99/h, across: exchange}", "new algorithm of limit a.hour"},
		{"{rate: 99/h}", "{rate: 98/h, shadow: true, algorithm: fixed-window}", "now a shadow: limit a.hour"},
		{"path: [/a, /x], method: GET}, per: global, limits: [{rate: 9/s}", "path: /**}, per: global, limits: [{rate: 9/s, algorithm: fixed-window}", "new algorithm of limit a.second"},
		{"{name: b, match: {host", "{name: c, match: {path: /free}, unlimited: true}, {name: b, match: {host", "new unlimited rule c"},
		{"per: global", "per: ip", "another per of limits a.second, a.hour"},
		{"per: ip", "per: {key: header X-Key}", "another per of limit b.second"},
		{"per: ip", "per: {plan: {header X-Plan: [pro]}}", "another per of limit b.second"},
	} {
		after := strings.Replace(all, c.old, c.new, 1)
		checkReload(t, all, after, c.changed)
	}
}

// A path that has all requests of the old path weakens nothing.
func TestReloadWithAWiderPathIsNoWarning(t *testing.T) {
	policyOf := func(path string) string {
		return fmt.Sprintf("rules: [{name: a, match: {path: %q}, per: ip, limits: [{rate: 9/s}]}]\n", path)
	}
	for _, c := range [][2]string{{"/api/x", "/api/**"}, {"/api", "/api/**"}, {"/api/y/**", "/api/**"}, {"/api/y/*", "/api/**"}, {"/api/y/*", "/api/{a}/{b}"}, {"/api/{a}", "/api/*"}, {"/api/x.js", "/api/*.js"}} {
		checkReload(t, policyOf(c[0]), policyOf(c[1]), "")
	}
	for _, c := range [][2]string{{"/api/**", "/api/y/**"}, {"/api/**", "/api/*"}, {"/api/*", "/api/x"}, {"/api/*", "/api/*.js"}, {"/api/y/**", "/api/y"}} {
		checkReload(t, policyOf(c[0]), policyOf(c[1]), "narrower match of rule a")
	}
}

// A rule that is always charged protects beside the others.
func TestReloadNamesRulesThatAreNoLongerAlwaysCharged(t *testing.T) {
	const before = "rules: [{name: a, always: true, per: {plan: {header X-Plan: [pro, max]}}, limits: [{rate: 9/s}]}, {name: b, match: {path: /b}, per: ip, limits: [{rate: 9/s}]}]\n"
	for _, c := range []struct{ old, new, changed string }{
		{"always: true, ", "", "no longer always: rule a"},
		{"per: ip", "always: true, per: ip", ""},
		{"[pro, max]", "[pro, max, free]", ""},
		{"[pro, max]", "[pro]", "another per of limit a.second"},
		{"{header X-Plan: [pro, max]}", "header X-Plan", "another per of limit a.second"},
		{"{header X-Plan: [pro, max]}", `{header X-Plan: "*"}`, "another per of limit a.second"},
	} {
		checkReload(t, before, strings.Replace(before, c.old, c.new, 1), c.changed)
	}
}

// Denied requests that no longer count, and paths that are no longer one path, let clients send
// more.
func TestReloadNamesWhatCountsLess(t *testing.T) {
	const more = "more paths differ or are accepted: case_sensitive, trailing_slash, path_parameters or encoded_slash"
	const before = "http: {case_sensitive: false, trailing_slash: ignore}\nrules: [{name: a, per: ip, limits: [{rate: 9/s, count_denied: true}]}]\n"
	for _, c := range []struct{ old, new, changed string }{
		{", count_denied: true", "", "denied requests no longer count: limit a.second"},
		{"case_sensitive: false", "case_sensitive: true", more},
		{"trailing_slash: ignore", "trailing_slash: keep", more},
		{"trailing_slash: ignore", "trailing_slash: ignore, encoded_slash: keep", more},
	} {
		after := strings.Replace(before, c.old, c.new, 1)
		checkReload(t, before, after, c.changed)
		checkReload(t, after, before, "")
	}
}

// checkReload reloads a policy, and checks that the weaker parts are in one warning. The file may
// be loaded twice. The second load changes nothing.
func checkReload(t *testing.T, before, after, weaker string) {
	t.Helper()
	log := logOfReload(t, before, after)
	all, warnings := log.Lines("policy reloaded"), log.Lines("policy reloaded", "level=WARN")
	if weaker == "" {
		if len(all) == 0 && before != after || len(warnings) > 0 {
			t.Errorf("after a reload from\n%sto\n%sthe lines are %q; want lines without a warning", before, after, all)
		}
		return
	}
	if right := log.Lines("policy reloaded", "level=WARN", "event=weakened", "weaker="+strconv.Quote(weaker)); len(right) != 1 || len(warnings) != 1 {
		t.Errorf("after a reload from\n%sto\n%sthe lines are %q; want one warning with the weaker parts %q", before, after, all, weaker)
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
	r := &rules{settings: settings.Settings{Config: file}, options: settings.PolicyOptions(), metrics: metrics.New("", nil, 80), log: log.Logger()}
	if err := r.watch(func(*policyfile.Policy) {}); err != nil {
		t.Fatal(err)
	}
	write(after)
	r.watcher.Reload()
	r.close()
	return log
}
