package cases

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

const rules = `
tokens: {secret: 0123456789abcdef0123456789abcdef}
tiers: {premium: {claim plan: premium}, free: default}
deny: {ip: 203.0.113.0/24}
allow: {ip: 10.0.0.0/8}
rules:
  - {name: api, match: {path: /api}, per: {user: claim sub}, limits: [{rate: {premium: 10/h, free: 2/h}}]}
  - {name: login, match: {path: /login}, per: ip, limits: [{rate: 3/h, on_status: 401}]}
  - {name: slots, match: {path: /slots}, per: global, limits: [{in_flight: 2}]}
  - {name: queue, match: {path: /queue}, per: global, limits: [{rate: 10/s, burst: 1, max_wait: 1s}]}
  - {name: new, match: {path: /new}, per: {key: header X-API-Key}, new_identities: 2/min, limits: [{rate: 100/s}]}
  - {name: tokens, match: {path: /tokens}, per: global, limits: [{rate: 100/h, cost: {actual: X-Tokens}}]}
  - {name: upload, match: {path: /upload}, per: global, limits: [{rate: 10/h, cost: {body: 1KB}}]}
  - {name: daily, match: {path: /daily}, per: global, limits: [{rate: 2 per calendar day, timezone: Europe/Berlin}]}
  - {name: tried, match: {path: /tried}, per: global, limits: [{rate: 10/h, candidate: {rate: 1/h}}]}
`

func parseRules(t *testing.T) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("rules.yaml", []byte(rules), nil, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Rules
}

// run runs one case. Each step is the inside of a YAML mapping in braces.
func run(t *testing.T, policyRules *policy.Rules, head string, steps ...string) Result {
	t.Helper()
	text := "cases:\n  - name: one\n    " + head + "\n    steps:\n"
	for _, s := range steps {
		text += "      - {" + s + "}\n"
	}
	f, err := Parse("cases.yaml", []byte(text), policyRules)
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.Run()
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// trueCases has cases that pass, by what they show. The first text of a case has its fields, which
// head reads. The other texts are its steps.
var trueCases = map[string][]string{
	"claims and tiers": {"send: GET /api",
		"claims: {sub: a}, times: 2, expect: allowed, identity: 'user:a', remaining: 0", "claims: {sub: a}, expect: denied, rule: api, limit: hour, retry_after: 30m",
		"claims: {sub: b, plan: premium}, times: 10, expect: allowed, remaining: 0", "after: 1h, claims: {sub: a}, times: 2, expect: allowed",
		"times: 2, expect: allowed, identity: unknown", "headers: 'Authorization: Bearer e30.e30.AAAA', expect: denied, identity: unknown"},
	"lists": {"send: GET /api", "ip: 203.0.113.9, expect: refused", "ip: 10.1.2.3, times: 5, expect: exempt", "send: GET /else, expect: unlimited"},
	"only failed logins count": {"send: POST /login", "times: 9, response_status: 200, expect: allowed", "times: 3, response_status: 401, expect: allowed", "expect: denied, remaining: 0",
		"ip: 192.0.2.2, expect: allowed"},
	"slots are held":              {"send: GET /slots", "times: 2, hold: true, expect: allowed", "expect: denied, rule: slots, limit: in-flight", "release: true, expect: allowed, remaining: 1"},
	"requests wait":               {"send: GET /queue", "expect: allowed, wait: 0s", "expect: allowed, wait: 100ms", "times: 9, expect: allowed, wait: 1s", "expect: denied, retry_after: 100ms"},
	"new identities":              {"send: GET /new", "headers: 'X-API-Key: a', expect: allowed", "headers: 'X-API-Key: b', expect: allowed", "headers: 'X-API-Key: c', expect: denied_new_identity, retry_after: 30s", "after: 30s, headers: 'X-API-Key: c', expect: allowed"},
	"actual costs":                {"send: GET /tokens", "actual_cost: 60, expect: allowed, remaining: 99", "actual_cost: 60, expect: allowed, remaining: 39", "expect: denied"},
	"bodies":                      {"send: POST /upload", "body_size: 4000, expect: allowed, remaining: 6", "body_size: 6145, expect: denied", "expect: allowed, remaining: 5"},
	"calendar days":               {"{send: GET /daily, start: '2026-03-28T22:30:00Z'}", "times: 2, expect: allowed", "expect: denied, retry_after: 30m", "after: 30m, times: 2, expect: allowed", "after: 22h, expect: denied", "after: 1h, expect: allowed"},
	"candidates":                  {"send: GET /tried", "expect: allowed, shadow_denied: []", "expect: allowed, shadow_denied: tried"},
	"steps without headers":       {"{send: GET /new, headers: 'X-API-Key: a'}", "expect: allowed, identity: 'key:a'", "headers: [], expect: allowed, identity: unknown"},
	"malformed":                   {"send: GET /new", "headers: ['X-API-Key: a', 'X-API-Key: b'], expect: malformed"},
	"cases begin with free slots": {"send: GET /slots", "times: 2, hold: true, expect: allowed"},
}

// head returns the fields of a case as lines. Several fields are in braces: send, and then start or
// headers.
func head(fields string) string {
	if inner, ok := strings.CutPrefix(fields, "{"); ok {
		return strings.NewReplacer(", start", "\n    start", ", headers", "\n    headers").Replace(strings.TrimSuffix(inner, "}"))
	}
	return fields
}

func TestTrueCasesPass(t *testing.T) {
	policyRules := parseRules(t)
	for what, lines := range trueCases {
		if got := run(t, policyRules, head(lines[0]), lines[1:]...); len(got.Failures) > 0 {
			t.Errorf("%s: the failures are %v; want none", what, got.Failures)
		}
	}
}

// Each true case must fail if one expectation of one step is made wrong. Names of rules and limits
// are left out, because a wrong name makes the file invalid.
func TestWrongExpectationsFail(t *testing.T) {
	policyRules := parseRules(t)
	// By a text of a right expectation, that of a wrong one. A 1 before a number makes another
	// number: remaining: 0 becomes remaining: 10.
	wrong := map[string]string{
		"expect: allowed": "expect: unlimited", "expect: denied": "expect: allowed", "expect: exempt": "expect: allowed", "expect: refused": "expect: malformed",
		"expect: unlimited": "expect: allowed", "expect: malformed": "expect: refused", "remaining: ": "remaining: 1", "retry_after: ": "retry_after: 1",
		"wait: ": "wait: 1", "identity: '": "identity: 'x", "identity: unknown": "identity: known", "shadow_denied: tried": "shadow_denied: api", "shadow_denied: []": "shadow_denied: tried",
	}
	tried := 0
	for what, lines := range trueCases {
		for i, line := range lines[1:] {
			for right, instead := range wrong {
				before, after, found := strings.Cut(line, right)
				isLongerWord := strings.HasPrefix(after, "_") // such as denied_new_identity
				if !found || isLongerWord {
					continue
				}
				steps := append([]string{}, lines[1:]...)
				steps[i] = before + instead + after
				got := run(t, policyRules, head(lines[0]), steps...)
				if len(got.Failures) == 0 {
					t.Errorf("%s: %q passes; want a failure", what, steps[i])
				}
				for _, f := range got.Failures {
					isInStep := f.Line >= 5 && f.Column >= 8 // steps begin on line 5, after "      - "
					if !isInStep || !strings.Contains(f.Message, "expected ") {
						t.Errorf("%s: the failure of %q is %v; want its place and what was expected", what, steps[i], f)
					}
				}
				tried++
			}
		}
	}
	t.Logf("counted: %d wrong expectations", tried)
}

func TestFailureNamesRequestAndLimit(t *testing.T) {
	got := run(t, parseRules(t), "send: GET /slots", "expect: allowed, rule: slots", "times: 3, hold: true, expect: allowed", "expect: allowed, rule: login")
	want := []Failure{
		{Line: 6, Column: 40, Message: "request 4: the outcome is denied by slots.in-flight; expected allowed"},
		{Line: 7, Column: 18, Message: "request 5: the outcome is denied by slots.in-flight; expected allowed"},
	}
	if fmt.Sprint(got.Failures) != fmt.Sprint(want) || got.Requests != 5 {
		t.Errorf("the failures after %d requests are %v; want %v after 5", got.Requests, got.Failures, want)
	}
}

func TestCostWithoutEffectFailsOnce(t *testing.T) {
	got := run(t, parseRules(t), "send: GET /slots", "times: 50, expect: allowed, actual_cost: 3")
	if len(got.Failures) != 1 || !strings.Contains(got.Failures[0].Message, "request 1: actual_cost has no effect") {
		t.Errorf("the failures are %v; want one, of request 1", got.Failures)
	}
}

func TestMistakesHaveTheirPlaceAndFix(t *testing.T) {
	policyRules := parseRules(t)
	step := func(s string) string {
		return "cases:\n  - name: one\n    send: GET /api\n    steps:\n      - {" + s + "}\n"
	}
	for text, want := range map[string]string{
		"":                              "c.yaml:1:1: the file has no cases; begin with cases:, as in cases: [{name: burst, send: GET /search, steps: [{times: 3, expect: allowed}]}]",
		"cases: []":                     "c.yaml:1:1: the file has no cases; begin with cases:, as in cases: [{name: burst, send: GET /search, steps: [{times: 3, expect: allowed}]}]",
		"case: []":                      `c.yaml:1:1: there is no field "case" here; did you mean cases?`,
		"cases: [{name: a, steps: []}]": "c.yaml:1:9: the case has no steps; add steps: with at least one, as in steps: [{times: 3, expect: allowed}]",
		"cases: [{name: a, request: GET /, steps: [{expect: allowed, send: GET /}]}]": `c.yaml:1:19: there is no field "request" here; did you mean send?`,
		step("times: 3"):                                                             "c.yaml:5:9: the step expects nothing; add expect: with allowed, denied, unlimited, exempt, refused, malformed or denied_new_identity",
		step("expect: deny"):                                                         `c.yaml:5:18: there is no outcome "deny"; there are allowed, denied, unlimited, exempt, refused, malformed and denied_new_identity`,
		step("expect: denied, rule: apis"):                                           `c.yaml:5:32: the policy has no rule "apis"; did you mean api?`,
		step("expect: denied, limit: hour"):                                          "c.yaml:5:33: limit needs rule beside it, because limits of several rules may have this name; add rule:",
		step("expect: denied, times: 0"):                                             "c.yaml:5:33: times is 0; write 1 to 100000",
		step("expect: denied, after: 99999h, times: 100000"):                         "c.yaml:5:33: the case lasts longer than ten years; shorten it",
		step("expect: denied, hold: true, times: 10001"):                             "c.yaml:5:32: the file holds more than 10000 requests; put cases into another file",
		step("expect: denied, send: /x"):                                             `c.yaml:5:32: "/x" is not a method and a path; write them as in POST /login`,
		step("expect: denied, ip: here"):                                             `c.yaml:5:30: "here" is not an address; write 192.0.2.1 or 2001:db8::1`,
		step("expect: denied, headers: A"):                                           `c.yaml:5:35: header "A" has no colon; write 'Name: value', as in 'X-API-Key: abc'`,
		step("expect: denied, headers: {X-API-Key: k}"):                              "c.yaml:5:35: a header field is one text in quotes; write 'X-API-Key: k'",
		step("expect: denied, headers: [X-API-Key: k]"):                              "c.yaml:5:36: a header field is one text in quotes; write 'X-API-Key: k'",
		step("expect: denied, headers: {A: 1, B: it's}"):                             "c.yaml:5:35: a header field is one text in quotes; write ['A: 1', 'B: it''s']",
		step("expect: denied, headers: {A: [1]}"):                                    "c.yaml:5:35: a header field is one text in quotes; write 'X-API-Key: a'",
		step("expect: denied, claims: [a]"):                                          "c.yaml:5:34: a list does not belong here; write names with values, as in {sub: alice}",
		step("expect: denied, headers: 'Authorization: Bearer a', claims: {sub: a}"): "c.yaml:5:70: the request has claims, and a header Authorization in which their token would be; keep one of them",
		step("expect: denied, rule: api, limit: day"):                                `c.yaml:5:44: rule api has no limit "day"; there is hour`,
		"cases: [{name: a, start: now, send: GET /, steps: [{expect: allowed}]}]":    `c.yaml:1:26: "now" is not a time from 1970 to 2100; write it as in 2026-03-01T09:00:00Z`,
		"cases: [{name: a, steps: [{expect: allowed}]}]":                             "c.yaml:1:27: the step has no request; add send: to the step or to its case, as in send: POST /login",
		"cases: [{name: a, send: GET /, steps: [{expect: allowed}]}, {name: a, send: GET /, steps: [{expect: allowed}]}]": `c.yaml:1:68: two cases are called "a"; rename one`,
		"cases: [{name: a, send: GET /, steps: [" + strings.Repeat("{expect: allowed, times: 100000},", 11) + "]}]":       "c.yaml:1:370: the file has more than 1000000 requests; put cases into another file",
	} {
		_, err := Parse("c.yaml", []byte(text), policyRules)
		var mistakes policyfile.Errors
		if !errors.As(err, &mistakes) || mistakes.Error() != want {
			t.Errorf("%s\nhas the mistakes %v\nwant %s", text, err, want)
		}
	}
}

// A mistake of form hides no other mistake, and is not reported twice.
func TestAllMistakesAreListed(t *testing.T) {
	text := `cases:
  - name: one
    send: GET /api
    steps:
      - {tims: 3, expect: allowed}
      - {expct: allowed, times: 0}
      - {expect: [allowed]}
      - {expect: denied, rule: apis}
      -
      - {expect: denied, rules: api, limit: hour}
      - {expect: denied, headers: [a: b], times: x}
  - {nam: two, step: []}
  - {name: [], sent: GET /, steps: [{expect: allowed}]}
  - {name: four, steps: 5}
  -
`
	want := `c.yaml:5:10: there is no field "tims" here; did you mean times?
c.yaml:6:10: there is no field "expct" here; did you mean expect?
c.yaml:6:33: times is 0; write 1 to 100000
c.yaml:7:18: expected one value, found a list; write the value alone
c.yaml:8:32: the policy has no rule "apis"; did you mean api?
c.yaml:9:8: the value is missing; write one, or remove the line
c.yaml:10:26: there is no field "rules" here; did you mean rule?
c.yaml:11:36: a header field is one text in quotes; write 'a: b'
c.yaml:11:50: "x" is not a whole number below 2^52; write one such as 10 or 1000
c.yaml:12:6: there is no field "nam" here; did you mean name?
c.yaml:12:16: there is no field "step" here; did you mean steps?
c.yaml:13:12: expected one value, found a list; write the value alone
c.yaml:13:16: there is no field "sent" here; did you mean send?
c.yaml:14:25: expected a list, found "5"; put it into brackets, or a dash and a space before each item
c.yaml:15:4: the value is missing; write one, or remove the line`
	_, err := Parse("c.yaml", []byte(text), parseRules(t))
	if err == nil || err.Error() != want {
		t.Errorf("the mistakes are\n%v\nwant\n%s", err, want)
	}
}

func FuzzParse(f *testing.F) {
	p, err := policyfile.Parse("rules.yaml", []byte(rules), nil, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		f.Fatal(err)
	}
	for _, lines := range trueCases {
		f.Add("cases:\n  - name: one\n    " + head(lines[0]) + "\n    steps:\n      - {" + strings.Join(lines[1:], "}\n      - {") + "}\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("cases.yaml", []byte(text), p.Rules)
		if err != nil {
			return
		}
		for _, c := range file.Cases {
			for _, s := range c.Steps {
				if s.times() > 1000 {
					return
				}
			}
		}
		if _, err := file.Run(); err != nil {
			t.Errorf("%s\ncannot be run: %v", text, err)
		}
	})
}
