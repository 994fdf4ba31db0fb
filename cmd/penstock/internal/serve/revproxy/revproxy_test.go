package revproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/spellings"
)

// patience is the longest time that a test waits.
const patience = time.Minute

// startProxy starts a proxy for an upstream, and returns its URL.
func startProxy(t *testing.T, o revproxy.Options, upstream string) string {
	t.Helper()
	return startWrappedProxy(t, o, upstream, func(next http.Handler) http.Handler { return next })
}

// startWrappedProxy is like startProxy, with a wrapped handler.
func startWrappedProxy(t *testing.T, o revproxy.Options, upstream string, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	var err error
	if o.Upstream, err = url.Parse(upstream); err != nil {
		t.Fatal(err)
	}
	proxy := newProxy(o)
	server := httptest.NewServer(wrap(proxy))
	t.Cleanup(func() {
		server.Close()
		proxy.Close()
	})
	return server.URL
}

// startUpstream starts an upstream, and returns its URL.
func startUpstream(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// echo is an upstream that responds with the request that it received.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(receivedRequest{r.Method, r.RequestURI, r.Host, r.Header, string(body), r.Trailer, r.Proto})
}

// A receivedRequest is a request as the upstream received it.
type receivedRequest struct {
	Method, URI, Host string
	Header            http.Header
	Body              string
	Trailer           http.Header
	Proto             string
}

// sendRaw sends the text of a request, and reads one response.
func sendRaw(t *testing.T, site, request string) (*http.Response, []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, request)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: no response: %v", request, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%q: the body cannot be read: %v", request, err)
	}
	return res, body
}

// sendToEcho sends the text of a request, and returns it as the upstream echo received it.
func sendToEcho(t *testing.T, site, request string) (s receivedRequest) {
	t.Helper()
	res, body := sendRaw(t, site, request)
	if err := json.Unmarshal(body, &s); err != nil {
		t.Fatalf("%q gets %s %q, which is not JSON: %v; want the request as JSON", request, res.Status, body, err)
	}
	return s
}

func TestHopByHopHeadersAreNotForwarded(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, echo))
	request := "GET / HTTP/1.1\r\nHost: h\r\n%s\r\n"
	lines := []string{
		"Connection: X-Secret\r\nX-Secret: 1", "Connection: close, x-secret\r\nX-Secret: 1", "Connection: keep-alive\r\nConnection: X-Secret\r\nX-Secret: 1",
		"Keep-Alive: timeout=5", "Proxy-Connection: keep-alive", "Proxy-Authorization: Basic eA==", "Proxy-Authenticate: Basic",
		"TE: deflate", "Upgrade: h2c", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
		"Upgrade: HTTP/2.0\r\nConnection: Upgrade", "Upgrade: TLS/1.0, websocket\r\nConnection: Upgrade",
	}
	allowed := []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Accept-Encoding"}
	for _, line := range lines {
		got := sendToEcho(t, site, fmt.Sprintf(request, line+"\r\n"))
		for name := range got.Header {
			if !slices.Contains(allowed, name) {
				t.Errorf("with %q the upstream got %s: %q; want it removed", line, name, got.Header[name])
			}
		}
	}
	if got := sendToEcho(t, site, fmt.Sprintf(request, "TE: trailers, deflate\r\n")); got.Header.Get("Te") != "trailers" {
		t.Errorf("TE: trailers, which the proxy supports, became %q; want trailers", got.Header["Te"])
	}
	t.Logf("counted: %d spellings of hop-by-hop headers", len(lines))
}

func TestHopByHopHeadersOfResponsesAreNotForwarded(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Keep-Alive", "Proxy-Authenticate", "X-Secret", "Upgrade"} {
			w.Header().Set(name, "1")
		}
		w.Header().Set("Connection", "X-Secret")
	}))
	res, _ := sendRaw(t, site, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	for _, name := range []string{"Keep-Alive", "Proxy-Authenticate", "X-Secret", "Upgrade", "Connection"} {
		if res.Header[name] != nil {
			t.Errorf("the client got the header %s: %q; want none, because it is for one connection", name, res.Header[name])
		}
	}
}

// forged are headers by which a client claims another address, host or scheme.
var forged = []string{
	"X-Forwarded-For: 6.6.6.6", "x-forwarded-for: 6.6.6.6, 7.7.7.7", "X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 7.7.7.7", "X-Forwarded-For:",
	"X_Forwarded_For: 6.6.6.6", "X-Forwarded_For: 6.6.6.6", "X_FORWARDED-FOR: 6.6.6.6", "x_forwarded_for: 6.6.6.6",
	"X-Forwarded-Host: evil", "X_Forwarded_Host: evil", "X-Forwarded-Proto: https", "X_Forwarded_Proto: https", "X-Forwarded-Port: 1",
	"X-Forwarded-Prefix: /admin", "X-Forwarded-Server: evil", "X-Forwarded-Ssl: on", "X-Forwarded-Scheme: https", "X-Forwarded-Uri: /",
	"X-Forwarded-Method: GET", "X-Forwarded-By: evil", "X-Real-IP: 6.6.6.6", "X_Real_IP: 6.6.6.6", "x-real_ip: 6.6.6.6",
	"Forwarded: for=6.6.6.6;proto=https", "FORWARDED: for=6.6.6.6",
	"Connection: X-Forwarded-For", "Connection: X-Forwarded-For\r\nX-Forwarded-For: 6.6.6.6", "Connection: X-Forwarded-Host, X-Forwarded-Proto",
	"Connection: close, X-Forwarded-For\r\nX_Forwarded_For: 6.6.6.6",
}

func TestForgedForwardedHeadersAreRemoved(t *testing.T) {
	want := http.Header{"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"h"}, "X-Forwarded-Proto": {"http"}}
	for _, o := range []revproxy.Options{{}, {IsTrusted: func(*http.Request) bool { return false }}} {
		site := startProxy(t, o, startUpstream(t, echo))
		for _, header := range forged {
			got := sendToEcho(t, site, "GET / HTTP/1.1\r\nHost: h\r\n"+header+"\r\n\r\n")
			delete(got.Header, "Accept-Encoding")
			if fmt.Sprint(got.Header) != fmt.Sprint(want) {
				t.Errorf("with %q the upstream got %v; want %v", header, got.Header, want)
			}
		}
	}
	t.Logf("counted: %d forged headers", len(forged))
}

// Some upstreams use the path of such a header. A client could evade the rules for a path by it.
func TestHeadersWithAnotherPathAreRemoved(t *testing.T) {
	const request = "POST / HTTP/1.1\r\nHost: h\r\nX-Original-URL: /login\r\nx-rewrite-url: /login\r\nX_Original_URL: /login\r\nTransfer-Encoding: chunked\r\n" +
		"Trailer: X-Original-URL\r\n\r\n0\r\nX-Original-URL: /login\r\n\r\n"
	for _, isTrusted := range []bool{false, true} {
		site := startProxy(t, revproxy.Options{
			IsTrusted: func(*http.Request) bool { return isTrusted },
		}, startUpstream(t, echo))
		got := sendToEcho(t, site, request)
		want := ""
		if isTrusted {
			want = "/login"
		}
		for _, name := range []string{"X-Original-Url", "X-Rewrite-Url"} {
			if got.Header.Get(name) != want || len(got.Trailer) > 0 || got.Header["X_original_url"] != nil {
				t.Errorf("trusted %t: the upstream got %s: %q, and the trailers %v; want %q and none", isTrusted, name, got.Header.Get(name), got.Trailer, want)
			}
		}
	}
}

// The upstream gets the query as the client sent it, also if Go cannot parse it.
func TestQueriesAreForwardedAsSent(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })))
	for _, target := range []string{"/", "/?", "/a?x=1&a;b=2&c=3", "/a?filter=a;b", "/a?a=%zz&b=1", "/a?b=2&a=1&b=1", "/a?a+b=%20"} {
		if _, body := sendRaw(t, site, "GET "+target+" HTTP/1.1\r\nHost: h\r\n\r\n"); string(body) != target {
			t.Errorf("the upstream got %s; want %s", body, target)
		}
	}
}

func TestForwardedHeadersOfTrustedProxiesAreKept(t *testing.T) {
	site := startProxy(t, revproxy.Options{IsTrusted: func(*http.Request) bool { return true }}, startUpstream(t, echo))
	for _, c := range []struct{ lines, forwardedFor, host, proto string }{
		{lines: "X-Forwarded-For: 9.9.9.9\r\n", forwardedFor: "9.9.9.9, 127.0.0.1", host: "h", proto: "http"},
		{lines: "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 10.0.0.1\r\n", forwardedFor: "9.9.9.9, 10.0.0.1, 127.0.0.1", host: "h", proto: "http"},
		{lines: "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: site\r\n", forwardedFor: "9.9.9.9, 127.0.0.1", host: "site", proto: "https"},
		{lines: "Connection: X-Forwarded-For, X-Forwarded-Proto\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\n", forwardedFor: "9.9.9.9, 127.0.0.1", host: "h", proto: "https"},
		{forwardedFor: "127.0.0.1", host: "h", proto: "http"},
		{lines: "X_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n", forwardedFor: "127.0.0.1", host: "h", proto: "http"},
	} {
		got := sendToEcho(t, site, "GET / HTTP/1.1\r\nHost: h\r\n"+c.lines+"\r\n")
		h := got.Header
		if h.Get("X-Forwarded-For") != c.forwardedFor || h.Get("X-Forwarded-Host") != c.host || h.Get("X-Forwarded-Proto") != c.proto ||
			h["X_forwarded_for"] != nil || h["Forwarded"] != nil {
			t.Errorf("with %q the upstream got %v; want %s, %s, %s", c.lines, h, c.forwardedFor, c.host, c.proto)
		}
	}
	if got := sendToEcho(t, site, "GET / HTTP/1.1\r\nHost: h\r\nX-Real-IP: 9.9.9.9\r\nX-Forwarded-Port: 443\r\n\r\n"); got.Header.Get("X-Real-Ip") != "9.9.9.9" ||
		got.Header.Get("X-Forwarded-Port") != "443" {
		t.Errorf("the upstream got %v; want X-Real-IP and X-Forwarded-Port of the trusted proxy", got.Header)
	}
}

func TestRequestsCannotChooseTheirUpstream(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, echo))
	for _, c := range []struct {
		request string
		status  int
	}{
		{"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 421},
		{"CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n", 421},
		{"GET http://example.com/ HTTP/1.1\r\nHost: h\r\n\r\n", 421},
		{"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 421},
		{"GET https://example.com:8443/x HTTP/1.1\r\nHost: h\r\n\r\n", 421},
		{"GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\nHost: h\r\n\r\n", 421},
		{"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET mailto:x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET http:/path HTTP/1.1\r\nHost: h\r\n\r\n", 200}, // no host: a path like any other
		{"GET //example.com/x HTTP/1.1\r\nHost: h\r\n\r\n", 200},
		{"GET /http://example.com/ HTTP/1.1\r\nHost: h\r\n\r\n", 200},
		{"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 200},
		{"GET /@example.com:80/ HTTP/1.1\r\nHost: h@example.com\r\n\r\n", 400}, // the Host is malformed
	} {
		if res, body := sendRaw(t, site, c.request); res.StatusCode != c.status {
			t.Errorf("%q gets %s %s; want %d", c.request, res.Status, body, c.status)
		}
	}
}

func TestHostIsTheUpstreamsUnlessPreserveHost(t *testing.T) {
	up := startUpstream(t, echo)
	request := "GET /a%2Fb//c/../d?x=1&y=%20 HTTP/1.1\r\nHost: shop.example\r\n\r\n"
	got := sendToEcho(t, startProxy(t, revproxy.Options{}, up), request)
	if got.Host != strings.TrimPrefix(up, "http://") || got.Header.Get("X-Forwarded-Host") != "shop.example" {
		t.Errorf("the upstream got Host %s and X-Forwarded-Host %s; want its own address, and shop.example", got.Host, got.Header["X-Forwarded-Host"])
	}
	if want := "/a%2Fb//c/../d?x=1&y=%20"; got.URI != want {
		t.Errorf("the upstream got the path %s; want it unchanged, %s", got.URI, want)
	}
	if got := sendToEcho(t, startProxy(t, revproxy.Options{PreserveHost: true}, up), request); got.Host != "shop.example" {
		t.Errorf("with PreserveHost, the upstream got Host %s; want shop.example", got.Host)
	}
	if got := sendToEcho(t, startProxy(t, revproxy.Options{}, up+"/base"), request); !strings.HasPrefix(got.URI, "/base/a%2Fb//c") {
		t.Errorf("the upstream with a base path got %s; want the path after /base", got.URI)
	}
}

func TestEncodingsAreUnchanged(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, echo))
	for _, line := range []string{"", "Accept-Encoding: br\r\n", "Accept-Encoding: identity\r\n"} {
		got := sendToEcho(t, site, "GET / HTTP/1.1\r\nHost: h\r\n"+line+"\r\n")
		if want := strings.TrimSpace(strings.TrimPrefix(line, "Accept-Encoding:")); got.Header.Get("Accept-Encoding") != want {
			t.Errorf("with %q the upstream got Accept-Encoding %q; want %q", line, got.Header["Accept-Encoding"], want)
		}
		if ua := got.Header["User-Agent"]; ua != nil {
			t.Errorf("the upstream got a User-Agent that the client did not send: %q", ua)
		}
	}
}

func TestOwnQuotaHeadersReplaceTheUpstreams(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"RateLimit", "RateLimit-Policy", "RateLimit-Limit", "X-RateLimit-Limit", "X-Ratelimit-Reset", "X-Rate-Limit-Limit"} {
			w.Header().Set(name, "upstream")
		}
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Vary", "Accept")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	for _, c := range []struct {
		own      map[string][]string // as written, canonical or not
		hasQuota bool                // own contains quota headers
	}{
		{own: nil},
		{own: map[string][]string{"Vary": {"Origin"}}},
		{own: map[string][]string{"Ratelimit": {"own"}}, hasQuota: true},
		{own: map[string][]string{"RateLimit": {"own"}, "RateLimit-Policy": {"own"}}, hasQuota: true},
		{own: map[string][]string{"X-Ratelimit-Limit": {"own"}, "Vary": {"Origin"}}, hasQuota: true},
	} {
		site := startWrappedProxy(t, revproxy.Options{}, up, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				maps.Copy(w.Header(), c.own)
				next.ServeHTTP(w, r)
			})
		})
		res, _ := sendRaw(t, site, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		found := 0
		for name, values := range res.Header {
			if lower := strings.ToLower(name); strings.Contains(lower, "ratelimit") || strings.Contains(lower, "rate-limit") {
				found++
				if c.hasQuota != (fmt.Sprint(values) == "[own]") {
					t.Errorf("with %v set, the client got %s: %q; want the upstream's value only without own quota headers", c.own, name, values)
				}
			}
		}
		vary := res.Header["Vary"]
		hasVary := slices.Contains(vary, "Accept") && (c.own["Vary"] == nil || slices.Contains(vary, "Origin"))
		if found == 0 || res.Header.Get("Retry-After") != "7" || !hasVary {
			t.Errorf("with %v set, the client got %v; want quota headers, Retry-After of the upstream, and Vary of both", c.own, res.Header)
		}
	}
}

func TestInterimResponsesPassAndRemoveNoHeaders(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("RateLimit", "upstream")
		io.Copy(w, r.Body)
	})
	site := startWrappedProxy(t, revproxy.Options{}, up, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()["RateLimit"] = []string{"own"}
			next.ServeHTTP(w, r)
		})
	})
	var codes []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		codes = append(codes, code)
		return nil
	}})
	request, _ := http.NewRequestWithContext(ctx, "POST", site, strings.NewReader("hello"))
	request.Header.Set("Expect", "100-continue")
	res, err := (&http.Transport{ExpectContinueTimeout: patience}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	codes = slices.Compact(codes) // net/http sends a second 100 if the proxy reads the body while it forwards that of the upstream
	if err != nil || string(body) != "hello" || !slices.Equal(codes, []int{103, 100}) {
		t.Errorf("the client got the interim statuses %v, then %q, %v; want 103 and 100, then hello", codes, body, err)
	}
	if got := res.Header["Ratelimit"]; !slices.Equal(got, []string{"own"}) {
		t.Errorf("after interim responses the client got RateLimit: %q; want the proxy's", got)
	}
}

// The server may still read the headers of an interim response when httputil clears them.
func TestInterimResponsesAreDroppedForHTTP2(t *testing.T) {
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
	})
	upstream, err := url.Parse(up)
	if err != nil {
		t.Fatal(err)
	}
	handler := newProxy(revproxy.Options{Upstream: upstream})
	t.Cleanup(handler.Close)
	statuses := make(chan int, 3)
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(statusWriter{w, statuses}, r)
	}))
	site.EnableHTTP2 = true
	site.StartTLS()
	t.Cleanup(site.Close)
	res, err := site.Client().Get(site.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if status := <-statuses; res.ProtoMajor != 2 || status != 200 || res.Header.Get("Link") == "" {
		t.Errorf("by HTTP/%d the first status is %d, with Link %q; want 200 by HTTP/2, with the Link", res.ProtoMajor, status, res.Header.Get("Link"))
	}
}

// A statusWriter reports statuses before it sends them.
type statusWriter struct {
	http.ResponseWriter
	statuses chan<- int
}

func (w statusWriter) WriteHeader(status int) {
	w.statuses <- status
	w.ResponseWriter.WriteHeader(status)
}

func TestNo100ContinueBeforeTheUpstreamSendsIt(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	res, _ := sendRaw(t, site, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("the client got %s; want the upstream's 403, without 100 Continue before it", res.Status)
	}
}

func TestEventsArriveImmediately(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/json"} {
		next := make(chan int)
		site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			for i := range next {
				fmt.Fprintf(w, "data: %d\n", i)
				http.NewResponseController(w).Flush()
			}
		}))
		go func() { next <- 0 }()
		res, err := http.Get(site)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(res.Body)
		for i := range 100 { // event i is read before the upstream sends event i+1
			if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%s: event %d arrived as %q, %v; want data: %[2]d", kind, i, line, err)
			}
			next <- i + 1
		}
		close(next)
		res.Body.Close()
	}
}

func TestTrailersPassBothWays(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		io.Copy(w, r.Body)
		w.Header().Set("X-Announced", "a")
		w.Header().Set(http.TrailerPrefix+"X-Late", "l")
		w.Header().Set(http.TrailerPrefix+"X-Of-Request", r.Trailer.Get("X-Sum"))
	}))
	res, body := sendRaw(t, site, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: s\r\n\r\n")
	want := http.Header{"X-Announced": {"a"}, "X-Late": {"l"}, "X-Of-Request": {"s"}}
	if string(body) != "hello" || fmt.Sprint(res.Trailer) != fmt.Sprint(want) {
		t.Errorf("the client got %q and trailers %v; want hello and %v", body, res.Trailer, want)
	}
}

func TestForgedTrailersAreRemoved(t *testing.T) {
	for _, isTrusted := range []bool{false, true} {
		o := revproxy.Options{
			IsTrusted:   func(*http.Request) bool { return isTrusted },
			ReadsHeader: func(name string) bool { return name == "X-Api-Key" },
		}
		for _, scheme := range []string{"http", "h2c"} {
			server := httptest.NewUnstartedServer(http.HandlerFunc(echo))
			server.EnableHTTP2 = true
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			t.Cleanup(server.Close)
			site := startProxy(t, o, scheme+strings.TrimPrefix(server.URL, "http"))
			got := sendToEcho(t, site, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"+
				"Trailer: X-Forwarded-For, X-Real-IP, Forwarded, X_API_Key, X.API.Key, X-API-Key, X-K, X-Missing\r\n\r\n5\r\nhello\r\n0\r\n"+
				"X-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX_API_Key: b\r\nX.API.Key: b\r\nX-API-Key: b\r\nX-K: v\r\n"+
				"X-Forwarded-Host: unannounced\r\nX_K: unannounced\r\n\r\n")
			delete(got.Trailer, "X-Missing")
			if want := (http.Header{"X-K": {"v"}}); fmt.Sprint(got.Trailer) != fmt.Sprint(want) || got.Body != "hello" {
				t.Errorf("%s, trusted %v: the upstream got %q and trailers %v; want hello and %v", scheme, isTrusted, got.Body, got.Trailer, want)
			}
		}
	}
}

// Upstreams that turn headers into variables read each other byte as '-'. They must receive only
// the header that rules have read.
func TestHeadersWithOddNamesAreRemoved(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, echo))
	aliases := append(spellings.Header("X-API-Key"), "_X-API-Key", "X-API-Key_", "User_Agent", "Content_Length", "Transfer.Encoding", "Upgrade_", "_", ".", "X`API^Key", "X#API$Key", "X%API&Key")
	for _, alias := range aliases {
		got := sendToEcho(t, site, "GET / HTTP/1.1\r\nHost: h\r\nX-API-Key: a\r\n"+alias+": 7\r\n\r\n")
		for name := range got.Header {
			if strings.ContainsAny(name, "_.~!'*|+`^#$%&") {
				t.Errorf("with %s the upstream got %v; want only names of letters, digits and dashes", alias, got.Header)
			}
		}
		if got.Header.Get("X-API-Key") != "a" {
			t.Errorf("with %s the upstream got X-API-Key %q; want a", alias, got.Header["X-Api-Key"])
		}
	}
	t.Logf("counted: %d headers with odd names", len(aliases))
}

func TestLargeBodiesPassUnchanged(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // the upstream responds while it still reads
		io.Copy(w, r.Body)
	}))
	const size = 4 << 20 // bytes; more than all buffers hold
	sent, got := sha256.New(), sha256.New()
	for _, length := range []int64{size, -1} {
		sent.Reset()
		got.Reset()
		request, _ := http.NewRequest("POST", site, io.TeeReader(&noise{left: size}, sent))
		request.ContentLength = length
		res, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(got, res.Body)
		if err != nil || n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Errorf("with Content-Length %d, %d bytes came back, %v; want the %d that were sent", length, n, err, size)
		}
		res.Body.Close()
	}
}

// noise is a reader of bytes that do not repeat soon.
type noise struct {
	left  int    // bytes
	state uint32 // of a linear congruential generator
}

func (r *noise) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), r.left)]
	for i := range p {
		r.state = r.state*1664525 + 1013904223
		p[i] = byte(r.state >> 24)
	}
	r.left -= len(p)
	return len(p), nil
}

func TestConcurrentRequestsGetTheirOwnResponses(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, body)
	}))
	const clients, each = 50, 6
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			for i := range each {
				id := fmt.Sprintf("/%d-%d", c, i)
				res, err := http.Post(site+id, "", strings.NewReader(strings.Repeat(id, i*10)))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if want := id + " " + strings.Repeat(id, i*10); string(body) != want {
					t.Errorf("%s got the response %.80q; want %.80q", id, body, want)
				}
			}
		})
	}
	group.Wait()
	t.Logf("counted: %d requests, each with its own response", clients*each)
}

// debugLogger returns a logger that writes all levels to a log.
func debugLogger(log *logbuffer.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestFailuresOfTheUpstreamAreReportedWithoutDetails(t *testing.T) {
	gone, err := net.Listen("tcp", "127.83.0.2:0") // an address at which no other test listens
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	never := make(chan struct{})
	defer close(never)
	slow := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-never:
		case <-r.Context().Done():
		}
	})
	hangUp := startUpstream(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	garbage := listen(t, func(conn net.Conn) { io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n") })
	for _, c := range []struct {
		name, upstream string
		status         int
		detail         string
	}{
		{name: "nothing listens", upstream: "http://" + gone.Addr().String(), status: 502, detail: "the upstream did not answer"},
		{name: "no such socket", upstream: "unix:" + filepath.Join(t.TempDir(), "none.sock"), status: 502, detail: "the upstream did not answer"},
		{name: "it sends nothing", upstream: slow, status: 504, detail: "the upstream did not answer in time"},
		{name: "it closes the connection", upstream: hangUp, status: 502, detail: "the upstream did not answer"},
		{name: "it speaks another protocol", upstream: garbage, status: 502, detail: "the upstream did not answer"},
		{name: "its status is 0", upstream: listen(t, func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n") }), status: 502, detail: "the upstream did not answer"},
		{name: "its status is 99", upstream: listen(t, func(conn net.Conn) { io.WriteString(conn, "HTTP/1.1 099 None\r\nContent-Length: 0\r\n\r\n") }), status: 502, detail: "the upstream did not answer"},
		{name: "it speaks no TLS", upstream: strings.Replace(slow, "http:", "https:", 1), status: 502, detail: "the upstream did not answer"},
	} {
		var log logbuffer.Buffer
		o := revproxy.Options{Log: debugLogger(&log), ConnectTimeout: patience, HeaderTimeout: patience}
		if c.status == 504 {
			o.HeaderTimeout = 50 * time.Millisecond
		}
		res, body := sendRaw(t, startProxy(t, o, c.upstream), "GET /secret/1?secret=1 HTTP/1.1\r\nHost: h\r\n\r\n")
		want := fmt.Sprintf(`{"type":"about:blank","title":"%s","status":%d,"detail":"%s"}`, http.StatusText(c.status), c.status, c.detail)
		if res.StatusCode != c.status || string(body) != want || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: the client gets %s %s; want %s", c.name, res.Status, body, want)
		}
		if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, fmt.Sprintf("status=%d", c.status)) || strings.Contains(got, "secret") {
			t.Errorf("%s: the log is %s; want one warning with status=%d, without the request", c.name, got, c.status)
		}
	}
}

// listen starts a server that reads a line of each connection, calls serve and closes the
// connection.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	return "http://" + listenRaw(t, func(conn net.Conn) {
		bufio.NewReader(conn).ReadString('\n')
		serve(conn)
	})
}

func TestIncompleteResponseIsNotPassedAsComplete(t *testing.T) {
	for _, head := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		up := listen(t, func(conn net.Conn) { fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\n%s\r\n\r\n5\r\nhello\r\n", head) })
		var log logbuffer.Buffer
		res, err := http.Get(startProxy(t, revproxy.Options{Log: debugLogger(&log)}, up))
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the client got a complete response; want an error", head)
		}
		if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "ended early") {
			t.Errorf("%s: the log is %s; want one warning that the response ended early", head, got)
		}
	}
}

// Each text of the log has its own count of skipped lines.
func TestSkippedLinesAreCountedByText(t *testing.T) {
	var shouldBegin atomic.Bool // true: responses of the upstream begin, and end early; false: it sends none
	up := listen(t, func(conn net.Conn) {
		if shouldBegin.Load() {
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
		}
	})
	var log logbuffer.Buffer
	url := startProxy(t, revproxy.Options{Log: debugLogger(&log)}, up)
	request := func() {
		if res, err := http.Get(url); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	for range 3 {
		request()
	}
	shouldBegin.Store(true)
	request()
	if got := log.String(); !strings.Contains(got, "no response from the upstream") {
		t.Errorf("the log is %s; want a line about the failed requests", got)
	}
	_, broken, _ := strings.Cut(log.String(), "the upstream's response ended early")
	if !strings.Contains(broken, "unlogged=0") {
		t.Errorf("the log is %s; want a first line about the response that ended early, with unlogged=0", log.String())
	}
}

// TestAmbiguousResponsesEndTheirConnection tests RFC 9112, 6.1.
func TestAmbiguousResponsesEndTheirConnection(t *testing.T) {
	for _, c := range []struct {
		name, head string
		isReused   bool // the connection is used again
	}{
		{name: "clear", head: "Transfer-Encoding: chunked", isReused: true},
		{name: "clear, after an interim response", head: "Link: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", isReused: true},
		{name: "both", head: "Content-Length: 5\r\nTransfer-Encoding: chunked"},
		{name: "both, the other way", head: "transfer-encoding: chunked\r\nX: y\r\nCONTENT-LENGTH: 5\r\nConnection: keep-alive"},
		{name: "both, folded", head: "Content-Length: 5\r\nTransfer-Encoding:\r\n chunked"},
		{name: "both, with a long line", head: "X: " + strings.Repeat("Content-Length", 5000) + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked"},
		{name: "both, after an interim response", head: "Link: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked"},
	} {
		for _, size := range []int{1 << 20, 7, 1} { // bytes in each write of the response
			if size == 1 && len(c.head) > 1000 { // takes too long
				continue
			}
			status := "200 OK"
			if strings.Contains(c.head, "HTTP/1.1 200 OK") { // head has the final status, so this one is interim
				status = "103 Early Hints"
			}
			var connections atomic.Int64
			response := "HTTP/1.1 " + status + "\r\n" + c.head + "\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
			up := listen(t, func(conn net.Conn) {
				connections.Add(1)
				conn.(*net.TCPConn).SetNoDelay(true)
				r := bufio.NewReader(conn)
				for {
					for rest := response; rest != ""; {
						n := min(size, len(rest))
						io.WriteString(conn, rest[:n])
						rest = rest[n:]
					}
					for line := ""; line != "GET / HTTP/1.1\r\n"; {
						var err error
						if line, err = r.ReadString('\n'); err != nil {
							return
						}
					}
				}
			})
			site := startProxy(t, revproxy.Options{}, up)
			for range 3 {
				res, err := http.Get(site)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				if string(body) != "hello" || err != nil || res.StatusCode != 200 {
					t.Errorf("%s, in pieces of %d bytes: the client gets %s %q, %v; want 200 hello", c.name, size, res.Status, body, err)
				}
			}
			want := int64(3) // one for each response
			if c.isReused {
				want = 1
			}
			if got := connections.Load(); got != want {
				t.Errorf("%s, in pieces of %d bytes: there are %d connections for 3 responses; want %d", c.name, size, got, want)
			}
		}
	}
}

func TestLogDoesNotQuoteResponses(t *testing.T) {
	for _, response := range []string{
		"SECRET\r\n\r\n",
		"HTTP/1.1 SECRET\r\n\r\n",
		"HTTP/1.1 200 OK\r\nSECRET\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: SECRET\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: SECRET\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n0\r\nSECRET\r\n\r\n",
	} {
		var log logbuffer.Buffer
		up := listen(t, func(conn net.Conn) { io.WriteString(conn, response) })
		if res, err := http.Get(startProxy(t, revproxy.Options{Log: debugLogger(&log)}, up)); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		if got := log.String(); strings.Contains(got, "SECRET") || strings.Count(got, "level=WARN") != 1 {
			t.Errorf("after %q, the log is %s; want one warning without SECRET", response, got)
		}
	}
}

func TestDisconnectedClientEndsTheRequestToTheUpstream(t *testing.T) {
	for _, hasStarted := range []bool{false, true} {
		arrived, ended := make(chan struct{}), make(chan struct{})
		var log logbuffer.Buffer
		site := startProxy(t, revproxy.Options{Log: debugLogger(&log)}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if hasStarted {
				io.WriteString(w, "x")
				http.NewResponseController(w).Flush()
			}
			close(arrived)
			<-r.Context().Done()
			close(ended)
		}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			request, _ := http.NewRequestWithContext(ctx, "GET", site, nil)
			if res, err := http.DefaultTransport.RoundTrip(request); err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}()
		<-arrived
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("with a response started: %v, the request to the upstream still runs %v after the client left; want it canceled", hasStarted, patience)
		}
		if !hasStarted {
			eventually.True(t, "a line in the log", func() bool { return strings.Contains(log.String(), "status=499") })
		}
		if got := log.String(); strings.Contains(got, "WARN") || strings.Contains(got, "ERROR") {
			t.Errorf("with a response started: %v, the log is %s; want no warning and no error", hasStarted, got)
		}
	}
}

func TestBodiesThatCannotBeReadGetA4xx(t *testing.T) {
	site := startProxy(t, revproxy.Options{MaxBody: 10}, startUpstream(t, echo))
	head := "POST / HTTP/1.1\r\nHost: h\r\n"
	for _, c := range []struct {
		request string
		status  int
	}{
		{head + "Content-Length: 10\r\n\r\n0123456789", 200},
		{head + "Content-Length: 11\r\n\r\n0123456789a", 413},
		{head + "Content-Length: 11\r\nExpect: 100-continue\r\n\r\n", 413},
		{head + "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n", 200},
		{head + "Transfer-Encoding: chunked\r\n\r\n9\r\n012345678\r\n2\r\n9a\r\n0\r\n\r\n", 413},
		{head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n", 400},
		{head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n", 400},
	} {
		if res, body := sendRaw(t, site, c.request); res.StatusCode != c.status {
			t.Errorf("%q gets %s %s; want %d", c.request, res.Status, body, c.status)
		}
	}
}

func TestUpstreamsOfAllSchemes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "app.sock")
	onSocket, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(echo)}
	go server.Serve(onSocket)
	defer server.Close()

	withTLS := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	withTLS.EnableHTTP2 = true
	withTLS.StartTLS()
	defer withTLS.Close()
	roots := x509.NewCertPool()
	roots.AddCert(withTLS.Certificate())
	tlsWithoutHTTP2 := httptest.NewTLSServer(http.HandlerFunc(echo))
	defer tlsWithoutHTTP2.Close()

	plain := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	defer plain.Close()

	for _, c := range []struct{ upstream, proto string }{
		{"unix:" + socket, "HTTP/1.1"},
		{withTLS.URL, "HTTP/2.0"},
		{tlsWithoutHTTP2.URL, "HTTP/1.1"},
		{strings.Replace(plain.URL, "http:", "h2c:", 1), "HTTP/2.0"},
	} {
		site := startProxy(t, revproxy.Options{TLS: &tls.Config{RootCAs: roots}}, c.upstream)
		got := sendToEcho(t, site, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello")
		if got.Proto != c.proto || got.Body != "hello" || got.Header.Get("X-Forwarded-Host") != "h" {
			t.Errorf("%s: the upstream got %+v; want %s with the body and the host", c.upstream, got, c.proto)
		}
	}
	if res, _ := sendRaw(t, startProxy(t, revproxy.Options{}, withTLS.URL), "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); res.StatusCode != 502 {
		t.Errorf("with an unknown certificate of the upstream, the client gets %s; want 502", res.Status)
	}
}

func TestEarlyResponseReachesAClientThatStillSends(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no", http.StatusRequestEntityTooLarge)
	}))
	for _, length := range []int{1 << 10, 1 << 18, 1 << 24} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(patience))
		go func() {
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", length)
			io.Copy(conn, &noise{left: length})
		}()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("while it sends %d bytes, the client gets %v, %v; want the upstream's 413", length, res, err)
		}
		conn.Close()
	}
}

func TestObserveSeesEachResponseOfTheUpstream(t *testing.T) {
	statuses := make(chan int, 10)
	o := revproxy.Options{Observe: func(status int, took time.Duration) {
		if took <= 0 || took > patience {
			t.Errorf("status %d took %v; want more than 0, and less than %v", status, took, patience)
		}
		statuses <- status
	}}
	url := startProxy(t, o, startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/broken":
			panic(http.ErrAbortHandler)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	for path, want := range map[string]int{"/": 200, "/busy": 503, "/broken": 0} {
		res, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := <-statuses; got != want {
			t.Errorf("%s: Observe got the status %d, want %d", path, got, want)
		}
	}
}
