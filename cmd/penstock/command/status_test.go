package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

const statusPolicy = `
tiers: {premium: {header X-Plan: premium}, free: default}
rules:
  - name: login
    match: {path: /login}
    per: {key: header X-Key}
    limits:
      - {name: hour, rate: {premium: 30/h, free: 3/h}, algorithm: fixed-window}
      - {name: day, rate: 1000/d, algorithm: sliding-log, candidate: {rate: 2/d}}
      - {name: everyone, rate: 5000/h, algorithm: fixed-window, per: global}
  - name: busy
    match: {path: /busy}
    per: {key: header X-Key}
    limits: [{name: minute, rate: 60/h, algorithm: fixed-window, split_into: 4}]
  - name: near
    match: {path: /near}
    per: ip
    limits: [{rate: 10/h}]
`

// A statusFixture is a service with statusPolicy, and a Redis of its own.
type statusFixture struct {
	*process
	redis *redistest.Server
	args  []string // flags that name the store and the policy
}

func startStatus(t *testing.T, more ...string) *statusFixture {
	t.Helper()
	f := &statusFixture{redis: redistest.Start(t)}
	f.args = append([]string{"--store", "redis://:hunter2@" + f.redis.Addr, "--config", writeFile(t, "rules.yaml", statusPolicy)}, more...)
	if _, err := f.redis.Do("CONFIG", "SET", "requirepass", "hunter2"); err != nil {
		t.Fatal(err)
	}
	f.process = startProcess(t, f.args...)
	return f
}

// request sends a request to the service, and returns whether it is allowed.
func (f *statusFixture) request(t *testing.T, path, key string) bool {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.listen+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Key", key)
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode != http.StatusTooManyRequests
}

func (f *statusFixture) run(args ...string) (code int, out, err string) {
	return command(append(args, f.args...)...)
}

// status returns the exit status of penstock status, each limit as RULE.LIMIT TIER USED+LEFT, and
// which limits deny.
func (f *statusFixture) status(t *testing.T, key string, args ...string) (code int, limits, denied string) {
	t.Helper()
	code, out, errors := f.run(append([]string{"status", "-o", "json", key}, args...)...)
	var r struct {
		DeniedBy       []string `json:"denied_by"`
		Limits, Global []struct {
			Rule, Limit, Kind, Tier string
			Used, Left              int64
			Reset                   int64 `json:"reset_after_ms"`
			Retry                   int64 `json:"retry_after_ms"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("status prints %q, %s: %v; want JSON", out, errors, err)
	}
	var all []string
	for _, l := range append(r.Limits, r.Global...) {
		all = append(all, fmt.Sprintf("%s.%s%s %d+%d", l.Rule, l.Limit, strings.TrimSuffix(" "+l.Tier, " "), l.Used, l.Left))
		if (l.Used > 0) != (l.Reset > 0) {
			t.Errorf("%s.%s: %d used, unused in %d ms; want a time exactly if units are used", l.Rule, l.Limit, l.Used, l.Reset)
		}
	}
	return code, strings.Join(all, ", "), strings.Join(r.DeniedBy, " ")
}

func TestStatusAndResetOfAKey(t *testing.T) {
	f := startStatus(t)
	const none = "login.hour premium 0+30, login.hour free 0+3, login.day 0+1000, login.day.candidate 0+2, busy.minute 0+60, login.everyone 0+5000"
	code, limits, denied := f.status(t, "key:abc")
	if code != exitOK || limits != none || denied != "" {
		t.Errorf("status of an unknown key: exit status %d, %s, denied by %q; want %d, %s and no denial", code, limits, denied, exitOK, none)
	}
	if code, out, _ := f.run("reset", "key:abc", "--reason", "r", "--yes"); code != exitDenied || !strings.Contains(out, "nothing was reset") {
		t.Errorf("reset of an unused key: exit status %d, %s; want %d with %q", code, out, exitDenied, "nothing was reset")
	}

	var allowed []bool
	for range 4 {
		allowed = append(allowed, f.request(t, "/login", "abc"))
	}
	for range 7 {
		f.request(t, "/busy", "abc")
	}
	f.request(t, "/login", "other")
	if fmt.Sprint(allowed) != "[true true true false]" {
		t.Fatalf("the service allowed %v; want three of four requests", allowed)
	}
	code, limits, denied = f.status(t, "key:abc")
	if want := "login.hour premium 3+27, login.hour free 3+0, login.day 3+997, login.day.candidate 2+0, busy.minute 7+53, login.everyone 4+4996"; limits != want || denied != "" || code != exitOK {
		t.Errorf("status: exit status %d, denied by %q\n%s; want %d, no denial for all tiers, and\n%s", code, denied, limits, exitOK, want)
	}
	code, out, errors := f.run("status", "key:abc")
	if missing := missingIn(out, "  allowed if the tier is premium\n", "  denied for ", " by login.hour if the tier is free\n"); code != exitOK || missing != nil || strings.Contains(out+errors, "hunter2") {
		t.Errorf("status as text: exit status %d, %s\n%s; want %d with %q", code, errors, out, exitOK, missing)
	}

	if code, out, errors := f.run("reset", "key:abc", "--reason", "r"); code != exitUsage || out != "" || !strings.Contains(errors, "write --yes") {
		t.Errorf("reset without a terminal: exit status %d, %s%s; want %d with %q", code, out, errors, exitUsage, "write --yes")
	}
	code, out, audit := f.run("reset", "key:abc", "--rule", "login", "--reason", "support-4711", "--yes")
	missing := missingIn(out, "login.hour was reset: 3 used before, 30 left now for tier premium", "for up to 1s more")
	if code != exitOK || missing != nil || strings.Contains(out, "busy") {
		t.Errorf("reset: exit status %d, %s\n%s; want %d, %q, and nothing about the rule busy", code, out, audit, exitOK, missing)
	}
	checkAudit(t, audit, "login.hour 3 0", "login.day 3 0", "login.day.candidate 2 0")
	for _, secret := range []string{"abc\"", "key:abc", "hunter2"} {
		if strings.Contains(audit, secret) {
			t.Errorf("the audit lines show %q:\n%s", secret, audit)
		}
	}
	if _, limits, _ := f.status(t, "key:abc", "--rule", "login"); limits != "login.hour premium 0+30, login.hour free 0+3, login.day 0+1000, login.day.candidate 0+2, login.everyone 4+4996" {
		t.Errorf("after the reset, the limits are %s; want login.hour and login.day unused", limits)
	}
	if _, limits, _ := f.status(t, "key:other", "--rule", "login"); !strings.HasPrefix(limits, "login.hour premium 1+29") {
		t.Errorf("the limits of the other key are %s; want its own unit still used", limits)
	}
	_, _, audit = f.run("reset", "key:other", "--reason", "support-4711", "--yes")
	checkAudit(t, audit, "login.hour 1 0", "login.day 1 0", "login.day.candidate 1 0") // limits that are not used are not reset
	// The cached denial ends within a second. Then the client is admitted again.
	eventually.True(t, "the client to be admitted after the reset", func() bool { return f.request(t, "/login", "abc") })
	// A reset clears all parts of a split limit.
	if code, out, _ := f.run("reset", "key:abc", "--rule", "busy", "--reason", "r", "--yes", "-o", "json"); code != exitOK || !strings.Contains(out, `"used": 7`) {
		t.Errorf("reset of a split limit: exit status %d, %s; want %d with 7 used before", code, out, exitOK)
	}
	if _, limits, _ := f.status(t, "key:abc", "--rule", "busy"); limits != "busy.minute 0+60" {
		t.Errorf("after the reset, the split limit is %s; want it unused", limits)
	}
	if code, out, _ := f.run("reset", "global", "--reason", "r", "--yes"); code != exitOK || !strings.Contains(out, "login.everyone was reset: ") {
		t.Errorf("reset of the global key: exit status %d, %s; want %d with %q", code, out, exitOK, "login.everyone was reset: ")
	}
}

// A limit that denies nothing is not shown as denying.
func TestStatusTellsShadowsFromEnforcedLimits(t *testing.T) {
	const policy = "rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 9/h}, {name: trial, rate: 1/h, shadow: true}]}]\n"
	f := &statusFixture{redis: redistest.Start(t)}
	f.args = []string{"--store", f.redis.URL(), "--config", writeFile(t, "rules.yaml", policy)}
	f.process = startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0")...)
	if !f.request(t, "/a", "a") {
		t.Fatal("a request is denied; want it allowed")
	}
	eventually.NoError(t, func() error { // shadows count beside the request
		code, out, _ := f.run("status", "key:a")
		if code != exitOK || !strings.Contains(out, "  would be denied for ") || strings.Contains(out, "  denied for ") || !strings.Contains(out, "No enforced limit would deny") {
			return fmt.Errorf("the status of a key with a full shadow: exit status %d, %s; want %d, and that only the shadow would deny", code, out, exitOK)
		}
		return nil
	})
}

// A listed key has only the numbers of its own tier. So a customer with a higher limit is not shown
// as denied by the limit of others.
func TestStatusKnowsTheTierOfAListedKey(t *testing.T) {
	const tiers = `
tiers: {gold: {header X-Key: [gold-1]}, free: default}
allow: {header X-Key: [friend]}
deny: {header X-Key: [foe]}
rules:
  - {name: api, per: {key: header X-Key}, limits: [{rate: {gold: 6/h, free: 2/h}, algorithm: fixed-window}]}
  - {name: vip, match: {path: /vip}, per: {vip: {header X-Vip: [v1]}}, limits: [{rate: 5/h}]}
`
	f := &statusFixture{redis: redistest.Start(t)}
	f.args = []string{"--store", f.redis.URL(), "--config", writeFile(t, "rules.yaml", tiers)}
	const token = "a-token-of-operators"
	f.process = startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	instance := &statusFixture{args: []string{"--admin", f.admin}}
	for range 4 {
		if !f.request(t, "/a", "gold-1") {
			t.Fatal("a request of the tier gold is denied; want it allowed")
		}
		f.request(t, "/a", "other")
	}
	for name, from := range map[string]*statusFixture{"the store": f, "an instance": instance} {
		if code, limits, denied := from.status(t, "key:gold-1"); code != exitOK || limits != "api.hour gold 4+2" || denied != "" {
			t.Errorf("from %s, the status of a gold key: exit status %d, %s, denied by %q; want %d, 4 of gold's 6 units used", name, code, limits, denied, exitOK)
		}
		if code, out, _ := from.run("status", "key:gold-1"); code != exitOK || !strings.Contains(out, "No enforced limit would deny a request of one unit now.") || strings.Contains(out, "free") {
			t.Errorf("from %s, the status of a gold key: exit status %d, %s; want %d, no denial, and nothing about the tier free", name, code, out, exitOK)
		}
		if code, out, _ := from.run("status", "key:friend"); code != exitOK || !strings.Contains(out, "The client is on the allow list, so no limit applies to its requests.") {
			t.Errorf("from %s, the status of a key on the allow list: exit status %d, %s; want %d", name, code, out, exitOK)
		}
		if code, out, _ := from.run("status", "vip:v2"); code != exitOK || !strings.Contains(out, "No request counts under this key, because the policy lists the values that count") || !strings.Contains(out, "  not counted\n") || strings.Contains(out, "allowed") {
			t.Errorf("from %s, the status of a key that the policy does not list: exit status %d, %s; want %d, and no limit that allows", name, code, out, exitOK)
		}
		if code, out, _ := from.run("status", "key:foe"); code != exitDenied || !strings.Contains(out, "The client is on the deny list, so all its requests are rejected.") || !strings.Contains(out, "  rejected\n") || strings.Contains(out, "allowed") {
			t.Errorf("from %s, the status of a key on the deny list: exit status %d, %s; want %d, and no limit that allows", name, code, out, exitDenied)
		}
		if code, limits, denied := from.status(t, "key:other"); code != exitDenied || limits != "api.hour free 2+0" || denied != "api.hour" {
			t.Errorf("from %s, the status of a free key: exit status %d, %s, denied by %q; want %d, all units used, and api.hour", name, code, limits, denied, exitDenied)
		}
		if code, out, _ := from.run("status", "key:other"); code != exitDenied || !strings.Contains(out, "A request of one unit would be denied now, by api.hour.") {
			t.Errorf("from %s, the status of a free key: exit status %d, %s; want %d and a denial", name, code, out, exitDenied)
		}
	}
	if code, out, errors := f.run("reset", "key:gold-1", "--reason", "r", "--yes"); code != exitOK || !strings.Contains(out, "api.hour was reset: 4 used before, 6 left now for tier gold") {
		t.Errorf("reset of a gold key: exit status %d, %s%s; want %d with what the tier gold has left", code, out, errors, exitOK)
	}
}

// Other regions know what was granted here, and report it again after a reset.
func TestResetHoldsInOneRegion(t *testing.T) {
	const policy = "rules: [{name: busy, match: {path: /busy}, per: {key: header X-Key}, limits: [{rate: 60/h, across: exchange}]}, " +
		"{name: alone, match: {path: /alone}, per: {other: header X-Key}, limits: [{rate: 60/h}]}]"
	f := &statusFixture{args: []string{"--store", redistest.Start(t).URL(), "--config", writeFile(t, "rules.yaml", policy)}}
	f.process = startProcess(t, append(f.args, "--region", "eu")...)
	f.request(t, "/busy", "abc")
	f.request(t, "/alone", "abc")
	for key, isAcross := range map[string]bool{"key:abc": true, "other:abc": false} {
		code, out, errors := f.run("reset", key, "--reason", "r", "--yes")
		if code != exitOK || !strings.Contains(out, "was reset: 1 used before") || strings.Contains(out, "in this region only") != isAcross {
			t.Errorf("reset of %s: exit status %d, %s%s; want that it holds in this region only: %v", key, code, out, errors, isAcross)
		}
	}
}

// checkAudit checks the audit line: for each limit its name, and the used units before and after.
// It returns the ref.
func checkAudit(t *testing.T, text string, want ...string) string {
	t.Helper()
	var a audit.Line
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("the audit line is %q: %v; want JSON", text, err)
	}
	if !a.IsAudit || a.Action != "reset" || a.Reason != "support-4711" || a.Result != audit.OK {
		t.Errorf("the audit line is %s; want a successful reset with the reason support-4711", text)
	}
	if time.Since(a.Time) > time.Minute || a.ID == "" {
		t.Errorf("the audit line is %s; want the present time and an ID", text)
	}
	if a.Actor.Kind != audit.CommandLine || a.Actor.Name == "" {
		t.Errorf("the audit line is %s; want the user of the command line as its actor", text)
	}
	if a.Key != "key:…" || len(a.Ref) != 16 {
		t.Errorf("the audit line is %s; want the masked key and a ref of 16 digits", text)
	}
	var got []string
	for _, c := range a.Limits {
		got = append(got, fmt.Sprintf("%s.%s %d %d", c.Rule, c.Limit, c.Before.Used, c.After.Used))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("the audit line has %v; want %v", got, want)
	}
	return a.Ref
}

// With a secret, the keys in Redis are hashes. status finds them with the same secret.
func TestStatusWithHashedKeys(t *testing.T) {
	f := &statusFixture{redis: redistest.Start(t)}
	t.Setenv("PENSTOCK_KEY_HASH_SECRET", "pepper")
	policy := statusPolicy + "server: {key_hash_secret: pepper}\n"
	f.args = []string{"--store", f.redis.URL(), "--config", writeFile(t, "rules.yaml", policy)}
	f.process = startProcess(t, f.args...)
	f.request(t, "/login", "abc")
	if _, limits, _ := f.status(t, "key:abc", "--rule", "login"); !strings.HasPrefix(limits, "login.hour premium 1+29") {
		t.Errorf("with the secret, the limits are %s; want 1 unit used", limits)
	}
	file := filepath.Join(t.TempDir(), "audit.json")
	t.Setenv("PENSTOCK_AUDIT_FILE", file)
	_, _, line := f.run("reset", "key:abc", "--rule", "login", "--reason", "support-4711", "--yes")
	if strings.Contains(line, "abc") || strings.Contains(line, "pepper") {
		t.Errorf("the audit line shows the key or the secret:\n%s", line)
	}
	ref := checkAudit(t, line, "login.hour 1 0", "login.day 1 0", "login.day.candidate 1 0")
	f.request(t, "/login", "abc")
	_, _, again := f.run("reset", "key:abc", "--limit", "hour", "--rule", "login", "--reason", "support-4711", "--yes")
	if next := checkAudit(t, again, "login.hour 1 0"); next != ref {
		t.Errorf("two lines about one key have the refs %s and %s; want the same", ref, next)
	}
	written, err := os.ReadFile(file)
	lines := strings.SplitAfter(string(written), "\n")
	if err != nil || len(lines) != 5 || lines[1] != line || lines[3] != again {
		t.Fatalf("the audit file has %s, %v; want an intent and the line of each reset", written, err)
	}
	var intent, done audit.Line
	for text, to := range map[string]*audit.Line{lines[0]: &intent, line: &done} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			t.Fatal(err)
		}
	}
	if intent.Result != audit.Intent || intent.ID != done.ID || len(intent.Limits) != 3 || intent.Limits[0].Before.Used != 1 || intent.Limits[0].After != nil {
		t.Errorf("the line before the reset is %s; want the intent with the ID of the reset, and the three limits before it", lines[0])
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the audit file is %v, %v; want the mode 600", info, err)
	}
	t.Setenv("PENSTOCK_AUDIT_FILE", t.TempDir())
	f.request(t, "/login", "abc")
	if code, _, errors := f.run("reset", "key:abc", "--reason", "r", "--yes", "--audit-file", t.TempDir()); code != exitInvalid || !strings.Contains(errors, "nothing was reset") {
		t.Errorf("reset with a folder as --audit-file: exit status %d, %s; want %d with %q", code, errors, exitInvalid, "nothing was reset")
	}
	code, out, errors := f.run("reset", "key:abc", "--rule", "login", "--reason", "support-4711", "--yes")
	if missing := missingIn(errors, "audit-file (PENSTOCK_AUDIT_FILE)", "nothing was reset"); code != exitInvalid || out != "" || missing != nil {
		t.Errorf("reset with a folder as PENSTOCK_AUDIT_FILE: exit status %d, %s%s; want %d with %q", code, out, errors, exitInvalid, missing)
	}
}

func TestStatusOfAnAddress(t *testing.T) {
	f := startStatus(t)
	f.request(t, "/near", "")
	for key, want := range map[string]string{"ip:127.0.0.1": "near.hour 1+9", "ip:2001:db8::1": "near.hour 0+10", "ip:2001:db8::/64": "near.hour 0+10"} {
		if _, limits, _ := f.status(t, key); limits != want {
			t.Errorf("the limits of %s are %s; want %s", key, limits, want)
		}
	}
	_, out, _ := f.run("status", "ip:2001:db8::1")
	if !strings.Contains(out, "key ip:2001:db8::\n") && !strings.Contains(out, "key ip:2001:db8::/64\n") {
		t.Errorf("the status of an IPv6 address is\n%s\nwant the key of its network", out)
	}
}

func TestStatusAndResetExplainTheirErrors(t *testing.T) {
	s := redistest.Start(t)
	policy := writeFile(t, "rules.yaml", statusPolicy)
	t.Setenv("PENSTOCK_CONFIG", "")
	// Flags that name the policy, and a store that is up or down.
	up, down := " --config "+policy+" --store "+s.URL(), " --config "+policy+" --store redis://u:hunter2@127.0.0.1:1"
	several := " --store " + s.URL() + " --config " + writeFile(t, "several.yaml", "rules:\n- {name: a, per: {first_of: [{key: header X-API-Key}, {user: header X-User-Id}, ip]}, limits: [{rate: 9/s}]}\n")
	if _, err := s.Do("SET", "ps1{key:foreign}login", "x"); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"status":                                   {exitUsage, "one key, as in: penstock status ip:192.0.2.1"},
		"status a b":                               {exitUsage, `the argument "b" is one too many`},
		"status key:abc --store redis://h":         {exitUsage, "write --config rules.yaml"},
		"status key:abc --config " + policy:        {exitUsage, "no store is named"},
		"status user:7" + up:                       {exitUsage, "write one of: key:…, global, ip:…"},
		"status bob" + several:                     {exitUsage, "write one of: key:bob, user:bob"},
		"status key:a --rule none" + up:            {exitUsage, `"none": the policy has no rule of this name`},
		"status key:a --rule lgoin" + up:           {exitUsage, "did you mean login?"},
		"status gold-1" + up:                       {exitUsage, `no limit counts under a key such as "gold-1"; write key:gold-1`},
		"status 2001:db8::1" + up:                  {exitUsage, "write ip:2001:db8::1"},
		"reset gold-1 --yes --reason r" + up:       {exitUsage, "write key:gold-1"},
		"status ip:192.0.2.1 --rule login" + up:    {exitUsage, "write one of: key:…, global"},
		"status key:abc -o xml" + up:               {exitUsage, `unknown output "xml"`},
		"status key:abc" + down:                    {exitUnreachable, "connection refused"},
		"status key:foreign" + up:                  {exitUnreachable, "ps1{key:foreign}login"},
		"status key:a --config /none --store x://": {exitInvalid, "/none"},
		"reset key:abc --yes" + up:                 {exitUsage, "write --reason TEXT"},
		"reset key:abc --yes --reason " + strings.Repeat("x", 201) + up: {exitUsage, "1 to 200 letters"},
		"reset key:abc --yes --reason r" + down:                         {exitUnreachable, "connection refused"},
		"status key:cu…et#498afa0a" + up:                                {exitUsage, "is masked, so it names no client; write --ref"},
		"reset key:cu…et#498afa0a --yes --reason r" + up:                {exitUsage, "is masked"},
		"denials --follow --key key:cu…et#498afa0a":                     {exitUsage, "is masked"},
		"status --ref 0123456789abcdef" + up:                            {exitUsage, "write --admin 127.0.0.1:9180 --ref 0123456789abcdef"},
		"status key:abc --ref 0123456789abcdef --admin 127.0.0.1:1":     {exitUsage, "write one of them"},
		"status --ref 0123456789abcdef --admin 127.0.0.1:1":             {exitUnreachable, "does not answer"},
		"reset --reason r" + up:                                         {exitUsage, "one key, as in: penstock reset"},
	} {
		code, out, errors := command(strings.Fields(args)...)
		if code != want.code || out != "" || !strings.Contains(errors, want.text) || strings.Contains(errors, "hunter2") {
			t.Errorf("penstock %s: exit status %d, %q, %s\nwant %d with %s", args, code, out, errors, want.code, want.text)
		}
	}
	if code, _, errors := command("reset", "key:a", "--reason", "a\nb", "--config", policy, "--store", s.URL()); code != exitUsage || !strings.Contains(errors, "on one line") {
		t.Errorf("reset with a reason of two lines: exit status %d, %s; want %d with %q", code, errors, exitUsage, "on one line")
	}
}

// A running instance gives the same answer as its store. The command then needs no policy.
func TestStatusReadsFromARunningInstance(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	f := startStatus(t)
	const token = "a-token-of-operators"
	guarded := startProcess(t, append(f.args, "--admin-listen=0.0.0.0:0", "--operator-token="+token)...)
	local := startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	for range 4 {
		f.request(t, "/login", "abc")
	}
	_, want, _ := f.status(t, "key:abc", "--rule", "login")
	_, port, _ := net.SplitHostPort(guarded.admin)
	instance := &statusFixture{args: []string{"--admin", local.admin}}
	code, limits, denied := instance.status(t, "key:abc", "--rule", "login")
	for tier := range strings.SplitSeq(want, ", ") {
		if !strings.Contains(limits, tier) {
			t.Errorf("the instance shows the limits %s; want %s as in the store", limits, want)
		}
	}
	if code != exitOK || denied != "" {
		t.Errorf("status of an instance: exit status %d, denied by %q; want %d and no denial for all tiers, as in the store", code, denied, exitOK)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"status key:abc --admin 127.0.0.1:1":                        {exitUnreachable, "does not answer"},
		"status key:abc --admin " + f.listen:                        {exitUsage, "check that --admin is the admin-listen address of an instance"},
		"status user:7 --admin " + local.admin:                      {exitUsage, "no limit counts"},
		"status gold-1 --admin " + local.admin:                      {exitUsage, "write key:gold-1"},
		"status key:abc --rule lgoin --admin " + local.admin:        {exitUsage, "no rule of this name; did you mean login?"},
		"status key:abc --store redis://h:1 --admin " + local.admin: {exitUsage, "omit one of them"},
	} {
		if code, out, errors := command(strings.Fields(args)...); code != want.code || out != "" || !strings.Contains(errors, want.text) {
			t.Errorf("penstock %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, want.code, want.text)
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "")
	for address, want := range map[string]string{"127.0.0.1:" + port: "send the operator token", local.admin: "needs the operator token"} {
		code, out, errors := command("status", "key:abc", "--admin", address)
		if code != exitInvalid || out != "" || !strings.Contains(errors, want) || !strings.Contains(errors, "set PENSTOCK_OPERATOR_TOKEN") {
			t.Errorf("status without a token: exit status %d, %q, %s; want %d with %q and the variable", code, out, errors, exitInvalid, want)
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "short")
	for _, line := range []string{"status key:abc", "top", "denials"} {
		if code, out, errors := command(append(strings.Fields(line), "--admin", "127.0.0.1:"+port)...); code != exitInvalid || out != "" || !strings.Contains(errors, "the token is wrong or too short") {
			t.Errorf("%s with a short token: exit status %d, %s%s; want %d with %q", line, code, out, errors, exitInvalid, "the token is wrong or too short")
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	if code, out, errors := command("status", "key:abc", "--admin", "127.0.0.1:"+port); code != exitOK || !strings.Contains(out, "by login.hour if the tier is free") {
		t.Errorf("status with the token: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "by login.hour if the tier is free")
	}
	f.redis.Kill()
	code, out, errors := command("status", "key:abc", "--admin", "127.0.0.1:"+port)
	if !strings.Contains(out, "read from the instance itself") && code != exitUnreachable {
		t.Errorf("status without the store: exit status %d, %s%s; want %d, or %q", code, out, errors, exitUnreachable, "read from the instance itself")
	}
}

// A running instance resets a key for operators, and writes the audit line. The command then needs
// no policy.
func TestResetByARunningInstance(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	f := startStatus(t)
	guarded := startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
	for range 4 {
		f.request(t, "/login", "abc")
	}
	f.request(t, "/busy", "abc")
	reset := func(args string) (int, string, string) {
		return command(append([]string{"reset", "key:abc", "--reason", "support-4711", "--admin", guarded.admin}, strings.Fields(args)...)...)
	}
	if code, out, errors := reset("--yes"); code != exitInvalid || out != "" || !strings.Contains(errors, "set PENSTOCK_OPERATOR_TOKEN") {
		t.Errorf("reset without the token: exit status %d, %s%s; want %d with %q", code, out, errors, exitInvalid, "set PENSTOCK_OPERATOR_TOKEN")
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "another-token-of-operators")
	if code, out, errors := reset("--yes"); code != exitInvalid || out != "" || !strings.Contains(errors, "the token is wrong") {
		t.Errorf("reset with a wrong token: exit status %d, %s%s; want %d with %q", code, out, errors, exitInvalid, "the token is wrong")
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"":                             {exitUsage, "write --yes"},
		"--yes --rule none":            {exitUsage, "no rule of this name"},
		"--yes --limit hour":           {exitUsage, "write --rule too"},
		"--yes --rule login --limit x": {exitUsage, "no such limit counts under key:abc"},
		"--yes --store redis://h:1":    {exitUsage, "omit one of them"},
	} {
		if code, out, errors := reset(args); code != want.code || out != "" || !strings.Contains(errors, want.text) {
			t.Errorf("reset %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, want.code, want.text)
		}
	}
	if _, limits, _ := f.status(t, "key:abc", "--rule", "login"); !strings.HasPrefix(limits, "login.hour premium 3+27") {
		t.Errorf("after resets that were refused, the limits are %s; want 3 units used", limits)
	}

	code, out, errors := reset("--yes --rule login --limit hour -o json")
	var done resetReport
	if err := json.Unmarshal([]byte(out), &done); err != nil || code != exitOK || errors != "" || done.Identity != "key:abc" {
		t.Fatalf("reset --limit hour: exit status %d, %v, %s%s; want %d, the key key:abc and no message", code, err, out, errors, exitOK)
	}
	if len(done.Before) != 1 || len(done.After) != 1 || done.Before[0].Used != 3 || done.After[0].Used != 0 || fmt.Sprint(done.Reset.Reset) != "[login.hour]" {
		t.Errorf("the reset of one limit prints %s; want login.hour with 3 used before and 0 after", out)
	}
	if _, limits, _ := f.status(t, "key:abc", "--rule", "login"); !strings.HasPrefix(limits, "login.hour premium 0+30, login.hour free 0+3, login.day 3+997") {
		t.Errorf("after the reset of one limit, the limits are %s; want only login.hour unused", limits)
	}
	if code, out, errors := reset("--yes"); code != exitOK || !strings.Contains(out, "login.day was reset: 3 used before") || !strings.Contains(out, "busy.minute was reset: 1 used") {
		t.Errorf("reset of all limits: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "login.day was reset: 3 used before")
	}
	if code, out, _ := reset("--yes"); code != exitDenied || !strings.Contains(out, "nothing was reset") {
		t.Errorf("reset when nothing is used: exit status %d, %s; want %d with %q", code, out, exitDenied, "nothing was reset")
	}
	checkRefs(t, guarded)
	open := startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0")...)
	for _, sent := range []string{"", "short", token} {
		t.Setenv("PENSTOCK_OPERATOR_TOKEN", sent)
		const want = "this instance has no operator_token"
		for _, args := range []string{"key:abc", "--ref a5e8a92f78f64dc2"} {
			line := append(strings.Fields("reset --reason r --yes --admin "+open.admin), strings.Fields(args)...)
			if code, out, errors := command(line...); code != exitInvalid || out != "" || !strings.Contains(errors, want) {
				t.Errorf("reset %s at an instance without a token, with %q: exit status %d, %s%s; want %d with %q", args, sent, code, out, errors, exitInvalid, want)
			}
		}
	}
	for _, line := range []string{"reset --ref --reason r", "reset --ref --reason --admin " + guarded.admin, "denials --follow --ref --rule"} {
		if code, _, errors := command(strings.Fields(line)...); code != exitUsage || !strings.Contains(errors, "--ref has no value") {
			t.Errorf("penstock %s: exit status %d, %s; want %d with %q", line, code, errors, exitUsage, "--ref has no value")
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "short")
	for _, args := range []string{"status key:abc", "top", "denials", "reset key:abc --reason r --yes"} {
		// On its own machine, the instance shows its state without a token. A key needs one.
		code, out, errors := command(append(strings.Fields(args), "--admin", guarded.admin)...)
		isRejected := code == exitInvalid && out == "" && strings.Contains(errors, "the token is wrong or too short")
		if want := strings.Contains(args, "key:abc"); isRejected != want {
			t.Errorf("%s with a short token: exit status %d, %s%s; want an error about the token: %v", args, code, out, errors, want)
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	f.request(t, "/busy", "abc")
	f.redis.Kill()
	if code, out, errors := reset("--yes --rule busy"); code != exitUnreachable || out != "" {
		t.Errorf("reset without the store: exit status %d, %s%s; want %d", code, out, errors, exitUnreachable)
	}
}

// A denial by new_identities names its limit. Nothing can read or reset its count, so no answer may
// suggest that the address is not denied.
func TestNewIdentitiesAreNamedAndNotRead(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	policy := writeFile(t, "rules.yaml", "rules:\n- {name: ride-request, per: {first_of: [{key: header X-Key}, ip]}, new_identities: 1/h, limits: [{rate: 9/h}]}\n")
	s := redistest.Start(t)
	f := &statusFixture{redis: s, args: []string{"--store", s.URL(), "--config", policy}}
	f.process = startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
	for _, key := range []string{"a", "b", "c"} {
		f.request(t, "/", key)
	}
	if code, out, errors := command("denials", "--admin", f.admin); code != exitOK || !strings.Contains(out, "ride-request.new-identities  ip:127.0.0.0/24#") {
		t.Errorf("denials: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "ride-request.new-identities  ip:127.0.0.0/24#")
	}
	const note = "Not read: ride-request.new-identities. Each instance counts"
	if code, out, errors := command("explain", "--store", s.URL(), "--config", policy, "/", "-H", "X-Key: new"); code != exitOK || !strings.Contains(out, note) {
		t.Errorf("explain: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, note)
	}
	for _, where := range []*statusFixture{f, {args: []string{"--admin", f.admin}}} {
		if code, out, errors := where.run("status", "ip:127.0.0.1"); code != exitOK || !strings.Contains(out, "None of these enforced limits would deny") || !strings.Contains(out, note) {
			t.Errorf("status: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "None of these enforced limits would deny")
		}
		if code, out, errors := where.run("reset", "ip:127.0.0.1", "--reason", "r", "--yes"); code != exitDenied || !strings.Contains(out, note) {
			t.Errorf("reset: exit status %d, %s%s; want %d with %q", code, out, errors, exitDenied, note)
		}
		if _, out, _ := where.run("status", "key:a"); !strings.Contains(out, note) {
			t.Errorf("the status of a key that may be new lacks the note about new identities: %s", out)
		}
		if _, out, _ := where.run("status", "user:a"); strings.Contains(out, note) {
			t.Errorf("the status of a key of another kind has the note about new identities: %s", out)
		}
	}
}

// checkRefs finds a denied key by its ref, and resets it.
func checkRefs(t *testing.T, p *process) {
	t.Helper()
	f := &statusFixture{process: p}
	for range 4 {
		f.request(t, "/login", "customer-4711")
	}
	code, out, errors := command("denials", "--admin", p.admin, "-o", "json")
	var found adminapi.Offenders
	if err := json.Unmarshal([]byte(out), &found); err != nil || code != exitOK || len(found.Offenders) != 1 || !redact.IsMasked(found.Offenders[0].Identity) {
		t.Fatalf("denials: exit status %d, %v, %s%s; want %d and one masked key", code, err, out, errors, exitOK)
	}
	ref := found.Offenders[0].Ref
	if code, out, errors := command("status", "--ref", ref, "--admin", p.admin); code != exitOK || !strings.Contains(out, "by login.hour if the tier is free") || strings.Contains(out, "4711") {
		t.Errorf("status by the ref: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "by login.hour if the tier is free")
	}
	if code, out, errors := command("reset", "--ref", ref, "--admin", p.admin, "--reason", "r", "--yes"); code != exitOK || !strings.Contains(out, "login.hour was reset: 3 used before") {
		t.Errorf("reset by the ref: exit status %d, %s%s; want %d with %q", code, out, errors, exitOK, "login.hour was reset: 3 used before")
	}
	if !f.request(t, "/login", "customer-4711") {
		t.Error("after the reset the key is denied")
	}
	if code, _, errors := command("status", "--ref", "0123456789abcdef", "--admin", p.admin); code != exitUsage || !strings.Contains(errors, "no offender of the last hour has this ref") {
		t.Errorf("status of an unknown ref: exit status %d, %s; want %d with %q", code, errors, exitUsage, "no offender of the last hour has this ref")
	}
}

// The runbook of a corrupt key finds it: from the log line by its ref to the client's key, and from
// there to the key in Redis.
func TestCorruptKeyIsFoundFromTheLog(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	f := &statusFixture{redis: redistest.Start(t)}
	f.args = []string{"--store", f.redis.URL(), "--config", writeFile(t, "rules.yaml", statusPolicy)}
	f.process = startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token, "--shown-identities=full")...)
	if _, err := f.redis.Do("SET", "ps1{key:it's}login:day:slidinglog", "foreign"); err != nil {
		t.Fatal(err)
	}
	f.request(t, "/login", "it's")
	var line struct{ Msg, Reason, Rule, Limit, Key, Ref string }
	for line.Msg != "the store made no decision" {
		if !f.lines.Scan() {
			t.Fatal("the log has no line about a call without a decision")
		}
		if err := json.Unmarshal(f.lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
	}
	if line.Reason != "corrupt" || line.Rule != "login" || line.Limit == "" || strings.Contains(line.Key, "it's") {
		t.Errorf("the line has %+v; want the reason corrupt, the rule login, its limit and a masked key", line)
	}
	code, out, errors := command("status", "--ref", line.Ref, "--admin", f.admin)
	if code != exitOK || !strings.Contains(out, "key key:it's\n") {
		t.Fatalf("status --ref %s: exit status %d, %s%s; want the key of the client", line.Ref, code, out, errors)
	}
	remedy := "delete it: " + deletion(f.redis, `'ps1{key:it'\''s}login:day:slidinglog'`) + "\n"
	code, out, errors = f.run("status", "key:it's")
	if code != exitUnreachable || out != "" || !strings.HasSuffix(errors, remedy) || strings.Contains(errors, "login.hour") {
		t.Errorf("status of the key: exit status %d, %s%s; want %d, and only %q", code, out, errors, exitUnreachable, remedy)
	}
}

// deletion returns the command that deletes keys in a server.
func deletion(redis *redistest.Server, keys string) string {
	return "redis-cli -s " + redis.Socket + " -c DEL " + keys
}

// A look at a corrupt key says what is wrong, what happens to its requests, and how to repair it.
// No look is a failure of the store.
func TestCorruptKeyIsShownAsCorrupt(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	for name, value := range map[string][]string{
		"ps1{key:a}login":                {"SET", "ps1{key:a}login", "x"}, // a broken string
		"ps1{key:a}login:day:slidinglog": {"SET", "ps1{key:a}login:day:slidinglog", "foreign"},
		"ps1{global}login":               {"LPUSH", "ps1{global}login", "foreign"},
	} {
		f := &statusFixture{redis: redistest.Start(t)}
		f.args = []string{"--store", f.redis.URL(), "--config", writeFile(t, "rules.yaml", statusPolicy)}
		f.process = startProcess(t, append(f.args, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
		if _, err := f.redis.Do(value...); err != nil {
			t.Fatal(err)
		}
		get := func(path string) string {
			request, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+f.admin+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return html.UnescapeString(string(body))
		}
		repair := deletion(f.redis, "'"+name+"'")
		const how = "on_failure decides its requests (each instance enforces its share of the limit)"
		code, out, errors := command("status", "key:a", "--admin", f.admin)
		for _, want := range []string{"Corrupt: login.", how, "delete the value: " + repair + "\n"} {
			if code != exitOK || !strings.Contains(out, want) || strings.Contains(out, "the store answers") {
				t.Errorf("%s: status has exit status %d and prints %s%s; want %q", name, code, out, errors, want)
			}
		}
		for path, wants := range map[string][]string{
			"/key?key=key:a":                                              {"Corrupt:", how, repair, "Source of the numbers: store."},
			"/api/v1/key?key=key:a":                                       {`"corrupt":true`, `"source":"store"`, `"on_failure":"each instance enforces its share of the limit"`, `"repair":"` + repair},
			"/api/v1/explain?url=/login&header=X-Key:a":                   {`"corrupt":true`},
			"/explain?url=/login&header=" + url.QueryEscape("X-Key: a\n"): {"Penstock did not write"},
			"/api/v1/timeline":                                            {`"text":"listening"`},
		} {
			body := get(path)
			for _, want := range wants {
				if !strings.Contains(body, want) {
					t.Errorf("%s: %s is %s; want %q", name, path, body, want)
				}
			}
			if path == "/api/v1/timeline" && strings.Count(body, `"text":`) != 1 {
				t.Errorf("%s: the timeline is %s; want only the start", name, body)
			}
		}
		code, out, errors = command("reset", "key:a", "--reason", "r", "--yes", "--admin", f.admin, "--rule", "login")
		if isOfKey := !strings.Contains(name, "global"); isOfKey && (code == exitOK || !strings.Contains(out+errors, "Penstock did not write")) {
			t.Errorf("%s: reset has exit status %d and prints %s%s; want that the value is not Penstock's", name, code, out, errors)
		}
		if metrics := get("/metrics"); !strings.Contains(metrics, `rate_limiter_errors_total{reason="corrupt"} 0`) {
			t.Errorf("%s: a look at the key counts as an error of the store", name)
		}
		if state := get("/api/v1/store"); !strings.Contains(state, `"failing":false`) {
			t.Errorf("%s: after a look at the key the store is %s; want it not failing", name, state)
		}
	}
}

// startWithStore starts penstock serve with a policy and a Redis. It returns the flags by which a
// command reads the store itself, and those by which it asks the instance. It also returns the
// rules, and the store.
func startWithStore(t *testing.T, text string) (wheres [][]string, rules *policy.Rules, direct *redisstore.Store) {
	t.Helper()
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	redis := redistest.Start(t)
	config := writeFile(t, "rules.yaml", text)
	store := []string{"--store", redis.URL(), "--config", config}
	p := startProcess(t, append(store, "--admin-listen=127.0.0.1:0", "--operator-token="+token)...)
	file, err := policyfile.Load(config, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(file.Close)
	direct, err = redisstore.Open(redis.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { direct.Close() })
	return [][]string{store, {"--admin", p.admin}}, file.Rules, direct
}

// Slots may still be in use, so a reset of all limits keeps them. It says so, because the client
// may still be denied.
func TestResetNamesTheLimitsThatHoldSlots(t *testing.T) {
	const text = "rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 5/h}, {in_flight: 2}]}]"
	wheres, rules, direct := startWithStore(t, text)
	const held = "Not reset, because requests in flight hold slots: api.in-flight (it denies). If they have ended, name the limit: --rule api --limit in-flight\n"
	for _, where := range wheres {
		for _, limit := range rules.Rule("api").Limits {
			charge := penstock.Charge{Key: "key:a", Plan: limit.Variants[0], Cost: 5, Holder: "h"}
			if limit.Name == "in-flight" {
				charge.Cost = 2
			}
			if _, err := direct.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Fatal(err)
			}
		}
		reset := func(args ...string) (code int, out, errors string) {
			return command(slices.Concat([]string{"reset", "key:a", "--reason", "r", "--yes"}, where, args)...)
		}
		if code, out, errors := reset(); code != exitOK || !strings.Contains(out, "api.hour was reset") || !strings.HasSuffix(out, held) {
			t.Errorf("reset %q: exit status %d, %s%s; want %d, api.hour and %q", where, code, out, errors, exitOK, held)
		}
		if code, out, errors := reset(); code != exitDenied || !strings.HasPrefix(out, "nothing was reset.\n") || !strings.HasSuffix(out, held) {
			t.Errorf("reset %q again: exit status %d, %s%s; want %d and %q", where, code, out, errors, exitDenied, held)
		}
		if code, out, errors := reset("--rule", "api", "--limit", "in-flight"); code != exitOK || strings.Contains(out, "Not reset") {
			t.Errorf("reset %q of in-flight: exit status %d, %s%s; want %d, and that all was reset", where, code, out, errors, exitOK)
		}
	}
}

// A limit of all clients together still denies the client after a reset, so reset names it.
func TestResetNamesWhatStillDenies(t *testing.T) {
	const text = "rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 5/h}, {name: all, rate: 5/h, per: global}]}]"
	wheres, rules, direct := startWithStore(t, text)
	spend := func(limit, key string) {
		t.Helper()
		if _, err := direct.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: rules.Limit("api", limit).Variants[0], Cost: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	spend("all", "global")
	const still = "A request of the client is still denied by api.all.\n"
	for _, where := range wheres {
		reset := func(key string, args ...string) (code int, out, errors string) {
			return command(slices.Concat([]string{"reset", key, "--reason", "r", "--yes"}, where, args)...)
		}
		spend("hour", "key:a")
		if code, out, errors := reset("key:a"); code != exitOK || !strings.Contains(out, "api.hour was reset") || !strings.HasSuffix(out, still) {
			t.Errorf("reset %q: exit status %d, %s%s; want %d, api.hour and %q", where, code, out, errors, exitOK, still)
		}
		if code, out, errors := reset("key:a"); code != exitDenied || !strings.Contains(out, "nothing was reset.\n") || !strings.HasSuffix(out, still) {
			t.Errorf("reset %q again: exit status %d, %s%s; want %d and %q", where, code, out, errors, exitDenied, still)
		}
		spend("hour", "key:a")
		var report struct {
			DeniedBy []string `json:"denied_by"`
		}
		if _, out, errors := reset("key:a", "-o", "json"); json.Unmarshal([]byte(out), &report) != nil || !slices.Equal(report.DeniedBy, []string{"api.all"}) {
			t.Errorf("reset %q as JSON prints %s%s; want that api.all denies", where, out, errors)
		}
	}
	for i, where := range wheres {
		if i > 0 {
			spend("all", "global")
		}
		if code, out, errors := command(slices.Concat([]string{"reset", "global", "--reason", "r", "--yes"}, where)...); code != exitOK || strings.Contains(out, "still denied") {
			t.Errorf("reset %q of the limit itself: exit status %d, %s%s; want %d, and that nothing denies", where, code, out, errors, exitOK)
		}
	}
}

// A limit of another rule that applies in addition denies the client too. Limits that count under
// another key are named, because they may deny it.
func TestStatusAndResetNameLimitsOfOtherRules(t *testing.T) {
	const text = `
rules:
  - {name: api, match: {path: /api}, per: {key: header X-Key}, limits: [{rate: 5/h}]}
  - {name: total, always: true, per: global, limits: [{rate: 5/h}]}
  - {name: near, always: true, per: ip, limits: [{rate: 5/h}]}
`
	wheres, rules, direct := startWithStore(t, text)
	const notRead = "Not read: near.hour. They may count the client under another key"
	for _, where := range wheres {
		for _, c := range []struct {
			isFull bool
			code   int
			want   string
		}{
			{false, exitOK, "None of these enforced limits would deny"},
			{true, exitDenied, "would be denied now, by total.hour.\nA limit counts only the requests that its rule matches.\n"},
		} {
			charge := penstock.Charge{Key: "global", Plan: rules.Limit("total", "hour").Variants[0], Mode: penstock.Reset}
			if c.isFull {
				charge.Cost, charge.Mode = 5, penstock.Spend
			}
			if _, err := direct.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Fatal(err)
			}
			for _, more := range [][]string{nil, {"--rule", "api"}} {
				code, out, errors := command(slices.Concat([]string{"status", "key:a"}, where, more)...)
				if missing := missingIn(out, c.want, notRead); code != c.code || missing != nil {
					t.Errorf("status %q %q: exit status %d, %s%s; want %d with %q", where, more, code, out, errors, c.code, missing)
				}
				code, out, errors = command(slices.Concat([]string{"reset", "key:a", "--reason", "r", "--yes"}, where, more)...)
				isNamed := strings.Contains(out, "A request of the client is still denied by total.hour.\n")
				if code != exitDenied || isNamed != c.isFull || !strings.Contains(out, notRead) {
					t.Errorf("reset %q %q: exit status %d, %s%s; want %d, %q, and that total.hour denies: %t", where, more, code, out, errors, exitDenied, notRead, c.isFull)
				}
			}
		}
	}
}

// A reset changes nothing for a client that the deny list rejects.
func TestResetOfAClientOnTheDenyListSaysSo(t *testing.T) {
	const text = "deny: {header X-Key: [foe]}\nrules: [{name: api, per: {key: header X-Key}, limits: [{rate: 5/h}]}]\n"
	wheres, rules, direct := startWithStore(t, text)
	const rejected = "The client is on the deny list, so all its requests are still rejected.\n"
	for _, where := range wheres {
		for _, key := range []string{"key:foe", "key:friend"} {
			if _, err := direct.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: rules.Limit("api", "hour").Variants[0], Cost: 1}}); err != nil {
				t.Fatal(err)
			}
			code, out, errors := command(slices.Concat([]string{"reset", key, "--reason", "r", "--yes"}, where)...)
			if isSaid := strings.Contains(out, rejected); code != exitOK || isSaid != (key == "key:foe") {
				t.Errorf("reset of %s, %q: exit status %d, %s%s; want %d, and %q only for key:foe", key, where, code, out, errors, exitOK, rejected)
			}
		}
	}
}

// With other settings than those of the instances, the commands look for other keys in Redis. So
// they say what to compare if nothing is used.
func TestUnusedKeyNamesTheSettingsToCompare(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const secret = "a-secret-of-all-instances"
	f := startStatus(t, "--key-hash-secret", secret, "--prefix", "shop")
	f.args = f.args[:4] // the store and the policy
	f.request(t, "/login", "abc")
	for _, c := range []struct {
		key, prefix, secret string
		isFound             bool
	}{
		{"key:abc", "shop", secret, true},
		{"key:abc", "shop", "", false},
		{"key:abc", "ps", secret, false},
		{"key:abd", "shop", secret, false},
	} {
		t.Setenv("PENSTOCK_KEY_HASH_SECRET", c.secret)
		for _, name := range [][]string{{"status"}, {"reset", "--reason", "r", "--yes"}} {
			code, out, errors := f.run(slices.Concat(name, []string{c.key, "--prefix", c.prefix})...)
			if hasAdvice := strings.Contains(out, adviceIfUnused); out == "" || hasAdvice == c.isFound {
				t.Errorf("%s of %+v: exit status %d, %s%s; want the advice %q: %t", name[0], c, code, out, errors, adviceIfUnused, !c.isFound)
			}
		}
	}
}

// An instance that decides without its store resets nothing. Unexpected responses cause clear
// errors.
func TestResetWithUnexpectedAnswers(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "a-token-of-operators")
	const limit = `{"rule": "a", "limit": "b", "used": 3}`
	for _, c := range []struct {
		key, reset string // responses of the paths key and key/reset
		code       int
		text       string
		store      string // response of the path store
	}{
		{key: `{"source": "open", "limits": [` + limit + `]}`, store: `{"name": "redis://shop@10.0.0.7:6379/2;"}`, code: exitUnreachable, text: "so nothing was reset; penstock doctor --store 'redis://shop@10.0.0.7:6379/2;' --admin 127.0.0.1:"},
		{key: `{"source": "fallback", "limits": [` + limit + `]}`, reset: `{}`, code: exitUnreachable, text: "decides without its store now (source: fallback), so nothing was reset; penstock doctor --store URL --admin 127.0.0.1:"},
		{key: `{}`, reset: `{}`, code: exitUsage, text: "not that of the admin API"},
		{key: `[]`, reset: `{}`, code: exitUsage, text: "not that of the admin API"},
		{key: `{"source": "store", "limits": [` + limit + `]}`, reset: `{}`, code: exitUsage, text: "not that of the admin API"},
		{key: `{"source": "store", "limits": [` + limit + `]}`, reset: `{"reset": ["a.b"], "before": [` + limit + `]}`, code: exitUsage, text: "not that of the admin API"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			answer := c.key
			switch {
			case q.Method == http.MethodPost:
				answer = c.reset
			case strings.HasSuffix(q.URL.Path, "/store"):
				answer = c.store
			}
			_, _ = w.Write([]byte(answer))
		}))
		code, out, errors := command("reset", "key:a", "--reason", "r", "--yes", "--admin", server.Listener.Addr().String())
		server.Close()
		if code != c.code || out != "" || !strings.Contains(errors, c.text) {
			t.Errorf("with the responses %s and %s: exit status %d, %q, %s; want %d with %q", c.key, c.reset, code, out, errors, c.code, c.text)
		}
	}
}

// A masked key is printed beside its ref, so it is easily taken for one.
func TestMaskedKeyIsNoRef(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"key:cu…11#1f3681e1", "1f3681e1"} {
		for _, line := range []string{"status", "reset --reason r"} {
			code, _, errors := command(append(strings.Fields(line), "--ref", ref, "--admin", "127.0.0.1:1")...)
			if code != exitUsage || !strings.Contains(errors, ref+" is of a masked key, and no ref; a ref has 16 digits") {
				t.Errorf("%s --ref %s: exit status %d, %s; want %d, and what a ref is", line, ref, code, errors, exitUsage)
			}
		}
	}
}

// The exit status says what to fix: a full disk of the instance is no wrong token.
func TestExitStatusOfRefusals(t *testing.T) {
	for status, want := range map[int]int{400: exitUsage, 401: exitInvalid, 403: exitInvalid, 500: exitInternal, 503: exitUnreachable} {
		var failure *statusError
		if err := new(admin).errRefused(status, []byte("{}")); !errors.As(err, &failure) || failure.status != want {
			t.Errorf("the answer %d makes the error %v; want the exit status %d", status, err, want)
		}
	}
}
