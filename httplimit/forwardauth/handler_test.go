package forwardauth_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/spellings"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	p, err := policyfile.Parse("test.yaml", []byte(text), nil, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Rules
}

// newStoppedStore returns a store in memory whose clock does not run.
func newStoppedStore() penstock.Store {
	now := time.Unix(1_800_000_000, 0)
	return memstore.New(memstore.Options{Now: func() time.Time { return now }})
}

func controllerOf(t testing.TB, store penstock.Store, rules policy.RuleSource, o admission.Options) *admission.Controller {
	t.Helper()
	c, err := admission.New(store, rules, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func handlerOf(t testing.TB, store penstock.Store, text string, o admission.Options) *forwardauth.Handler {
	t.Helper()
	return handlerOn(t, controllerOf(t, store, rulesOf(t, text), o), forwardauth.Options{})
}

func handlerOn(t testing.TB, c *admission.Controller, o forwardauth.Options) *forwardauth.Handler {
	t.Helper()
	h, err := forwardauth.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// gateOf returns an httplimit.Gate with the same rules, to which the Handler is compared.
func gateOf(t testing.TB, store penstock.Store, text string) http.Handler {
	t.Helper()
	gate, err := httplimit.New(controllerOf(t, store, rulesOf(t, text), admission.Options{}), httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

// An originalRequest is a request that a proxy describes to an endpoint. from is the value of
// X-Forwarded-For: the client's address, and those of proxies.
type originalRequest struct{ method, host, uri, from string }

// encodings has a function for each endpoint, and two for Request. A function returns the
// subrequest by which a proxy describes a request to that endpoint.
var encodings = map[string]func(original originalRequest) (method, target, host string, header []string){
	"/auth/forward": func(original originalRequest) (string, string, string, []string) {
		return "GET", "/auth/forward", "limiter", []string{"X-Forwarded-Method", original.method, "X-Forwarded-Uri", original.uri, "X-Forwarded-Host", original.host, "X-Forwarded-Proto", "https",
			"X-Forwarded-For", original.from}
	},
	"/auth/request": func(original originalRequest) (string, string, string, []string) {
		return "GET", "/auth/request", "limiter", []string{"X-Original-Method", original.method, "X-Original-URI", original.uri, "X-Forwarded-Host", original.host, "X-Forwarded-For", original.from}
	},
	"/auth/request with a URL": func(original originalRequest) (string, string, string, []string) {
		return "GET", "/auth/request", "limiter", []string{"X-Original-Method", original.method, "X-Original-URL", "https://" + original.host + original.uri, "X-Forwarded-For", original.from}
	},
	"/auth/ext": func(original originalRequest) (string, string, string, []string) {
		return original.method, "/auth/ext" + original.uri, original.host, []string{"X-Forwarded-For", original.from}
	},
}

// sendFromProxy sends a request from a trusted proxy. The strings in header are names and values in
// turn.
func sendFromProxy(h http.Handler, method, target, host string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// send sends an endpoint the subrequest that describes a request, with further headers.
func send(h http.Handler, endpoint string, original originalRequest, header ...string) *httptest.ResponseRecorder {
	method, target, host, described := encodings[endpoint](original)
	return sendFromProxy(h, method, target, host, append(described, header...)...)
}

// clientStatus returns the status that the proxy sends to its client.
func clientStatus(t testing.TB, endpoint string, w *httptest.ResponseRecorder) (status string) {
	t.Helper()
	status = fmt.Sprint(w.Code)
	statusHeader := w.Header()["X-Ratelimit-Status"]
	if !strings.HasPrefix(endpoint, "/auth/request") || w.Code == 200 {
		if statusHeader != nil {
			t.Errorf("%s: status %d with X-RateLimit-Status %v; want no such header", endpoint, w.Code, statusHeader)
		}
		return status
	}
	if w.Code != 403 || len(statusHeader) != 1 {
		t.Errorf("%s: status %d with X-RateLimit-Status %v; want 403 with the status, because nginx treats only 403 as a denial", endpoint, w.Code, statusHeader)
		return status
	}
	return statusHeader[0]
}

const ridePolicy = `
http: {trusted_proxies: [192.0.2.1]}
rules:
  - {name: ride, match: {method: POST, host: api.example.com, path: /api/rides/request}, per: ip, limits: [{rate: 2/h}]}
  - {name: list, match: {path: /list}, per: {key: query token}, limits: [{rate: 2/h}]}
`

func TestTheDescribedRequestIsLimited(t *testing.T) {
	post := originalRequest{method: "POST", host: "api.example.com", uri: "/api/rides/request", from: "203.0.113.9"}
	for endpoint := range encodings {
		t.Run(endpoint, func(t *testing.T) {
			h := handlerOf(t, newStoppedStore(), ridePolicy, admission.Options{})
			for i, want := range []string{`"ride.hour";r=1;t=1800`, `"ride.hour";r=0;t=1800`} {
				w := send(h, endpoint, post)
				if w.Code != 200 || w.Header().Get("RateLimit") != want || w.Header().Get("RateLimit-Policy") != `"ride.hour";q=2;w=3600` || w.Body.Len() > 0 {
					t.Errorf("request %d: status %d, headers %v, body %q; want 200 with RateLimit %s and no body", i+1, w.Code, w.Header(), w.Body, want)
				}
			}
			w := send(h, endpoint, post)
			if got := clientStatus(t, endpoint, w); got != "429" || w.Header().Get("Retry-After") != "1800" {
				t.Errorf("request 3: status %s, headers %v; want 429 with Retry-After 1800", got, w.Header())
			}
			for what, original := range map[string]originalRequest{
				"another method": {method: "GET", host: post.host, uri: post.uri, from: post.from},
				"another host":   {method: post.method, host: "else.example.com", uri: post.uri, from: post.from},
				"another path":   {method: post.method, host: post.host, uri: "/else", from: post.from},
				"another client": {method: post.method, host: post.host, uri: post.uri, from: "203.0.113.10"},
			} {
				if w := send(h, endpoint, original); w.Code != 200 {
					t.Errorf("%s: status %d, body %s; want 200, because the limit does not apply", what, w.Code, w.Body)
				}
			}
			for i, want := range []string{"200", "200", "429"} {
				if got := clientStatus(t, endpoint, send(h, endpoint, originalRequest{method: "GET", host: "a", uri: "/list?token=x", from: post.from})); got != want {
					t.Errorf("request %d with a query: status %s; want %s", i+1, got, want)
				}
			}
		})
	}
}

func TestIncompleteOrAmbiguousDescriptionsAreMalformed(t *testing.T) {
	forward := []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/list", "X-Forwarded-Host", "a"}
	request := []string{"X-Original-Method", "GET", "X-Original-URI", "/list", "X-Forwarded-Host", "a"}
	byURL := []string{"X-Original-Method", "GET", "X-Original-URL", "https://a/list"}
	// replace changes the value of a header; "" removes it.
	replace := func(header []string, name, value string) (changed []string) {
		for i := 0; i < len(header); i += 2 {
			switch {
			case header[i] != name:
				changed = append(changed, header[i], header[i+1])
			case value != "":
				changed = append(changed, name, value)
			}
		}
		return changed
	}
	add := func(header []string, more ...string) []string { return append(slices.Clone(header), more...) }
	rejected := 0
	for _, c := range []struct {
		target string
		header []string
		want   string // in the body; "" if the description is complete
	}{
		{target: "/auth/forward", header: forward},
		{target: "/auth/forward?x=1", header: forward}, // Caddy appends the query
		{target: "/auth/request", header: request},
		{target: "/auth/request", header: byURL},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "http://a:8080/list")},
		{target: "/auth/ext/list"},

		{target: "/auth/forward", want: "X-Forwarded-Method is missing"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Method", ""), want: "X-Forwarded-Method is missing"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", ""), want: "X-Forwarded-Uri is missing"},
		{target: "/auth/forward", header: add(replace(forward, "X-Forwarded-Uri", ""), "X-Forwarded-Uri", ""), want: "X-Forwarded-Uri is missing"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Host", ""), want: "X-Forwarded-Host is missing"},
		{target: "/auth/request", want: "X-Original-Method is missing"},
		{target: "/auth/request", header: replace(request, "X-Original-URI", ""), want: "X-Original-Uri is missing"},
		{target: "/auth/request", header: replace(request, "X-Forwarded-Host", ""), want: "X-Forwarded-Host is missing"},
		{target: "/auth/ext", want: "path of the request is missing"},
		{target: "/auth/ext?x=1", want: "path of the request is missing"},
		{target: "/%61uth/ext/list", want: "path of the request is missing"},

		{target: "/auth/forward", header: add(forward, "X-Forwarded-Uri", "/free"), want: "X-Forwarded-Uri is set 2 times"},
		{target: "/auth/forward", header: add(forward, "X-Forwarded-Uri", "/list"), want: "X-Forwarded-Uri is set 2 times"},
		{target: "/auth/forward", header: add(forward, "X-Forwarded-Method", "PUT"), want: "X-Forwarded-Method is set 2 times"},
		{target: "/auth/forward", header: add(forward, "X-Forwarded-Host", "b"), want: "X-Forwarded-Host is set 2 times"},
		{target: "/auth/request", header: add(request, "X-Original-URI", "/free"), want: "X-Original-Uri is set 2 times"},
		{target: "/auth/request", header: add(request, "X-Original-Method", "PUT"), want: "X-Original-Method is set 2 times"},
		{target: "/auth/request", header: add(request, "X-Forwarded-Host", "b"), want: "X-Forwarded-Host is set 2 times"},
		{target: "/auth/request", header: add(byURL, "X-Original-URL", "https://a/free"), want: "X-Original-Url is set 2 times"},
		{target: "/auth/request", header: add(request, "X-Original-URL", "https://a/list"), want: "are both set"},

		{target: "/auth/forward", header: add(forward, "X-Original-URI", "/free"), want: "X-Original-Uri does not belong to /auth/forward"},
		{target: "/auth/forward", header: add(forward, "X-Original-URL", "https://a/free"), want: "X-Original-Url does not belong"},
		{target: "/auth/forward", header: add(forward, "X-Original-Method", "PUT"), want: "X-Original-Method does not belong"},
		{target: "/auth/request", header: add(request, "X-Forwarded-Uri", "/free"), want: "X-Forwarded-Uri does not belong to /auth/request"},
		{target: "/auth/request", header: add(request, "X-Forwarded-Method", "PUT"), want: "X-Forwarded-Method does not belong"},
		{target: "/auth/request", header: add(byURL, "X-Forwarded-Uri", "/free"), want: "X-Forwarded-Uri does not belong"},
		{target: "/auth/ext/list", header: []string{"X-Forwarded-Uri", "/free"}, want: "X-Forwarded-Uri does not belong to /auth/ext"},
		{target: "/auth/ext/list", header: []string{"X-Original-URI", "/free"}, want: "X-Original-Uri does not belong"},
		{target: "/auth/ext/list", header: []string{"X-Original-URL", "/free"}, want: "X-Original-Url does not belong"},
		{target: "/auth/ext/list", header: []string{"X-Forwarded-Method", "PUT"}, want: "X-Forwarded-Method does not belong"},
		{target: "/auth/ext/list", header: []string{"X-Original-Method", "PUT"}, want: "X-Original-Method does not belong"},

		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "list"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "*"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "?x=1"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "https://a/list"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "/list, /free"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "/list\x7f"), want: "not a path"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "/list%zz"), want: "not a path"},
		{target: "/auth/request", header: replace(request, "X-Original-URI", "https://a/list"), want: "not a path"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "/list"), want: "not a URL"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "https://a"), want: "not a URL"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "https:///list"), want: "not a URL"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "ftp://a/list"), want: "not a URL"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "https://b@a/list"), want: "host is malformed"},
		{target: "/auth/request", header: replace(byURL, "X-Original-URL", "https://a?x=/list"), want: "host is malformed"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Uri", "/a%2Flist"), want: "is a slash to some servers only"},
		{target: "/auth/ext/a%2Flist", want: "is a slash to some servers only"},
		{target: "/auth/ext%2Flist", want: "does not begin with a slash"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Host", "a, b"), want: "host is malformed"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Method", "get"), want: "in upper case"},
		{target: "/auth/forward", header: replace(forward, "X-Forwarded-Method", "GET, PUT"), want: "method is malformed"},
	} {
		var outcomes []admission.Outcome
		h := handlerOf(t, newStoppedStore(), ridePolicy, admission.Options{Observe: func(e *admission.Event) { outcomes = append(outcomes, e.Outcome) }})
		w := sendFromProxy(h, "GET", c.target, "a", c.header...)
		got, want := clientStatus(t, c.target, w), "200"
		if c.want != "" {
			rejected++
			want = "400"
			if !reflect.DeepEqual(outcomes, []admission.Outcome{admission.Malformed}) {
				t.Errorf("%s %q: observed %v; want one malformed request", c.target, c.header, outcomes)
			}
		}
		if got != want || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %q: status %s, body %s; want status %s and a body with %q", c.target, c.header, got, w.Body, want, c.want)
		}
	}
	t.Logf("counted: %d descriptions that are rejected", rejected)
}

func TestDescriptionsOfUntrustedProxiesAreRejected(t *testing.T) {
	for endpoint := range encodings {
		// Go gives "@" as the address of a peer on a Unix socket.
		for peer, name := range map[string]string{"198.51.100.7:4711": "198.51.100.7", "[2001:db8::7]:1": "2001:db8::7", "@": "unix", "": "unix", "198.51.100.8": "198.51.100.8"} {
			var outcomes []admission.Outcome
			var texts []string
			controller := controllerOf(t, newStoppedStore(), rulesOf(t, ridePolicy),
				admission.Options{Observe: func(e *admission.Event) { outcomes = append(outcomes, e.Outcome) }})
			h := handlerOn(t, controller, forwardauth.Options{Misused: func(err error) { texts = append(texts, err.Error()) }})
			// X-Forwarded-For names a proxy that is trusted, but the connection does not come from it.
			method, target, host, header := encodings[endpoint](originalRequest{method: "GET", host: "a", uri: "/list?token=x", from: "192.0.2.1"})
			r := httptest.NewRequest(method, target, nil)
			r.Host, r.RemoteAddr = host, peer
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			const remedy = "add it to http.trusted_proxies of the policy"
			if got := clientStatus(t, endpoint, w); got != "403" || !strings.Contains(w.Body.String(), "if "+name+" is your proxy, "+remedy) {
				t.Errorf("%s from %q: status %s, body %s; want 403 with the remedy", endpoint, peer, got, w.Body)
			}
			if len(texts) != 1 || !strings.Contains(texts[0], remedy) || !reflect.DeepEqual(outcomes, []admission.Outcome{admission.Refused}) {
				t.Errorf("%s from %q: reported %q, observed %v; want one report and one rejection", endpoint, peer, texts, outcomes)
			}
		}
	}
}

// The client's address is the first one from the right that is not a trusted proxy's, as in
// Penstock's own proxy.
func TestClientAddressComesFromTrustedProxies(t *testing.T) {
	for endpoint := range encodings {
		h := handlerOf(t, newStoppedStore(), ridePolicy, admission.Options{})
		for i, from := range []string{"203.0.113.9", "198.51.100.1, 203.0.113.9", "203.0.113.9, 192.0.2.1", "203.0.113.9:4711"} {
			want := "200"
			if i >= 2 { // all addresses are one client, and its limit is 2/h
				want = "429"
			}
			if got := clientStatus(t, endpoint, send(h, endpoint, originalRequest{method: "POST", host: "api.example.com", uri: "/api/rides/request", from: from})); got != want {
				t.Errorf("%s: request %d, from %s: status %s; want %s", endpoint, i+1, from, got, want)
			}
		}
	}
}

// The handler decides each spelling of a path as the gate does. The test sends the bytes that a
// proxy would send.
func TestSpellingsOfOnePathShareOneCounter(t *testing.T) {
	const text = `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: ride, match: {path: ` + spellings.Path + `}, per: ip, limits: [{rate: 1/h}]}]
`
	targets := spellings.All()
	// send sends one request for each target, all over one connection. head returns the first lines
	// of a request.
	send := func(t *testing.T, h http.Handler, head func(target string) string) (statuses []string) {
		server := httptest.NewServer(h)
		defer server.Close()
		connection, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		responses := bufio.NewReader(connection)
		for _, target := range targets {
			io.WriteString(connection, head(target)+"X-Forwarded-For: 203.0.113.9\r\n\r\n")
			response, err := http.ReadResponse(responses, nil)
			if err != nil {
				t.Fatalf("%s: the error is %v; want a response", target, err)
			}
			io.Copy(io.Discard, response.Body)
			status := fmt.Sprint(response.StatusCode)
			if statusHeader := response.Header.Get("X-RateLimit-Status"); statusHeader != "" {
				status = statusHeader
			}
			statuses = append(statuses, status)
		}
		return statuses
	}
	want := send(t, gateOf(t, newStoppedStore(), text), func(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: a\r\n" })
	passed := 0
	for _, status := range want {
		if status == "200" {
			passed++
		}
	}
	if passed != 1 {
		t.Fatalf("the gate admits %d spellings; want 1", passed)
	}
	for endpoint := range encodings {
		t.Run(endpoint, func(t *testing.T) {
			got := send(t, handlerOf(t, newStoppedStore(), text, admission.Options{}), func(target string) string {
				method, subrequestTarget, host, header := encodings[endpoint](originalRequest{method: "GET", host: "a", uri: target})
				text := method + " " + subrequestTarget + " HTTP/1.1\r\nHost: " + host + "\r\n"
				for i := 0; i < len(header); i += 2 {
					if header[i] != "X-Forwarded-For" {
						text += header[i] + ": " + header[i+1] + "\r\n"
					}
				}
				return text
			})
			for i, target := range targets {
				if got[i] != want[i] {
					t.Errorf("%s: status %s; want %s, as from the gate", target, got[i], want[i])
				}
			}
			t.Logf("counted: %d spellings of one path", len(targets))
		})
	}
}

// A denial has the headers and the body that the gate would send.
func TestDenialsEqualThoseOfTheGate(t *testing.T) {
	for name, config := range map[string]string{
		"default":  "{trusted_proxies: [192.0.2.1]}",
		"dialects": "{trusted_proxies: [192.0.2.1], headers: [draft-11, draft-06, x-ratelimit], reset: seconds}",
		"template": `{trusted_proxies: [192.0.2.1], denied: {status: 420, body: '{"wait":{{.RetryAfter}}}'}}`,
		"cors":     `{trusted_proxies: [192.0.2.1], cors: {origins: "https://app.example.com"}}`,
	} {
		text := "http: " + config + `
deny: {header X-Banned: "yes"}
rules: [{name: api, match: {path: /api}, per: ip, limits: [{rate: 1/h}, {rate: 5/d}]}]
`
		for _, header := range [][]string{nil, {"Accept", "text/html"}, {"X-Banned", "yes"}} {
			header = append(header, "Origin", "https://app.example.com")
			gate := gateOf(t, newStoppedStore(), text)
			sendFromProxy(gate, "GET", "/api", "a", append(header, "X-Forwarded-For", "203.0.113.9")...)
			want := sendFromProxy(gate, "GET", "/api", "a", append(header, "X-Forwarded-For", "203.0.113.9")...)
			for endpoint := range encodings {
				h := handlerOf(t, newStoppedStore(), text, admission.Options{})
				api := originalRequest{method: "GET", host: "a", uri: "/api", from: "203.0.113.9"}
				send(h, endpoint, api, header...)
				got := send(h, endpoint, api, header...)
				if status := clientStatus(t, endpoint, got); status != fmt.Sprint(want.Code) || want.Code < 400 {
					t.Errorf("%s, %s %q: status %s; want %d, as from the gate, and 400 or more", name, endpoint, header, status, want.Code)
				}
				got.Header().Del("X-RateLimit-Status")
				if !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
					t.Errorf("%s, %s %q: the response has the headers and the body\n%v\n%s\nwant those of the gate\n%v\n%s", name, endpoint, header, got.Header(), got.Body, want.Header(), want.Body)
				}
			}
		}
	}
}

func TestAllMethodsAreDecided(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "DELETE", "PROPFIND"} {
		h := handlerOf(t, newStoppedStore(), "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, match: {method: "+method+"}, per: ip, limits: [{rate: 1/h}]}]}",
			admission.Options{})
		for i, want := range []string{"200", "429"} {
			w := send(h, "/auth/ext", originalRequest{method: method, host: "a", uri: "/", from: "203.0.113.9"})
			if got := clientStatus(t, "/auth/ext", w); got != want || method == "HEAD" && w.Body.Len() > 0 {
				t.Errorf("%s, request %d: status %s, body %s; want status %s, and no body for HEAD", method, i+1, got, w.Body, want)
			}
		}
		// At the other endpoints, the method of the proxy's own request does not matter.
		if w := sendFromProxy(h, method, "/auth/forward", "limiter", "X-Forwarded-Method", "BREW", "X-Forwarded-Uri", "/", "X-Forwarded-Host", "a"); w.Code != 200 {
			t.Errorf("%s /auth/forward: status %d; want 200", method, w.Code)
		}
	}
}

func TestOtherPathsAreNotFound(t *testing.T) {
	h := handlerOf(t, newStoppedStore(), ridePolicy, admission.Options{})
	for _, path := range []string{"/", "/auth", "/auth/", "/auth/forward/", "/auth/forward/a", "/auth/request/", "/auth/extra", "/auth/ex", "/x/auth/ext/a", "/auth//forward"} {
		if w := sendFromProxy(h, "GET", path, "a"); w.Code != 404 || forwardauth.IsEndpoint(path) {
			t.Errorf("%s: status %d, is an endpoint: %t; want 404 and false", path, w.Code, forwardauth.IsEndpoint(path))
		}
	}
	for _, path := range []string{"/auth/forward", "/auth/request", "/auth/ext", "/auth/ext/", "/auth/ext//a/../b"} {
		if !forwardauth.IsEndpoint(path) {
			t.Errorf("%s is not an endpoint; want IsEndpoint to return true", path)
		}
	}
}

// failToDecide is a store that is down.
func failToDecide(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Decision{}, fmt.Errorf("%w: the store is down", penstock.ErrUnavailable)
}

// hangUntilDone is a store that gives no answer until the request ends.
func hangUntilDone(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
	<-ctx.Done()
	return penstock.Decision{}, ctx.Err()
}

func TestEachLimitHasItsFailureMode(t *testing.T) {
	const text = `
http: {trusted_proxies: [192.0.2.1]}
rules:
  - {name: open, match: {path: /open}, per: ip, limits: [{rate: 1/h, on_failure: open}]}
  - {name: closed, match: {path: /closed}, per: ip, limits: [{rate: 1/h, on_failure: closed}]}
  - {name: local, match: {path: /local}, per: ip, limits: [{rate: 1/h}]}
`
	for endpoint := range encodings {
		h := handlerOf(t, penstock.StoreFunc(failToDecide), text, admission.Options{})
		for path, statuses := range map[string][]string{"/open": {"200", "200"}, "/closed": {"503", "503"}, "/local": {"200", "429"}} {
			for i, want := range statuses {
				w := send(h, endpoint, originalRequest{method: "GET", host: "a", uri: path, from: "203.0.113.9"})
				if got := clientStatus(t, endpoint, w); got != want || (got == "503") != (w.Header().Get("Retry-After") == "1") {
					t.Errorf("%s of %s, request %d: status %s, headers %v; want status %s, and Retry-After: 1 with 503 only", endpoint, path, i+1, got, w.Header(), want)
				}
				if path == "/open" && w.Header().Get("RateLimit") != "" {
					t.Errorf("%s of %s: RateLimit is %s; want none, because the request is not counted", endpoint, path, w.Header().Get("RateLimit"))
				}
			}
		}
		// If there is no decision, nginx also gets 503 rather than 403. nginx treats 503 as a failure of
		// this service, and its own failure mode applies.
		h = handlerOf(t, penstock.StoreFunc(hangUntilDone), text, admission.Options{})
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("the service shuts down"))
		method, target, host, header := encodings[endpoint](originalRequest{method: "GET", host: "a", uri: "/closed", from: "203.0.113.9"})
		r := httptest.NewRequestWithContext(ctx, method, target, nil)
		r.Host = host
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 503 || w.Header().Get("X-RateLimit-Status") != "" {
			t.Errorf("%s of a service that shuts down: status %d, headers %v; want 503 without X-RateLimit-Status", endpoint, w.Code, w.Header())
		}
	}
}

// A forbiddenBody is a body that must not be read. A test that reads it fails.
type forbiddenBody struct{ t *testing.T }

func (b forbiddenBody) Read([]byte) (int, error) {
	b.t.Error("the body is read; want it left alone")
	return 0, io.EOF
}
func (forbiddenBody) Close() error { return nil }

// The gate reads the body of a request that waits. The Handler must not read it.
func TestNoBodyIsRead(t *testing.T) {
	rules := rulesOf(t, "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, per: ip, limits: [{rate: 1000/s, burst: 1, max_wait: 1s}]}]}")
	controller := controllerOf(t, memstore.New(memstore.Options{}), rules, admission.Options{})
	h := handlerOn(t, controller, forwardauth.Options{})
	for endpoint := range encodings {
		for range 20 {
			method, target, host, header := encodings[endpoint](originalRequest{method: "POST", host: "a", uri: "/", from: "203.0.113.9"})
			r := httptest.NewRequest(method, target, nil)
			r.Host, r.Body, r.ContentLength = host, forbiddenBody{t}, 5
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 200 {
				t.Fatalf("%s: status %d, body %s; want 200", endpoint, w.Code, w.Body)
			}
		}
	}
	if n := controller.Waiting(); n != 0 {
		t.Errorf("%d requests wait after all have their responses; want 0", n)
	}
}

// A discardResponse keeps the header of a response, and discards its status and body.
type discardResponse http.Header

func (w discardResponse) Header() http.Header         { return http.Header(w) }
func (w discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w discardResponse) WriteHeader(int)             {}

func TestDescriptionsNeedFewAllocations(t *testing.T) {
	effort.SkipUnderRace(t)
	const text = "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: api, match: {path: /api/**}, per: {key: header X-API-Key}, limits: [{rate: 1M/s}]}]}"
	countAllocs := func(h http.Handler, r *http.Request) float64 {
		w := make(discardResponse)
		return testing.AllocsPerRun(1000, func() {
			clear(w)
			h.ServeHTTP(w, r)
		})
	}
	r := httptest.NewRequest("GET", "/api/things/1?x=1", nil)
	r.Header.Set("X-API-Key", "k")
	gateAllocs := countAllocs(gateOf(t, memstore.New(memstore.Options{}), text), r)
	for endpoint, maxMore := range map[string]float64{ // allocations beyond those of the gate
		"/auth/forward": 2, // the request and its URL
		"/auth/ext":     2,
		"/auth/request": 3, // also the nginxWriter
	} {
		h := handlerOf(t, memstore.New(memstore.Options{}), text, admission.Options{})
		method, target, host, header := encodings[endpoint](originalRequest{method: "GET", host: "a", uri: "/api/things/1?x=1", from: "203.0.113.9"})
		r := httptest.NewRequest(method, target, nil)
		r.Host = host
		r.Header.Set("X-API-Key", "k")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if n := countAllocs(h, r); n > gateAllocs+maxMore {
			t.Errorf("%s: %v allocations, and the gate has %v; want at most %v more", endpoint, n, gateAllocs, maxMore)
		}
	}
}

func FuzzURI(f *testing.F) {
	for _, target := range spellings.All()[:20] {
		f.Add(target)
	}
	for _, odd := range []string{"", "*", "a:80", "//a/b", "///", "/\x00", "/%", "/?\n", "/#", "http://a/b", "/\xff"} {
		f.Add(odd)
	}
	h := handlerOf(f, newStoppedStore(), ridePolicy, admission.Options{})
	paths := rulesOf(f, ridePolicy).Spec().Paths
	f.Fuzz(func(t *testing.T, uri string) {
		got := sendFromProxy(h, "GET", "/auth/forward", "limiter", "X-Forwarded-Method", "GET", "X-Forwarded-Uri", uri, "X-Forwarded-Host", "a").Code
		path, _, _ := strings.Cut(uri, "?")
		_, err := paths.Clean(path)
		isClean := strings.HasPrefix(uri, "/") && err == nil
		isExpected := got == 400 || isClean && (got == 200 || got == 429)
		if !isExpected {
			t.Errorf("X-Forwarded-Uri %q: status %d, and the path has the error %v; want 400, or 200 or 429 for a path without an error", uri, got, err)
		}
	})
}

// If reloaded rules cannot be enforced here, the old ones stay, and one error is reported.
func TestRulesThatNeedTheResponseAreInvalid(t *testing.T) {
	const trusted = "http: {trusted_proxies: [192.0.2.1]}\n"
	good := rulesOf(t, trusted+"rules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
	other := rulesOf(t, trusted+"rules: [{name: b, per: ip, limits: [{rate: 5/h}]}]")
	for limits, want := range map[string]string{
		"{rate: 5/h, on_status: 401}":                     "rule login, limit hour: on_status needs the status of the response",
		"{in_flight: 3}":                                  "in_flight needs the end of the request",
		"{rate: 5/h, cost: {actual: X-Tokens, units: 2}}": "cost.actual needs the header X-Tokens of the response",
		"{rate: 5/h, cost: {body: 1kB}}":                  "cost.body needs the size of the body",
		"{rate: 5/h, shadow: true, on_status: 401}":       "on_status",
	} {
		bad := rulesOf(t, trusted+"rules: [{name: ok, match: {path: /ok}, per: ip, limits: [{rate: 1/h}]}, {name: login, per: ip, limits: ["+limits+"]}]")
		err := forwardauth.Check(bad)
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rule login") || strings.Contains(err.Error(), "rule ok") {
			t.Errorf("%s: Check returns %v; want %q for the rule login only", limits, err, want)
		}
		if _, err := forwardauth.New(controllerOf(t, newStoppedStore(), bad, admission.Options{}), forwardauth.Options{}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: New returns %v; want an ErrInvalid", limits, err)
		}

		rules := good
		var reported []string
		controller := controllerOf(t, newStoppedStore(), rulesFunc(func() *policy.Rules { return rules }), admission.Options{})
		h := handlerOn(t, controller, forwardauth.Options{Misused: func(err error) { reported = append(reported, err.Error()) }})
		for i, step := range []struct {
			rules *policy.Rules
			want  string // in RateLimit-Policy
		}{{good, `"a.hour"`}, {bad, `"a.hour"`}, {bad, `"a.hour"`}, {nil, `"a.hour"`}, {other, `"b.hour"`}} {
			rules = step.rules
			w := send(h, "/auth/forward", originalRequest{method: "GET", host: "a", uri: "/", from: fmt.Sprintf("203.0.113.%d", i)})
			if got := w.Header().Get("RateLimit-Policy"); !strings.HasPrefix(got, step.want) {
				t.Errorf("%s, step %d: RateLimit-Policy is %s; want that of %s", limits, i+1, got, step.want)
			}
		}
		if len(reported) != 1 || !strings.Contains(reported[0], "rule login") {
			t.Errorf("%s: reported %q; want one error that names the rule login", limits, reported)
		}
	}
	if err := forwardauth.Check(other); err != nil {
		t.Errorf("rules that can be enforced: the error is %v; want no error", err)
	}
	if _, err := forwardauth.New(nil, forwardauth.Options{}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("without a controller: the error is %v; want an ErrInvalid", err)
	}
}

// A rulesFunc is a source of rules that change.
type rulesFunc func() *policy.Rules

func (f rulesFunc) Rules() *policy.Rules { return f() }

func TestRulesChangeUnderLoad(t *testing.T) {
	versions := [3]*policy.Rules{}
	for i, limits := range []string{"{rate: 1000000/h}", "{in_flight: 3}", "{rate: 2000000/h}"} {
		versions[i] = rulesOf(t, "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, per: ip, limits: ["+limits+"]}]}")
	}
	var mu sync.Mutex
	calls := 0
	controller := controllerOf(t, memstore.New(memstore.Options{}), rulesFunc(func() *policy.Rules {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return versions[calls/100%3] // the next version after each 100 calls
	}), admission.Options{})
	h := handlerOn(t, controller, forwardauth.Options{})
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 500 {
				w := send(h, "/auth/forward", originalRequest{method: "GET", host: "a", uri: "/", from: "203.0.113.9"})
				if w.Code != 200 || !strings.Contains(w.Header().Get("RateLimit-Policy"), "000000;") { // 1000000 or 2000000
					t.Errorf("status %d, headers %v, body %s; want 200 with the headers of valid rules", w.Code, w.Header(), w.Body)
				}
			}
		})
	}
	workers.Wait()
}

// With Check in the options, a file with rules that need the response is invalid, and a reload of
// it changes nothing.
func TestFilesWithRulesThatNeedTheResponseAreInvalid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(limits string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte("{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: login, per: ip, limits: ["+limits+"]}]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	options := policyfile.Options{Check: forwardauth.Check, Sections: []policyfile.Section{httplimit.DefaultConfig()}}
	write("{in_flight: 3}")
	if _, err := policyfile.Load(file, options); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "rule login") {
		t.Errorf("Load returns %v; want an ErrInvalid that names the rule", err)
	}
	write("{rate: 1/h}")
	reloads := make(chan error, 1)
	watcher, err := policyfile.Watch(file, policyfile.WatchOptions{Options: options, Notify: func(err error) { reloads <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	first := watcher.Rules()
	write("{in_flight: 3}")
	if err := <-reloads; !errors.Is(err, penstock.ErrInvalid) || watcher.Rules() != first {
		t.Errorf("the reload has the error %v, and the rules changed: %t; want an error and the old rules", err, watcher.Rules() != first)
	}
}

// Rules that match no request to the Handler may have any limits.
func TestRulesThatAreNotForProxiesMayHaveAnyLimits(t *testing.T) {
	for _, text := range []string{
		"rules: [{name: jobs, per: ip, limits: [{in_flight: 3}]}]", // no proxy is trusted, so no rule is used
		"{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: jobs, match: {descriptor kind: job}, per: {job: descriptor id}, limits: [{in_flight: 3}]}]}",
	} {
		if err := forwardauth.Check(rulesOf(t, text)); err != nil {
			t.Errorf("%s: the error is %v; want no error", text, err)
		}
	}
}

// The proxy forwards the request with all names. An application may read some names as another one.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	h := handlerOf(t, newStoppedStore(), `
http: {trusted_proxies: [192.0.2.1]}
deny: [{header X-API-Key: banned}, {query key: banned}]
rules: [{name: a, per: ip, limits: [{rate: 1000/h}]}]
`, admission.Options{})
	for endpoint := range encodings {
		for _, name := range spellings.Header("X-API-Key") {
			w := send(h, endpoint, originalRequest{"GET", "api.example.com", "/", "198.51.100.1"}, name, "banned")
			if status := clientStatus(t, endpoint, w); status != "400" || !strings.Contains(w.Body.String(), "X-API-Key") {
				t.Errorf("%s: a request with %s got %s %s; want 400 and the name X-API-Key", endpoint, name, status, w.Body)
			}
		}
		w := send(h, endpoint, originalRequest{"GET", "api.example.com", "/?key%00=banned", "198.51.100.1"})
		if status := clientStatus(t, endpoint, w); status != "400" {
			t.Errorf("%s: a request with a NUL in the name of a parameter got %s %s; want 400", endpoint, status, w.Body)
		}
		w = send(h, endpoint, originalRequest{"GET", "api.example.com", "/", "198.51.100.1"}, "X_Other", "banned")
		if status := clientStatus(t, endpoint, w); status != "200" {
			t.Errorf("%s: a request with a header that the policy does not read got %s %s; want 200", endpoint, status, w.Body)
		}
	}
}
