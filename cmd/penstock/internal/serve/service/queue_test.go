package service

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// withObservedStore makes the service call observe with the first charge of each batch, and with
// the store's decision.
func withObservedStore(observe func(penstock.Charge, penstock.Decision)) func(*Options) {
	return func(o *Options) {
		o.testHooks.store = func(store penstock.Store) penstock.Store {
			return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				decision, err := store.Decide(ctx, charges)
				if err == nil {
					observe(charges[0], decision)
				}
				return decision, err
			})
		}
	}
}

func TestQueuedRequestsGetA503OnShutdown(t *testing.T) {
	const policy = `
rules: [{name: queue, match: {path: /queue}, per: global, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 1, max_wait: 2h}]}]
`
	reached := make(chan struct{}, 1)
	r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			reached <- struct{}{}
			<-r.Context().Done()
		}
	}), policy, map[string]string{"drain-timeout": "100ms"})
	if res := r.mustSend("GET", "/queue"); res.StatusCode != 200 {
		t.Fatalf("the first request got %s; want 200", res.Status)
	}
	for _, c := range []struct{ path, want string }{
		{"/queue", "canceled before it was admitted"},
		{"/slow", "the service is shutting down"},
	} {
		conn := r.dial()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", c.path)
		defer func() { // after the service has stopped
			if status, body, err := readResponse(conn); status != 503 || err != nil || !strings.Contains(body, c.want) {
				t.Errorf("%s got %d %s (error %v); want 503 and %q", c.path, status, body, err, c.want)
			}
		}()
	}
	eventually.True(t, "a request to wait", func() bool { return r.metric("rate_limiter_requests_waiting") == "1" })
	<-reached
	r.wait()
}

func TestClientThatLeavesTheQueueFreesItsPlace(t *testing.T) {
	const policy = `
rules: [{name: queue, per: global, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 1, max_wait: 2h}]}]
`
	onStores(t, func(t *testing.T, flags map[string]string) {
		var served atomic.Int64
		upstream := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) })
		flags = limitedBy(t, policy, flags)
		waits := make(chan time.Duration, 100) // of admitted requests
		r := start(t, upstream, flags, withObservedStore(func(c penstock.Charge, d penstock.Decision) {
			if c.Mode == penstock.Spend && d.Allowed {
				waits <- d.Wait()
			}
		}))
		if res := r.mustSend("GET", "/"); res.StatusCode != 200 || <-waits != 0 {
			t.Fatalf("the first request got %s; want 200", res.Status)
		}
		h2 := &http.Transport{Protocols: new(http.Protocols)}
		h2.Protocols.SetUnencryptedHTTP2(true)
		defer h2.CloseIdleConnections()
		const clients = 8
		for i := range clients {
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				transport := http.DefaultTransport
				var body io.Reader
				if i%2 == 1 { // every other client uses HTTP/2 and sends a body
					transport, body = h2, strings.NewReader("body")
				}
				request, _ := http.NewRequestWithContext(ctx, "POST", "http://"+r.Listen, body)
				res, err := transport.RoundTrip(request)
				if err == nil {
					res.Body.Close()
				}
				ended <- err
			}()
			select {
			case wait := <-waits:
				if wait <= 0 || wait > time.Hour {
					t.Errorf("client %d would wait for %v, behind clients that left; want up to an hour", i, wait)
				}
			case err := <-ended:
				t.Fatalf("client %d was rejected, or did not have to wait: %v", i, err)
			case <-time.After(patience):
				t.Fatalf("client %d got no decision within %v", i, patience)
			}
			eventually.True(t, "the client to wait", func() bool { return r.metric("rate_limiter_requests_waiting") == "1" })
			if res := r.mustSend("GET", "/"); res.StatusCode != 429 {
				t.Errorf("while the queue is full, another client got %s; want 429", res.Status)
			}
			hangUp()
			if err := <-ended; err == nil {
				t.Errorf("client %d got a response before its turn", i)
			}
			eventually.True(t, "the client to leave", func() bool { return r.metric("rate_limiter_requests_waiting") == "0" })
		}
		if n := r.metric(`rate_limiter_requests_total{algorithm="leaky-bucket",limit="hour",outcome="abandoned",rule="queue"}`); n != fmt.Sprint(clients) {
			t.Errorf("%s requests are counted as abandoned; want %d", n, clients)
		}
		if served.Load() != 1 {
			t.Errorf("the upstream served %d requests; want only the first", served.Load())
		}
		t.Logf("counted: %d clients that left the queue", clients)
	})
}

// Requests that wait at the proxy and those that wait at forward-auth are counted together.
func TestAllListenersCountTheirWaitingRequests(t *testing.T) {
	const policy = `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: queue, match: {path: /queue}, per: global, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 2, max_wait: 3h}]}]
`
	r := startLimited(t, hello, policy, map[string]string{"api": "127.0.0.1:0"})
	if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/queue"); status != 200 {
		t.Fatalf("the first request got %d; want 200", status)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	// sendAndWait sends a request that must wait. want is the number of requests that wait then.
	sendAndWait := func(url string, header http.Header, want string) {
		request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = header
		go func() {
			if res, err := http.DefaultClient.Do(request); err == nil {
				t.Errorf("a request for %s got %s; want it to wait", url, res.Status)
				res.Body.Close()
			}
			ended <- struct{}{}
		}()
		eventually.True(t, want+" requests to wait", func() bool { return r.metric("rate_limiter_requests_waiting") == want })
	}
	sendAndWait("http://"+r.API+"/auth/forward", http.Header{
		"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {"/queue"}, "X-Forwarded-Host": {"example.com"}, "X-Forwarded-For": {"192.0.2.1"},
	}, "1")
	sendAndWait("http://"+r.Listen+"/queue", http.Header{}, "2")
	leave()
	<-ended
	<-ended
	eventually.True(t, "both requests to leave the queue", func() bool { return r.metric("rate_limiter_requests_waiting") == "0" })
}

// The metric counts the waiting requests of each listener.
func TestWaitingRequestsOfEachListenerAreCounted(t *testing.T) {
	const policy = `
http: {trusted_proxies: [127.0.0.1]}
rules: [{name: queue, per: ip, limits: [{rate: 1/h, algorithm: leaky-bucket, burst: 1, max_wait: 2h}]}]
`
	const description = `{"attributes":{"address":"192.0.2.1"}}`
	for name, c := range map[string]struct {
		flags map[string]string
		send  func(r *testService, ctx context.Context) error
	}{
		"proxy": {send: func(r *testService, ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.Listen+"/", nil)
			if err == nil {
				_, err = http.DefaultTransport.RoundTrip(request)
			}
			return err
		}},
		"forward-auth": {flags: map[string]string{"api": "127.0.0.1:0"}, send: func(r *testService, ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, "GET", "http://"+r.API+"/auth/forward", nil)
			if err != nil {
				return err
			}
			request.Header = http.Header{"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {"/"}, "X-Forwarded-Host": {"h"}, "X-Forwarded-For": {"192.0.2.1"}}
			_, err = http.DefaultTransport.RoundTrip(request)
			return err
		}},
		"check API": {flags: map[string]string{"api": "127.0.0.1:0"}, send: func(r *testService, ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, "POST", "http://"+r.API+"/v1/check", strings.NewReader(description))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/json")
			_, err = http.DefaultTransport.RoundTrip(request)
			return err
		}},
		"ext_authz": {flags: map[string]string{"grpc": "127.0.0.1:0"}, send: func(r *testService, ctx context.Context) error {
			_, err := authv3.NewAuthorizationClient(r.grpcClient(nil)).Check(ctx, extAuthzRequest("192.0.2.1", "/"))
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var upstream http.Handler
			if c.flags == nil {
				upstream = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			}
			r := startLimited(t, upstream, policy, c.flags)
			if err := c.send(r, t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() { left <- c.send(r, ctx) }()
			eventually.True(t, "a request to be counted as waiting", func() bool { return r.metric("rate_limiter_requests_waiting") == "1" })
			leave()
			if err := <-left; err == nil {
				t.Error("the request that waited got a response; want none after its context has ended")
			}
			eventually.True(t, "no request to be counted as waiting", func() bool { return r.metric("rate_limiter_requests_waiting") == "0" })
			http.DefaultClient.CloseIdleConnections()
		})
	}
}
