package cases

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/nowait"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A Result has the failures of a case. The case has passed if there are none.
type Result struct {
	File     string    `json:"file"`
	Line     int       `json:"line"`
	Name     string    `json:"name"`
	Requests int64     `json:"requests"`
	Failures []Failure `json:"failures"` // empty: the case has passed

	// Rules are the rules that charged requests, denied them, or have shadows that did.
	Rules []string `json:"rules"`
}

// A Failure is one way in which the policy differs from a case.
type Failure struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// Run runs all cases of a file. An error means that the policy cannot be used.
func (f *File) Run() ([]Result, error) {
	var all []Result
	for _, c := range f.Cases {
		r, err := f.run(c)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

type runner struct {
	file   *File
	result Result
	gate   *httplimit.Gate
	store  *memstore.Store
	now    time.Time // by the simulated clock
	held   []heldRequest

	mu    sync.Mutex                         // needed because shadows are decided concurrently
	rules map[string]bool                    // names of the rules for result.Rules
	seen  observation                        // of the latest request
	waits map[*penstock.Charge]time.Duration // waits of decisions, by their first charge
}

// A heldRequest is in progress until a step releases it.
type heldRequest struct {
	admission *httplimit.Admission
	status    int // of the upstream's response
}

// An observation is what the policy decided about the latest request.
type observation struct {
	outcome          admission.Outcome
	rule, limit, key string
	isDecided        bool // by limits, so remaining is known
	remaining        int64
	retryAfter, wait time.Duration
	shadowDenied     []string
}

func (f *File) run(c *Case) (Result, error) {
	line, _ := f.places.At(c)
	r := &runner{file: f, now: c.start, rules: make(map[string]bool), result: Result{File: f.Name, Line: line, Name: c.Name, Failures: []Failure{}, Rules: []string{}}}
	if err := r.open(); err != nil {
		return Result{}, err
	}
	for _, s := range c.Steps {
		r.step(s)
	}
	r.release()
	r.result.Rules = slices.AppendSeq(r.result.Rules, maps.Keys(r.rules))
	slices.Sort(r.result.Rules)
	return r.result, nil
}

// open makes a gate with the policy's rules and the clock of the case.
func (r *runner) open() error {
	spec := r.file.rules.Spec()
	if spec.Tokens.Verifier != nil {
		spec.Tokens.Verifier = &verifier{Verifier: spec.Tokens.Verifier, known: make(map[string]bool)}
	}
	rules, err := policy.New(spec)
	if err != nil {
		return err
	}
	clock := func() time.Time { return r.now }
	r.store = memstore.New(memstore.Options{Now: clock})
	r.waits = make(map[*penstock.Charge]time.Duration)
	controller, err := admission.New(nowait.Wrap(penstock.StoreFunc(r.decide), r.noteWait), rules, admission.Options{Observe: r.observe, Now: clock})
	if err != nil {
		return err
	}
	r.gate, err = httplimit.New(controller, httplimit.Options{})
	return err
}

// decide lets the store decide, and records the rules of what it grants.
func (r *runner) decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	d, err := r.store.Decide(ctx, charges)
	if err == nil && d.Allowed {
		r.noteRules(charges)
	}
	return d, err
}

// noteWait records the wait of a request that is admitted without it.
func (r *runner) noteWait(charges []penstock.Charge, d *penstock.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits[&charges[0]] = d.Wait()
}

// noteRules records the rules of charges that the store made. An event names only one of them.
func (r *runner) noteRules(charges []penstock.Charge) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range charges {
		if name := charges[i].Plan.Group(); r.file.rules.Rule(name) != nil {
			r.rules[name] = true
		}
	}
}

// observe records the outcome of a request or of a shadow. It copies texts, because the event may
// reuse their memory.
func (r *runner) observe(e *admission.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rule := strings.Clone(e.Rule)
	if rule != "" {
		r.rules[rule] = true
	}
	switch e.Outcome {
	case admission.ShadowDenied:
		r.seen.shadowDenied = append(r.seen.shadowDenied, rule)
		return
	case admission.ShadowAllowed:
		return
	}
	r.seen.outcome, r.seen.rule, r.seen.limit, r.seen.key = e.Outcome, rule, strings.Clone(e.Limit), strings.Clone(e.Key)
	if e.Decision != nil && e.Decision.Len() > 0 {
		r.seen.isDecided, r.seen.remaining, r.seen.retryAfter = true, e.Decision.Remaining(), e.Decision.RetryAfter()
	}
	if len(e.Charges) > 0 {
		r.seen.wait = r.waits[&e.Charges[0]]
	}
}

func (r *runner) step(s *Step) {
	r.now = r.now.Add(s.After)
	if s.Release {
		r.release()
	}
	for i := range s.times() {
		r.result.Requests++
		r.send(s)
		if wrong := r.compare(s, i == s.times()-1); len(wrong) > 0 {
			r.result.Failures = append(r.result.Failures, wrong...)
			// The other requests of the step would fail in the same way. They are still sent, so
			// that the next steps find the counters that they expect.
			for range s.times() - 1 - i {
				r.result.Requests++
				r.send(s)
			}
			return
		}
	}
}

func (r *runner) send(s *Step) {
	r.seen = observation{}
	clear(r.waits)
	w := httptest.NewRecorder()
	a := r.gate.Admit(w, s.request.Clone(context.Background()))
	if a == nil { // rejected; if no limit decided, only the header has the time to retry
		if seconds, err := strconv.Atoi(w.Header().Get("Retry-After")); err == nil && !r.seen.isDecided {
			r.seen.retryAfter = time.Duration(seconds) * time.Second
		}
		return
	}
	if s.Cost != nil {
		if err := httplimit.Settle(a.Request.Context(), *s.Cost); err != nil {
			r.failOnce(s.Cost, "actual_cost has no effect: no limit of this request has actual")
		}
	}
	status := http.StatusOK
	if s.Status != nil {
		status = int(*s.Status)
	}
	if s.Hold {
		r.held = append(r.held, heldRequest{a, status})
		return
	}
	a.Done(status)
}

func (r *runner) release() {
	for _, h := range r.held {
		h.admission.Done(h.status)
	}
	r.held = nil
}

// failOnce adds a failure, unless the last one is at the same place.
func (r *runner) failOnce(p any, text string) {
	one, all := r.failure(p, "%s", text), r.result.Failures
	if n := len(all); n == 0 || all[n-1].Line != one.Line || all[n-1].Column != one.Column {
		r.result.Failures = append(all, one)
	}
}

func (r *runner) failure(p any, format string, args ...any) Failure {
	line, column := r.file.places.At(p)
	return Failure{line, column, fmt.Sprintf("request %d: ", r.result.Requests) + fmt.Sprintf(format, args...)}
}

// compare returns how the last request differs from what the step expects. Some expectations are
// about the last request of the step only.
func (r *runner) compare(s *Step, isLast bool) (wrong []Failure) {
	differs := func(p any, what string, is, want any) {
		wrong = append(wrong, r.failure(p, "%s is %v; expected %v", what, is, want))
	}
	got := &r.seen
	if outcome := got.outcome.String(); outcome != s.Expect {
		by := ""
		if got.rule != "" {
			by = fmt.Sprintf(" by %s.%s", got.rule, got.limit)
		}
		differs(&s.Expect, "the outcome", outcome+by, s.Expect)
		return wrong
	}
	compareText := func(p *string, what, is string) {
		if *p != "" && is != *p {
			differs(p, what, cmp.Or(is, "none"), *p)
		}
	}
	compareText(&s.Rule, "the rule", got.rule)
	compareText(&s.Limit, "the limit", got.limit)
	compareText(&s.Identity, "the identity", got.key)
	if !isLast {
		return wrong
	}
	switch {
	case s.Remaining != nil && !got.isDecided:
		differs(s.Remaining, "what remains", "unknown, because no limit decided the request", *s.Remaining)
	case s.Remaining != nil && got.remaining != *s.Remaining:
		differs(s.Remaining, "what remains", got.remaining, *s.Remaining)
	}
	compareDuration := func(p *time.Duration, what string, is time.Duration) {
		if p != nil && (is-*p).Abs() > time.Millisecond {
			shown := is.String()
			if is == penstock.Never {
				shown = "never"
			}
			differs(p, what, shown, *p)
		}
	}
	compareDuration(s.RetryAfter, "the time to retry", got.retryAfter)
	compareDuration(s.Wait, "the wait", got.wait)
	if r.file.places.Has(&s.Shadows) {
		slices.Sort(got.shadowDenied)
		want := slices.Sorted(slices.Values(s.Shadows))
		if is := slices.Compact(got.shadowDenied); !slices.Equal(is, want) {
			differs(&s.Shadows, "the list of rules whose shadows deny", is, want)
		}
	}
	return wrong
}

// A verifier accepts the tokens that tokenOf makes. The policy's Verifier checks other tokens.
type verifier struct {
	policy.Verifier
	known map[string]bool // tokens that were verified
}

// signature is the last part of each token that tokenOf makes, instead of a real signature.
var signature = base64.RawURLEncoding.EncodeToString([]byte("penstock-test"))

// tokenOf returns a token for claims, in the form that policies accept.
func tokenOf(claims policy.Claims) string {
	encode := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil { // JSON lacks a value of the claims
			text = []byte("{}")
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	return encode(map[string]string{"alg": "none"}) + "." + encode(claims) + "." + signature
}

func (v *verifier) Claims(token string) (policy.Claims, *policy.TokenError) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[2] != signature {
		return v.Verifier.Claims(token)
	}
	v.known[token] = true
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, &policy.TokenError{Reason: "malformed", Err: err}
	}
	var claims policy.Claims
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&claims); err != nil {
		return nil, &policy.TokenError{Reason: "malformed", Err: err}
	}
	return claims, nil
}

func (v *verifier) IsKnown(token string) bool { return v.known[token] }
