package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/guard"
)

// post sends a body to the path of resets.
func (f *fixture) post(body string, headers ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest("POST", "http://127.0.0.1:9180"+Prefix+resetPath, strings.NewReader(body))
	q.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		q.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, q)
	return w
}

const resetAllBody = `{"key": "key:customer-4711", "reason": "support-4711"}`

// used returns how many units the key of resetAllBody has used of a limit.
func (f *fixture) used(limit string) int64 {
	f.t.Helper()
	key, err := Read[Key](context.Background(), f.Handler, Viewer{isOperator: true}, "key", url.Values{"all": {"true"}, "key": {"key:customer-4711"}})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, l := range key.Limits {
		if l.Limit == limit && l.Tier != "premium" {
			return l.Used
		}
	}
	f.t.Fatalf("the key has no limit %s", limit)
	return 0
}

func TestResetAppliesToAllLimitsOfAKeyOrToOne(t *testing.T) {
	for _, c := range []struct {
		body      string
		reset     []string // the limits that are reset
		hour, day int64    // units that are used afterwards
	}{
		{body: resetAllBody, reset: []string{"api.hour", "api.day"}},
		{body: `{"key": "key:customer-4711", "rule": "api", "reason": "r"}`, reset: []string{"api.hour", "api.day"}},
		{body: `{"key": "key:customer-4711", "rule": "api", "limit": "hour", "reason": "r"}`, reset: []string{"api.hour"}, day: 3},
		{body: `{"key": "key:customer-4711", "rule": "api", "limit": "day", "reason": "r"}`, reset: []string{"api.day"}, hour: 10},
		{body: `{"key": "key:another", "reason": "r"}`, reset: []string{}, hour: 10, day: 3},
	} {
		f := newFixture(t, nil)
		f.spend("api.hour", "key:customer-4711", 12)
		f.spend("api.day", "key:customer-4711", 3)
		w := f.post(c.body, operatorHeader)
		var done keylimits.Reset
		if err := json.Unmarshal(w.Body.Bytes(), &done); err != nil || w.Code != 200 {
			t.Fatalf("the reset %s returns %d %s; want 200 with JSON", c.body, w.Code, w.Body)
		}
		slices.Sort(done.Reset)
		slices.Sort(c.reset)
		if !slices.Equal(done.Reset, c.reset) || len(done.Before) != len(done.After) {
			t.Errorf("%s: %+v; want %v reset", c.body, done, c.reset)
		}
		for _, l := range done.After {
			if l.Used != 0 || l.IsDenied {
				t.Errorf("%s: after the reset, the limit is %+v; want no unit used, and no denial", c.body, l)
			}
		}
		if hour, day := f.used("hour"), f.used("day"); hour != c.hour || day != c.day {
			t.Errorf("%s: %d units of limit hour are used and %d of day; want %d and %d", c.body, hour, day, c.hour, c.day)
		}
		if len(f.audits) != 1 || f.audits[0].Problem != "" || len(f.audits[0].Limits) != len(c.reset) || f.audits[0].Actor.Address == "" {
			t.Errorf("%s: the audit lines are %+v; want one with %d limits and an address", c.body, f.audits, len(c.reset))
		}
	}
}

func TestResetByRef(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:customer-4711", 12)
	ref := read[Offenders](f, "offenders").Offenders[0].Ref
	w := f.post(fmt.Sprintf(`{"ref": %q, "reason": "support-4711"}`, ref), operatorHeader)
	if w.Code != 200 || f.used("hour") != 0 || strings.Contains(w.Body.String(), "customer") {
		t.Errorf("the response is %d %s; want 200 with the identity masked, and the limit reset", w.Code, w.Body)
	}
	a := f.audits[0]
	if a.Ref != ref || a.Reason != "support-4711" || !strings.Contains(a.Limits.String(), "api.hour 10->0") || a.Result != audit.OK {
		t.Errorf("the audit line is %+v; want api.hour 10->0 with the ref and the reason", a)
	}
	if text := string(a.JSON()); strings.Contains(text, "customer") || strings.Contains(text, token) {
		t.Errorf("the audit line contains the client or the token: %s", text)
	}
}

// Nothing is reset without the token, or for a page of another origin.
func TestResetNeedsTheTokenAndTheSameOrigin(t *testing.T) {
	tried := 0
	for _, c := range []struct {
		change  func(*Options)
		headers []string
		status  int
	}{
		{status: 401},
		{headers: []string{operatorHeader + "x"}, status: 401},
		{headers: []string{"Authorization: Bearer "}, status: 401},
		{headers: []string{"Cookie: token=" + token}, status: 401},
		{change: func(o *Options) { o.IsLocal = false }, status: 401},
		{change: func(o *Options) { o.Token = nil }, status: 403},
		{change: func(o *Options) { o.Token = nil }, headers: []string{"Authorization: Bearer "}, status: 403}, // no token is right
		{headers: []string{operatorHeader, "Origin: http://evil.example"}, status: 403},
		{headers: []string{operatorHeader, "Sec-Fetch-Site: cross-site"}, status: 403},
		{headers: []string{operatorHeader, "Origin: null"}, status: 403},
		{headers: []string{operatorHeader, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"}, status: 403},
		{headers: []string{operatorHeader, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate"}, status: 403},
		{headers: []string{operatorHeader, "Content-Type: text/plain"}, status: 415},
		{headers: []string{operatorHeader, "Content-Type: application/x-www-form-urlencoded"}, status: 415},
		{headers: []string{operatorHeader, "Content-Type: "}, status: 415},
	} {
		f := newFixture(t, c.change)
		f.spend("api.hour", "key:customer-4711", 5)
		w := f.post(resetAllBody, c.headers...)
		if w.Code != c.status || f.used("hour") != 5 {
			t.Errorf("with %v: the response is %d %s, and %d units are used; want %d, and 5 units", c.headers, w.Code, w.Body, f.used("hour"), c.status)
		}
		tried++
		for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if w := f.send(method, resetPath, operatorHeader); w.Code != 405 && w.Code != 401 || f.used("hour") != 5 {
				t.Errorf("%s returns %d %s; want 401 or 405, and nothing reset", method, w.Code, w.Body)
			}
			tried++
		}
		for _, a := range f.audits {
			if a.Problem == "" || a.Result != audit.Refused || strings.Contains(fmt.Sprintf("%+v", a), "customer") {
				t.Errorf("%v: the audit line is %+v; want a refusal without the identity", c.headers, a)
			}
		}
	}
	t.Logf("counted: %d requests that reset nothing", tried)
}

func TestMalformedResetsAreRejected(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:customer-4711", 5)
	for body, want := range map[string]string{
		"":                                       "400 the body is not of the form",
		"[]":                                     "400 the body is not of the form",
		resetAllBody + resetAllBody:              "400 the body is not of the form",
		resetAllBody + "]":                       "400 the body is not of the form",
		resetAllBody + "}":                       "400 the body is not of the form",
		`{"key": "key:a", "reason": "r", "x":1}`: "400 the body is not of the form",
		`{"key": "key:a"}`:                       "400 the reason must have",
		`{"key": "key:a", "reason": " "}`:        "400 the reason must have",
		`{"key": "key:a", "reason": "a\nb"}`:     "400 the reason must have",
		`{"key": "key:a", "reason": "` + strings.Repeat("x", 201) + `"}`: "400 the reason must have",
		`{"reason": "r"}`: "400 name one key",
		`{"key": "key:a", "ref": "b", "reason": "r"}`:                      "400 name one key",
		`{"key": "key:a", "limit": "hour", "reason": "r"}`:                 "400 limit is given without its rule",
		`{"key": "key:a", "rule": "x", "reason": "r"}`:                     "404 no such limit",
		`{"key": "key:a", "rule": "api", "limit": "x", "reason": "r"}`:     "404 no such limit",
		`{"ref": "0123456789abcdef", "reason": "r"}`:                       "404 no offender",
		`{"key": "` + strings.Repeat("x", 2*maxBody) + `", "reason": "r"}`: "400 the body",
	} {
		w := f.post(body, operatorHeader)
		status, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(w.Code) != status || !strings.Contains(w.Body.String(), text) {
			t.Errorf("the reset %.60s returns %d %s; want %s", body, w.Code, w.Body, want)
		}
	}
	if f.used("hour") != 5 {
		t.Errorf("after malformed resets, %d units are used; want 5", f.used("hour"))
	}
}

// While the store fails, a reset fails too: a fallback would only reset the counters of this
// instance.
func TestResetNeedsTheStore(t *testing.T) {
	failing := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("no answer"))
	})
	local := penstock.Wrap(failing, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailLocal, Instances: func() int { return 1 }}))
	for _, store := range []penstock.Store{failing, local} {
		f := newFixture(t, func(o *Options) { o.Store = store })
		if w := f.post(resetAllBody, operatorHeader); w.Code != 503 || len(f.audits) != 1 || f.audits[0].Problem == "" {
			t.Errorf("the response is %d %s, and the audit lines are %+v; want 503, and one line with the problem", w.Code, w.Body, f.audits)
		}
	}
}

// No counter has a masked key, so the numbers of such a key would always be 0.
func TestMaskedKeysAreRejected(t *testing.T) {
	f := newFixture(t, withDenials)
	for _, name := range []string{"key:customer-4711", "ip:192.0.2.1"} {
		const isOperator = false
		masked := f.masks.Of(isOperator, name)
		for _, path := range []string{"key?key=", "denials?key="} {
			if w := f.get(path+url.QueryEscape(masked), operatorHeader); w.Code != 400 || !strings.Contains(w.Body.String(), "use its ref") {
				t.Errorf("%s%s returns %d %s; want 400 with the advice to use the ref", path, masked, w.Code, w.Body)
			}
		}
		if w := f.post(fmt.Sprintf(`{"key": %q, "reason": "r"}`, masked), operatorHeader); w.Code != 400 || !strings.Contains(w.Body.String(), "use its ref") {
			t.Errorf("the reset of %s returns %d %s; want 400 with the advice to use the ref", masked, w.Code, w.Body)
		}
	}
}

// No body causes a 500, and no body resets a key without the token.
func FuzzResets(f *testing.F) {
	x := newFixture(f, nil)
	for _, body := range []string{`{"key": "key:abc", "reason": "r"}`, `{"ref": "0", "reason": "r"}`, `{"key": "ip:\u0000", "rule": "api", "limit": "hour", "reason": "r"}`, `[]`, `{`, "\xff"} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if w := x.post(body, operatorHeader); w.Code >= 500 {
			t.Errorf("the body %q gets %d %s; want a status below 500", body, w.Code, w.Body)
		}
		if w := x.post(body); w.Code != 401 {
			t.Errorf("without the token, the body %q gets %d %s; want 401", body, w.Code, w.Body)
		}
	})
}
