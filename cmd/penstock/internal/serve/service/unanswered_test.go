package service

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// withEndSignal makes the service send to ended when the handler that applies the limits has
// returned.
func withEndSignal(ended chan<- struct{}) func(*Options) {
	return func(o *Options) {
		o.testHooks.limits = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { ended <- struct{}{} }()
				next.ServeHTTP(w, r)
			})
		}
	}
}

// A limit may count only successful responses. A client that prevents the response, so that its
// status is unknown, is still charged.
func TestClientThatPreventsTheResponseIsCharged(t *testing.T) {
	const policy = `
rules: [{name: all, per: global, limits: [{rate: 2/h, on_status: [2xx], algorithm: sliding-log}]}]
`
	const tries, charged = 20, 2 // charged is how many tries the limit allows
	for _, c := range []struct {
		name  string
		flags map[string]string
		// try sends a request. If it is allowed, it reaches the upstream, and try prevents the response.
		// If it is denied, it gets status 429.
		try    func(r *testService, i int, reached <-chan struct{}) (status int)
		status int // of the proxy's own response to an allowed request; 0 if there is none
	}{
		{name: "hangs up", try: func(r *testService, _ int, reached <-chan struct{}) int {
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			go func() {
				select {
				case <-reached:
					hangUp()
				case <-ctx.Done():
				}
			}()
			request, _ := http.NewRequestWithContext(ctx, "GET", "http://"+r.Listen, nil)
			res, err := http.DefaultTransport.RoundTrip(request)
			if err != nil {
				return 0
			}
			res.Body.Close()
			return res.StatusCode
		}, status: 0},
		{name: "sends a last chunk that is malformed", try: func(r *testService, i int, reached <-chan struct{}) int {
			conn := r.dial()
			defer conn.Close()
			fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			if i < charged { // the server reads the body of a denied request
				<-reached
			}
			fmt.Fprint(conn, "zz\r\n\r\n")
			status, _, _ := readResponse(conn)
			return status
		}, status: 400},
		{name: "makes the upstream take too long", flags: map[string]string{"upstream-header-timeout": "50ms"}, try: func(r *testService, _ int, _ <-chan struct{}) int {
			return r.mustSend("GET", "/").StatusCode
		}, status: 504},
	} {
		t.Run(c.name, func(t *testing.T) {
			var served atomic.Int64
			reached := make(chan struct{}, tries)
			over := make(chan struct{}) // closed when the test ends
			upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				reached <- struct{}{}
				io.Copy(io.Discard, r.Body)
				select {
				case <-r.Context().Done():
				case <-over:
				}
			})
			flags := limitedBy(t, policy, c.flags)
			ended := make(chan struct{}, tries)
			r := start(t, upstream, flags, withEndSignal(ended))
			t.Cleanup(func() { close(over) })
			for i := range tries {
				want := c.status
				if i >= charged {
					want = 429
				}
				if status := c.try(r, i, reached); status != want {
					t.Errorf("try %d got %d; want %d", i+1, status, want)
				}
				select {
				case <-ended: // all refunds are done
				case <-time.After(patience):
					t.Fatalf("try %d has not ended within %v", i+1, patience)
				}
			}
			if served.Load() != charged {
				t.Errorf("%d requests reached the upstream; want %d", served.Load(), charged)
			}
			t.Logf("counted: %d responses prevented or denied", tries)
		})
	}
}

func TestRequestThatNeverReachedTheUpstreamIsRefunded(t *testing.T) {
	const policy = `
rules: [{name: all, per: global, limits: [{rate: 2/h, on_status: [2xx], algorithm: sliding-log}]}]
`
	free, err := net.Listen("tcp", "127.83.0.1:0") // an address at which no other test listens, so the port stays free
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	r := startLimited(t, nil, policy, map[string]string{"upstream": "http://" + address, "demo": "false"})
	const tries = 10
	for i := range tries {
		if res := r.mustSend("GET", "/"); res.StatusCode != 502 {
			t.Fatalf("try %d, without an upstream, got %s; want 502", i+1, res.Status)
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: hello}
	go server.Serve(listener)
	defer server.Close()
	for i, want := range []int{200, 200, 429} {
		if res := r.mustSend("GET", "/"); res.StatusCode != want {
			t.Errorf("request %d, with the upstream up again, got %s; want %d", i+1, res.Status, want)
		}
	}
	t.Logf("counted: %d requests that were refunded", tries)
}

// Guards pass some errors to the caller, such as ErrInvalid. Requests that such an error allows, by
// on_failure: open, are counted and logged too.
func TestRequestsThatPassBecauseOfAnInvalidChargeAreLogged(t *testing.T) {
	const policy = `
rules:
  - {name: open, match: {path: /open}, per: global, limits: [{rate: 1/d, on_failure: open}]}
  - {name: closed, match: {path: /closed}, per: global, limits: [{rate: 1/d, on_failure: closed}]}
`
	r := start(t, hello, limitedBy(t, policy, nil), func(o *Options) {
		o.testHooks.store = func(penstock.Store) penstock.Store {
			return penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
				return penstock.Decision{}, fmt.Errorf("%w: the test's store rejects the charges", penstock.ErrInvalid)
			})
		}
	})
	const requests = 5
	for range requests {
		for path, want := range map[string]int{"/open": 200, "/closed": 503} {
			if res := r.mustSend("GET", path); res.StatusCode != want {
				t.Errorf("%s got %s; want %d", path, res.Status, want)
			}
		}
	}
	for series, want := range map[string]string{
		`rate_limiter_decisions_total{source="open"}`:   fmt.Sprint(requests),
		`rate_limiter_decisions_total{source="closed"}`: fmt.Sprint(requests),
		`rate_limiter_decisions_total{source="store"}`:  "0",
		`rate_limiter_errors_total{reason="invalid"}`:   fmt.Sprint(2 * requests),
	} {
		if got := r.metric(series); got != want {
			t.Errorf("%s is %q; want %s", series, got, want)
		}
	}
	if n := len(r.log.Lines("level=ERROR", "requests pass unlimited", "critical=true", "rule=open")); n == 0 {
		t.Errorf("no line reports unlimited requests of rule open; want at least one:\n%s", r.log)
	}
	t.Logf("counted: %d requests that could not be sent to the store", 2*requests)
}
