package httplimit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/penstock/penstock"
)

// A denial is what is told to a client whose request goes no further.
type denial struct {
	reason       denialReason
	status       int           // default: the reason's own
	rule         string        // for templates
	detail       string        // what the client should know besides
	policies     []string      // the names of the limits that stood in the way
	retryAfter   time.Duration // exact; if it is 0 or penstock.Never, nothing is said of it
	retrySeconds int64         // as Retry-After says it; 0 if it does not
}

// A denialReason is why a request goes no further.
type denialReason uint8

const (
	overLimit        denialReason = iota // 429: a limit denies it
	limitsUnknown                        // 503: the store is unavailable, and a limit fails closed
	callerCanceled                       // 503: its context ended before it was let in, as the client went away or the server closes
	callerRefused                        // 403: the caller is never let in
	requestMalformed                     // 400: the request cannot be read; detail says why
	tooManyNew                           // 429: the address brings too many new identities
	denialReasons                        // how many there are
)

// problems are the problem types of the draft's registration; about:blank, whose title is the
// status, is RFC 9457's own. plain says the same to people.
var problems = [denialReasons]struct {
	status      int
	kind, title string
	plain       string
}{
	overLimit: {http.StatusTooManyRequests, "https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded",
		"Too many requests"},
	limitsUnknown: {http.StatusServiceUnavailable, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		"Temporary Reduced Capacity", "Limits cannot be checked at the moment"},
	callerCanceled:   {http.StatusServiceUnavailable, "about:blank", "Service Unavailable", "The request was canceled before it was let in"},
	callerRefused:    {http.StatusForbidden, "about:blank", "Forbidden", "This client is on the deny list"},
	requestMalformed: {http.StatusBadRequest, "about:blank", "Bad Request", "Bad request"},
	tooManyNew: {http.StatusTooManyRequests, "https://iana.org/assignments/http-problem-types#quota-exceeded", "Quota Exceeded",
		"Too many new identities from this address"},
}

// bodies writes the bodies of denials. Make one with newBodies. Only those for requests over a
// limit can be customised: for other reasons their text would be wrong.
type bodies struct {
	text        bool               // plain text for everybody over a limit
	template    *template.Template // for them; nil: the built-in bodies
	contentType string
}

// bodySettings are for requests over a limit.
type bodySettings struct {
	text        bool   // plain text, whatever is accepted; default: a problem, or text for those who would rather have that
	template    string // of text/template, over the fields of templateData; empty: the built-in bodies
	contentType string // of the template; default: text/plain; charset=utf-8
}

// templateData is what a template can say.
type templateData struct {
	Status       int      // of the response
	Rule         string   // of the limits that stood in the way
	Policies     []string // their names, at least one
	RetryAfter   int64    // seconds, as the header says; 0: asking again will not help
	RetryAfterMS int64    // the same exactly, in milliseconds rounded up
}

// maxTemplateOut is how many bytes a template may write.
const maxTemplateOut = 64 << 10

// newBodies compiles the template, and tries it on denials.
func newBodies(settings bodySettings) (*bodies, error) {
	b := &bodies{contentType: settings.contentType, text: settings.text}
	if settings.template == "" {
		if settings.contentType != "" {
			return nil, errors.New("body: a content type without a template; leave it out, or write a template")
		}
		return b, nil
	}
	if b.contentType == "" {
		b.contentType = typeText
	}
	mediaType, _, err := mime.ParseMediaType(b.contentType)
	if err != nil || !strings.Contains(mediaType, "/") || strings.ContainsAny(b.contentType, "\r\n") {
		return nil, fmt.Errorf("body: %q is not a content type; write one such as text/html; charset=utf-8", b.contentType)
	}
	t, err := template.New("body").Parse(settings.template)
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	b.template = t
	for _, sample := range []denial{
		{rule: "rule", policies: []string{"rule.limit"}, retryAfter: time.Second, retrySeconds: 1},
		{rule: "rule", policies: []string{"rule.limit"}, retryAfter: penstock.Never},
	} {
		if _, err := b.execute(&sample); err != nil {
			return nil, fmt.Errorf("body: %w; the fields are .Status, .Rule, .Policies, .RetryAfter and .RetryAfterMS", err)
		}
	}
	return b, nil
}

// write answers the request with the denial: status, Content-Type and body (none to HEAD). The
// headers that say when to ask again must stand already.
//
// It sets no Cache-Control: a 429 must not be stored by a cache (RFC 6585), and 403 and 503 are not
// without being told to (RFC 9110, 15.1).
func (b *bodies) write(w http.ResponseWriter, r *http.Request, d denial) {
	body, contentType := b.render(r.Header["Accept"], &d)
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(d.code())
	if r.Method != http.MethodHead {
		w.Write(body) // if it fails, the client is gone
	}
}

// render is the body for a client that accepts these types. A template is what it is, whatever is
// accepted; if it fails, the client is told the problem.
func (b *bodies) render(accept []string, d *denial) (body []byte, contentType string) {
	custom := d.reason == overLimit || d.reason == tooManyNew
	if custom && b.template != nil {
		if body, err := b.execute(d); err == nil {
			return body, b.contentType
		}
	} else if custom && b.text || prefersText(accept) {
		return d.text(), typeText
	}
	return d.problem(), typeProblem
}

const (
	typeProblem = "application/problem+json"
	typeText    = "text/plain; charset=utf-8"
)

func (b *bodies) execute(d *denial) ([]byte, error) {
	var out bounded
	err := b.template.Execute(&out, templateData{
		Status: d.code(), Rule: d.rule, Policies: d.policies, RetryAfter: d.retrySeconds, RetryAfterMS: d.retryMS(),
	})
	return out.buffer.Bytes(), err
}

// code is the status of the response.
func (d *denial) code() int {
	if d.status != 0 {
		return d.status
	}
	return problems[d.reason].status
}

// retryMS is RetryAfter in ms, rounded up; 0 if there is none.
func (d *denial) retryMS() int64 {
	if d.retryAfter <= 0 || d.retryAfter == penstock.Never {
		return 0
	}
	return int64((d.retryAfter-1)/time.Millisecond) + 1
}

// problem is the denial as RFC 9457 has it.
func (d *denial) problem() []byte {
	p := problems[d.reason]
	out := struct {
		Type         string   `json:"type"`
		Title        string   `json:"title"`
		Status       int      `json:"status"`
		Detail       string   `json:"detail,omitempty"`
		Policies     []string `json:"violated-policies,omitempty"`
		RetryAfterMS int64    `json:"retry_after_ms,omitempty"`
	}{Type: p.kind, Title: p.title, Status: d.code(), Detail: d.detail, Policies: d.policies, RetryAfterMS: d.retryMS()}
	if p.kind == "about:blank" {
		out.Title = http.StatusText(out.Status)
	}
	if d.detail == "" && d.reason != overLimit {
		out.Detail = p.plain + "."
	}
	switch {
	case out.RetryAfterMS > 0:
		out.Detail = strings.TrimLeft(out.Detail+" Retry after "+(time.Duration(out.RetryAfterMS)*time.Millisecond).String()+".", " ")
	case d.retryAfter == penstock.Never:
		out.Detail = "It costs more than the limit; do not retry."
	}
	body, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and numbers can be marshalled
	}
	return append(body, '\n')
}

// text is the denial for people.
func (d *denial) text() []byte {
	b := append([]byte(nil), problems[d.reason].plain...)
	for i, name := range d.policies {
		if i == 0 {
			b = append(b, ": "...)
		} else {
			b = append(b, ", "...)
		}
		b = append(b, name...)
	}
	if d.detail != "" {
		b = append(append(b, ": "...), d.detail...)
	}
	b = append(b, '.')
	switch {
	case d.retryAfter == penstock.Never:
		b = append(b, " This costs more than the limit; do not retry."...)
	case d.retrySeconds > 0:
		b = append(b, " Try again in "...)
		b = append(strconv.AppendInt(b, d.retrySeconds, 10), " s."...)
	}
	return append(b, '\n')
}

// bounded is a buffer that fails where a template writes too much.
type bounded struct{ buffer bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.buffer.Len()+len(p) > maxTemplateOut {
		return 0, fmt.Errorf("the template writes more than %d bytes", maxTemplateOut)
	}
	return b.buffer.Write(p)
}

// prefersText tells whether an Accept header wants plain text, or HTML, more than JSON. It does not
// if it is absent, malformed or longer than a kilobyte.
func prefersText(accept []string) bool {
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" {
		return false
	}
	all := strings.Join(accept, ",")
	if len(all) > 1<<10 {
		return false
	}
	weights := make(map[string]int)
	for element := range strings.SplitSeq(all, ",") {
		if strings.Trim(element, " \t") == "" {
			continue // RFC 9110, 5.6.1: empty elements do not count
		}
		mediaRange, weight, ok := parseRange(element)
		if !ok {
			return false
		}
		weights[mediaRange] = weight
	}
	// The range that names a type most closely weighs it.
	of := func(mediaType, general string) int {
		for _, mediaRange := range []string{mediaType, general, "*/*"} {
			if weight, said := weights[mediaRange]; said {
				return weight
			}
		}
		return 0
	}
	return max(of("text/plain", "text/*"), of("text/html", "text/*")) >
		max(of("application/json", "application/*"), of(typeProblem, "application/*"))
}

// parseRange reads "text/html;level=1;q=0.5" as text/html and 500 thousandths.
func parseRange(element string) (mediaRange string, weight int, ok bool) {
	parts := strings.Split(element, ";")
	mediaRange = strings.ToLower(strings.Trim(parts[0], " \t"))
	if kind, subtype, _ := strings.Cut(mediaRange, "/"); kind == "" || subtype == "" {
		return "", 0, false
	}
	weight = 1000
	for _, param := range parts[1:] {
		name, value, _ := strings.Cut(strings.Trim(param, " \t"), "=")
		if strings.EqualFold(name, "q") {
			if weight, ok = parseWeight(value); !ok {
				return "", 0, false
			}
		}
	}
	return mediaRange, weight, true
}

// parseWeight reads a weight of RFC 9110 in thousandths: 0 to 1, with three decimals at most.
func parseWeight(s string) (int, bool) {
	if s == "" || len(s) > 5 || s[0] != '0' && s[0] != '1' || len(s) > 1 && s[1] != '.' {
		return 0, false
	}
	weight := int(s[0]-'0') * 1000
	for i, unit := 2, 100; i < len(s); i, unit = i+1, unit/10 {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		weight += int(s[i]-'0') * unit
	}
	return weight, weight <= 1000
}
