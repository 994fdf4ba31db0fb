// Package cases tests a policy with cases. A case lists requests, the times between them, and the
// decisions that the policy must make. It runs in memory, with a simulated clock.
package cases

import (
	_ "embed"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// The bounds of a file. A million requests take some seconds.
const (
	maxTimes    = 100_000                   // requests of a step
	maxRequests = 1_000_000                 // requests of a file
	maxHeld     = 10_000                    // requests of a file that are held
	maxDuration = 10 * 365 * 24 * time.Hour // of a case, by its simulated clock
)

// A File is a file of cases. In the yaml tags of its parts, the option empty means that a list may
// have no items. The option headers means that each item is a header field.
type File struct {
	Name  string  `yaml:"-"`
	Cases []*Case `yaml:"cases" jsonschema:"The cases. Each begins with unused limits."`

	places *policyfile.Places
	rules  *policy.Rules
}

// A Case is a list of steps. Its request is used by the steps that have none of their own.
type Case struct {
	Name     string         `yaml:"name" jsonschema:"What the case shows; unique in the file."`
	Start    string         `yaml:"start" jsonschema:"The time at the beginning, as in 2026-03-01T09:00:00Z. Default: 2026-01-01T00:00:00Z."`
	Send     string         `yaml:"send" jsonschema:"The request of all steps: a method, a space, and a path or URL, as in POST /login."`
	Headers  []string       `yaml:"headers,empty,headers" jsonschema:"Header fields of all steps, such as X-API-Key: a."`
	IP       string         `yaml:"ip" jsonschema:"The client's address in all steps. Default: 192.0.2.1."`
	BodySize *int64         `yaml:"body_size" jsonschema:"The size of the body in all steps, in bytes. Default: 0."`
	Claims   map[string]any `yaml:"claims" jsonschema:"The claims of a verified token in all steps. Default: there is no token."`
	Steps    []*Step        `yaml:"steps" jsonschema:"What happens, in this order."`

	start time.Time
}

// A Step is a number of equal requests, and what the policy must decide about them.
type Step struct {
	After    time.Duration  `yaml:"after" jsonschema:"The time that passes before the step. Default: 0s."`
	Release  bool           `yaml:"release" jsonschema:"true: the requests that were held end before the step."`
	Times    *int64         `yaml:"times" jsonschema:"How many requests are sent at the same time. Default: 1."`
	Send     string         `yaml:"send" jsonschema:"The request, in place of the case's."`
	Headers  []string       `yaml:"headers,empty,headers" jsonschema:"Header fields, in place of the case's. []: none."`
	IP       string         `yaml:"ip" jsonschema:"The client's address, in place of the case's."`
	BodySize *int64         `yaml:"body_size" jsonschema:"The size of the body, in place of the case's."`
	Claims   map[string]any `yaml:"claims" jsonschema:"The claims, in place of the case's."`
	Hold     bool           `yaml:"hold" jsonschema:"true: the requests stay in progress until a step with release. By default they end immediately."`
	Status   *int64         `yaml:"response_status" jsonschema:"The status of the upstream's response, for limits with on_status. Default: 200."`
	Cost     *int64         `yaml:"actual_cost" jsonschema:"The true cost of each request, for limits with actual."`

	Expect     string         `yaml:"expect" jsonschema:"The outcome of each request: allowed, denied, unlimited, exempt, refused, malformed or denied_new_identity."`
	Rule       string         `yaml:"rule" jsonschema:"The rule of the limit that matters most: the one that denies for longest, or has the least left."`
	Limit      string         `yaml:"limit" jsonschema:"The name of that limit, such as second."`
	Identity   string         `yaml:"identity" jsonschema:"The key of that limit, such as key:a."`
	Remaining  *int64         `yaml:"remaining" jsonschema:"How many units that limit has left after the last request."`
	RetryAfter *time.Duration `yaml:"retry_after" jsonschema:"How long after the last request it may be sent again; 1 ms of difference is accepted."`
	Wait       *time.Duration `yaml:"wait" jsonschema:"How long the last request waits; 1 ms of difference is accepted."`
	Shadows    []string       `yaml:"shadow_denied,empty" jsonschema:"The rules with a shadow or candidate that would deny the last request. []: none."`

	request *http.Request
}

// expectations are the outcomes that a case can have. There are no others, because in a case the
// store never fails and clients never disconnect.
var expectations = []admission.Outcome{admission.Allowed, admission.Denied, admission.Unlimited, admission.Exempt, admission.Refused, admission.Malformed,
	admission.DeniedNewIdentity}

var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Parse reads a file of cases for a policy. The error is a policyfile.Errors with all mistakes.
func Parse(name string, text []byte, rules *policy.Rules) (*File, error) {
	f := &File{Name: name, rules: rules}
	var err error
	f.places, err = policyfile.Decode(name, text, f, noCases)
	if err != nil && len(f.Cases) == 0 {
		return nil, err
	}
	f.check()
	if err := f.places.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// HasCases reports whether a text is a file of cases. The file may have mistakes.
func HasCases(text []byte) bool {
	f := &File{}
	_, _ = policyfile.Decode("", text, f, "the file is empty")
	return len(f.Cases) > 0
}

const noCases = "the file has no cases; begin with cases:, as in cases: [{name: burst, send: GET /search, steps: [{times: 3, expect: allowed}]}]"

// fail records a mistake at the place of the field that p points to.
func (f *File) fail(p any, format string, args ...any) { f.places.Fail(p, format, args...) }

func (f *File) check() {
	if len(f.Cases) == 0 {
		f.fail(f, noCases)
	}
	names := make(map[string]bool)
	requests, held := int64(0), int64(0) // of the whole file
	for _, c := range f.Cases {
		if c == nil { // its mistake is recorded
			continue
		}
		switch {
		case c.Name == "" && f.places.IsReported(c, &c.Name, "name"):
		case c.Name == "":
			f.fail(c, "the case has no name; add name: with what it shows")
		case names[c.Name]:
			f.fail(&c.Name, "two cases are called %q; rename one", wording.Clip(c.Name))
		}
		names[c.Name] = true
		c.start = defaultStart
		if c.Start != "" {
			start, err := time.Parse(time.RFC3339, c.Start)
			if err != nil || start.Year() < 1970 || start.Year() > 2100 {
				f.fail(&c.Start, "%q is not a time from 1970 to 2100; write it as in 2026-03-01T09:00:00Z", wording.Clip(c.Start))
			}
			c.start = start
		}
		if len(c.Steps) == 0 && !f.places.IsReported(c, &c.Steps, "steps") {
			f.fail(c, "the case has no steps; add steps: with at least one, as in steps: [{times: 3, expect: allowed}]")
		}
		duration := time.Duration(0) // of the case
		for _, s := range c.Steps {
			if s == nil { // its mistake is recorded
				continue
			}
			f.checkStep(c, s)
			duration += s.After
			if s.After > maxDuration || duration > maxDuration || duration < 0 {
				f.fail(&s.After, "the case lasts longer than ten years; shorten it")
				break
			}
			if s.Hold {
				held += s.times()
			}
			if held > maxHeld {
				f.fail(&s.Hold, "the file holds more than %d requests; put cases into another file", maxHeld)
				return
			}
			requests += s.times()
			if requests > maxRequests {
				f.fail(s, "the file has more than %d requests; put cases into another file", maxRequests)
				return
			}
		}
	}
}

func (s *Step) times() int64 {
	if s.Times == nil {
		return 1
	}
	return *s.Times
}

func (f *File) checkStep(c *Case, s *Step) {
	if s.Times != nil && (*s.Times < 1 || *s.Times > maxTimes) {
		f.fail(s.Times, "times is %d; write 1 to %d", *s.Times, maxTimes)
		*s.Times = 1
	}
	if s.Status != nil && (*s.Status < 100 || *s.Status > 599) {
		f.fail(s.Status, "response_status is %d; write 100 to 599", *s.Status)
	}
	f.checkExpected(s)
	f.makeRequest(c, s)
}

func (f *File) checkExpected(s *Step) {
	var words []string
	for _, o := range expectations {
		words = append(words, o.String())
	}
	switch {
	case s.Expect == "" && f.places.IsReported(s, &s.Expect, "expect"):
	case s.Expect == "":
		f.fail(s, "the step expects nothing; add expect: with %s", wording.List(words, "or"))
	case !slices.Contains(words, s.Expect):
		f.fail(&s.Expect, "there is no outcome %q; %s", wording.Clip(s.Expect), wording.Suggest(s.Expect, words))
	}
	rule := f.rules.Rule(s.Rule)
	if s.Rule != "" && rule == nil {
		f.fail(&s.Rule, "the policy has no rule %q; %s", wording.Clip(s.Rule), wording.Suggest(s.Rule, f.ruleNames()))
	}
	for i, name := range s.Shadows {
		if f.rules.Rule(name) == nil {
			f.fail(&s.Shadows[i], "the policy has no rule %q; %s", wording.Clip(name), wording.Suggest(name, f.ruleNames()))
		}
	}
	if s.Limit == "" {
		return
	}
	if rule == nil {
		if s.Rule == "" && !f.places.IsReported(s, &s.Rule, "rule") {
			f.fail(&s.Limit, "limit needs rule beside it, because limits of several rules may have this name; add rule:")
		}
		return
	}
	var limits []string
	for _, l := range rule.Limits {
		limits = append(limits, l.Name)
	}
	if !slices.Contains(limits, s.Limit) {
		f.fail(&s.Limit, "rule %s has no limit %q; %s", rule.Name, wording.Clip(s.Limit), wording.Suggest(s.Limit, limits))
	}
}

func (f *File) ruleNames() (names []string) {
	for _, r := range f.rules.Spec().Rules {
		names = append(names, r.Name)
	}
	return names
}

// defaultIP is the client's address in a case that names none.
const defaultIP = "192.0.2.1"

// makeRequest makes the request of a step. Each field of the step replaces that of its case. A
// mistake is reported at the field to which its pointer points.
func (f *File) makeRequest(c *Case, s *Step) {
	send, headers, ip, size, claims := &c.Send, &c.Headers, &c.IP, c.BodySize, &c.Claims
	if f.places.Has(&s.Send) {
		send = &s.Send
	}
	if f.places.Has(&s.Headers) {
		headers = &s.Headers
	}
	if f.places.Has(&s.IP) {
		ip = &s.IP
	}
	if s.BodySize != nil {
		size = s.BodySize
	}
	if f.places.Has(&s.Claims) {
		claims = &s.Claims
	}
	if *send == "" {
		if f.places.IsReported(s, &s.Send, "send") || f.places.IsReported(c, &c.Send, "send") {
			return
		}
		f.fail(s, "the step has no request; add send: to the step or to its case, as in send: POST /login")
		return
	}
	method, target, ok := strings.Cut(*send, " ")
	if !ok || method == "" || target == "" || strings.HasPrefix(method, "/") {
		f.fail(send, "%q is not a method and a path; write them as in POST /login", wording.Clip(*send))
		return
	}
	address, bytes := defaultIP, int64(0)
	if *ip != "" {
		address = *ip
	}
	if size != nil {
		if bytes = *size; bytes < 0 || bytes > math.MaxInt32 {
			f.fail(size, "body_size is %d; write 0 to %d", bytes, math.MaxInt32)
			return
		}
	}
	if _, err := explain.NewRequest(method, target, nil, address, bytes); err != nil {
		at := any(send)
		if _, err := explain.NewRequest(method, target, nil, defaultIP, bytes); err == nil { // so the address is the mistake
			at = ip
		}
		f.fail(at, "%v", err)
		return
	}
	if slices.Contains(*headers, "") { // a field that could not be read; its mistake is recorded
		return
	}
	request, err := explain.NewRequest(method, target, *headers, address, bytes)
	if err != nil {
		f.fail(headers, "%v", err)
		return
	}
	s.request = request
	if f.places.Has(claims) {
		f.addToken(s, claims)
	}
}

func (f *File) addToken(s *Step, claims *map[string]any) {
	tokens := f.rules.Spec().Tokens
	token := tokenOf(*claims)
	switch {
	case tokens.Verifier == nil:
		f.fail(claims, "the policy has no section tokens, so claims are never used; remove the claims, or add the section")
	case tokens.Header != "" && s.request.Header[tokens.Header] != nil:
		f.fail(claims, "the request has claims, and a header %s in which their token would be; keep one of them", tokens.Header)
	case tokens.Header == "Authorization" || tokens.Header == "Proxy-Authorization":
		s.request.Header.Set(tokens.Header, "Bearer "+token)
	case tokens.Header != "":
		s.request.Header.Set(tokens.Header, token)
	default:
		s.request.AddCookie(&http.Cookie{Name: tokens.Cookie, Value: token})
	}
}

// schema is generated by schemagen from the structs of this package; run make schema.
//
//go:embed schema.json
var schema string

// Schema returns the JSON Schema (draft 7) of a file of cases, for editors.
func Schema() []byte { return []byte(schema) }
