package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// With corsPolicy, the Gate itself responds with 429, 403, 400 and, if the store fails, with 503.
// The cors settings replace the %.
const corsPolicy = `
identities: {client: {key: header X-API-Key}}
deny: {header X-Banned: "yes"}
http: {cors: {%}}
rules:
  - {name: once, match: {path: /once}, per: global, limits: [{rate: 1/h, headers: true}]}
  - {name: closed, match: {path: /closed}, per: global, limits: [{rate: 9/h, on_failure: closed, algorithm: fixed-window}]}
`

// newFailingStore returns a store that fails unless the limit is a token bucket.
func newFailingStore(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if charges[0].Plan.Algorithm().Name() != penstock.TokenBucket.Name() {
			return penstock.Decision{}, penstock.ErrUnavailable
		}
		return store.Decide(ctx, charges)
	})
}

// responsesByStatus sends requests that get one response of each status: 200 from the upstream, all
// others from the Gate. It returns the headers of the responses. headers are added to each request.
func responsesByStatus(t *testing.T, cors string, headers ...string) map[int]http.Header {
	t.Helper()
	gate, _ := gateOn(t, newFailingStore(memstore.New(memstore.Options{})), strings.ReplaceAll(corsPolicy, "%", cors))
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "the upstream's own")
	}))
	responses := make(map[int]http.Header)
	for _, c := range []struct {
		target string
		status int
		header []string
	}{
		{"/once", 200, nil}, {"/once", 429, nil}, {"/closed", 503, nil}, {"/a%00", 400, nil}, {"/", 403, []string{"X-Banned", "yes"}},
	} {
		w := send(h, "GET", c.target, append(c.header, headers...)...)
		if w.Code != c.status {
			t.Fatalf("%s: %d; want %d", c.target, w.Code, c.status)
		}
		responses[c.status] = w.Header()
	}
	return responses
}

func TestPagesOfAllowedOriginsCanReadDenials(t *testing.T) {
	const app = "https://app.example.com"
	for _, c := range []struct {
		name, cors         string
		headers            []string
		origin, credential string // as the Gate allows them
		vary               string
	}{
		{"named", "origins: [https://other.example, " + app + "]", []string{"Origin", app}, app, "", "Origin"},
		{"credentials", "origins: " + app + ", credentials: true", []string{"Origin", app}, app, "true", "Origin"},
		{"any", `origins: "*"`, []string{"Origin", app}, "*", "", ""},
		{"not named", "origins: " + app, []string{"Origin", "https://app.example.com.evil.example"}, "", "", "Origin"},
		{"scheme", "origins: " + app + ", credentials: true", []string{"Origin", "http://app.example.com"}, "", "", "Origin"},
		{"null", "origins: " + app, []string{"Origin", "null"}, "", "", "Origin"},
		{"two", "origins: " + app, []string{"Origin", app, "Origin", app}, "", "", "Origin"},
		{"no origin", "origins: " + app, nil, "", "", "Origin"},
	} {
		for status, h := range responsesByStatus(t, c.cors, c.headers...) {
			if status == 200 {
				if got := h["Access-Control-Allow-Origin"]; len(got) != 1 || got[0] != "the upstream's own" {
					t.Errorf("%s: the upstream's response allows %q; want the upstream's own value", c.name, got)
				}
			} else if h.Get("Access-Control-Allow-Origin") != c.origin || h.Get("Access-Control-Allow-Credentials") != c.credential || h.Get("Vary") != c.vary {
				t.Errorf("%s: the headers of status %d are %v; want the origin %q, the credentials %q, and Vary %q", c.name, status, h, c.origin, c.credential, c.vary)
			}
			want := ""
			if c.origin != "" {
				want = "RateLimit, RateLimit-Policy, Retry-After"
			}
			if got := h.Get("Access-Control-Expose-Headers"); got != want {
				t.Errorf("%s: %d exposes %q; want %q", c.name, status, got, want)
			}
		}
	}
}

func TestPagesCanReadTheHeadersOfEachDialect(t *testing.T) {
	for headers, want := range map[string]string{
		"draft-07": "X-Request-Id, RateLimit, RateLimit-Policy, Retry-After",
		"draft-06": "X-Request-Id, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy, Retry-After",
		"x-ratelimit, draft-11": "X-Request-Id, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, RateLimit, RateLimit-Policy, " +
			"Retry-After",
		"none": "X-Request-Id, Retry-After",
	} {
		gate, _ := gateOf(t, "http: {headers: ["+headers+"], cors: {origins: https://a.example, expose: X-Request-Id}}\nrules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
		h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, status := range []int{200, 429} {
			w := send(h, "GET", "/", "Origin", "https://a.example")
			if got := w.Header().Get("Access-Control-Expose-Headers"); w.Code != status || got != want {
				t.Errorf("%s: %d exposes %q; want %d, %q", headers, w.Code, got, status, want)
			}
		}
	}
}

func TestPagesCanReadCustomDenials(t *testing.T) {
	rules := rulesOf(t, "http: {cors: {origins: https://a.example}}\nrules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
	gate, err := httplimit.New(memstore.New(memstore.Options{}), func() *policy.Rules { return rules }, httplimit.Options{
		Rejected: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) })})
	if err != nil {
		t.Fatal(err)
	}
	h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	send(h, "GET", "/", "Origin", "https://a.example")
	if w := send(h, "GET", "/", "Origin", "https://a.example"); w.Code != 418 || w.Header().Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("%d %v; want 418 with the origin", w.Code, w.Header())
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Origin", "https://a.example")
	own := make(http.Header)
	if gate.AllowOrigin(own, r); own.Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("a response of the proxy has %v; want the origin", own)
	}
}

// A browser sends a preflight before each request that is not simple. The page cannot prevent the
// preflight, and the preflight has no credentials.
func TestPreflightsAreFree(t *testing.T) {
	gate, seen := gateOf(t, `
identities: {client: {key: header X-API-Key}}
tokens: {secret: "a secret of thirty-two bytes or more", header: X-Token, audience: api}
tiers: {gold: {header X-Plan: [a-long-plan]}, free: default}
deny: [{ip: 203.0.113.0/24}, {header X-Banned: "yes"}]
rules:
  - {name: all, per: ip, limits: [{rate: 1/h}]}
  - {name: options, match: {path: /options, method: OPTIONS}, per: ip, limits: [{rate: 1/h}]}
`)
	served := 0
	h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	preflight := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST"}
	for range 3 {
		if w := send(h, "OPTIONS", "/a", preflight...); w.Code != 200 || w.Header().Get("RateLimit") != "" {
			t.Fatalf("a preflight got %d %v; want 200 without RateLimit", w.Code, w.Header())
		}
	}
	if served != 3 || seen.count(admission.Unlimited) != 3 {
		t.Errorf("%d preflights were passed on, %d of them unlimited; want 3", served, seen.count(admission.Unlimited))
	}
	for _, c := range []struct {
		method, target string
		header         []string
		first, second  int // statuses of two equal requests
	}{
		{"POST", "/a", preflight, 200, 429},          // nothing was charged before
		{"OPTIONS", "/a", preflight[:2], 429, 429},   // not a preflight
		{"OPTIONS", "/a", preflight[2:], 429, 429},   // not a preflight
		{"OPTIONS", "/options", preflight, 200, 429}, // the rule names the method
		{"OPTIONS", "/a", append(preflight, "Authorization", "Bearer x"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "Proxy-Authorization", "Basic eDp4"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "Cookie", "a=b"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-API-Key", "k"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-Token", "t"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-Plan", "p"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-Banned", "no"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-HTTP-Method-Override", "POST"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-HTTP-Method", "POST"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "X-Method-Override", "POST"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "Access-Control-Request-Method", "GET"), 429, 429},
		{"OPTIONS", "/a", append(preflight, "Transfer-Encoding", "chunked"), 429, 429},
		{"OPTIONS", "/a", []string{"Origin", "", "Access-Control-Request-Method", "POST"}, 429, 429},
		{"GET", "/a", preflight, 429, 429},
		{"OPTIONS", "/a", append(preflight, "Origin", "https://b.example"), 429, 429},
		{"OPTIONS", "/a", []string{"Origin", "https://a.example", "Access-Control-Request-Method", ""}, 429, 429},
		{"OPTIONS", "/a", append(preflight, "User-Agent", "x", "Accept", "*/*"), 200, 200},
	} {
		for _, want := range []int{c.first, c.second} {
			if w := send(h, c.method, c.target, c.header...); w.Code != want {
				t.Errorf("%s %s %v: %d; want %d", c.method, c.target, c.header, w.Code, want)
			}
		}
	}
	for _, size := range []int64{1, -1} { // -1 is a chunked body
		r := httptest.NewRequest("OPTIONS", "/a", strings.NewReader("x"))
		r.Header = http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"POST"}}
		r.ContentLength = size
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 429 {
			t.Errorf("a preflight with a body of size %d got %d; want 429", size, w.Code)
		}
	}
	r := httptest.NewRequest("OPTIONS", "/a", nil)
	r.Header = http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"POST"}}
	r.RemoteAddr = "203.0.113.9:1"
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 403 {
		t.Errorf("a preflight of a client on the deny list got %d; want 403", w.Code)
	}
}
