package httplimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// An Admission is a request that was let in. Done must be called once it has been served.
type Admission struct {
	// Request is the one to serve: its path is the one that the rules matched, and its context carries
	// the Decision.
	Request *http.Request

	// Decision is what the limits said. It is empty if no limit applies.
	Decision penstock.Decision

	gate       *Gate
	attributes attributes
	verdict    *policy.Verdict
	header     http.Header // of the response
	limited    bool        // there is a Decision
	context    carrier
	actual     atomic.Int64 // the true cost plus 1, once told
	unknown    atomic.Bool  // nobody knows how the request ended
	question   question
	body       *countedBody
	granted    []grant // what may have to be corrected
	settles    bool    // the true cost matters
	renewal    *renewal
}

// Admit decides a request. It returns the Admission, or nil if the request must not be served: then
// it has been answered. If it has to wait for its turn, Admit waits.
//
// It is what Middleware uses, for frameworks that have handlers of their own.
func (g *Gate) Admit(w http.ResponseWriter, r *http.Request) *Admission {
	s := g.now()
	a := &Admission{Request: r, gate: g, header: w.Header()}
	a.attributes = attributes{r: r, setup: s}
	if err := a.canonical(s); err != nil {
		g.observe(Event{Outcome: Malformed})
		g.turnAway(w, r, s, denial{reason: requestMalformed, detail: err.Error()})
		return nil
	}
	v := g.verdicts.Get().(*policy.Verdict)
	a.verdict = v
	if !s.rules.AssessFirst(&a.attributes, v) {
		if !a.decideFirst(w, s) {
			a.free()
			return nil
		}
		s.rules.AssessRest(&a.attributes, v)
	}
	if v.TokenError != nil {
		g.tokenRejected(v.TokenError)
	}
	switch {
	case v.Unclear != "":
		g.observe(Event{Outcome: Malformed})
		g.turnAway(w, r, s, denial{reason: requestMalformed, detail: v.Unclear})
		a.free()
		return nil
	case v.Listed == policy.Exempt:
		g.observe(Event{Outcome: Exempt})
	case v.Listed == policy.Refused:
		g.observe(Event{Outcome: Refused})
		g.turnAway(w, r, s, denial{reason: callerRefused})
		a.free()
		return nil
	case len(v.Unchecked) > 0 && !a.known(w, s):
		a.free()
		return nil
	default:
		trials := a.beginTrials()
		admitted := true
		if len(v.Charges) == 0 {
			g.observe(Event{Outcome: Unlimited})
		} else {
			admitted = a.decide(w, s, trials)
		}
		a.endTrials(trials)
		if !admitted {
			a.returnHolds(s.status) // of trials: the request holds nothing
			a.free()
			return nil
		}
	}
	a.prepare()
	return a
}

// canonical brings the path into the form that rules match.
func (a *Admission) canonical(s *setup) error {
	host, err := readable(a.Request)
	if err != nil {
		return err
	}
	a.attributes.host = host
	if u := a.Request.URL; u.RawPath == "" && u.Opaque == "" {
		escaped := u.EscapedPath()
		path, err := s.paths.Clean(escaped)
		if err != nil {
			return err
		}
		if a.attributes.path = path; path == escaped {
			return nil
		}
	}
	r, u := *a.Request, *a.Request.URL
	if _, err := s.paths.Rewrite(&u); err != nil {
		return err
	}
	a.attributes.path = u.EscapedPath()
	r.URL = &u
	a.Request, a.attributes.r = &r, &r
	return nil
}

var (
	errHost      = errors.New("the host is malformed; write a name or an address, and a port if need be")
	errMethod    = errors.New("the method is malformed; write a token, such as GET")
	errLowMethod = errors.New("the method is a known one in small letters; write it in capitals")
)

// readable is the request's host, or an error if servers read it or the method in different ways.
func readable(r *http.Request) (host string, err error) {
	host, ok := policy.CleanHost(r.Host)
	if !ok {
		return "", errHost
	}
	switch r.Method {
	case http.MethodGet, http.MethodPost:
		return host, nil
	}
	switch upper := strings.ToUpper(r.Method); upper {
	case r.Method:
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace:
		return "", errLowMethod
	}
	if strings.ContainsFunc(r.Method, func(c rune) bool { return !isTokenChar(c) }) { // net/http does not look at that of HTTP/2
		return "", errMethod
	}
	return host, nil
}

// isTokenChar tells what tokens are made of (RFC 9110, 5.6.2).
func isTokenChar(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c)
}

// decide asks the store, and answers the request if it must not be served.
func (a *Admission) decide(w http.ResponseWriter, s *setup, trials *trials) bool {
	g, v := a.gate, a.verdict
	if a.question.Context == nil { // else decideFirst has asked, and a guard may still use it
		a.question.Context = a.Request.Context()
	}
	start := time.Now()
	d, err := g.store.Decide(&a.question, v.Charges)
	latency := time.Since(start)
	a.endOffered(trials)
	if err != nil {
		return a.undecided(w, s, err, latency)
	}
	a.Decision, a.limited = d, true
	if !d.Allowed {
		a.denied(w, s, latency)
		return false
	}
	a.note(v.Charges, v.Limits, &d, start)
	if d.Source == penstock.FromOpen {
		g.observe(a.event(FailedOpen, latency))
		return true
	}
	if wait := d.Wait(); wait > 0 && !a.wait(w, s, wait, latency) {
		return false
	}
	g.observe(a.event(Allowed, latency))
	a.writeHeaders(s, false, 0)
	return true
}

// event tells of the decision by the limit that mattered most.
func (a *Admission) event(outcome Outcome, latency time.Duration) Event {
	l := a.strictest()
	return Event{Rule: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm, Outcome: outcome, Source: a.Decision.Source, Latency: latency, Err: a.question.err}
}

func (a *Admission) strictest() *policy.Limit { return a.verdict.Limits[a.Decision.Strictest()] }

// denied turns away a request that the decision denies.
func (a *Admission) denied(w http.ResponseWriter, s *setup, latency time.Duration) {
	outcome := Denied
	if a.Decision.Source == penstock.FromClosed {
		outcome = FailedClosed
	}
	a.gate.observe(a.event(outcome, latency))
	if unanswered(a.Decision.Source) {
		a.noteHolds(a.verdict.Charges, a.verdict.Limits)
		a.returnHolds(0)
	}
	if outcome == FailedClosed {
		a.shut(w, s, a.strictest())
		return
	}
	a.deny(w, s, a.retryAfter())
}

// deny answers a request that is over a limit.
func (a *Admission) deny(w http.ResponseWriter, s *setup, retryAfter time.Duration) {
	seconds := a.writeHeaders(s, true, retryAfter)
	d := denial{reason: overLimit, status: s.status, retryAfter: retryAfter, retrySeconds: seconds}
	for i, l := range a.verdict.Limits {
		if a.Decision.Status(i).RetryAfter > 0 {
			d.policies = append(d.policies, l.Policy)
			d.rule = l.Rule.Name
		}
	}
	a.gate.turnAway(w, a.withContext(), s, d)
}

// status is what is told of charge i. When a slot is given back nobody knows; what the store knows
// is when one ends by itself if nobody gives it back. Those who want one should ask again soon.
func (a *Admission) status(i int) penstock.Status {
	s := a.Decision.Status(i)
	if a.verdict.Charges[i].Limit.Algorithm.Holds && s.RetryAfter != penstock.Never {
		s.RetryAfter, s.ResetAfter = min(s.RetryAfter, time.Second), min(s.ResetAfter, time.Second)
	}
	return s
}

func (a *Admission) retryAfter() (retry time.Duration) {
	for i := range a.verdict.Limits {
		retry = max(retry, a.status(i).RetryAfter)
	}
	return retry
}

// writeHeaders tells of the limits in the response's header.
func (a *Admission) writeHeaders(s *setup, denied bool, retryAfter time.Duration) int64 {
	var room [8]quota
	quotas := room[:0]
	for i, l := range a.verdict.Limits {
		if !l.Shown || uncounted(l, a.Decision.Source) {
			continue
		}
		q := quota{policy: s.policies[l][a.verdict.Form(l)], status: a.status(i), share: a.Decision.Source == penstock.FromFallback}
		q.status.Remaining = min(q.status.Remaining, q.policy.limit) // a ceiling may have more
		quotas = append(quotas, q)
	}
	s.cors.show(a.header, a.Request)
	return s.headers.write(a.header, quotas, denied, retryAfter)
}

// wait waits for the request's turn, and keeps its slots meanwhile. If its caller does not wait, or
// a slot is lost, what was booked is given back.
func (a *Admission) wait(w http.ResponseWriter, s *setup, wait, latency time.Duration) bool {
	g := a.gate
	if g.waiting.Add(1) > s.maxWaiting {
		g.waiting.Add(-1)
		a.leave(w, s, wait, latency)
		return false
	}
	leave := sync.OnceFunc(func() { g.waiting.Add(-1) })
	defer leave()
	turn := make(chan struct{})
	timer := time.AfterFunc(wait, func() {
		leave() // also while the body still comes: a slow one must not take a place from others
		close(turn)
	})
	defer timer.Stop()
	a.renewHolds()
	a.readAhead()
	select {
	case <-turn:
		if a.renewal.hasLost() {
			a.leave(w, s, time.Second, latency)
			return false
		}
		return true
	case <-a.Request.Context().Done():
		g.observe(a.event(Abandoned, latency))
		a.giveBack()
		g.turnAway(w, a.Request, s, denial{reason: callerCanceled})
		return false
	}
}

// leave turns a request away that would have had its turn, but cannot wait for it.
func (a *Admission) leave(w http.ResponseWriter, s *setup, retry, latency time.Duration) {
	a.gate.observe(a.event(Denied, latency))
	a.giveBack()
	seconds := a.writeHeaders(s, true, retry)
	d := denial{reason: overLimit, status: s.status, retryAfter: retry, retrySeconds: seconds}
	for i, l := range a.verdict.Limits {
		if a.Decision.Status(i).Wait > 0 {
			d.policies = append(d.policies, l.Policy)
			d.rule = l.Rule.Name
		}
	}
	a.gate.turnAway(w, a.withContext(), s, d)
}

// maxAhead is how much of a body is read while its request waits.
const maxAhead = 16 << 10

// readAhead reads a small body before its request's turn: net/http notices that a client has gone
// only when the body is read.
func (a *Admission) readAhead() {
	n := a.Request.ContentLength
	if n <= 0 || n > maxAhead || a.Request.Body == nil {
		return
	}
	read, err := io.ReadAll(a.Request.Body)
	r := *a.Request
	r.Body = &readBody{Reader: bytes.NewReader(read), err: err, Closer: a.Request.Body}
	a.Request = &r
}

// A readBody is a body that was read before: what there was of it, and how it ended.
type readBody struct {
	*bytes.Reader
	io.Closer
	err error
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF && b.err != nil {
		err = b.err
	}
	return n, err
}

// WriteTo is not that of the Reader, which knows no error.
func (b *readBody) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Reader.WriteTo(w)
	if err == nil {
		err = b.err
	}
	return n, err
}

// prepare makes the request ready to be served.
func (a *Admission) prepare() {
	for i := range a.granted {
		a.settles = a.settles || a.granted[i].limit.Settled
	}
	for i := range a.granted {
		if a.granted[i].limit.Body > 0 && a.Request.ContentLength < 0 && a.Request.Body != nil {
			a.countBody()
			break
		}
	}
	a.renewHolds()
	if a.limited || len(a.granted) > 0 {
		a.Request = a.withContext()
	}
}

// turnAway answers a request that goes no further.
func (g *Gate) turnAway(w http.ResponseWriter, r *http.Request, s *setup, d denial) {
	s.cors.allow(w.Header(), r)
	if g.denied == nil {
		s.bodies.write(w, r, d)
		return
	}
	g.denied.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), denialKey{}, &d)))
}

// free gives back what the Admission need not keep.
func (a *Admission) free() {
	if a.verdict != nil {
		a.gate.verdicts.Put(a.verdict)
		a.verdict = nil
	}
}

// A carrier is a context that carries an Admission.
type carrier struct {
	context.Context
	admission *Admission
}

type admissionKey struct{}

func (c *carrier) Value(key any) any {
	if key == (admissionKey{}) {
		return c.admission
	}
	return c.Context.Value(key)
}

func (a *Admission) withContext() *http.Request {
	a.context = carrier{a.Request.Context(), a}
	return a.Request.WithContext(&a.context)
}

// DecisionOf is what the limits said of the request that has this context. It is false if no limit
// applied.
func DecisionOf(ctx context.Context) (penstock.Decision, bool) {
	if a, ok := ctx.Value(admissionKey{}).(*Admission); ok {
		return a.Decision, a.limited
	}
	return penstock.Decision{}, false
}

type denialKey struct{}

// A Denial is what Options.Denied may want to know.
type Denial struct {
	Status     int           // that the built-in answer would have
	Rule       string        // empty if no rule had a say
	Policies   []string      // the limits that stood in the way
	RetryAfter time.Duration // exact; 0 if nothing is known, penstock.Never if asking again does not help
}

// DenialOf tells the handler of Options.Denied why the request was denied.
func DenialOf(ctx context.Context) (Denial, bool) {
	d, ok := ctx.Value(denialKey{}).(*denial)
	if !ok {
		return Denial{}, false
	}
	return Denial{Status: d.code(), Rule: d.rule, Policies: d.policies, RetryAfter: d.retryAfter}, true
}
