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

// headersByStatus sends requests with these headers, one for each status. The upstream responds
// with 200, and the Gate with all other statuses. headersByStatus returns the headers of the
// responses by status.
func headersByStatus(t *testing.T, cors string, headers ...string) map[int]http.Header {
	t.Helper()
	gate, _ := gateWith(t, newFailingStore(memstore.New(memstore.Options{})), strings.ReplaceAll(corsPolicy, "%", cors))
	h := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "the upstream's own")
	}))
	responses := make(map[int]http.Header)
	for _, c := range []struct {
		target string
		status int
		header []string
	}{
		{target: "/once", status: 200},
		{target: "/once", status: 429},
		{target: "/closed", status: 503},
		{target: "/a%00", status: 400},
		{target: "/", status: 403, header: []string{"X-Banned", "yes"}},
	} {
		w := send(h, "GET", c.target, append(c.header, headers...)...)
		if w.Code != c.status {
			t.Fatalf("%s: status %d; want %d", c.target, w.Code, c.status)
		}
		responses[c.status] = w.Header()
	}
	return responses
}

func TestPagesOfAllowedOriginsCanReadDenials(t *testing.T) {
	const app = "https://app.example.com"
	for _, c := range []struct {
		name, cors         string
		headers            []string // of the request
		origin, credential string   // the values of Access-Control-Allow-Origin and -Credentials
		vary               string   // the value of Vary
	}{
		{name: "named", cors: "origins: [https://other.example, " + app + "]", headers: []string{"Origin", app}, origin: app, vary: "Origin"},
		{name: "credentials", cors: "origins: " + app + ", credentials: true", headers: []string{"Origin", app}, origin: app, credential: "true", vary: "Origin"},
		{name: "any", cors: `origins: "*"`, headers: []string{"Origin", app}, origin: "*"},
		{name: "not named", cors: "origins: " + app, headers: []string{"Origin", "https://app.example.com.evil.example"}, vary: "Origin"},
		{name: "scheme", cors: "origins: " + app + ", credentials: true", headers: []string{"Origin", "http://app.example.com"}, vary: "Origin"},
		{name: "null", cors: "origins: " + app, headers: []string{"Origin", "null"}, vary: "Origin"},
		{name: "two", cors: "origins: " + app, headers: []string{"Origin", app, "Origin", app}, vary: "Origin"},
		{name: "no origin", cors: "origins: " + app, vary: "Origin"},
	} {
		for status, h := range headersByStatus(t, c.cors, c.headers...) {
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
				t.Errorf("%s: the response with status %d exposes the headers %q; want %q", c.name, status, got, want)
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
		gate, _ := memoryGate(t, "http: {headers: ["+headers+"], cors: {origins: https://a.example, expose: X-Request-Id}}\nrules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
		h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for _, status := range []int{200, 429} {
			w := send(h, "GET", "/", "Origin", "https://a.example")
			if got := w.Header().Get("Access-Control-Expose-Headers"); w.Code != status || got != want {
				t.Errorf("headers %s: the response has status %d and exposes the headers %q; want status %d and %q", headers, w.Code, got, status, want)
			}
		}
	}
}

func TestPagesCanReadCustomDenials(t *testing.T) {
	controller := memoryController(t, "http: {cors: {origins: https://a.example}}\nrules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
	gate, err := httplimit.New(controller, httplimit.Options{
		Rejected: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) })})
	if err != nil {
		t.Fatal(err)
	}
	h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	send(h, "GET", "/", "Origin", "https://a.example")
	if w := send(h, "GET", "/", "Origin", "https://a.example"); w.Code != 418 || w.Header().Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("the handler's response has status %d and the headers %v; want 418 with the allowed origin", w.Code, w.Header())
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Origin", "https://a.example")
	own := make(http.Header)
	if gate.AllowOrigin(own, r); own.Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("AllowOrigin sets the headers %v; want the allowed origin", own)
	}
}

// A browser sends a preflight before each request that is not simple. The page cannot prevent the
// preflight, and the preflight has no credentials.
func TestPreflightsAreFree(t *testing.T) {
	gate, seen := memoryGate(t, `
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
			t.Fatalf("a preflight got status %d and the headers %v; want 200 without RateLimit", w.Code, w.Header())
		}
	}
	if served != 3 || seen.count(admission.Unlimited) != 3 {
		t.Errorf("%d preflights reached the handler, and %d were unlimited; want 3 and 3", served, seen.count(admission.Unlimited))
	}
	for _, c := range []struct {
		method, target string
		header         []string
		first, second  int // statuses of two equal requests
	}{
		{method: "POST", target: "/a", header: preflight, first: 200, second: 429},          // the three preflights were not charged
		{method: "OPTIONS", target: "/a", header: preflight[:2], first: 429, second: 429},   // without Access-Control-Request-Method
		{method: "OPTIONS", target: "/a", header: preflight[2:], first: 429, second: 429},   // without Origin
		{method: "OPTIONS", target: "/options", header: preflight, first: 200, second: 429}, // the rule limits the method OPTIONS
		{method: "OPTIONS", target: "/a", header: append(preflight, "Authorization", "Bearer x"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "Proxy-Authorization", "Basic eDp4"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "Cookie", "a=b"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-API-Key", "k"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-Token", "t"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-Plan", "p"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-Banned", "no"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-HTTP-Method-Override", "POST"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-HTTP-Method", "POST"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "X-Method-Override", "POST"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "Access-Control-Request-Method", "GET"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "Transfer-Encoding", "chunked"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: []string{"Origin", "", "Access-Control-Request-Method", "POST"}, first: 429, second: 429},
		{method: "GET", target: "/a", header: preflight, first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "Origin", "https://b.example"), first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: []string{"Origin", "https://a.example", "Access-Control-Request-Method", ""}, first: 429, second: 429},
		{method: "OPTIONS", target: "/a", header: append(preflight, "User-Agent", "x", "Accept", "*/*"), first: 200, second: 200},
	} {
		for _, want := range []int{c.first, c.second} {
			if w := send(h, c.method, c.target, c.header...); w.Code != want {
				t.Errorf("%s %s %v: status %d; want %d", c.method, c.target, c.header, w.Code, want)
			}
		}
	}
	for _, size := range []int64{1, -1} { // bytes; -1 is a chunked body
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
