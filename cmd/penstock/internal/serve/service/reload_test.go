package service

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
)

func TestWarningsOfAPolicyAreLogged(t *testing.T) {
	const warned = "rules: [{name: all, per: {key: header X-Key}, limits: [{rate: 10/s}]}]\n" // clients can invent keys
	const good = "rules: [{name: all, per: ip, limits: [{rate: 10/s}]}]\n"                    // has a hint, which is not logged
	flags := limitedBy(t, warned, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	reloadWith := func(text string) {
		replaceFile(t, flags["config"], text)
		reloadAndWait(reload)
	}
	warnings := func() int { return len(r.log.Lines("level=WARN", "rules.yaml:1:")) }
	if n := warnings(); n != 1 {
		t.Errorf("the start logs %d warnings about the policy; want 1: %s", n, r.log)
	}
	if len(r.log.Lines("listening", "digest="+digestOf(warned))) != 1 {
		t.Errorf("the line \"listening\" lacks the digest of the policy: %s", r.log)
	}
	reloadWith(warned)
	reloadWith(warned + "# changed\n")
	if warnings() != 1 {
		t.Errorf("%d warnings are logged after a reload with the old one; want 1: %s", warnings(), r.log)
	}
	reloadWith(good)
	if r.log.Lines("policy reloaded", "digest="+digestOf(good)) == nil {
		t.Errorf("the line \"policy reloaded\" lacks the digest of the new policy: %s", r.log)
	}
	before := warnings() // may be more than 1: the watcher may have reloaded the file too
	reloadWith(good + "# changed\n")
	if warnings() != before {
		t.Errorf("a good policy caused a warning: %s", r.log)
	}
	reloadWith(warned)
	if warnings() == before {
		t.Errorf("the reload does not log the new warning of the policy: %s", r.log)
	}
}

// A dry run that switches a limit off is logged at the start and after a reload.
func TestLogSaysThatNoLimitIsEnforced(t *testing.T) {
	const enforced = "rules: [{name: api, per: ip, limits: [{rate: 10/min}]}, {name: search, match: {path: /search/**}, always: true, per: ip, limits: [{rate: 9/s}]}]\n"
	const dryRun = "rules: [{name: api, per: ip, limits: [{rate: 10/min}]}, {name: search, match: {path: /search/**}, per: ip, limits: [{rate: 9/s, shadow: true}]}]\n"
	reported := func(r *testService) bool {
		return len(r.log.Lines("level=WARN", "no limit is enforced for requests of rule search")) > 0
	}
	t.Run("start", func(t *testing.T) {
		if r := start(t, hello, limitedBy(t, dryRun, nil)); !reported(r) {
			t.Errorf("the start does not log that no limit is enforced: %s", r.log)
		}
	})
	t.Run("reload", func(t *testing.T) {
		flags, reload := limitedBy(t, enforced, nil), make(chan os.Signal)
		r := start(t, hello, flags, reloadOn(reload))
		if reported(r) {
			t.Errorf("the start logs that no limit is enforced, although one is: %s", r.log)
		}
		replaceFile(t, flags["config"], dryRun)
		reloadAndWait(reload)
		if !reported(r) {
			t.Errorf("the reload does not log that no limit is enforced: %s", r.log)
		}
	})
}

// digestOf returns the digest of a policy file, as the log shows it.
func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:12]
}

// Without preserve_host, the upstream cannot see which host a client requests. So clients can evade
// rules by host.
func TestWarningForRulesByHostThatClientsCanEvade(t *testing.T) {
	const byHost = "rules: [{name: api, match: {host: api.example.com}, per: global, limits: [{rate: 10/s}]}]\n"
	for _, row := range []struct {
		policy       string
		preserveHost string
		isWarned     bool
	}{
		{policy: byHost, preserveHost: "false", isWarned: true},
		{policy: byHost, preserveHost: "true", isWarned: false},
		{policy: strings.ReplaceAll(byHost, "match: {", "match: {method: GET, "), preserveHost: "false", isWarned: true},
		{policy: strings.ReplaceAll(byHost, "match", "shadow: true, match"), preserveHost: "false", isWarned: false},
		{policy: strings.ReplaceAll(byHost, "{host: api.example.com}", "{path: /a}"), preserveHost: "false", isWarned: false},
	} {
		t.Run("preserve_host "+row.preserveHost, func(t *testing.T) {
			flags := limitedBy(t, row.policy, map[string]string{"preserve-host": row.preserveHost})
			r := start(t, hello, flags)
			if isWarned := r.log.Lines("level=WARN", "rule api matches the host") != nil; isWarned != row.isWarned {
				t.Errorf("with the policy %q, a warning was logged: %t; want %t", row.policy, isWarned, row.isWarned)
			}
		})
	}
}

func TestChangedServerSectionNeedsARestart(t *testing.T) {
	const rules = "rules: [{name: all, per: global, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, rules+"server: {drain_timeout: 1s}\n", nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	for _, c := range []struct {
		text     string
		isLogged bool
	}{
		{rules + "server: {drain_timeout: 1s} # the same\n", false},
		{rules + "server: {drain_timeout: 2s}\n", true},
	} {
		replaceFile(t, flags["config"], c.text)
		reloadAndWait(reload)
		if isLogged := r.log.Lines("level=WARN", "server section has changed; restart to apply it") != nil; isLogged != c.isLogged {
			t.Errorf("after %q, the changed section was logged: %t; want %t:\n%s", c.text, isLogged, c.isLogged, r.log)
		}
	}
}

func TestBrokenPolicyChangesNothing(t *testing.T) {
	const one = "rules: [{name: one, per: {key: header X-API-Key}, limits: [{rate: 1/d}]}]\n"
	const two = "rules: [{name: two, per: {key: header X-API-Key}, limits: [{rate: 2/d}]}]\n"
	const successful, failures = "rate_limiter_config_last_reload_successful", `rate_limiter_config_reloads_total{outcome="failure"}`
	flags := limitedBy(t, one, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	countAllowed := func(key string) (n int) {
		for r.mustSend("GET", "/", "X-API-Key: "+key).StatusCode == 200 {
			n++
		}
		return n
	}
	if n := countAllowed("a"); n != 1 || r.metric(successful) != "1" {
		t.Fatalf("the first policy allows %d requests, and %s is %s; want 1 and 1", n, successful, r.metric(successful))
	}
	first := r.metric("rate_limiter_config_last_reload_success_timestamp_seconds")

	broken := []string{
		"rules: [\n", "", "rules: [{name: two, per: nobody, limits: [{rate: 2/d}]}]\n", "\x00", strings.Repeat("[", 10_000), "a: &a [*a]\n",
	}
	for i, text := range broken {
		replaceFile(t, flags["config"], text)
		reloadAndWait(reload)
		if lines := r.log.Lines("level=ERROR", "policy reload failed; the old rules stay in force", "policy="+flags["config"]); len(lines) <= i {
			t.Errorf("after %.40q, %d failed reloads are logged; want %d: %s", text, len(lines), i+1, r.log)
		}
		if n := countAllowed(fmt.Sprint("broken", i)); n != 1 || r.metric(successful) != "0" || r.metric(failures) == "0" {
			t.Errorf("after %.40q, %d requests are allowed, %s is %s and %s is %s; want 1, 0, and more than 0", text, n, successful, r.metric(successful), failures, r.metric(failures))
		}
	}
	if now := r.metric("rate_limiter_config_last_reload_success_timestamp_seconds"); now != first {
		t.Errorf("the time of the last load is %s; want %s", first, now)
	}
	if n := countAllowed("a"); n != 0 {
		t.Errorf("after broken policies, %d more requests are allowed; want none, because the counters stay", n)
	}

	replaceFile(t, flags["config"], two)
	reloadAndWait(reload)
	if n := countAllowed("b"); n != 2 || r.metric(successful) != "1" || r.log.Lines("policy reloaded", "rules=1") == nil {
		t.Errorf("the new policy allows %d requests, and %s is %s; want 2 and 1: %s", n, successful, r.metric(successful), r.log)
	}
	if page := r.mustGet("http://"+r.Admin+"/metrics", 200); strings.Contains(page, `rule="one"`) || !strings.Contains(page, `rule="two"`) {
		t.Error("the metrics have a series of rule one, or none of rule two; want rule two alone")
	}
	replaceFile(t, flags["config"], one) // without a signal
	eventually.True(t, "the changed file to be reloaded", func() bool {
		return strings.Contains(r.mustGet("http://"+r.Admin+"/metrics", 200), `rule="one"`)
	})
	t.Logf("counted: %d broken policies that changed nothing", len(broken))
}

func TestFirstMistakesOfAPolicyAreLoggedOnePerLine(t *testing.T) {
	const good = "rules: [{name: all, per: global, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, good, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	const header = "policy reload failed"
	// The log has the first logged mistakes of a file, and then how many more there are.
	cases := []struct{ mistakes, logged, more int }{
		{mistakes: 1, logged: 1, more: 0},
		{mistakes: 5, logged: 5, more: 0},
		{mistakes: 40, logged: 5, more: 35},
	}
	for _, c := range cases {
		text := "rules:\n"
		for i := range c.mistakes {
			text += fmt.Sprintf("  - {name: r%d, match: {path: /%d}, per: global, limits: [{rate: fast}]}\n", i, i)
		}
		replaceFile(t, flags["config"], text)
		reloadAndWait(reload)
		// The watcher may also load this file or one before it, at any time. So the test counts how
		// often each file was loaded, and expects that many times the lines of the file.
		eventually.True(t, fmt.Sprintf("%d of %d mistakes in the log", c.logged, c.mistakes), func() bool {
			loads, mistakeLines, moreLines := 0, 0, 0
			for _, loaded := range cases {
				loads = len(r.log.Lines("level=ERROR", header, fmt.Sprintf("mistakes=%d", loaded.mistakes)))
				mistakeLines += loads * loaded.logged
				if loaded.more > 0 {
					moreLines += loads
				}
				if loaded == c {
					break
				}
			}
			hasMistakes := len(r.log.Lines("level=ERROR", "rules.yaml:")) == mistakeLines
			hasMore := len(r.log.Lines("level=ERROR", "more mistakes; penstock validate shows all")) == moreLines
			return loads > 0 && hasMistakes && hasMore
		})
		for line := range strings.Lines(r.log.String()) {
			if len(line) > 500 {
				t.Errorf("a line has %d bytes; want at most 500: %.100s …", len(line), line)
			}
		}
		body := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200)
		const failed = "\npolicy reload failed: the rules of 20" // 20 begins the year
		if !strings.Contains(body, failed) || !strings.HasSuffix(body, "Z stay in force\nok\n") {
			t.Errorf("with a broken policy /readyz is %q; want the failed reload, and ok", body)
		}
	}
	replaceFile(t, flags["config"], good)
	reloadAndWait(reload)
	if body := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200); !strings.HasSuffix(body, "\npolicy ok\nok\n") {
		t.Errorf("with a good policy /readyz is %q; want ok", body)
	}
	t.Log("counted: 46 mistakes in policies, of which 11 are logged")
}

func TestManyRulesStartWithFewLines(t *testing.T) {
	effort.SkipUnderRace(t)
	text := "rules:\n"
	for i := range 2000 {
		text += fmt.Sprintf("  - {name: r%d, match: {path: /%d}, per: {key: header X-Key}, limits: [{rate: 10/s}]}\n", i, i)
	}
	flags := limitedBy(t, text, nil)
	r := start(t, hello, flags)
	if n := len(r.log.Lines("rules.yaml")); n != 2 { // the warning, and the line "listening"
		t.Errorf("the start with 2,000 rules logs %d lines that name the file; want 2: %.1000s", n, r.log)
	}
	if n := len(r.log.Lines("level=WARN", "this occurs in 2000 places")); n != 1 {
		t.Errorf("the warning about 2,000 rules was not logged exactly once: %.1000s", r.log)
	}
}

func TestDenyListThatBecomesEmptyIsLoggedAsAnError(t *testing.T) {
	flags := limitedBy(t, "deny: {ip: {file: blocked.txt}}\nrules: [{name: all, per: global, limits: [{rate: 10/s}]}]\n", nil)
	list := filepath.Join(filepath.Dir(flags["config"]), "blocked.txt")
	replaceFile(t, list, "192.0.2.1\n")
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	lines := func() int { return len(r.log.Lines("level=ERROR", "has become empty", "list=blocked.txt")) }
	for _, c := range []struct {
		text string
		want int // errors logged so far
	}{
		{"192.0.2.1\n192.0.2.2\n", 0},
		{"# nobody\n", 1},
		{"# nobody at all\n", 1},
		{"192.0.2.1\n", 1},
		{"", 2},
	} {
		replaceFile(t, list, c.text)
		reloadAndWait(reload)
		if lines() != c.want {
			t.Errorf("after %q, %d errors are logged; want %d: %s", c.text, lines(), c.want, r.log)
		}
	}
	// A list that is new, and empty from the beginning, has not become empty.
	replaceFile(t, filepath.Join(filepath.Dir(list), "new.txt"), "# nobody yet\n")
	text, err := os.ReadFile(flags["config"])
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, flags["config"], strings.Replace(string(text), "deny: {ip: {file: blocked.txt}}", "deny: [{ip: {file: blocked.txt}}, {ip: {file: new.txt}}]", 1))
	reloadAndWait(reload)
	if n := len(r.log.Lines("level=ERROR", "has become empty")); n != 2 {
		t.Errorf("after a new empty list, %d errors are logged; want 2: %s", n, r.log)
	}
}

// Two kinds of policy files once ended the service: those with an alias as a source, and those with
// a value that contains itself.
func TestNoPolicyFileEndsARunningService(t *testing.T) {
	const good = "rules: [{name: all, per: global, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, good, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	for _, identities := range []string{"{a: {key: &s {header X-API-Key: [k1]}}, b: {key: *s}}", "&i {a: *i}"} {
		replaceFile(t, flags["config"], "identities: "+identities+"\n"+good)
		reloadAndWait(reload)
		r.mustGet("http://"+r.Admin+"/livez", 200)
	}
}
