package extauthz_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/extauthz"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/forwardauth"
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

// fixedClockStore returns a memory store whose clock does not advance.
func fixedClockStore() penstock.Store {
	now := time.Unix(1_800_000_000, 0)
	return memstore.New(memstore.Options{Now: func() time.Time { return now }})
}

func controllerOf(t testing.TB, store penstock.Store, rules policy.RuleSource) *admission.Controller {
	t.Helper()
	c, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serverOf makes a Server on a store without guards.
func serverOf(t testing.TB, store penstock.Store, rules policy.RuleSource, o forwardauth.Options) *extauthz.Server {
	t.Helper()
	if o.Misused == nil {
		o.Misused = func(error) {}
	}
	s := extauthz.New(controllerOf(t, store, rules), o)
	return s
}

// serve serves a Server over loopback until the test ends. It returns a client.
func serve(t testing.TB, s *extauthz.Server) authv3.AuthorizationClient {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	s.Register(server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v; want no error after Stop", err)
		}
	})
	return authv3.NewAuthorizationClient(conn)
}

// clientFor serves a policy with a new memory store. It returns a client.
func clientFor(t testing.TB, text string) authv3.AuthorizationClient {
	t.Helper()
	rules := rulesOf(t, text)
	return serve(t, serverOf(t, fixedClockStore(), rules, forwardauth.Options{}))
}

// checkRequest returns Envoy's CheckRequest for a request of the client 192.0.2.1.
func checkRequest(method, path string, headers ...string) *authv3.CheckRequest {
	r := &authv3.AttributeContext_HttpRequest{
		Id: "1", Method: method, Path: path, Host: "shop.example:443", Scheme: "https", Size: -1, Protocol: "HTTP/1.1",
		Headers: map[string]string{":method": method, ":path": path, ":authority": "shop.example:443", "x-forwarded-for": "192.0.2.1"},
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Headers[headers[i]] = headers[i+1]
	}
	return &authv3.CheckRequest{Attributes: &authv3.AttributeContext{Source: source("192.0.2.1"), Request: &authv3.AttributeContext_Request{Http: r}}}
}

// source returns the source of a request from an address.
func source(address string) *authv3.AttributeContext_Peer {
	return &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 4711},
	}}}}
}

// from changes the client's address in a CheckRequest.
func from(address string, q *authv3.CheckRequest) *authv3.CheckRequest {
	q.Attributes.Source = source(address)
	return q
}

// check sends a CheckRequest. It checks the properties that every response must have.
func check(t testing.TB, client authv3.AuthorizationClient, q *authv3.CheckRequest) *authv3.CheckResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := client.Check(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.ValidateAll(); err != nil {
		t.Errorf("Envoy refuses the response: %v\n%v", err, answer)
	}
	if isOK := answer.GetStatus().GetCode() == int32(codes.OK); isOK != (answer.GetOkResponse() != nil) {
		t.Errorf("the status contradicts the response: %v; want that both are OK, or neither", answer)
	}
	return answer
}

// status returns 200 if the request passes, 500 if there is no decision, and otherwise the HTTP
// status that Envoy's client gets.
func status(answer *authv3.CheckResponse) int {
	switch {
	case answer.GetOkResponse() != nil:
		return http.StatusOK
	case answer.GetErrorResponse() != nil:
		return http.StatusInternalServerError
	}
	return int(answer.GetDeniedResponse().GetStatus().GetCode())
}

// header returns the value of a header that Envoy sends to its client.
func header(answer *authv3.CheckResponse, name string) string {
	for _, h := range slices.Concat(answer.GetOkResponse().GetResponseHeadersToAdd(), answer.GetDeniedResponse().GetHeaders()) {
		if strings.EqualFold(h.Header.Key, name) {
			if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				return "not overwritten: " + h.Header.Value
			}
			return h.Header.Value
		}
	}
	return ""
}

const hourly = `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: api, match: {path: /api/**}, per: ip, limits: [{name: hour, rate: 1/h}]}]
`

func TestResponsesFollowEnvoysProtocol(t *testing.T) {
	client := clientFor(t, hourly)
	passed := check(t, client, checkRequest("GET", "/api/a"))
	if status(passed) != 200 || header(passed, "RateLimit") != `"api.hour";r=0;t=3600` || header(passed, "RateLimit-Policy") != `"api.hour";q=1;w=3600` {
		t.Errorf("the first request: %v; want that it passes, with RateLimit and RateLimit-Policy", passed)
	}
	denied := check(t, client, checkRequest("GET", "/api/a"))
	if status(denied) != 429 || denied.Status.Code != int32(codes.ResourceExhausted) || header(denied, "Retry-After") != "3600" ||
		header(denied, "Content-Type") != "application/problem+json" || header(denied, "RateLimit") == "" || !strings.Contains(denied.GetDeniedResponse().Body, `"violated-policies":["api.hour"]`) {
		t.Errorf("the second request: %v; want 429 with Retry-After, RateLimit and a problem that names api.hour", denied)
	}
	if free := check(t, client, checkRequest("GET", "/other")); status(free) != 200 || header(free, "RateLimit") != "" {
		t.Errorf("a request without limits: %v; want that it passes without RateLimit", free)
	}
	if other := check(t, client, from("192.0.2.2", checkRequest("GET", "/api/a"))); status(other) != 200 {
		t.Errorf("another client: %v; want that it passes", other)
	}
}

// A policy chooses the HTTP status of denials. The gRPC code still tells what happened.
func TestCodesDoNotDependOnTheStatusOfDenials(t *testing.T) {
	const text = `
http: {trusted_proxies: [127.0.0.1], denied: {status: %d}}
deny: [{ip: 192.0.2.66}]
rules:
- {name: api, match: {path: /api/**}, per: ip, limits: [{name: hour, rate: 1/h}]}
- {name: closed, match: {path: /closed}, per: ip, limits: [{name: hour, rate: 1/h, on_failure: closed}]}
`
	for _, denied := range []int{403, 429, 503} {
		rules := rulesOf(t, fmt.Sprintf(text, denied))
		store := fixedClockStore()
		client := serve(t, serverOf(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if strings.HasPrefix(charges[0].Plan.Group(), "closed") {
				return penstock.Decision{}, penstock.ErrUnavailable
			}
			return store.Decide(ctx, charges)
		}), rules, forwardauth.Options{}))
		for _, c := range []struct {
			request *authv3.CheckRequest
			status  int
			code    codes.Code
		}{
			{checkRequest("GET", "/api/a"), 200, codes.OK},
			{checkRequest("GET", "/api/a"), denied, codes.ResourceExhausted},
			{checkRequest("GET", "/closed"), 503, codes.Unavailable},
			{checkRequest("GET", "/api%2fa"), 400, codes.InvalidArgument},
			{from("192.0.2.66", checkRequest("GET", "/other")), 403, codes.PermissionDenied},
		} {
			answer := check(t, client, c.request)
			if got := codes.Code(answer.Status.Code); status(answer) != c.status || got != c.code {
				t.Errorf("with denied.status %d, a request for %s got the status %d and the code %v; want %d and %v", denied, c.request.Attributes.Request.Http.Path, status(answer), got, c.status, c.code)
			}
		}
	}
}

// Each spelling of a path gets the same status as from forward-auth over HTTP.
func TestSpellingsOfPathsGetTheStatusOfForwardAuth(t *testing.T) {
	const text = `
http: {trusted_proxies: [127.0.0.1, 192.0.2.1]}
rules: [{name: rides, match: {path: /api/rides/request}, per: global, limits: [{rate: 1/h}]}]
`
	rules := rulesOf(t, text)
	n, counts := 0, make(map[int]int)
	for _, target := range spellings.All() {
		overHTTP, err := forwardauth.New(controllerOf(t, fixedClockStore(), rules), forwardauth.Options{})
		if err != nil {
			t.Fatal(err)
		}
		client := clientFor(t, text)
		for range 2 {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", "/auth/forward", nil)
			r.RemoteAddr = "127.0.0.1:1"
			r.Header = http.Header{"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {target}, "X-Forwarded-Host": {"shop.example"}, "X-Forwarded-For": {"192.0.2.1"}}
			overHTTP.ServeHTTP(w, r)
			if got := status(check(t, client, checkRequest("GET", target))); got != w.Code {
				t.Errorf("the path %q: status %d; want %d as from forward-auth", target, got, w.Code)
			}
			counts[w.Code]++
			n++
		}
	}
	if counts[429] < 100 || counts[400] == 0 {
		t.Errorf("the statuses are %v; want at least 100 of 429 and some of 400", counts)
	}
	t.Logf("counted: %d spellings of paths in ext_authz", n)
}

func TestForgedHeadersDoNotChangeTheClient(t *testing.T) {
	client := clientFor(t, hourly)
	if got := status(check(t, client, checkRequest("GET", "/api/a"))); got != 200 {
		t.Fatalf("the first request: %d; want 200", got)
	}
	for name, q := range map[string]*authv3.CheckRequest{
		"X-Forwarded-For":     checkRequest("GET", "/api/a", "x-forwarded-for", "198.51.100.9"),
		"a forged list":       checkRequest("GET", "/api/a", "x-forwarded-for", "198.51.100.9, 192.0.2.1"),
		"Forwarded":           checkRequest("GET", "/api/a", "forwarded", "for=198.51.100.9"),
		"X-Real-IP":           checkRequest("GET", "/api/a", "x-real-ip", "198.51.100.9"),
		"X-Forwarded-Uri":     checkRequest("GET", "/api/a", "x-forwarded-uri", "/other"),
		"X-Original-Method":   checkRequest("GET", "/api/a", "x-original-method", "OPTIONS"),
		"pseudo headers":      checkRequest("GET", "/api/a", ":path", "/other", ":method", "OPTIONS"),
		"a context extension": checkRequest("GET", "/api/a", "x-context-plan", "gold"),
	} {
		if got := status(check(t, client, q)); got != 429 {
			t.Errorf("%s: status %d; want 429", name, got)
		}
	}
	// The client is the address that the trusted load balancer has appended.
	behind := clientFor(t, strings.Replace(hourly, "[127.0.0.1]", "[127.0.0.1, 10.0.0.0/8]", 1))
	for _, c := range []struct {
		list string
		want int
	}{{"192.0.2.7", 200}, {"198.51.100.9, 192.0.2.7, 10.0.0.2", 429}, {"203.0.113.1, 192.0.2.7", 429}, {"192.0.2.7, 192.0.2.8", 200}} {
		if got := status(check(t, behind, from("10.0.0.1", checkRequest("GET", "/api/a", "x-forwarded-for", c.list)))); got != c.want {
			t.Errorf("X-Forwarded-For: %s: status %d; want %d", c.list, got, c.want)
		}
	}
	removed := check(t, client, checkRequest("GET", "/other", "x-forwarded-uri", "/admin", "x-original-url", "http://a/b", "x-forwarded-proto", "https")).GetOkResponse().HeadersToRemove
	if !slices.Equal(removed, []string{"X-Forwarded-Uri", "X-Original-Url"}) {
		t.Errorf("Envoy removes the headers %q; want X-Forwarded-Uri and X-Original-Url", removed)
	}
}

func TestMalformedCheckRequestsGetStatus400(t *testing.T) {
	client := clientFor(t, hourly)
	for name, q := range map[string]*authv3.CheckRequest{
		"nothing":                {},
		"no request":             {Attributes: &authv3.AttributeContext{Source: source("192.0.2.1")}},
		"no HTTP request":        {Attributes: &authv3.AttributeContext{Source: source("192.0.2.1"), Request: &authv3.AttributeContext_Request{}}},
		"no source":              {Attributes: &authv3.AttributeContext{Request: checkRequest("GET", "/api/a").Attributes.Request}},
		"no method":              checkRequest("", "/api/a"),
		"no path":                checkRequest("GET", ""),
		"an absolute URI":        checkRequest("GET", "http://shop.example/api/a"),
		"an asterisk":            checkRequest("OPTIONS", "*"),
		"a relative path":        checkRequest("GET", "api/a"),
		"a space":                checkRequest("GET", "/api/a b"),
		"an encoded slash":       checkRequest("GET", "/api%2fa"),
		"a NUL":                  checkRequest("GET", "/api/%00"),
		"a method in lower case": checkRequest("get", "/api/a"),
		"a malformed method":     checkRequest("G T", "/api/a"),
	} {
		if answer := check(t, client, q); status(answer) != 400 {
			t.Errorf("%s: %v; want 400", name, answer)
		}
	}
	badHost := checkRequest("GET", "/api/a")
	badHost.Attributes.Request.Http.Host = "shop.example/x"
	if answer := check(t, client, badHost); status(answer) != 400 {
		t.Errorf("a malformed host: %v; want 400", answer)
	}
}

// With encode_raw_headers, a header that was sent twice has two values and identifies no client.
func TestRepeatedRawHeaderIdentifiesNoClient(t *testing.T) {
	client := clientFor(t, `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 1/h}]}]
`)
	raw := func(pairs ...string) *authv3.CheckRequest {
		q := checkRequest("GET", "/api/a", "x-key", "of the map that is not used")
		m := new(corev3.HeaderMap)
		for i := 0; i+1 < len(pairs); i += 2 {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
		}
		q.Attributes.Request.Http.HeaderMap = m
		return q
	}
	for _, c := range []struct {
		q    *authv3.CheckRequest
		want int
	}{
		{raw("x-key", "a"), 200},
		{raw("X-KEY", "a"), 429}, // the same client
		{raw("x-key", "a", "x-key", "b"), 400},
		{raw("x-key", "\xff"), 400}, // not UTF-8
	} {
		if answer := check(t, client, c.q); status(answer) != c.want {
			t.Errorf("%v: %v; want %d", c.q.Attributes.Request.Http.HeaderMap, answer, c.want)
		}
	}
}

func TestContextExtensionsAreHeadersOfRules(t *testing.T) {
	client := clientFor(t, `
http: {trusted_proxies: [127.0.0.1]}
rules:
  - {name: gold, match: {header X-Context-Plan: gold}, per: ip, limits: [{rate: 10/h, cost: {header: X-Context-Cost, max: 5}}]}
  - {name: others, per: ip, limits: [{rate: 1/h}]}
`)
	q := checkRequest("GET", "/api/a", "x-context-cost", "1")
	q.Attributes.ContextExtensions = map[string]string{"plan": "gold", "cost": "4"}
	for _, want := range []string{`"gold.hour";r=6`, `"gold.hour";r=2`} {
		if answer := check(t, client, q); !strings.HasPrefix(header(answer, "RateLimit"), want) {
			t.Errorf("the response %v has another RateLimit; want %s", answer, want)
		}
	}
	for _, name := range []string{"x-context-plan", "X-Context-Plan", "X-CONTEXT-PLAN"} {
		forged := from("192.0.2.9", checkRequest("GET", "/api/a", name, "gold"))
		if answer := check(t, client, forged); strings.Contains(header(answer, "RateLimit"), "gold") || header(answer, "RateLimit") == "" {
			t.Errorf("a client that sends %s itself: %v; want the limit of rule others", name, answer)
		}
	}
}

func TestUntrustedPeersAreRefused(t *testing.T) {
	var reasons []string
	rules := rulesOf(t, strings.Replace(hourly, "127.0.0.1", "10.0.0.1", 1))
	client := serve(t, serverOf(t, fixedClockStore(), rules, forwardauth.Options{Misused: func(err error) { reasons = append(reasons, err.Error()) }}))
	if answer := check(t, client, checkRequest("GET", "/api/a")); status(answer) != 403 || answer.Status.Code != int32(codes.PermissionDenied) {
		t.Errorf("an untrusted peer: %v; want 403 with PERMISSION_DENIED", answer)
	}
	if len(reasons) != 1 || !strings.Contains(reasons[0], "127.0.0.1") || !strings.Contains(reasons[0], "trusted_proxies") {
		t.Errorf("Misused got the errors %q; want one with 127.0.0.1 and trusted_proxies", reasons)
	}
}

// A rulesFunc is a source of rules that change.
type rulesFunc func() *policy.Rules

func (f rulesFunc) Rules() *policy.Rules { return f() }

// While ext_authz cannot enforce the rules, Envoy gets an error.
func TestRulesThatCannotBeEnforcedAreAnError(t *testing.T) {
	var reasons []string
	rules := rulesOf(t, `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: slots, per: ip, limits: [{in_flight: 3}]}]
`)
	client := serve(t, serverOf(t, fixedClockStore(), rulesFunc(func() *policy.Rules { return rules }), forwardauth.Options{Misused: func(err error) { reasons = append(reasons, err.Error()) }}))
	for range 3 {
		if answer := check(t, client, checkRequest("GET", "/api/a")); status(answer) != 500 {
			t.Errorf("a request while the rules have in_flight: %v; want an error", answer)
		}
	}
	if len(reasons) != 1 || !strings.Contains(reasons[0], "in_flight") {
		t.Errorf("Misused got the errors %q; want one about in_flight", reasons)
	}
	rules = rulesOf(t, hourly)
	for _, want := range []int{200, 429} {
		if got := status(check(t, client, checkRequest("GET", "/api/a"))); got != want {
			t.Errorf("a request after a reload to other rules: status %d; want %d", got, want)
		}
	}
}

// A failingStore returns an error: immediately, or only when the context ends.
type failingStore struct{ isHanging bool }

func (s failingStore) Decide(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
	if s.isHanging {
		<-ctx.Done()
		return penstock.Decision{}, ctx.Err()
	}
	return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("no server"))
}

func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	for mode, want := range map[string]int{"open": 200, "closed": 503, "local": 200} {
		rules := rulesOf(t, strings.Replace(hourly, "rate: 1/h", "rate: 1/h, on_failure: "+mode, 1))
		client := serve(t, serverOf(t, failingStore{}, rules, forwardauth.Options{}))
		answer := check(t, client, checkRequest("GET", "/api/a"))
		if status(answer) != want || want == 503 && header(answer, "Retry-After") != "1" {
			t.Errorf("on_failure %s: %v; want status %d, and for 503 Retry-After: 1", mode, answer, want)
		}
	}
	rules := rulesOf(t, hourly)
	s := serverOf(t, failingStore{isHanging: true}, rules, forwardauth.Options{})
	client := serve(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if answer, err := client.Check(ctx, checkRequest("GET", "/api/a")); err == nil && answer.GetErrorResponse() == nil {
		t.Errorf("a call that ends while the store hangs: %v; want an error", answer)
	}
}

// Envoy accepts the response to any CheckRequest.
func FuzzCheck(f *testing.F) {
	for _, q := range []*authv3.CheckRequest{{}, checkRequest("GET", "/api/a?b=c"), checkRequest("", "")} {
		text, err := proto.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	rules := rulesOf(f, strings.Replace(hourly, "127.0.0.1", "unix", 1))
	s := serverOf(f, fixedClockStore(), rules, forwardauth.Options{})
	f.Fuzz(func(t *testing.T, text []byte) {
		q := new(authv3.CheckRequest)
		if proto.Unmarshal(text, q) != nil {
			return
		}
		answer, err := s.Check(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if err := answer.ValidateAll(); err != nil {
			t.Errorf("Envoy refuses the response: %v; want that it is valid", err)
		}
		if code := status(answer); !slices.Contains([]int{200, 400, 429}, code) {
			t.Errorf("the status is %d; want 200, 400 or 429", code)
		}
		if strings.Contains(fmt.Sprint(answer), "\r") {
			t.Errorf("the response %q has a carriage return; want none", fmt.Sprint(answer))
		}
	})
}

// Envoy forwards the request with all names. An application may read some names as another one.
func TestNamesThatSomeServersReadAsOthersAreMalformed(t *testing.T) {
	client := clientFor(t, `
http: {trusted_proxies: [127.0.0.1]}
deny: [{header X-API-Key: banned}, {query key: banned}]
rules: [{name: a, per: ip, limits: [{rate: 1000/h}]}]
`)
	for _, name := range append(spellings.Header("X-API-Key"), "x api\x00key") {
		answer := check(t, client, checkRequest("GET", "/", name, "banned"))
		if status(answer) != 400 || answer.Status.Code != int32(codes.InvalidArgument) || !strings.Contains(answer.GetDeniedResponse().GetBody(), "X-API-Key") {
			t.Errorf("a request with %q: %v; want 400 with INVALID_ARGUMENT and the name X-API-Key", name, answer)
		}
	}
	for target, want := range map[string]int{"/?key%00=banned": 400, "/?key=banned": 403, "/?key=a": 200} {
		if answer := check(t, client, checkRequest("GET", target, "x_other", "banned")); status(answer) != want {
			t.Errorf("a request for %s: %v; want %d", target, answer, want)
		}
	}
}
