package explain

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

const text = `
identities: {caller: {first_of: [{key: header X-API-Key}, ip]}}
tiers: {premium: {header X-Plan: premium}, free: default}
allow: [{ip: 10.9.0.0/16}]
deny: [{header X-API-Key: foe}]
rules:
  - {name: all, always: true, per: global, limits: [{in_flight: 100}]}
  - name: search
    match: {path: /search/**}
    per: caller
    limits:
      - {rate: {premium: 100/s, free: 10/s}, burst: {premium: 200, free: 20}}
      - {rate: 1000/d, algorithm: sliding-log, on_failure: closed, candidate: {rate: 500/d}}
  - name: deep
    match: {path: /search/deep}
    per: caller
    limits: [{rate: 1/s, max_wait: 2s, algorithm: leaky-bucket, burst: 5}, {name: strict, rate: 5/h, shadow: true}]
  - {name: tried, shadow: true, match: {path: /search/deep}, per: global, limits: [{rate: 1/h}]}
  - {name: free, match: {path: /search/health}, unlimited: true}
  - {name: login, match: {path: /login}, per: ip, limits: [{rate: 10/h, on_status: 401, cost: {units: 2, actual: X-Cost}}]}
`

// explained explains a request. Headers are "Name: value". The client's address is 192.0.2.1, or
// that of the header From.
func explained(t *testing.T, text, target string, header ...string) (*Report, []penstock.Charge) {
	t.Helper()
	p, err := policyfile.Parse("p.yaml", []byte(text), nil, settings.PolicyOptions())
	if err != nil {
		t.Fatal(err)
	}
	rules := p.Rules
	r := httptest.NewRequest("GET", target, nil)
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	if from := r.Header.Get("From"); from != "" {
		r.RemoteAddr = from + ":1024"
	}
	const instances = 3
	report, charges, err := Explain(rules, r, nil, redisstore.Options{}, instances, regions.Setup{})
	if err != nil {
		t.Fatal(err)
	}
	return report, charges
}

// brief returns a short form of a report: PATH; TIER; LIST, then RULE=APPLIES for each rule, then
// KIND RULE.LIMIT IDENTITY RATE for each charge.
func brief(r *Report) string {
	words := []string{r.Path, r.Tier, r.List}
	for _, rule := range r.Rules {
		words = append(words, fmt.Sprintf("%s=%t", rule.Name, rule.IsApplied))
	}
	for _, c := range slices.Concat(r.Charges, r.Shadows) {
		words = append(words, fmt.Sprintf("%s %s.%s %s %s", c.Kind, c.Rule, c.Limit, c.Identity, c.Rate))
	}
	return strings.Join(words, "; ")
}

// A rule whose limits are all shadows replaces less specific rules, so no limit is enforced for its
// requests. The report says so in JSON and as text, and how to keep the other rule.
func TestReportSaysThatNoLimitIsEnforced(t *testing.T) {
	const api = "rules:\n  - {name: api, match: {path: /api/**}, per: ip, limits: [{rate: 10/min}]}\n"
	const none = "no limit is enforced for this request: shadows count it, and deny nothing"
	const fix = "; move shadow: true from the limits of rule search to the rule itself, so that the less specific rule still applies"
	for name, c := range map[string]struct{ policy, want string }{
		"shadow limits":               {api + "  - {name: search, match: {path: /api/search}, per: ip, limits: [{rate: 1/s, shadow: true}, {rate: 9/h, shadow: true}]}\n", none + fix},
		"one enforced limit":          {api + "  - {name: search, match: {path: /api/search}, per: ip, limits: [{rate: 1/s, shadow: true}, {rate: 9/h}]}\n", ""},
		"a shadow rule":               {api + "  - {name: search, match: {path: /api/search}, shadow: true, per: ip, limits: [{rate: 1/s}]}\n", ""},
		"a shadow rule alone":         {"rules: [{name: search, shadow: true, per: ip, limits: [{rate: 1/s}]}]\n", none},
		"shadow limits alone":         {"rules: [{name: search, per: ip, limits: [{rate: 1/s, shadow: true}]}]\n", none},
		"shadow limits, both applied": {"apply: all\n" + api + "  - {name: search, match: {path: /api/search}, per: ip, limits: [{rate: 1/s, shadow: true}]}\n", ""},
		"unlimited":                   {api + "  - {name: search, match: {path: /api/search}, unlimited: true}\n", ""},
		"an allow list":               {"allow: {ip: 192.0.2.1}\n" + api + "  - {name: search, match: {path: /api/search}, per: ip, limits: [{rate: 1/s, shadow: true}]}\n", ""},
	} {
		report, _ := explained(t, c.policy, "/api/search")
		if got := strings.Join(report.Doubts, "|"); got != c.want {
			t.Errorf("%s: the doubts are %q; want %q", name, got, c.want)
		}
		var text strings.Builder
		if err := report.Print(&text); err != nil || strings.Contains(text.String(), "\nnote ") != (c.want != "") || !strings.Contains(text.String(), c.want) {
			t.Errorf("%s: the report is %s (error %v); want the note %q", name, &text, err, c.want)
		}
		if body, err := json.Marshal(report); err != nil || strings.Contains(string(body), none) != (c.want != "") {
			t.Errorf("%s: the report in JSON is %s (error %v); want the doubt %q", name, body, err, c.want)
		}
	}
}

func TestReportHasTheChargesOfARequest(t *testing.T) {
	for _, c := range []struct {
		target string
		header []string
		want   string
	}{
		{target: "/other", want: "/other; ; ; all=true; enforced all.in-flight global 100 in flight"},
		{target: "/search/a", header: []string{"X-API-Key: a"}, want: "/search/a; free; ; search=true; all=true; enforced all.in-flight global 100 in flight; " +
			"enforced search.second key:a 10 per 1s, burst 20; enforced search.day key:a 1000 per 24h; " +
			"candidate search.day.candidate key:a 500 per 24h"},
		{target: "/x/../%73earch/%c3%a4%2e", header: []string{"X-Plan: premium"}, want: "/search/%C3%A4.; premium; ; search=true; all=true; " +
			"enforced all.in-flight global 100 in flight; enforced search.second ip:192.0.2.1 100 per 1s, burst 200; " +
			"enforced search.day ip:192.0.2.1 1000 per 24h; " +
			"candidate search.day.candidate ip:192.0.2.1 500 per 24h"},
		{target: "/search/health", want: "/search/health; ; ; free=true; search=false; all=true; enforced all.in-flight global 100 in flight"},
		{target: "/search/deep", header: []string{"X-API-Key: foe"}, want: "/search/deep; ; deny; deep=false; tried=false; search=false; all=false"},
		{target: "/search/deep", header: []string{"From: 10.9.1.2"}, want: "/search/deep; ; allow; deep=false; tried=false; search=false; all=false"},
	} {
		report, charges := explained(t, text, c.target, c.header...)
		if got := brief(report); got != c.want {
			t.Errorf("%s with %q: the report is\n%s\nwant\n%s", c.target, c.header, got, c.want)
		}
		if len(charges) != len(report.Charges) {
			t.Errorf("%s: there are %d charges, and %d in the report; want the same", c.target, len(charges), len(report.Charges))
		}
	}
}

func TestReportHasTheReasonOfEachRule(t *testing.T) {
	report, _ := explained(t, text, "/search/deep", "X-API-Key: a")
	want := []Rule{
		{Name: "deep", IsApplied: true, Why: "the most specific match"},
		{Name: "tried", IsApplied: true, Why: "a shadow rule: counted, never enforced"},
		{Name: "search", Why: "deep is more specific"},
		{Name: "all", IsApplied: true, Why: "applies in addition to other rules (always: true)"},
	}
	if !slices.Equal(report.Rules, want) {
		t.Errorf("the rules are %v\nwant %v", report.Rules, want)
	}
	var kinds []string
	for _, c := range report.Shadows {
		kinds = append(kinds, c.Kind+" "+c.Rule+"."+c.Limit)
	}
	slices.Sort(kinds)
	if fmt.Sprint(kinds) != "[shadow deep.strict shadow tried.hour]" {
		t.Errorf("the shadows are %v; want deep.strict and tried.hour", kinds)
	}
	report, _ = explained(t, text, "/login")
	if c := report.Charges[1]; c.Cost != 2 || c.Note != "counts only responses with the statuses of on_status; the true cost is charged after the response" {
		t.Errorf("the charge is %+v; want cost 2 with a note about on_status", c)
	}
}

func TestNothingMatchesAndNothingIsLimited(t *testing.T) {
	report, charges := explained(t, "rules: [{name: a, match: {path: /a}, per: global, limits: [{rate: 1/s}]}]", "/b")
	if report.Rules == nil || report.Charges == nil || len(report.Rules)+len(report.Charges)+len(charges) != 0 {
		t.Errorf("the report is %+v; want empty lists of rules and charges", report)
	}
	store := penstock.StoreFunc(nil) // must not be called
	if err := report.Peek(t.Context(), store, charges); err != nil || report.Allowed != nil {
		t.Errorf("Peek of no charges sets Allowed to %v and returns %v; want nil and no error", report.Allowed, err)
	}
	if got := printed(t, report); !strings.Contains(got, "no rule matches: the request is not limited") {
		t.Errorf("the text is\n%s\nwant that no rule matches", got)
	}
}

func TestPeekHasTheDecisionOfTheStore(t *testing.T) {
	report, charges := explained(t, text, "/search/deep", "X-API-Key: a")
	now := time.Unix(1_800_000_000, 0)
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	peek := func() string {
		if err := report.Peek(t.Context(), store, charges); err != nil {
			t.Fatal(err)
		}
		return printed(t, report)
	}
	for range 3 { // spends nothing
		if got := peek(); !*report.Allowed || *report.Charges[1].Remaining != 6 || *report.Charges[1].TurnAfterMS != 0 {
			t.Fatalf("the report is\n%s\nwant it allowed, with 6 left and no wait", got)
		}
	}
	spend := func() {
		if d, err := store.Decide(t.Context(), charges[1:]); err != nil || !d.Allowed {
			t.Fatalf("the decision is %+v, %v; want an allowed one", d, err)
		}
	}
	spend()
	spend()
	if got := peek(); !*report.Allowed || *report.Charges[1].TurnAfterMS != 2000 || !strings.Contains(got, "would wait          2s\n") {
		t.Errorf("the report is\n%s\nwant it allowed after a wait of 2s", got)
	}
	spend()
	if got := peek(); *report.Allowed || *report.Charges[1].RetryAfterMS != 1000 || !strings.Contains(got, "retry after         1s\n") {
		t.Errorf("the report is\n%s\nwant it denied, with a retry after 1s", got)
	}
	charges[1].Cost = 7
	if got := peek(); *report.Allowed || *report.Charges[1].RetryAfterMS != -1 || !strings.Contains(got, "retry after         never") {
		t.Errorf("the report of a cost above the limit is\n%s\nwant it denied, with no retry", got)
	}
}

func printed(t *testing.T, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReportHasTheGuardSettings(t *testing.T) {
	const text = `
rules:
  - name: a
    per: global
    limits:
      - {rate: 100/s, lease: 20, on_failure: open, ceiling: "500/s, burst 50"}
      - {rate: 5k/h, lease: 9, split_into: 16, deny_cache_ttl: 0s, on_failure: closed}
      - {rate: 9k/d, lease: 9, deny_cache_ttl: 1m30s, candidate: {rate: 1/s}}
      - {name: free, rate: 9k per calendar day, lease: 9, on_failure: open}
`
	report, _ := explained(t, text, "/")
	var out strings.Builder
	if err := report.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"lease               up to 20 units are drawn from the store in advance",
		"if the store fails  allowed; each instance enforces this ceiling for each key: 500 per 1s, burst 50",
		"split_into          16 counters; their keys end in ~00 to ~15",
		"deny cache          off",
		"if the store fails  rejected",
		"deny cache          up to 1m30s",
		"if the store fails  each instance enforces its share of the limit",
		"if the store fails  allowed\n",
		"     leased         24 units more: a block of 8 for each of 3 instances, which may hold it unspent for 1s; while traffic is below the limit, leases admit at least 97 % of what the store alone would admit\n",
		"     store fails    everything passes, and is not counted\n",
		"     store fails    nothing passes\n",
		"     split          no more: each of 16 counters has a part; if the limit was larger before, up to 4688 units more until they have drained\n",
		"     denials        no more; a refund by another instance is seen within 1m30s\n",
	} {
		if n := strings.Count(out.String(), line); n != 1 {
			t.Errorf("the report has %q %d times; want once", line, n)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
	for i, want := range []string{
		`"on_failure":"open","ceiling":"500 per 1s, burst 50","lease":20,"kind"`,
		`"on_failure":"closed","lease":9,"split_into":16,"deny_cache_ttl_ms":0,"kind"`,
		`"on_failure":"local","lease":9,"deny_cache_ttl_ms":90000,"kind"`,
		`"on_failure":"open","lease":9,"kind"`,
	} {
		if got, err := json.Marshal(report.Charges[i]); err != nil || !strings.Contains(string(got), want) {
			t.Errorf("limit %d is %s, %v; want %s in it", i+1, got, err, want)
		}
	}
}
