package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/quotaheaders"
)

// An Admission is a request that was admitted. Done must be called once it has been served.
type Admission struct {
	// Request is the request to serve. Its path is the path that the rules matched, and its context
	// contains the Decision.
	Request *http.Request

	// Decision is the decision about the request's limits. Decision is empty if no limit applies.
	Decision penstock.Decision

	admission  admission.Admission
	attributes attributes
	header     http.Header // of the response
	context    admissionContext
	body       *countedBody // nil if no limit needs its size
}

// Admit decides a request. It returns the Admission. If the request must not be served, Admit sends
// the response and returns nil. If the request has to wait, Admit waits.
//
// Admit is for frameworks whose handlers are not http.Handlers. For http.Handlers, use Middleware.
func (g *Gate) Admit(w http.ResponseWriter, r *http.Request) *Admission {
	a, _ := g.Decide(w, r)
	return a
}

// Decide does what Admit does, and also returns the outcome. The status of the response does not
// tell it, because a policy chooses the status of denials.
func (g *Gate) Decide(w http.ResponseWriter, r *http.Request) (*Admission, admission.Outcome) {
	c := g.current()
	a := &Admission{Request: r, header: w.Header()}
	a.attributes = attributes{request: r, compiled: c}
	if err := a.canonicalizePath(c); err != nil {
		g.rejectMalformed(w, r, c, err.Error())
		return nil, admission.Malformed
	}
	_, outcome, _ := g.controller.Admit(a.Request.Context(), admission.Request{
		Attributes: &a.attributes, BeforeWait: readAhead, RequestOptions: admission.RequestOptions{Rules: c.rules, Reuse: &a.admission},
	})
	a.Request = a.attributes.request // readAhead may have replaced it
	if !outcome.IsAdmitted() {
		g.reject(w, c, a, outcome)
		return nil, outcome
	}
	a.prepare(c, outcome)
	return a, outcome
}

// canonicalizePath gives the request the path that rules match.
func (a *Admission) canonicalizePath(c *compiledRules) error {
	host, err := checkHostAndMethod(a.Request)
	if err != nil {
		return err
	}
	a.attributes.host = host
	// If RawPath or Opaque is set, EscapedPath may differ from what the client sent. Rewrite handles
	// such URLs.
	if u := a.Request.URL; u.RawPath == "" && u.Opaque == "" {
		escaped := u.EscapedPath()
		path, err := c.paths.Clean(escaped)
		if err != nil {
			return err
		}
		a.attributes.path = path
		if path == escaped {
			return nil
		}
	}
	r, u := *a.Request, *a.Request.URL
	if _, err := c.paths.Rewrite(&u); err != nil {
		return err
	}
	a.attributes.path = u.EscapedPath()
	r.URL = &u
	a.Request, a.attributes.request = &r, &r
	return nil
}

var (
	errHost       = errors.New("the host is malformed; write a name or an address, and a port if need be")
	errMethod     = errors.New("the method is malformed; write a token, such as GET")
	errMethodCase = errors.New("the method is a standard one, but has lower-case letters; write it in upper case")
)

// checkHostAndMethod returns the request's host. checkHostAndMethod fails if servers may read the
// host or the method in different ways.
func checkHostAndMethod(r *http.Request) (host string, err error) {
	host, ok := syntax.CleanHost(r.Host)
	if !ok {
		return "", errHost
	}
	switch r.Method {
	case http.MethodGet, http.MethodPost: // the most frequent methods need no further check
		return host, nil
	}
	switch upper := strings.ToUpper(r.Method); upper {
	case r.Method: // the method has no lower-case letters
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace:
		return "", errMethodCase
	}
	if r.Method != "" && !syntax.IsToken(r.Method) { // net/http does not check the method of HTTP/2
		return "", errMethod
	}
	return host, nil
}

// prepare makes an admitted request ready to be served, and sets the headers about its limits.
func (a *Admission) prepare(c *compiledRules, outcome admission.Outcome) {
	var isLimited bool
	a.Decision, isLimited = a.admission.Decision()
	if outcome == admission.Allowed {
		const isDenied, retryAfter = false, 0
		a.writeHeaders(c, isDenied, retryAfter)
	}
	if a.admission.NeedsBodySize() && a.Request.Body != nil {
		a.body = &countedBody{ReadCloser: a.Request.Body}
		r := *a.Request
		r.Body = a.body
		a.Request = &r
	}
	if isLimited || a.admission.NeedsResult() {
		a.Request = a.withContext()
	}
}

func (g *Gate) reject(w http.ResponseWriter, c *compiledRules, a *Admission, outcome admission.Outcome) {
	d, r := rejection{Rejection: a.admission.Rejection()}, a.Request
	const isDenied = true
	switch outcome {
	case admission.Denied:
		d.reason, d.status = overLimit, c.deniedStatus
		d.retrySeconds = a.writeHeaders(c, isDenied, d.RetryAfter)
		r = a.withContext()
	case admission.DeniedNewIdentity:
		d.reason, d.status = tooManyNew, c.deniedStatus
		d.retrySeconds = c.headers.Write(a.header, nil, isDenied, d.RetryAfter)
	case admission.FailedClosed:
		d.reason, d.retrySeconds = failedClosed, quotaheaders.CeilSeconds(d.RetryAfter)
		a.header["Retry-After"] = []string{strconv.FormatInt(d.retrySeconds, 10)}
	case admission.Refused:
		d.reason = clientRefused
	case admission.Abandoned:
		d.reason = requestCanceled
	case admission.Malformed:
		d.reason = requestMalformed
	}
	defer a.admission.Done(admission.Result{Status: d.responseStatus()})
	g.answer(w, r, c, d)
}

// RejectMalformed responds to a request with 400, as Admit does to a request whose path is
// ambiguous. RejectMalformed is for handlers that read requests before they call Admit. The detail
// is for the client: it must contain no secrets.
func (g *Gate) RejectMalformed(w http.ResponseWriter, r *http.Request, detail string) {
	g.rejectMalformed(w, r, g.current(), detail)
}

func (g *Gate) rejectMalformed(w http.ResponseWriter, r *http.Request, c *compiledRules, detail string) {
	g.controller.Observe(&admission.Event{Context: r.Context(), Outcome: admission.Malformed})
	g.answer(w, r, c, rejection{reason: requestMalformed, Rejection: admission.Rejection{Detail: detail}})
}

// RejectPeer responds to a request with 403. RejectPeer is for handlers that serve trusted proxies
// only; see IsTrustedProxy. The detail is for the peer: it must contain no secrets.
func (g *Gate) RejectPeer(w http.ResponseWriter, r *http.Request, detail string) {
	g.controller.Observe(&admission.Event{Context: r.Context(), Outcome: admission.Refused})
	g.answer(w, r, g.current(), rejection{reason: peerRefused, Rejection: admission.Rejection{Detail: detail}})
}

// writeHeaders sets the headers about the request's limits. It returns the value of Retry-After, or
// 0 if it sets none.
func (a *Admission) writeHeaders(c *compiledRules, isDenied bool, retryAfter time.Duration) (retrySeconds int64) {
	var statusBuf [8]admission.LimitStatus // on the stack, and enough for most requests
	var quotaBuf [8]quotaheaders.Quota
	quotas := quotaBuf[:0]
	statuses := a.admission.AppendVisible(statusBuf[:0])
	for i := range statuses {
		quotas = append(quotas, c.policies.Quota(&statuses[i]))
	}
	c.cors.exposeHeaders(a.header, a.Request)
	return c.headers.Write(a.header, quotas, isDenied, retryAfter)
}

func (g *Gate) answer(w http.ResponseWriter, r *http.Request, c *compiledRules, d rejection) {
	c.cors.allowOrigin(w.Header(), r)
	if g.rejected == nil {
		c.bodies.write(w, r, d)
		return
	}
	g.rejected.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), rejectionKey{}, &d)))
}

type admissionContext struct {
	context.Context
	admission *Admission
}

type admissionKey struct{}

func (c *admissionContext) Value(key any) any {
	if key == (admissionKey{}) {
		return c.admission
	}
	return c.Context.Value(key)
}

func (a *Admission) withContext() *http.Request {
	a.context = admissionContext{a.Request.Context(), a}
	return a.Request.WithContext(&a.context)
}

func admissionOf(ctx context.Context) *Admission {
	a, _ := ctx.Value(admissionKey{}).(*Admission)
	return a
}

// DecisionOf returns the decision about the request that has this context. The bool is false if no
// limit applied.
func DecisionOf(ctx context.Context) (penstock.Decision, bool) {
	if a := admissionOf(ctx); a != nil {
		return a.admission.Decision()
	}
	return penstock.Decision{}, false
}

type rejectionKey struct{}

// A Rejection describes why a request was rejected, for the handler Options.Rejected.
type Rejection struct {
	admission.Rejection
	Status int // of the built-in response to such a request
}

// RejectionOf returns why the request that has this context was rejected. The bool is false if it
// was not.
func RejectionOf(ctx context.Context) (Rejection, bool) {
	d, ok := ctx.Value(rejectionKey{}).(*rejection)
	if !ok {
		return Rejection{}, false
	}
	return Rejection{d.Rejection, d.responseStatus()}, true
}
