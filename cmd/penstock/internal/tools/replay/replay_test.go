package replay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func rulesOf(t *testing.T, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("rules.yaml", []byte(text), nil, settings.PolicyOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Rules
}

// replay replays lines of a log.
func replay(t *testing.T, lines []string, o Options) *Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	var err error
	if o.Log, err = accesslog.Open([]string{path}, nil, nil); err != nil {
		t.Fatal(err)
	}
	defer o.Log.Close()
	report, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func jsonLine(at time.Time, address, path string, rest string) string {
	return fmt.Sprintf(`{"start_time":%q,"remote_addr":%q,"request_method":"GET","request_uri":%q%s}`, at.Format("2006-01-02T15:04:05.000000Z07:00"), address, path, rest)
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// TestReplayDecidesAsTheLimiterDid: a Limiter of the library decides random requests. The replay of
// their log must deny as many requests of each client as the Limiter did.
func TestReplayDecidesAsTheLimiterDid(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	now := start
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	limiter, err := penstock.NewLimiter(store, "api", penstock.PerSecond(5).WithBurst(8), penstock.PerMinute(60).With(penstock.SlidingLog))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	denied, deniedBy := int64(0), make(map[string]int64)
	for range 5000 {
		now = now.Add(time.Duration(rng.ExpFloat64() * float64(100*time.Millisecond)).Truncate(time.Microsecond))
		address := fmt.Sprintf("192.0.2.%d", rng.IntN(8))
		d, err := limiter.Allow(context.Background(), address)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			denied++
			deniedBy["ip:"+address]++
		}
		lines = append(lines, jsonLine(now, address, "/a", ""))
	}
	report := replay(t, lines, Options{ShowsIdentities: true,
		Rules: rulesOf(t, "rules: [{name: api, per: ip, limits: [{rate: 5/s, burst: 8}, {rate: 60/min, algorithm: sliding-log}]}]")})
	got := make(map[string]int64)
	for _, id := range report.Policy.Top {
		got[id.Key] = id.Denied
	}
	if denied == 0 || report.Policy.Denied != denied || fmt.Sprint(got) != fmt.Sprint(deniedBy) {
		t.Errorf("seed %d: the replay denied %d requests, by client %v; the limiter denied %d, by client %v", seed, report.Policy.Denied, got, denied, deniedBy)
	}
}

func TestReplayCountsEachRule(t *testing.T) {
	rules := rulesOf(t, `
rules:
  - {name: search, match: {path: /search}, per: ip, limits: [{rate: 1/min}]}
  - {name: files, match: {path: /files}, per: ip, limits: [{in_flight: 1}]}
  - {name: later, match: {path: /search}, per: global, shadow: true, limits: [{rate: 1/h}]}
  - {name: free, match: {path: /free}, unlimited: true}
`)
	slow := `,"request_time":"10"`
	report := replay(t, []string{
		jsonLine(start, "192.0.2.1", "/search?q", ""),
		jsonLine(start.Add(time.Second), "192.0.2.1", "/search", `,"status":429`),
		jsonLine(start.Add(2*time.Second), "192.0.2.2", "/search", ""),
		jsonLine(start.Add(3*time.Second), "192.0.2.1", "/files", slow), // until 13 s
		jsonLine(start.Add(12*time.Second), "192.0.2.1", "/files", slow),
		jsonLine(start.Add(14*time.Second), "192.0.2.1", "/files", slow),
		jsonLine(start.Add(14*time.Second), "192.0.2.1", "/free", ""),
		`{"start_time":"2026-03-04T05:06:21Z","request_uri":"not a path"}`,
	}, Options{Rules: rules})
	p := report.Policy
	if p.Requests != 7 || p.Denied != 2 || report.Denied429 != 1 || report.Log.Rejected != 1 || p.Outcomes["unlimited"] != 1 || p.DeniedIfSpread != nil {
		t.Errorf("%+v, %d with 429, %d rejected; want 2 of 7 requests denied, 1 and 1", p, report.Denied429, report.Log.Rejected)
	}
	var texts []string
	for _, r := range p.Rules {
		texts = append(texts, fmt.Sprintf("%s %d %d %d %d %d", r.Name, r.Requests, r.Denied, r.Identities, r.DeniedIdentities, r.ShadowDenied))
	}
	if got, want := strings.Join(texts, ", "), "search 3 1 2 1 0, files 3 1 1 1 0, later 0 0 0 0 2"; got != want {
		t.Errorf("the rules are %q; want %q", got, want)
	}
	if p.Top[0].Key != "ip:192.0.2.0/24" {
		t.Errorf("the key %q is not masked", p.Top[0].Key)
	}
}

func TestDeniedRequestsComeBack(t *testing.T) {
	rules := rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 1/s}]}]")
	lines := []string{jsonLine(start.Add(time.Millisecond), "192.0.2.1", "/", ""), jsonLine(start.Add(time.Millisecond), "192.0.2.1", "/", ""), jsonLine(start.Add(2*time.Millisecond), "192.0.2.1", "/", "")}
	gone, back := replay(t, lines, Options{Rules: rules}).Policy, replay(t, lines, Options{Rules: rules, ShouldRetry: true}).Policy
	if gone.Denied != 2 || gone.Retries != 0 || back.Denied != 2 || back.Retries != 3 || back.Later != 2 {
		t.Errorf("without retries %d were denied and %d came back; with them %d and %d, and %d were admitted later; want 2, 0, 2, 3 and 2", gone.Denied, gone.Retries, back.Denied, back.Retries, back.Later)
	}
}

// TestRetriesEnd: a request that is denied each time comes back three times.
func TestRetriesEnd(t *testing.T) {
	rules := rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 1/s}]}]")
	var lines []string
	for i := range 100 { // others take each free unit at once
		lines = append(lines, jsonLine(start.Add(time.Millisecond+time.Duration(i)*100*time.Millisecond), "192.0.2.1", "/", ""))
	}
	if p := replay(t, lines, Options{Rules: rules, ShouldRetry: true}).Policy; p.Retries > 3*p.Denied || p.Retries < 2*p.Denied || p.Later+p.Outcomes["allowed"] > 14 {
		t.Errorf("%d of %d requests were denied, with %d retries, of which %d were admitted; want at most three retries each, and 14 admitted in 13 s", p.Denied, p.Requests, p.Retries, p.Later)
	}
}

// TestSecondsAreAnInterval: a log of whole seconds hides whether a client sent a burst.
func TestSecondsAreAnInterval(t *testing.T) {
	line := `192.0.2.1 - - [04/Mar/2026:05:06:07 +0000] "GET / HTTP/1.1" 200 1`
	p := replay(t, []string{line, line, line, line}, Options{Rules: rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 4/s, burst: 1}]}]")}).Policy
	if p.Denied != 3 || p.DeniedIfSpread == nil || *p.DeniedIfSpread != 0 {
		t.Errorf("%d requests were denied, %v if spread; want 3, and 0", p.Denied, p.DeniedIfSpread)
	}
}

func TestPoliciesAreCompared(t *testing.T) {
	var lines []string
	for range 10 {
		lines = append(lines, jsonLine(start, "192.0.2.1", "/a", ""), jsonLine(start, "192.0.2.1", "/b", ""))
	}
	report := replay(t, lines, Options{
		Rules: rulesOf(t, "rules: [{name: a, match: {path: /a}, per: ip, limits: [{rate: 4/s}]}]"),
		Old:   rulesOf(t, "rules: [{name: a, match: {path: /a}, per: ip, limits: [{rate: 9/s}]}, {name: b, match: {path: /b}, per: ip, limits: [{rate: 8/s}]}]"),
	})
	if report.Policy.Denied != 6 || report.Old.Denied != 3 || report.OnlyNew != 5 || report.OnlyOld != 2 {
		t.Errorf("%d and %d requests were denied, %d only by the new policy and %d only by the old one; want 6, 3, 5 and 2", report.Policy.Denied, report.Old.Denied, report.OnlyNew, report.OnlyOld)
	}
	want := []Difference{{Rule: "a", Key: "ip:192.0.2.0/24", OnlyNew: 5}, {Rule: "b", Key: "ip:192.0.2.0/24", OnlyOld: 2}}
	if !slices.Equal(report.Differences, want) {
		t.Errorf("the differences are %v; want %v", report.Differences, want)
	}
}

// TestDifferencesAreBounded: the list has those identities that differ most.
func TestDifferencesAreBounded(t *testing.T) {
	var lines []string
	for i := range 30 {
		for range 2 + i {
			lines = append(lines, jsonLine(start, fmt.Sprint("192.0.2.", i), "/", ""))
		}
	}
	found := replay(t, lines, Options{ShowsIdentities: true, Rules: rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 1/h}]}]"), Old: rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 100/h}]}]")}).Differences
	if len(found) != maxListed || found[0] != (Difference{Rule: "a", Key: "ip:192.0.2.29", OnlyNew: 30}) {
		t.Errorf("%d differences are listed, the first is %v; want %d, and 30 requests of 192.0.2.29", len(found), found[0], maxListed)
	}
}

// TestLimitsCountTheirDecisions: a limit counts the requests for which it mattered most, a shadow
// and a candidate all that they decide.
func TestLimitsCountTheirDecisions(t *testing.T) {
	var lines []string
	for i := range 3 {
		for range 10 {
			lines = append(lines, jsonLine(start, fmt.Sprint("192.0.2.", i), "/", ""))
		}
	}
	rules := rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 8/h, candidate: {rate: 6/h}}]}, {name: b, always: true, per: global, limits: [{rate: 5/h, shadow: true}]}]")
	want := []Limit{{"a", "hour", 30, 6, 3}, {"a", "hour.candidate", 30, 12, 3}, {"b", "hour", 30, 25, 1}}
	if found := replay(t, lines, Options{Rules: rules}).Policy.Limits; !slices.Equal(found, want) {
		t.Errorf("the limits are %v; want %v", found, want)
	}
}

func TestMissingPartsAreNamed(t *testing.T) {
	rules := rulesOf(t, "rules: [{name: a, per: {first_of: [{key: header X-API-Key}, ip]}, limits: [{rate: 1/s}]}]")
	line := `192.0.2.1 - ann [04/Mar/2026:05:06:07 +0000] "GET / HTTP/1.1" 200 1`
	if report := replay(t, []string{line}, Options{Rules: rules}); len(report.NeedsHeaders) != 1 || report.NeedsHeaders[0] != (Need{Rule: "a", Source: "header X-API-Key"}) {
		t.Errorf("the report needs %v; want header X-API-Key", report.NeedsHeaders)
	}
	h, err := ParseHeader("x-api-key: $remote_user")
	if err != nil {
		t.Fatal(err)
	}
	report := replay(t, []string{line, line}, Options{Rules: rules, Headers: []Header{h}, ShowsIdentities: true})
	if len(report.NeedsHeaders) != 0 || len(report.Policy.Top) != 1 || !strings.Contains(report.Policy.Top[0].Key, "ann") {
		t.Errorf("with the header, the report needs %v, and the most denied are %v; want nothing, and the key ann", report.NeedsHeaders, report.Policy.Top)
	}
}
