package httplimit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"text/template"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

type rejection struct {
	admission.Rejection
	reason       rejectionReason
	status       int   // default: the reason's own
	retrySeconds int64 // of Retry-After; 0 if there is none
}

type rejectionReason uint8

const (
	overLimit        rejectionReason = iota // 429: a limit denies it
	failedClosed                            // 503: the store is unavailable, and a limit fails closed
	requestCanceled                         // 503: the client left before the request was admitted, or the server closes
	clientRefused                           // 403: the client is on the deny list
	requestMalformed                        // 400: servers could read the request in different ways; detail is the reason
	tooManyNew                              // 429: the address sent too many new identities
	peerRefused                             // 403: the peer is not a trusted proxy; detail is how to become one
	rejectionReasonCount
)

// The types of problems. The RateLimit draft registers the first two. RFC 9457 defines about:blank:
// the title of such a problem is the text of the status.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	aboutBlank      = "about:blank"
)

// problems are the built-in responses, by reason.
var problems = [rejectionReasonCount]struct {
	status      int
	problemType string
	title       string // of the problem; empty for aboutBlank
	plain       string // the text of text/plain bodies
}{
	overLimit:        {status: http.StatusTooManyRequests, problemType: quotaExceeded, title: "Quota Exceeded", plain: "Too many requests"},
	failedClosed:     {status: http.StatusServiceUnavailable, problemType: reducedCapacity, title: "Temporary Reduced Capacity", plain: "Limits cannot be checked at the moment"},
	requestCanceled:  {status: http.StatusServiceUnavailable, problemType: aboutBlank, plain: "The request was canceled before it was admitted"},
	clientRefused:    {status: http.StatusForbidden, problemType: aboutBlank, plain: "This client is on the deny list"},
	requestMalformed: {status: http.StatusBadRequest, problemType: aboutBlank, plain: "Bad request"},
	tooManyNew:       {status: http.StatusTooManyRequests, problemType: quotaExceeded, title: "Quota Exceeded", plain: "Too many new identities from this address"},
	peerRefused:      {status: http.StatusForbidden, problemType: aboutBlank, plain: "This peer is not trusted"},
}

// bodies writes the bodies of rejections. Make one with newBodies. A policy can customize only the
// bodies for requests over a limit: its text would be wrong for other reasons.
type bodies struct {
	isText      bool               // plain text, whatever the client accepts
	template    *template.Template // nil: the built-in bodies
	contentType string
}

// bodySettings are the settings of newBodies, for requests over a limit.
type bodySettings struct {
	isText      bool   // plain text, whatever the client accepts; default: a problem, or text if prefersText
	template    string // for text/template, with the fields of templateData; empty: the built-in bodies
	contentType string // of the template's output
}

type templateData struct {
	Status       int      // of the response
	Rule         string   // of the limits that denied the request
	Policies     []string // their names that clients may see; if there is none, the name of the rule
	RetryAfter   int64    // seconds, as in Retry-After; 0: a retry cannot succeed
	RetryAfterMS int64    // the same in milliseconds, rounded up
}

// maxTemplateOutputBytes is how many bytes a template may write for one response.
const maxTemplateOutputBytes = 64 << 10

func newBodies(settings bodySettings) *bodies {
	b := &bodies{contentType: settings.contentType, isText: settings.isText}
	if t, err := template.New("body").Parse(settings.template); settings.template != "" && err == nil {
		b.template = t
	}
	return b
}

// write sends the response: status, Content-Type and body (none for HEAD). The caller must have set
// Retry-After.
//
// No Cache-Control is needed. A cache must not store a 429 (RFC 6585), and stores a 403 or 503 only
// if a header allows it (RFC 9110, 15.1).
func (b *bodies) write(w http.ResponseWriter, r *http.Request, d rejection) {
	body, contentType := b.render(r.Header["Accept"], &d)
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(d.responseStatus())
	if r.Method != http.MethodHead {
		w.Write(body) // if it fails, the client has left
	}
}

// render returns the body for a client that accepts these types. A template is used whatever the
// client accepts. If the template fails, the body is the problem.
func (b *bodies) render(accept []string, d *rejection) (body []byte, contentType string) {
	canBeCustom := d.reason == overLimit || d.reason == tooManyNew
	if canBeCustom && b.template != nil {
		if body, err := b.execute(d); err == nil {
			return body, b.contentType
		}
	} else if canBeCustom && b.isText || prefersText(accept) {
		return d.text(), typeText
	}
	return d.problem(), typeProblem
}

const (
	typeProblem = "application/problem+json"
	typeText    = "text/plain; charset=utf-8"
)

func (b *bodies) execute(d *rejection) ([]byte, error) {
	policies := d.VisiblePolicies()
	if len(policies) == 0 {
		policies = []string{d.Rule} // a template may use the first one
	}
	var out boundedBuffer
	err := b.template.Execute(&out, templateData{
		Status: d.responseStatus(), Rule: d.Rule, Policies: policies, RetryAfter: d.retrySeconds, RetryAfterMS: d.retryMS(),
	})
	return out.buffer.Bytes(), err
}

func (d *rejection) responseStatus() int {
	if d.status != 0 {
		return d.status
	}
	return problems[d.reason].status
}

// retryMS returns retryAfter in ms, rounded up; 0 if it is unknown or penstock.Never.
func (d *rejection) retryMS() int64 {
	if d.RetryAfter <= 0 || d.RetryAfter == penstock.Never {
		return 0
	}
	return int64((d.RetryAfter-1)/time.Millisecond) + 1
}

func (d *rejection) problem() []byte {
	p := problems[d.reason]
	out := struct {
		Type         string   `json:"type"`
		Title        string   `json:"title"`
		Status       int      `json:"status"`
		Detail       string   `json:"detail,omitempty"`
		Policies     []string `json:"violated-policies,omitempty"`
		RetryAfterMS int64    `json:"retry_after_ms,omitempty"`
	}{Type: p.problemType, Title: p.title, Status: d.responseStatus(), Detail: d.Detail, Policies: d.VisiblePolicies(), RetryAfterMS: d.retryMS()}
	if p.problemType == aboutBlank {
		out.Title = http.StatusText(out.Status)
	}
	if d.Detail == "" && d.reason != overLimit {
		out.Detail = p.plain + "."
	}
	switch {
	case out.RetryAfterMS > 0:
		out.Detail = strings.TrimLeft(out.Detail+" Retry after "+(time.Duration(out.RetryAfterMS)*time.Millisecond).String()+".", " ")
	case d.RetryAfter == penstock.Never:
		out.Detail = "The request costs more than the limit; do not retry."
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and numbers can be marshaled
	}
	return append(body, '\n')
}

func (d *rejection) text() []byte {
	text := problems[d.reason].plain
	if names := d.VisiblePolicies(); len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	if d.Detail != "" {
		text += ": " + d.Detail
	}
	text += "."
	switch {
	case d.RetryAfter == penstock.Never:
		text += " The request costs more than the limit; do not retry."
	case d.retrySeconds > 0:
		text += fmt.Sprintf(" Try again in %d s.", d.retrySeconds)
	}
	return []byte(text + "\n")
}

// boundedBuffer is a buffer that fails if a template writes too much.
type boundedBuffer struct{ buffer bytes.Buffer }

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.buffer.Len()+len(p) > maxTemplateOutputBytes {
		return 0, fmt.Errorf("the template writes more than %d bytes", maxTemplateOutputBytes)
	}
	return b.buffer.Write(p)
}

// prefersText reports whether the first type in an Accept header is plain text or HTML. The weights
// are ignored: browsers list HTML first, and clients of an API list JSON first, or send no type.
func prefersText(accept []string) bool {
	if len(accept) == 0 {
		return false
	}
	first, _, _ := strings.Cut(accept[0], ",")
	mediaType, _, _ := strings.Cut(first, ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "text/html", "text/plain", "text/*":
		return true
	}
	return false
}
