package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

func TestWarningsOfAPolicyAreLogged(t *testing.T) {
	const warned = "rules: [{name: all, per: address, limits: [{rate: 10/s}]}]\n" // offices share an address
	const good = "rules: [{name: all, per: everyone, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, warned, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	again := func(text string) {
		replaceFile(t, flags["config"], text)
		reload <- nil
		reload <- nil // is taken when the first has been seen to
	}
	warnings := func() int { return len(r.log.lines("level=WARN", "rules.yaml:1:")) }
	if warnings() != 1 {
		t.Errorf("at the start: %s", r.log)
	}
	if len(r.log.lines("the gate is open", "digest="+digestOf(warned))) != 1 {
		t.Errorf("no digest at the start: %s", r.log)
	}
	again(warned)
	again(warned + "# changed\n")
	if warnings() != 1 {
		t.Errorf("of what was warned of before: %s", r.log)
	}
	again(good)
	if r.log.lines("the policy file was taken up", "digest="+digestOf(good)) == nil {
		t.Errorf("no digest of a reload: %s", r.log)
	}
	before := warnings() // the watcher may have seen the file, too
	again(good + "# changed\n")
	if warnings() != before {
		t.Errorf("of what is good: %s", r.log)
	}
	again(warned)
	if warnings() == before {
		t.Errorf("after the reload: %s", r.log)
	}
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:12]
}

// Without preserve_host, the upstream answers alike whichever host a client writes.
func TestRulesByHostAreWarnedOfWhereClientsEvadeThem(t *testing.T) {
	const byHost = "rules: [{name: api, match: {host: api.example.com}, per: everyone, limits: [{rate: 10/s}]}]\n"
	for _, row := range []struct {
		policy, preserve string
		warned           bool
	}{
		{byHost, "false", true},
		{byHost, "true", false},
		{strings.ReplaceAll(byHost, "match: {", "match: {method: GET, "), "false", true},
		{strings.ReplaceAll(byHost, "match", "shadow: true, match"), "false", false},
		{strings.ReplaceAll(byHost, "{host: api.example.com}", "{path: /a}"), "false", false},
	} {
		t.Run(row.preserve, func(t *testing.T) {
			flags := limitedBy(t, row.policy, map[string]string{"preserve-host": row.preserve})
			r := start(t, hello, flags, limitsOf(t, flags, nil))
			if warned := r.log.lines("level=WARN", "rule api goes by the host") != nil; warned != row.warned {
				t.Errorf("%s warned: %v", row.policy, warned)
			}
		})
	}
}

func TestChangedServerSectionIsToldToCountFromTheNextStart(t *testing.T) {
	const rules = "rules: [{name: all, per: everyone, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, rules+"server: {drain_timeout: 1s}\n", nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	for _, c := range []struct {
		text string
		told bool
	}{
		{rules + "server: {drain_timeout: 1s} # the same\n", false},
		{rules + "server: {drain_timeout: 2s}\n", true},
	} {
		replaceFile(t, flags["config"], c.text)
		reload <- nil
		reload <- nil
		if told := r.log.lines("level=WARN", "server section has changed; it counts from the next start on") != nil; told != c.told {
			t.Errorf("after %q it is told: %v:\n%s", c.text, told, r.log)
		}
	}
}

func TestBrokenPolicyChangesNothing(t *testing.T) {
	const one = "rules: [{name: one, per: {key: header X-API-Key}, limits: [{rate: 1/d}]}]\n"
	const two = "rules: [{name: two, per: {key: header X-API-Key}, limits: [{rate: 2/d}]}]\n"
	const successful, failures = "rate_limiter_config_last_reload_successful", `rate_limiter_config_reloads_total{outcome="failure"}`
	flags := limitedBy(t, one, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	again := func() {
		reload <- nil
		reload <- nil // is taken when the first has been seen to
	}
	allowed := func(key string) (n int) {
		for r.mustSend("GET", "/", "X-API-Key: "+key).StatusCode == 200 {
			n++
		}
		return n
	}
	if n := allowed("a"); n != 1 || r.metric(successful) != "1" {
		t.Fatalf("%d allowed by the first policy; %s %s", n, successful, r.metric(successful))
	}
	first := r.metric("rate_limiter_config_last_reload_success_timestamp_seconds")

	broken := []string{
		"rules: [\n", "", "rules: [{name: two, per: nobody, limits: [{rate: 2/d}]}]\n", "\x00", strings.Repeat("[", 10_000), "a: &a [*a]\n",
	}
	for i, text := range broken {
		replaceFile(t, flags["config"], text)
		again()
		if lines := r.log.lines("level=ERROR", "not taken up; the rules stay as they were", "policy="+flags["config"]); len(lines) <= i {
			t.Errorf("after %.40q: logged %s", text, r.log)
		}
		if n := allowed(fmt.Sprint("broken", i)); n != 1 || r.metric(successful) != "0" || r.metric(failures) == "0" {
			t.Errorf("after %.40q: %d allowed; %s %s; %s %s", text, n, successful, r.metric(successful), failures, r.metric(failures))
		}
	}
	if now := r.metric("rate_limiter_config_last_reload_success_timestamp_seconds"); now != first {
		t.Errorf("the first policy was taken up at %s, not at %s", first, now)
	}
	if n := allowed("a"); n != 0 {
		t.Errorf("%d more allowed: broken policies made counters begin again", n)
	}

	replaceFile(t, flags["config"], two)
	again()
	if n := allowed("b"); n != 2 || r.metric(successful) != "1" || r.log.lines("the policy file was taken up", "rules=1") == nil {
		t.Errorf("%d allowed by the new policy; logged %s", n, r.log)
	}
	if page := r.mustGet("http://"+r.Admin+"/metrics", 200); strings.Contains(page, `rule="one"`) || !strings.Contains(page, `rule="two"`) {
		t.Error("the metrics do not follow the rules")
	}
	replaceFile(t, flags["config"], one) // and without being told to
	await(t, "the file's change to be noticed", func() bool {
		return strings.Contains(r.mustGet("http://"+r.Admin+"/metrics", 200), `rule="one"`)
	})
	t.Logf("counted: %d broken policies that changed nothing", len(broken))
}

func TestMistakesOfAPolicyAreLinesOfTheirOwnAndFew(t *testing.T) {
	const good = "rules: [{name: all, per: everyone, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, good, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	const header = "the policy file was not taken up"
	cases := []struct{ mistakes, told, more int }{{1, 1, 0}, {5, 5, 0}, {40, 5, 35}}
	for _, c := range cases {
		text := "rules:\n"
		for i := range c.mistakes {
			text += fmt.Sprintf("  - {name: r%d, match: {path: /%d}, per: everyone, limits: [{rate: fast}]}\n", i, i)
		}
		before := r.log.String()
		replaceFile(t, flags["config"], text)
		reload <- nil
		reload <- nil
		log := new(logged)
		log.Write([]byte(strings.TrimPrefix(r.log.String(), before)))
		times, all := 0, 0
		for _, seen := range cases { // the watcher may have seen the file, too, or the one before it
			times = len(log.lines("level=ERROR", header, fmt.Sprintf("mistakes=%d", seen.mistakes)))
			if all += times * seen.told; seen == c {
				break
			}
		}
		told, more := log.lines("level=ERROR", "rules.yaml:"), log.lines("level=ERROR", fmt.Sprintf("and %d more; penstock validate shows all", c.more))
		if times == 0 || len(told) != all || len(more) != times*min(c.more, 1) {
			t.Errorf("of %d mistakes, %d are told, and in %d lines that there are more:\n%s", c.mistakes, len(told), len(more), log)
		}
		for line := range strings.Lines(log.String()) {
			if len(line) > 500 {
				t.Errorf("a line of %d bytes: %.100s …", len(line), line)
			}
		}
		body := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200)
		if !strings.Contains(body, "\npolicy refused: the rules of 20") || !strings.HasSuffix(body, "Z stay\nok\n") {
			t.Errorf("with a broken policy the gate says %q", body)
		}
	}
	replaceFile(t, flags["config"], good)
	reload <- nil
	reload <- nil
	if body := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200); !strings.HasSuffix(body, "\npolicy ok\nok\n") {
		t.Errorf("with a good one it says %q", body)
	}
	t.Log("counted: 46 mistakes in policies, of which 11 are told")
}

func TestManyRulesStartWithFewLines(t *testing.T) {
	text := "rules:\n"
	for i := range 2000 {
		text += fmt.Sprintf("  - {name: r%d, match: {path: /%d}, per: address, limits: [{rate: 10/s}]}\n", i, i)
	}
	flags := limitedBy(t, text, nil)
	r := start(t, hello, flags, limitsOf(t, flags, nil))
	if n := len(r.log.lines("rules.yaml")); n != 2 { // a warning, and that the gate is open
		t.Errorf("the start of 2,000 rules has %d lines: %.1000s", n, r.log)
	}
	if n := len(r.log.lines("level=WARN", "this occurs in 2000 places")); n != 1 {
		t.Errorf("their warning: %.1000s", r.log)
	}
}

func TestAListOfDenyThatBecomesEmptyIsToldLoudly(t *testing.T) {
	flags := limitedBy(t, "deny: {address: {file: blocked.txt}}\nrules: [{name: all, per: everyone, limits: [{rate: 10/s}]}]\n", nil)
	list := filepath.Join(filepath.Dir(flags["config"]), "blocked.txt")
	replaceFile(t, list, "192.0.2.1\n")
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	loud := func() int { return len(r.log.lines("level=ERROR", "has become empty", "list=blocked.txt")) }
	for i, text := range []string{"192.0.2.1\n192.0.2.2\n", "# nobody\n", "# nobody at all\n", "192.0.2.1\n", ""} {
		replaceFile(t, list, text)
		reload <- nil
		reload <- nil
		if want := []int{0, 1, 1, 1, 2}[i]; loud() != want {
			t.Errorf("after %q it was told %d times, not %d: %s", text, loud(), want, r.log)
		}
	}
}

// What once ended a running gate: an alias as a source, a value that repeats itself, and a panic of
// whatever reads the file.
func TestNoPolicyFileEndsARunningGate(t *testing.T) {
	const good = "rules: [{name: all, per: everyone, limits: [{rate: 10/s}]}]\n"
	flags := limitedBy(t, good, nil)
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	for _, identities := range []string{"{a: {key: &s {header X-API-Key: [k1]}}, b: {key: *s}}", "&i {a: *i}"} {
		replaceFile(t, flags["config"], "identities: "+identities+"\n"+good)
		reload <- nil
		reload <- nil
		r.mustGet("http://"+r.Admin+"/livez", 200)
	}
	log := new(logged)
	s := &service{Options: Options{Log: slog.New(slog.NewTextHandler(log, nil))}}
	s.tellMistakes("rules.yaml", fmt.Errorf("reload: %w", &policy.PanicError{Doing: "load rules.yaml", Value: "index out of range", Stack: []byte("goroutine 1")}))
	if len(log.lines("level=ERROR", "was not taken up", "index out of range", `stack="goroutine 1"`)) != 1 {
		t.Errorf("the log has no stack: %s", log)
	}
}

// TestSlowReloadKeepsNobody: neither the end of the process nor, once it is over, the next reload.
func TestSlowReloadKeepsNobody(t *testing.T) {
	t.Cleanup(func() { noGoroutineIsLeft(t) })
	flags := limitedBy(t, "rules: [{name: one, per: everyone, limits: [{rate: 1/s}]}]\n", map[string]string{"demo": "true"})
	o := options(t, nil, flags)
	loads, release := make(chan int, 10), make(chan struct{})
	reloaded := make(chan string, 10)
	var count int
	life, end := context.WithCancel(t.Context())
	reload := make(chan os.Signal)
	gate, _, err := Limits(o.Settings, reload)(life, Deps{
		Store: func(func(*penstock.Limit) guard.Settings) (penstock.Store, error) {
			return memstore.New(memstore.Options{}), nil
		},
		Load: func(...penstock.Limit) {
			count++
			loads <- count
			if count > 1 {
				<-release
			}
		},
		Waiting:  func(func() int) {},
		Reloaded: func(p Policy, err error) { reloaded <- p.Rules[0].Name },
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-loads // the first
	again := func(name string) {
		replaceFile(t, flags["config"], "rules: [{name: "+name+", per: everyone, limits: [{rate: 1/s}]}]\n")
	}
	again("two")
	<-loads
	again("three")
	release <- struct{}{}
	if name := <-reloaded; name != "two" {
		t.Errorf("%s was taken up; want two", name)
	}
	<-loads
	release <- struct{}{}
	if name := <-reloaded; name != "three" {
		t.Errorf("%s was taken up; want three", name)
	}

	again("four")
	<-loads
	end()
	closed := make(chan error, 1)
	go func() { closed <- gate.(io.Closer).Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the gate does not close while a reload is under way")
	}
	close(release)
}
