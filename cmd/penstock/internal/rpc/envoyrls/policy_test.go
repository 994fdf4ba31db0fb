package envoyrls_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

const descriptorRules = `
deny: [{descriptor user: mallory}]
allow: [{descriptor user: root}]
rules:
- name: all-requests
  per: ip
  limits: [{rate: 1/hour}]
- name: search
  match: {descriptor path: /search}
  per: {user: descriptor user}
  limits:
  - {name: minute, rate: 3/minute, algorithm: fixed-window}
  - {name: hour, rate: 5/hour, algorithm: fixed-window}
- name: address
  match: {descriptor remote_address: "*"}
  per: ip
  limits: [{name: day, rate: 2/day}]
- name: candidate
  match: {descriptor plan: "*"}
  per: {plan: descriptor plan}
  limits: [{name: day, rate: 9/day, algorithm: fixed-window, candidate: {rate: 1/day}}]
`

func TestModesAndFailuresHaveTexts(t *testing.T) {
	for text, want := range map[string]envoyrls.Mode{"atomic": envoyrls.Atomic, "exact": envoyrls.Exact} {
		if got := envoyrls.ParseMode(text); got != want {
			t.Errorf("ParseMode(%q) = %v; want %v", text, got, want)
		}
	}
	for want, text := range []string{"default", "local", "open", "closed", "error"} {
		if got := envoyrls.ParseFailure(text); got != envoyrls.Failure(want) {
			t.Errorf("ParseFailure(%q) = %v; want %v", text, got, envoyrls.Failure(want))
		}
	}
}

func loadRules(t *testing.T, text string) *policy.Rules {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(name, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}

// The rules with descriptors decide requests whose domain is not in Envoy's files.
func TestThePolicyDecidesOtherDomains(t *testing.T) {
	for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
		rules := loadRules(t, descriptorRules)
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{Mode: mode, Policy: rules})
			for _, row := range []struct{ request, want string }{
				{"path=/search user=a", "ok: ok 3/minute 2 left 60s"},
				{"2: path=/search user=a,path=/search user=b", "ok: ok 3/minute 0 left 60s, ok 3/minute 1 left 60s"},
				{"path=/search user=b,path=/search user=a", "over: ok 3/minute 1 left 60s, over 3/minute 0 left 60s"},
				{"path=/search user=b", "ok: ok 3/minute 0 left 60s"},
				{"path=/search user=c +6", "over: over 3/minute 0 left 60s"},
				{"path=/search user=c +0", "over: over 3/minute 0 left 60s"},
				{"path=/search user=d,path=/search user=d", "ok: ok 3/minute 1 left 60s, ok 3/minute 1 left 60s"},
				{"path=/other user=a", "ok: none"},
				{"path=/search user=mallory", "over: none"},
				{"9: path=/search user=root", "ok: none"},
				{"path=/search user=a user=b", "descriptor user is sent 2 times; send it once, plainly written"},
				{"remote_address=192.0.2.1", "ok: ok 2/day 1 left 43200s"},
				{"remote_address=192.0.2.2", "ok: ok 2/day 1 left 43200s"},
				{"2: remote_address=192.0.2.1", "over: over 2/day 1 left 43200s"},
				{"2: plan=basic", "ok: ok 9/day 7 left 86400s"},
			} {
				r := request(row.request)
				r.Domain = "other"
				var to envoyrls.Response
				got := ""
				if err := f.Decide(t.Context(), r, &to); err != nil {
					got = err.Error()
				} else {
					got = responseText(&to)
				}
				if got != row.want {
					t.Errorf("in mode %v, the response to %q is\n%s; want\n%s", mode, row.request, got, row.want)
				}
			}
			if got := f.send("small"); got != "ok: ok 3/minute 2 left 60s" {
				t.Errorf("the response for a domain of the files is %q; want the limit of the files", got)
			}
			if all := strings.Join(f.events, "\n"); !strings.Contains(all, "shadow_denied") || !strings.Contains(all, "search minute denied") || !strings.Contains(all, "  refused") {
				t.Errorf("the events are\n%s\nwant a shadow that denies, a denial and a refusal", all)
			}
		})
	}
}

func TestHeadersOfCalendarWindowsHaveNoLength(t *testing.T) {
	rules := loadRules(t, `
rules:
- name: report
  match: {descriptor path: /report}
  per: {user: descriptor user}
  limits: [{name: month, rate: 9 per calendar month}]
`)
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{Headers: []envoyrls.Dialect{envoyrls.DialectDraft03, envoyrls.DialectDraft11}, Policy: rules})
	r := request("path=/report user=a")
	r.Domain = "other"
	var to envoyrls.Response
	if err := f.Decide(t.Context(), r, &to); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, h := range to.Headers {
		got[h.Name] = h.Value
	}
	if got["X-RateLimit-Limit"] != "9" || !strings.HasSuffix(got["RateLimit-Policy"], ";q=9") {
		t.Errorf("the headers are %q; want X-RateLimit-Limit with 9 only, and RateLimit-Policy with ;q=9 at its end", got)
	}
}

// The product of the hits and a rule's cost may exceed 64 bits. Then the request is refused: the
// product must not wrap to a smaller cost.
func TestTheCostOfARuleTimesTheHitsDoesNotWrap(t *testing.T) {
	rules := loadRules(t, "rules: [{name: a, match: {descriptor user: '*'}, per: {user: descriptor user}, limits: [{rate: 100000/day, cost: 8192}]}]")
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{Policy: rules})
	for _, hits := range []string{"2251799813685248", "2251799813685247", "274877906945"} {
		r := request("user=a +" + hits)
		r.Domain = "other"
		if err := f.Decide(t.Context(), r, new(envoyrls.Response)); err == nil || !strings.Contains(err.Error(), "the cost is out of range") {
			t.Errorf("the error for %s hits is %v; want that the cost is out of range", hits, err)
		}
	}
}

func TestRulesThatNeedTheEndOfARequestAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"rules: [{name: a, match: {descriptor x: y}, per: global, limits: [{in_flight: 2}]}]":                                      "in_flight",
		"rules: [{name: a, per: {x: descriptor x}, limits: [{rate: 1/s, on_status: 401}]}]":                                        "on_status",
		"rules: [{name: a, match: {path: /x}, per: global, limits: [{in_flight: 2}, {rate: 1/s}]}]":                                "",
		"rules: [{name: a, match: {descriptor x: y}, per: {x: descriptor x}, limits: [{rate: 1/s}]}]":                              "",
		"{identities: {u: {user: descriptor u}}, rules: [{name: a, per: u, limits: [{in_flight: 1}]}]}":                            "in_flight",
		"{identities: {u: {user: descriptor u}}, rules: [{name: a, match: {u: 'user:y'}, per: global, limits: [{in_flight: 1}]}]}": "in_flight",
	} {
		err := envoyrls.CheckRules(loadRules(t, text))
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("the error for the policy %s is %v; want one that contains %q, or none if that is empty", text, err, want)
		}
	}
}

// Other callers than Envoy may use such rules. A request of Envoy then fails, and takes no slot.
func TestRequestsThatNeedTheirEndFail(t *testing.T) {
	rules := loadRules(t, `
rules:
- {name: slots, match: {descriptor job: "*"}, per: {job: descriptor job}, limits: [{rate: 9/day}, {in_flight: 1}]}
- {name: logins, match: {descriptor login: "*"}, per: {login: descriptor login}, limits: [{rate: 5/day, on_status: 401}]}
- {name: dry, match: {descriptor dry: "*"}, per: {dry: descriptor dry}, shadow: true, limits: [{in_flight: 1}]}
`)
	store := memstore.New(memstore.Options{})
	f := newFixture(t, store, limits, envoyrls.Options{Policy: rules})
	for text, want := range map[string]string{"job=a": "an in_flight limit", "login=a": "on_status", "dry=a": ""} {
		r := request(text)
		r.Domain = "other"
		err := f.Decide(t.Context(), r, new(envoyrls.Response))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("the error for %q is %v; want one that contains %q, or none if that is empty", text, err, want)
		}
	}
	if n := store.Len(); n != 0 {
		t.Errorf("the store has %d counters; want none", n)
	}
}
