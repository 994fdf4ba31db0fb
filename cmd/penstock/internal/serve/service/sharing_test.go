package service

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// A way is a transport by which a request reaches the policy.
type way struct {
	name string

	// admits sends a client's GET of a path, with an API key, and returns whether it was admitted.
	admits func(ctx context.Context, path, key string) (bool, error)
}

// waysInto returns all transports of a service that decide requests by their attributes. The
// requests come from one address.
func waysInto(r *testService) []way {
	const address = "192.0.2.1"
	byHTTP := func(ctx context.Context, method, url, body string, header http.Header) (bool, error) {
		q, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			return false, err
		}
		q.Header = header
		res, err := http.DefaultClient.Do(q)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		if res.StatusCode != 200 && res.StatusCode != 429 {
			return false, fmt.Errorf("the status is %d; want 200 or 429", res.StatusCode)
		}
		return res.StatusCode == 200, nil
	}
	envoy := authv3.NewAuthorizationClient(r.grpcClient(nil))
	limits := penstockv1.NewLimitServiceClient(r.grpcClient(nil))
	return []way{
		{"proxy", func(ctx context.Context, path, key string) (bool, error) {
			return byHTTP(ctx, "GET", "http://"+r.Listen+path, "", http.Header{"X-Forwarded-For": {address}, "X-Api-Key": {key}})
		}},
		{"forward-auth", func(ctx context.Context, path, key string) (bool, error) {
			return byHTTP(ctx, "GET", "http://"+r.API+"/auth/forward", "", http.Header{
				"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {path}, "X-Forwarded-Host": {"example.com"}, "X-Forwarded-For": {address}, "X-Api-Key": {key},
			})
		}},
		{"check API in JSON", func(ctx context.Context, path, key string) (bool, error) {
			body := fmt.Sprintf(`{"attributes":{"method":"GET","path":"%s","address":"%s","headers":{"X-API-Key":"%s"}}}`, path, address, key)
			return byHTTP(ctx, "POST", "http://"+r.API+"/v1/check?status=429", body, http.Header{"Content-Type": {"application/json"}})
		}},
		{"check API by gRPC", func(ctx context.Context, path, key string) (bool, error) {
			answer, err := limits.Check(ctx, &penstockv1.CheckRequest{Attributes: &penstockv1.Attributes{
				Method: "GET", Path: path, Address: address, Headers: map[string]string{"X-API-Key": key},
			}})
			return answer.GetAllowed(), err
		}},
		{"ext_authz", func(ctx context.Context, path, key string) (bool, error) {
			answer, err := envoy.Check(ctx, &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
				Source: &authv3.AttributeContext_Peer{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: address}}}},
				Request: &authv3.AttributeContext_Request{Http: &authv3.AttributeContext_HttpRequest{
					Method: "GET", Path: path, Host: "example.com", Headers: map[string]string{"x-forwarded-for": address, "x-api-key": key},
				}},
			}})
			if err == nil && answer.GetOkResponse() == nil && answer.GetDeniedResponse() == nil {
				err = fmt.Errorf("no decision: %v", answer)
			}
			return answer.GetOkResponse() != nil, err
		}},
	}
}

// startAllWays starts a service with a listener for each transport.
func startAllWays(t *testing.T, policy string) *testService {
	t.Helper()
	return startLimited(t, hello, policy, map[string]string{"api": "127.0.0.1:0", "grpc": "127.0.0.1:0"})
}

// An identity that one transport has admitted is known to all, and all count new ones together.
func TestAllTransportsShareTheKnownIdentities(t *testing.T) {
	const policy = `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: api, per: {key: header X-API-Key}, new_identities: 5/d, limits: [{rate: 1000/s}]}]
`
	const newKeys, want = 7, 5
	ways := waysInto(startAllWays(t, policy))
	var known []string
	for i, w := range ways {
		for n := range newKeys {
			key := fmt.Sprintf("key-%d-%d", i, n)
			isAdmitted, err := w.admits(callContext(t), "/", key)
			if err != nil {
				t.Fatalf("%s, %s: %v", w.name, key, err)
			}
			if isAdmitted {
				known = append(known, key)
			}
		}
	}
	if len(known) != want {
		t.Errorf("of %d new keys through each of %d transports, %d are admitted: %v; want %d in all", newKeys, len(ways), len(known), known, want)
	}
	for _, w := range ways {
		for _, key := range known {
			if isAdmitted, err := w.admits(callContext(t), "/", key); !isAdmitted || err != nil {
				t.Errorf("%s: the known key %s is admitted: %t (error %v); want true", w.name, key, isAdmitted, err)
			}
		}
	}
}

// max_waiting is the bound of the process. The service counts what waits once.
func TestAllTransportsShareMaxWaiting(t *testing.T) {
	const policy = `
http: {trusted_proxies: [127.0.0.1], max_waiting: 2}
rules: [{name: queue, match: {path: /queue}, per: global, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 100, max_wait: 23h}]}]
`
	r := startAllWays(t, policy)
	ways := waysInto(r)
	if isAdmitted, err := ways[0].admits(callContext(t), "/queue", "a"); !isAdmitted || err != nil {
		t.Fatalf("the first request is admitted: %t (error %v); want true", isAdmitted, err)
	}
	waitCtx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer leave()
	for i, w := range []way{ways[0], ways[3]} { // the proxy, and the check API by gRPC
		waiting.Go(func() {
			if isAdmitted, err := w.admits(waitCtx, "/queue", "a"); err == nil {
				t.Errorf("%s: a request that should wait is admitted: %t", w.name, isAdmitted)
			}
		})
		eventually.True(t, "the request to wait", func() bool { return r.metric("rate_limiter_requests_waiting") == fmt.Sprint(i+1) })
	}
	for _, w := range ways {
		if isAdmitted, err := w.admits(callContext(t), "/queue", "a"); isAdmitted || err != nil {
			t.Fatalf("%s: with two requests that wait, a third is admitted: %t (error %v); want a denial", w.name, isAdmitted, err)
		}
	}
}

// Any peer can cause the line about refused subrequests, at two listeners. The service logs it at
// most once per interval.
func TestForwardAuthAndExtAuthzShareTheirLogLine(t *testing.T) {
	r := startAllWays(t, "rules: [{name: api, per: ip, limits: [{rate: 1/h}]}]")
	for range 3 {
		if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/"); status != 403 {
			t.Errorf("forward-auth returned %d to an untrusted peer; want 403", status)
		}
		if status := r.authorize("192.0.2.1", "/").GetDeniedResponse().GetStatus().GetCode(); status != 403 {
			t.Errorf("ext_authz returned %d to an untrusted peer; want 403", status)
		}
	}
	if lines := r.log.Lines("level=WARN", "forward-auth refused to decide"); len(lines) != 1 {
		t.Errorf("the log has %d lines about 6 refused subrequests; want one: %q", len(lines), lines)
	}
}
