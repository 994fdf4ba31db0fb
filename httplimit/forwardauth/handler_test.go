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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/internal/spellings"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func rulesOf(t testing.TB, text string) *policy.Rules {
	t.Helper()
	config, err := policyfile.Parse("test.yaml", []byte(text), nil, policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.Compile()
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

func handlerOf(t testing.TB, store penstock.Store, text string, o forwardauth.Options) *forwardauth.Handler {
	t.Helper()
	rules := rulesOf(t, text)
	h, err := forwardauth.New(store, func() *policy.Rules { return rules }, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// gateOf returns an httplimit.Gate with the same rules, to which the Handler is compared.
func gateOf(t testing.TB, store penstock.Store, text string) http.Handler {
	t.Helper()
	rules := rulesOf(t, text)
	gate, err := httplimit.New(store, func() *policy.Rules { return rules }, httplimit.Options{HasFallback: true})
	if err != nil {
		t.Fatal(err)
	}
	return gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}

// A description is a request as a proxy describes it. from is the value of X-Forwarded-For: the
// client's address, and those of proxies.
type description struct{ method, host, uri, from string }

// encodings has a function for each endpoint, and two for Request. A function returns the
// subrequest by which a proxy describes a request to that endpoint.
var encodings = map[string]func(d description) (method, target, host string, header []string){
	forwardauth.Forward: func(d description) (string, string, string, []string) {
		return "GET", "/auth/forward", "limiter", []string{"X-Forwarded-Method", d.method, "X-Forwarded-Uri", d.uri, "X-Forwarded-Host", d.host, "X-Forwarded-Proto", "https",
			"X-Forwarded-For", d.from}
	},
	forwardauth.Request: func(d description) (string, string, string, []string) {
		return "GET", "/auth/request", "limiter", []string{"X-Original-Method", d.method, "X-Original-URI", d.uri, "X-Forwarded-Host", d.host, "X-Forwarded-For", d.from}
	},
	forwardauth.Request + " with a URL": func(d description) (string, string, string, []string) {
		return "GET", "/auth/request", "limiter", []string{"X-Original-Method", d.method, "X-Original-URL", "https://" + d.host + d.uri, "X-Forwarded-For", d.from}
	},
	forwardauth.Ext: func(d description) (string, string, string, []string) {
		return d.method, "/auth/ext" + d.uri, d.host, []string{"X-Forwarded-For", d.from}
	},
}

// sendFromProxy sends a request with the headers, which come in pairs, from a trusted proxy.
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

// send sends an endpoint the subrequest that describes d, with further headers.
func send(h http.Handler, endpoint string, d description, header ...string) *httptest.ResponseRecorder {
	method, target, host, own := encodings[endpoint](d)
	return sendFromProxy(h, method, target, host, append(own, header...)...)
}

// clientStatus returns the status that the proxy sends to its client.
func clientStatus(t testing.TB, endpoint string, w *httptest.ResponseRecorder) (status string) {
	t.Helper()
	status = fmt.Sprint(w.Code)
	statusHeader := w.Header()["X-Ratelimit-Status"]
	if !strings.HasPrefix(endpoint, forwardauth.Request) || w.Code == 200 {
		if statusHeader != nil {
			t.Errorf("%s: status %d with X-RateLimit-Status %v; want no such header", endpoint, w.Code, statusHeader)
		}
		return status
	}
	if w.Code != 403 || len(statusHeader) != 1 {
		t.Errorf("%s: status %d with X-RateLimit-Status %v; want 403 with the status, because nginx takes only 403 for a denial", endpoint, w.Code, statusHeader)
		return status
	}
	return statusHeader[0]
}

const ride = `
http: {trusted_proxies: [192.0.2.1]}
rules:
  - {name: ride, match: {method: POST, host: api.example.com, path: /api/rides/request}, per: ip, limits: [{rate: 2/h}]}
  - {name: list, match: {path: /list}, per: {key: query token}, limits: [{rate: 2/h}]}
`

func TestTheDescribedRequestIsLimited(t *testing.T) {
	post := description{"POST", "api.example.com", "/api/rides/request", "203.0.113.9"}
	for endpoint := range encodings {
		t.Run(endpoint, func(t *testing.T) {
			h := handlerOf(t, newStoppedStore(), ride, forwardauth.Options{HasFallback: true})
			for i, want := range []string{`"ride.hour";r=1;t=1800`, `"ride.hour";r=0;t=1800`} {
				w := send(h, endpoint, post)
				if w.Code != 200 || w.Header().Get("RateLimit") != want || w.Header().Get("RateLimit-Policy") != `"ride.hour";q=2;w=3600` || w.Body.Len() > 0 {
					t.Errorf("request %d: %d %v %q; want 200 with RateLimit %s", i+1, w.Code, w.Header(), w.Body, want)
				}
			}
			w := send(h, endpoint, post)
			if got := clientStatus(t, endpoint, w); got != "429" || w.Header().Get("Retry-After") != "1800" {
				t.Errorf("request 3: %s %v; want 429 with Retry-After 1800", got, w.Header())
			}
			for what, d := range map[string]description{
				"another method": {"GET", post.host, post.uri, post.from},
				"another host":   {post.method, "else.example.com", post.uri, post.from},
				"another path":   {post.method, post.host, "/else", post.from},
				"another client": {post.method, post.host, post.uri, "203.0.113.10"},
			} {
				if w := send(h, endpoint, d); w.Code != 200 {
					t.Errorf("%s: %d %s; want 200, because the limit does not apply", what, w.Code, w.Body)
				}
			}
			for i, want := range []string{"200", "200", "429"} {
				if got := clientStatus(t, endpoint, send(h, endpoint, description{"GET", "a", "/list?token=x", post.from})); got != want {
					t.Errorf("request %d with a query: %s; want %s", i+1, got, want)
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
	add := func(header []string, more ...string) []string { return append(replace(header, "", ""), more...) }
	n := 0
	for _, c := range []struct {
		target string
		header []string
		want   string // in the body; "" if the description is complete
	}{
		{"/auth/forward", forward, ""},
		{"/auth/forward?x=1", forward, ""}, // Caddy appends the query
		{"/auth/request", request, ""},
		{"/auth/request", byURL, ""},
		{"/auth/request", replace(byURL, "X-Original-URL", "http://a:8080/list"), ""},
		{"/auth/ext/list", nil, ""},

		{"/auth/forward", nil, "X-Forwarded-Method is missing"},
		{"/auth/forward", replace(forward, "X-Forwarded-Method", ""), "X-Forwarded-Method is missing"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", ""), "X-Forwarded-Uri is missing"},
		{"/auth/forward", add(replace(forward, "X-Forwarded-Uri", ""), "X-Forwarded-Uri", ""), "X-Forwarded-Uri is missing"},
		{"/auth/forward", replace(forward, "X-Forwarded-Host", ""), "X-Forwarded-Host is missing"},
		{"/auth/request", nil, "X-Original-Method is missing"},
		{"/auth/request", replace(request, "X-Original-URI", ""), "X-Original-Uri is missing"},
		{"/auth/request", replace(request, "X-Forwarded-Host", ""), "X-Forwarded-Host is missing"},
		{"/auth/ext", nil, "path of the request is missing"},
		{"/auth/ext?x=1", nil, "path of the request is missing"},
		{"/%61uth/ext/list", nil, "path of the request is missing"},

		{"/auth/forward", add(forward, "X-Forwarded-Uri", "/free"), "X-Forwarded-Uri is set 2 times"},
		{"/auth/forward", add(forward, "X-Forwarded-Uri", "/list"), "X-Forwarded-Uri is set 2 times"},
		{"/auth/forward", add(forward, "X-Forwarded-Method", "PUT"), "X-Forwarded-Method is set 2 times"},
		{"/auth/forward", add(forward, "X-Forwarded-Host", "b"), "X-Forwarded-Host is set 2 times"},
		{"/auth/request", add(request, "X-Original-URI", "/free"), "X-Original-Uri is set 2 times"},
		{"/auth/request", add(request, "X-Original-Method", "PUT"), "X-Original-Method is set 2 times"},
		{"/auth/request", add(request, "X-Forwarded-Host", "b"), "X-Forwarded-Host is set 2 times"},
		{"/auth/request", add(byURL, "X-Original-URL", "https://a/free"), "X-Original-Url is set 2 times"},
		{"/auth/request", add(request, "X-Original-URL", "https://a/list"), "are both set"},

		{"/auth/forward", add(forward, "X-Original-URI", "/free"), "X-Original-Uri does not belong to /auth/forward"},
		{"/auth/forward", add(forward, "X-Original-URL", "https://a/free"), "X-Original-Url does not belong"},
		{"/auth/forward", add(forward, "X-Original-Method", "PUT"), "X-Original-Method does not belong"},
		{"/auth/request", add(request, "X-Forwarded-Uri", "/free"), "X-Forwarded-Uri does not belong to /auth/request"},
		{"/auth/request", add(request, "X-Forwarded-Method", "PUT"), "X-Forwarded-Method does not belong"},
		{"/auth/request", add(byURL, "X-Forwarded-Uri", "/free"), "X-Forwarded-Uri does not belong"},
		{"/auth/ext/list", []string{"X-Forwarded-Uri", "/free"}, "X-Forwarded-Uri does not belong to /auth/ext"},
		{"/auth/ext/list", []string{"X-Original-URI", "/free"}, "X-Original-Uri does not belong"},
		{"/auth/ext/list", []string{"X-Original-URL", "/free"}, "X-Original-Url does not belong"},
		{"/auth/ext/list", []string{"X-Forwarded-Method", "PUT"}, "X-Forwarded-Method does not belong"},
		{"/auth/ext/list", []string{"X-Original-Method", "PUT"}, "X-Original-Method does not belong"},

		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "list"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "*"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "?x=1"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "https://a/list"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "/list, /free"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "/list\x7f"), "not a path"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "/list%zz"), "not a path"},
		{"/auth/request", replace(request, "X-Original-URI", "https://a/list"), "not a path"},
		{"/auth/request", replace(byURL, "X-Original-URL", "/list"), "not a URL"},
		{"/auth/request", replace(byURL, "X-Original-URL", "https://a"), "not a URL"},
		{"/auth/request", replace(byURL, "X-Original-URL", "https:///list"), "not a URL"},
		{"/auth/request", replace(byURL, "X-Original-URL", "ftp://a/list"), "not a URL"},
		{"/auth/request", replace(byURL, "X-Original-URL", "https://b@a/list"), "host is malformed"},
		{"/auth/request", replace(byURL, "X-Original-URL", "https://a?x=/list"), "host is malformed"},
		{"/auth/forward", replace(forward, "X-Forwarded-Uri", "/a%2Flist"), "is a slash to some servers only"},
		{"/auth/ext/a%2Flist", nil, "is a slash to some servers only"},
		{"/auth/ext%2Flist", nil, "does not begin with a slash"},
		{"/auth/forward", replace(forward, "X-Forwarded-Host", "a, b"), "host is malformed"},
		{"/auth/forward", replace(forward, "X-Forwarded-Method", "get"), "in capitals"},
		{"/auth/forward", replace(forward, "X-Forwarded-Method", "GET, PUT"), "method is malformed"},
	} {
		var outcomes []admission.Outcome
		h := handlerOf(t, newStoppedStore(), ride, forwardauth.Options{HasFallback: true, Observe: func(e *admission.Event) { outcomes = append(outcomes, e.Outcome) }})
		w := sendFromProxy(h, "GET", c.target, "a", c.header...)
		got, want := clientStatus(t, c.target, w), "200"
		if c.want != "" {
			n++
			want = "400"
			if !reflect.DeepEqual(outcomes, []admission.Outcome{admission.Malformed}) {
				t.Errorf("%s %q: observed %v; want one malformed request", c.target, c.header, outcomes)
			}
		}
		if got != want || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %q: %s %s; want %s with %q", c.target, c.header, got, w.Body, want, c.want)
		}
	}
	t.Logf("counted: %d descriptions that are rejected", n)
}

func TestDescriptionsOfUntrustedProxiesAreRejected(t *testing.T) {
	for endpoint := range encodings {
		// Go gives "@" as the address of a peer on a Unix socket.
		for peer, name := range map[string]string{"198.51.100.7:4711": "198.51.100.7", "[2001:db8::7]:1": "2001:db8::7", "@": "unix", "": "unix", "198.51.100.8": "198.51.100.8"} {
			var outcomes []admission.Outcome
			var texts []string
			h := handlerOf(t, newStoppedStore(), ride, forwardauth.Options{HasFallback: true, Observe: func(e *admission.Event) { outcomes = append(outcomes, e.Outcome) },
				Misused: func(err error) { texts = append(texts, err.Error()) }})
			// X-Forwarded-For names a proxy that is trusted, but the connection does not come from it.
			method, target, host, header := encodings[endpoint](description{"GET", "a", "/list?token=x", "192.0.2.1"})
			r := httptest.NewRequest(method, target, nil)
			r.Host, r.RemoteAddr = host, peer
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			const remedy = "add it to http.trusted_proxies of the policy"
			if got := clientStatus(t, endpoint, w); got != "403" || !strings.Contains(w.Body.String(), "if "+name+" is your proxy, "+remedy) {
				t.Errorf("%s from %q: %s %s; want 403 with the remedy", endpoint, peer, got, w.Body)
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
		h := handlerOf(t, newStoppedStore(), ride, forwardauth.Options{HasFallback: true})
		for i, from := range []string{"203.0.113.9", "198.51.100.1, 203.0.113.9", "203.0.113.9, 192.0.2.1", "203.0.113.9:4711"} {
			want := "200"
			if i >= 2 {
				want = "429"
			}
			if got := clientStatus(t, endpoint, send(h, endpoint, description{"POST", "api.example.com", "/api/rides/request", from})); got != want {
				t.Errorf("%s: request %d, from %s: %s; want %s", endpoint, i+1, from, got, want)
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
		answers := bufio.NewReader(connection)
		for _, target := range targets {
			io.WriteString(connection, head(target)+"X-Forwarded-For: 203.0.113.9\r\n\r\n")
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("%s: %v; want a response", target, err)
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
			got := send(t, handlerOf(t, newStoppedStore(), text, forwardauth.Options{HasFallback: true}), func(target string) string {
				method, subrequestTarget, host, header := encodings[endpoint](description{"GET", "a", target, ""})
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
					t.Errorf("%s: %s; want %s as from the gate", target, got[i], want[i])
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
				h := handlerOf(t, newStoppedStore(), text, forwardauth.Options{HasFallback: true})
				api := description{"GET", "a", "/api", "203.0.113.9"}
				send(h, endpoint, api, header...)
				got := send(h, endpoint, api, header...)
				if status := clientStatus(t, endpoint, got); status != fmt.Sprint(want.Code) || want.Code < 400 {
					t.Errorf("%s, %s %q: %s; want %d as from the gate", name, endpoint, header, status, want.Code)
				}
				got.Header().Del("X-RateLimit-Status")
				if !reflect.DeepEqual(got.Header(), want.Header()) || got.Body.String() != want.Body.String() {
					t.Errorf("%s, %s %q:\n%v\n%s; want as from the gate\n%v\n%s", name, endpoint, header, got.Header(), got.Body, want.Header(), want.Body)
				}
			}
		}
	}
}

func TestAllMethodsAreDecided(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "DELETE", "PROPFIND"} {
		h := handlerOf(t, newStoppedStore(), "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, match: {method: "+method+"}, per: ip, limits: [{rate: 1/h}]}]}",
			forwardauth.Options{HasFallback: true})
		for i, want := range []string{"200", "429"} {
			w := send(h, forwardauth.Ext, description{method, "a", "/", "203.0.113.9"})
			if got := clientStatus(t, forwardauth.Ext, w); got != want || method == "HEAD" && w.Body.Len() > 0 {
				t.Errorf("%s, request %d: %s %s; want %s", method, i+1, got, w.Body, want)
			}
		}
		// At the other endpoints, the method of the proxy's own request does not matter.
		if w := sendFromProxy(h, method, "/auth/forward", "limiter", "X-Forwarded-Method", "BREW", "X-Forwarded-Uri", "/", "X-Forwarded-Host", "a"); w.Code != 200 {
			t.Errorf("%s /auth/forward: %d; want 200", method, w.Code)
		}
	}
}

func TestOtherPathsAreNotFound(t *testing.T) {
	h := handlerOf(t, newStoppedStore(), ride, forwardauth.Options{HasFallback: true})
	for _, path := range []string{"/", "/auth", "/auth/", "/auth/forward/", "/auth/forward/a", "/auth/request/", "/auth/extra", "/auth/ex", "/x/auth/ext/a", "/auth//forward"} {
		if w := sendFromProxy(h, "GET", path, "a"); w.Code != 404 || forwardauth.IsEndpoint(path) {
			t.Errorf("%s: %d, is an endpoint: %t; want 404 and false", path, w.Code, forwardauth.IsEndpoint(path))
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
	return penstock.Decision{}, fmt.Errorf("%w: it is down", penstock.ErrUnavailable)
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
		h := handlerOf(t, penstock.StoreFunc(failToDecide), text, forwardauth.Options{})
		for path, statuses := range map[string][]string{"/open": {"200", "200"}, "/closed": {"503", "503"}, "/local": {"200", "429"}} {
			for i, want := range statuses {
				w := send(h, endpoint, description{"GET", "a", path, "203.0.113.9"})
				if got := clientStatus(t, endpoint, w); got != want || (got == "503") != (w.Header().Get("Retry-After") == "1") {
					t.Errorf("%s of %s, request %d: %s %v; want %s", endpoint, path, i+1, got, w.Header(), want)
				}
				if path == "/open" && w.Header().Get("RateLimit") != "" {
					t.Errorf("%s of %s: RateLimit is %s; want none, because the request is not counted", endpoint, path, w.Header().Get("RateLimit"))
				}
			}
		}
		// Without a decision, nginx too gets 503 rather than 403. It takes that as a failure of this
		// service, and its own failure mode applies.
		h = handlerOf(t, penstock.StoreFunc(hangUntilDone), text, forwardauth.Options{})
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errors.New("the service shuts down"))
		method, target, host, header := encodings[endpoint](description{"GET", "a", "/closed", "203.0.113.9"})
		r := httptest.NewRequestWithContext(ctx, method, target, nil)
		r.Host = host
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 503 || w.Header().Get("X-RateLimit-Status") != "" {
			t.Errorf("%s of a service that shuts down: %d %v; want 503", endpoint, w.Code, w.Header())
		}
	}
}

// An unreadBody is a body that must not be read.
type unreadBody struct{ t *testing.T }

func (u unreadBody) Read([]byte) (int, error) {
	u.t.Error("the body is read; want it left alone")
	return 0, io.EOF
}
func (unreadBody) Close() error { return nil }

// The gate reads the body of a request that waits. This handler must not.
func TestNoBodyIsRead(t *testing.T) {
	h := handlerOf(t, memstore.New(memstore.Options{}),
		"{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, per: ip, limits: [{rate: 1000/s, burst: 1, max_wait: 1s}]}]}", forwardauth.Options{HasFallback: true})
	for endpoint := range encodings {
		for range 20 {
			method, target, host, header := encodings[endpoint](description{"POST", "a", "/", "203.0.113.9"})
			r := httptest.NewRequest(method, target, nil)
			r.Host, r.Body, r.ContentLength = host, unreadBody{t}, 5
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 200 {
				t.Fatalf("%s: %d %s; want 200", endpoint, w.Code, w.Body)
			}
		}
	}
	if n := h.Waiting(); n != 0 {
		t.Errorf("%d requests wait after all have their responses; want 0", n)
	}
}

// discardResponse is a response that is thrown away.
type discardResponse http.Header

func (w discardResponse) Header() http.Header         { return http.Header(w) }
func (w discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (w discardResponse) WriteHeader(int)             {}

func TestDescriptionsCostFewAllocations(t *testing.T) {
	effort.WithoutRace(t)
	const text = "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: api, match: {path: /api/**}, per: {key: header X-API-Key}, limits: [{rate: 1M/s}]}]}"
	count := func(h http.Handler, r *http.Request) float64 {
		w := make(discardResponse)
		return testing.AllocsPerRun(1000, func() {
			clear(w)
			h.ServeHTTP(w, r)
		})
	}
	r := httptest.NewRequest("GET", "/api/things/1?x=1", nil)
	r.Header.Set("X-API-Key", "k")
	gate := count(gateOf(t, memstore.New(memstore.Options{}), text), r)
	for endpoint, most := range map[string]float64{ // how many more than the gate
		forwardauth.Forward: 2, // the request and its URL
		forwardauth.Ext:     2,
		forwardauth.Request: 3, // and the writer
	} {
		h := handlerOf(t, memstore.New(memstore.Options{}), text, forwardauth.Options{HasFallback: true})
		method, target, host, header := encodings[endpoint](description{"GET", "a", "/api/things/1?x=1", "203.0.113.9"})
		r := httptest.NewRequest(method, target, nil)
		r.Host = host
		r.Header.Set("X-API-Key", "k")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if n := count(h, r); n > gate+most {
			t.Errorf("%s: %v allocations, and the gate has %v; want at most %v more", endpoint, n, gate, most)
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
	h := handlerOf(f, newStoppedStore(), ride, forwardauth.Options{HasFallback: true})
	paths := rulesOf(f, ride).Paths()
	f.Fuzz(func(t *testing.T, uri string) {
		got := sendFromProxy(h, "GET", "/auth/forward", "limiter", "X-Forwarded-Method", "GET", "X-Forwarded-Uri", uri, "X-Forwarded-Host", "a").Code
		path, _, _ := strings.Cut(uri, "?")
		_, err := paths.Clean(path)
		if isClean := uri != "" && uri[0] == '/' && err == nil; got != 400 && !isClean || got != 200 && got != 400 && got != 429 {
			t.Errorf("X-Forwarded-Uri %q: status %d, and the error of its path is %v; want 400 for such an error, otherwise 200 or 429", uri, got, err)
		}
	})
}

// If reloaded rules cannot be enforced here, the old ones stay, and one error is reported.
func TestRulesThatNeedTheResponseAreInvalid(t *testing.T) {
	const trusted = "http: {trusted_proxies: [192.0.2.1]}\n"
	good, other := rulesOf(t, trusted+"rules: [{name: a, per: ip, limits: [{rate: 1/h}]}]"), rulesOf(t, trusted+"rules: [{name: b, per: ip, limits: [{rate: 5/h}]}]")
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
			t.Errorf("%s: %v; want %q", limits, err, want)
		}
		if _, err := forwardauth.New(newStoppedStore(), func() *policy.Rules { return bad }, forwardauth.Options{}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: New returns %v; want an ErrInvalid", limits, err)
		}

		rules, reported := good, []string(nil)
		h, err := forwardauth.New(newStoppedStore(), func() *policy.Rules { return rules }, forwardauth.Options{HasFallback: true, Misused: func(err error) { reported = append(reported, err.Error()) }})
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range []struct {
			rules *policy.Rules
			want  string // in RateLimit-Policy
		}{{good, `"a.hour"`}, {bad, `"a.hour"`}, {bad, `"a.hour"`}, {nil, `"a.hour"`}, {other, `"b.hour"`}} {
			rules = step.rules
			w := send(h, forwardauth.Forward, description{"GET", "a", "/", fmt.Sprintf("203.0.113.%d", i)})
			if got := w.Header().Get("RateLimit-Policy"); !strings.HasPrefix(got, step.want) {
				t.Errorf("%s, step %d: RateLimit-Policy %s; want that of %s", limits, i+1, got, step.want)
			}
		}
		if len(reported) != 1 || !strings.Contains(reported[0], "rule login") {
			t.Errorf("%s: reported %q; want it once", limits, reported)
		}
	}
	if err := forwardauth.Check(other); err != nil {
		t.Errorf("rules that can be enforced: %v; want no error", err)
	}
	for _, rules := range []func() *policy.Rules{nil, func() *policy.Rules { return nil }} {
		if _, err := forwardauth.New(newStoppedStore(), rules, forwardauth.Options{}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("without rules: %v; want an ErrInvalid", err)
		}
	}
}

func TestRulesChangeUnderLoad(t *testing.T) {
	all := [3]*policy.Rules{}
	for i, limits := range []string{"{rate: 1000000/h}", "{in_flight: 3}", "{rate: 2000000/h}"} {
		all[i] = rulesOf(t, "{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: a, per: ip, limits: ["+limits+"]}]}")
	}
	var mu sync.Mutex
	n := 0
	h, err := forwardauth.New(memstore.New(memstore.Options{}), func() *policy.Rules {
		mu.Lock()
		defer mu.Unlock()
		n++
		return all[n/100%3] // other rules after each 100 calls
	}, forwardauth.Options{HasFallback: true})
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 500 {
				w := send(h, forwardauth.Forward, description{"GET", "a", "/", "203.0.113.9"})
				if w.Code != 200 || !strings.Contains(w.Header().Get("RateLimit-Policy"), "000000;") {
					t.Errorf("%d %v %s; want 200 with the headers of valid rules", w.Code, w.Header(), w.Body)
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
	reloads := make(chan policyfile.Reload, 1)
	watcher, err := policyfile.Watch(file, policyfile.WatchOptions{Options: options, Notify: func(r policyfile.Reload) { reloads <- r }})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	first := watcher.Rules()
	write("{in_flight: 3}")
	if r := <-reloads; !errors.Is(r.Err, penstock.ErrInvalid) || watcher.Rules() != first {
		t.Errorf("the reload has the error %v, and the rules changed: %t; want an error and the old rules", r.Err, watcher.Rules() != first)
	}
}

// Rules that match no request to the Handler may have any limits.
func TestRulesThatAreNotForProxiesMayHaveAnyLimits(t *testing.T) {
	for _, text := range []string{
		"rules: [{name: jobs, per: ip, limits: [{in_flight: 3}]}]", // no proxy is trusted, so no rule is used
		"{http: {trusted_proxies: [192.0.2.1]}, rules: [{name: jobs, match: {descriptor kind: job}, per: {job: descriptor id}, limits: [{in_flight: 3}]}]}",
	} {
		if err := forwardauth.Check(rulesOf(t, text)); err != nil {
			t.Errorf("%s: %v; want no error", text, err)
		}
	}
}
