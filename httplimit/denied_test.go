package httplimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// answerDenial returns the response to a request that accepts these types. If accept is "-", the
// request has no Accept header.
func answerDenial(t *testing.T, b *bodies, method, accept string, d rejection) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, "/", nil)
	if accept != "-" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Length", "1000")
	b.write(w, r, d)
	if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options is %q; want nosniff", got)
	}
	if got := w.Header().Get("Content-Length"); got != "" {
		t.Errorf("Content-Length is %s, of another body; want none", got)
	}
	return w
}

var searchDenied = rejection{Rejection: admission.Rejection{Rule: "search", Policies: []string{"search.second", "search.day"}, RetryAfter: 70*time.Millisecond - time.Microsecond}, retrySeconds: 1}

func TestDenialsAreProblemsAndText(t *testing.T) {
	const maxProblem = 280 // bytes; a bound that keeps the bodies small
	for _, c := range []struct {
		what       string
		rejection  rejection
		status     int
		json, text string // the bodies, without the newline at the end
	}{
		{what: "a limit", rejection: searchDenied, status: 429,
			json: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,` +
				`"detail":"Retry after 70ms.","violated-policies":["search.second","search.day"],"retry_after_ms":70}`,
			text: "Too many requests: search.second, search.day. Try again in 1 s."},
		{what: "a cost larger than its limit", rejection: rejection{Rejection: admission.Rejection{Policies: []string{"upload.minute"}, RetryAfter: penstock.Never}}, status: 429,
			json: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,` +
				`"detail":"The request costs more than the limit; do not retry.","violated-policies":["upload.minute"]}`,
			text: "Too many requests: upload.minute. The request costs more than the limit; do not retry."},
		{what: "a limit where 429 is not understood", rejection: rejection{Rejection: admission.Rejection{Policies: []string{"a.b"}, RetryAfter: 90 * time.Minute}, status: 403, retrySeconds: 5400}, status: 403,
			json: `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":403,` +
				`"detail":"Retry after 1h30m0s.","violated-policies":["a.b"],"retry_after_ms":5400000}`,
			text: "Too many requests: a.b. Try again in 5400 s."},
		{what: "an unavailable store", rejection: rejection{Rejection: admission.Rejection{Rule: "search", RetryAfter: time.Second}, reason: failedClosed, retrySeconds: 3}, status: 503,
			json: `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","status":503,` +
				`"detail":"Limits cannot be checked at the moment. Retry after 1s.","retry_after_ms":1000}`,
			text: "Limits cannot be checked at the moment. Try again in 3 s."},
		{what: "a client on the deny list", rejection: rejection{reason: clientRefused}, status: 403,
			json: `{"type":"about:blank","title":"Forbidden","status":403,"detail":"This client is on the deny list."}`, text: "This client is on the deny list."},
		{what: "a canceled request", rejection: rejection{reason: requestCanceled}, status: 503,
			json: `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"The request was canceled before it was admitted."}`,
			text: "The request was canceled before it was admitted."},
		{what: "a malformed request", rejection: rejection{Rejection: admission.Rejection{Detail: "the path has %00"}, reason: requestMalformed}, status: 400,
			json: `{"type":"about:blank","title":"Bad Request","status":400,"detail":"the path has %00"}`, text: "Bad request: the path has %00."},
	} {
		builtIn := newBodies(bodySettings{})
		w := answerDenial(t, builtIn, "GET", "-", c.rejection)
		if got := w.Body.String(); w.Code != c.status || got != c.json+"\n" || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: status %d, type %s, body\n%s\nwant status %d, type application/problem+json, body\n%s", c.what, w.Code, w.Header().Get("Content-Type"), got, c.status, c.json)
		}
		if isValid := json.Valid([]byte(c.json)); len(c.json) > maxProblem || !isValid {
			t.Errorf("%s: the body in this table has %d bytes, and is valid JSON: %t; want at most %d bytes of JSON", c.what, len(c.json), isValid, maxProblem)
		}
		w = answerDenial(t, builtIn, "GET", "text/plain", c.rejection)
		if got := w.Body.String(); w.Code != c.status || got != c.text+"\n" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: status %d, type %s, body\n%s\nwant status %d, type text/plain, body\n%s", c.what, w.Code, w.Header().Get("Content-Type"), got, c.status, c.text)
		}
		if w := answerDenial(t, builtIn, "HEAD", "-", c.rejection); w.Code != c.status || w.Body.Len() != 0 {
			t.Errorf("%s: the response to HEAD has status %d and a body of %d bytes; want status %d without a body", c.what, w.Code, w.Body.Len(), c.status)
		}
	}
}

func TestPolicyCanAnswerAllDenialsWithText(t *testing.T) {
	text := newBodies(bodySettings{isText: true})
	for _, accept := range []string{"-", "application/json", "text/plain"} {
		w := answerDenial(t, text, "GET", accept, rejection{Rejection: admission.Rejection{Policies: []string{"a.b"}}})
		if w.Body.String() != "Too many requests: a.b.\n" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("Accept: %s: the type is %s, and the body %q; want text", accept, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

// The policy's body is for requests over a limit only: its text would be wrong for other reasons.
func TestCustomBodyIsNotUsedForOtherReasons(t *testing.T) {
	for name, custom := range map[string]*bodies{
		"text":     newBodies(bodySettings{isText: true}),
		"template": newBodies(bodySettings{template: `{"error":"rate_limited"}`, contentType: "application/json"}),
	} {
		for reason := range rejectionReasonCount {
			if reason == overLimit || reason == tooManyNew {
				continue
			}
			d := rejection{Rejection: admission.Rejection{Detail: map[rejectionReason]string{requestMalformed: "why"}[reason]}, reason: reason}
			for _, accept := range []string{"-", "text/plain"} {
				got, want := answerDenial(t, custom, "GET", accept, d), answerDenial(t, newBodies(bodySettings{}), "GET", accept, d)
				if got.Body.String() != want.Body.String() || got.Code != want.Code || got.Header().Get("Content-Type") != want.Header().Get("Content-Type") {
					t.Errorf("%s, reason %d, Accept: %s: status %d with the body %s; want status %d with %s", name, reason, accept, got.Code, got.Body, want.Code, want.Body)
				}
			}
		}
	}
}

func TestTextIsForClientsThatListItFirst(t *testing.T) {
	accepts := []struct {
		accept string // "-": no Accept header
		isText bool   // whether the body is text
	}{
		{accept: "-"},
		{accept: ""},
		{accept: "*/*"},
		{accept: "application/json"},
		{accept: "application/problem+json, text/plain"},
		{accept: "text/plain", isText: true},
		{accept: "text/html", isText: true},
		{accept: "TEXT/HTML", isText: true},
		{accept: "text/*", isText: true},
		{accept: "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", isText: true}, // browsers
		{accept: "text/html, */*", isText: true},
		{accept: " text/html ; level=1 ; q=1.000, application/*;q=0.9", isText: true},
		{accept: "application/json, text/plain, */*"}, // axios
		{accept: "image/png, text/plain"},
		{accept: "text/csv, text/plain"},
		{accept: "text/plainer"},
		{accept: "text"},
		{accept: "/"},
		{accept: ",text/plain"},
	}
	for _, c := range accepts {
		w := answerDenial(t, newBodies(bodySettings{}), "GET", c.accept, searchDenied)
		if isText := strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain"); isText != c.isText {
			t.Errorf("Accept: %s: the body is text: %t; want %t", c.accept, isText, c.isText)
		}
	}
	if prefersText([]string{"application/json", "text/plain"}) || !prefersText([]string{"text/plain", "application/json"}) {
		t.Error("with several Accept lines, the first does not decide; want that it does")
	}
	t.Logf("counted: %d Accept headers", len(accepts))
}

func TestTemplateHasEveryField(t *testing.T) {
	b := newBodies(bodySettings{
		template:    `<p>{{.Status}} {{.Rule}} {{range .Policies}}[{{.}}]{{end}} {{.RetryAfter}} s, {{.RetryAfterMS}} ms`,
		contentType: "text/html; charset=utf-8",
	})
	for _, accept := range []string{"-", "application/json", "text/html"} {
		w := answerDenial(t, b, "POST", accept, searchDenied)
		want := "<p>429 search [search.second][search.day] 1 s, 70 ms"
		if got := w.Body.String(); got != want || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Code != 429 {
			t.Errorf("Accept: %s: status %d, type %s, body %q; want 429 with the body %q", accept, w.Code, w.Header().Get("Content-Type"), got, want)
		}
	}
	config := Config{Denied: DeniedConfig{Body: "no {{.Status}}"}}
	if err := config.finish(); err != nil || config.Denied.ContentType != "application/json" {
		t.Errorf("the default content type is %q, and the error %v; want application/json and no error", config.Denied.ContentType, err)
	}
}

func TestAFailingTemplateFallsBackToTheProblem(t *testing.T) {
	many := searchDenied
	for i := range 60 { // 60 names of 66 bytes: if each is written 20 times, that is more than maxTemplateOutputBytes
		many.Policies = append(many.Policies, fmt.Sprintf("%s.%d", strings.Repeat("x", 64), i))
	}
	for _, c := range []struct {
		what, template string
	}{
		{"that fails for many policies", `{{if gt (len .Policies) 9}}{{index .Policies 99}}{{end}}`},
		{"that writes too much for many policies", "{{range .Policies}}" + strings.Repeat("{{.}}", 20) + "{{end}}"},
		{"that writes too much in one piece", "{{if gt (len .Policies) 9}}" + strings.Repeat("x", 70000) + "{{end}}"},
	} {
		b := newBodies(bodySettings{template: c.template, contentType: "text/html"})
		w := answerDenial(t, b, "GET", "text/plain", many)
		if w.Header().Get("Content-Type") != "application/problem+json" || !json.Valid(w.Body.Bytes()) || w.Code != 429 {
			t.Errorf("a template %s: status %d, type %s, body %q; want 429 with the problem", c.what, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

func TestTemplatesAreExecutedOnceWhenCompiled(t *testing.T) {
	for _, c := range []struct {
		denied DeniedConfig
		want   string
	}{
		{DeniedConfig{Body: "{{.Status"}, "unclosed action"},
		{DeniedConfig{Body: "{{.Limit}}"}, "the fields .Status, .Rule, .Policies"},
		{DeniedConfig{Body: "{{index .Policies 1}}"}, "out of range"},
		{DeniedConfig{Body: "{{if not .RetryAfter}}{{.Never}}{{end}}"}, "the fields .Status, .Rule, .Policies"},
		{DeniedConfig{Body: strings.Repeat("x ", 35000)}, "write at most 65536"},
		{DeniedConfig{Body: "x y", ContentType: "nonsense;"}, "not a content type"},
		{DeniedConfig{Body: "x y", ContentType: "text/html\r\nSet-Cookie: a=b"}, "not a content type"},
		{DeniedConfig{Body: "x y", ContentType: "text/html\r\n"}, "not a content type"},
		{DeniedConfig{ContentType: "text/html"}, "content_type belongs to a template"},
	} {
		config := Config{Denied: c.denied}
		if err := config.finish(); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80v: the error is %v; want one with %q", c.denied, err, c.want)
		}
	}
}

func FuzzAcceptNeverPanics(f *testing.F) {
	for _, seed := range []string{"", "*/*", "text/html;q=0.5, application/json", "text/plain;q=1.001", ";;;", "a/b;q=\"1\""} {
		f.Add(seed)
	}
	b := newBodies(bodySettings{})
	f.Fuzz(func(t *testing.T, accept string) {
		d := searchDenied
		body, contentType := b.render([]string{accept}, &d)
		if (contentType == typeProblem) != json.Valid(body) || contentType != typeProblem && !strings.Contains(strings.ToLower(accept), "text/") {
			t.Fatalf("Accept: %q: the type is %s, and the body %q; want a problem in JSON, or text if the client accepts text", accept, contentType, body)
		}
	})
}

func BenchmarkDenied(b *testing.B) {
	builtIn := newBodies(bodySettings{})
	b.ReportAllocs()
	for b.Loop() {
		builtIn.render(nil, &searchDenied)
	}
}

func TestStatusOfDenialsIsAnErrorStatus(t *testing.T) {
	for status, isValid := range map[int]bool{399: false, 400: true, 599: true, 600: false} {
		c := Config{Denied: DeniedConfig{Status: status}}
		if err := c.finish(); (err == nil) != isValid {
			t.Errorf("status %d for denials: the error is %v; want an error: %v", status, err, !isValid)
		}
	}
}
