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
		file := filepath.Join(t.TempDir(), "rules.yaml")
		write := func(text string) {
			t.Helper()
			if err := errors.Join(os.WriteFile(file+"~", []byte(text), 0o600), os.Rename(file+"~", file)); err != nil {
				t.Fatal(err)
			}
		}
		write(c.before)
		log := new(logbuffer.Buffer)
		r := &rules{settings: settings.Settings{Config: file}, metrics: metrics.New("", nil, 80), log: log.Logger()}
		if err := r.watch(func(*policyfile.Policy) {}); err != nil {
			t.Fatal(err)
		}
		write(c.after)
		r.watcher.Reload()
		r.close()
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
