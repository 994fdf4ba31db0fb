package fastgrpc_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// flood calls send until the connection ends, and returns how it ended, as outcome does.
func flood(r *rawClient, send func()) string {
	ended := make(chan string, 1)
	go func() {
		for {
			f, err := r.ReadFrame()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				ended <- "open until the end of the test"
				return
			}
			if err != nil {
				ended <- "closed"
				return
			}
			if f, ok := f.(*http2.GoAwayFrame); ok {
				ended <- "goaway " + f.ErrCode.String()
				return
			}
		}
	}()
	for {
		select {
		case got := <-ended:
			return got
		default:
			for range 100 {
				send()
			}
		}
	}
}

func TestFloodsEndTheConnection(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	block := []byte{0x83, 0x86, 0x84} // :method POST, :scheme http, :path /
	floods := map[string]func(r *rawClient) (send func()){
		"ping":     func(r *rawClient) func() { return func() { r.WritePing(false, [8]byte{}) } },
		"settings": func(r *rawClient) func() { return func() { r.WriteSettings() } },
		"priority": func(r *rawClient) func() { return func() { r.WritePriority(1, http2.PriorityParam{}) } },
		"window":   func(r *rawClient) func() { return func() { r.WriteWindowUpdate(0, 1) } },
		"unknown":  func(r *rawClient) func() { return func() { r.WriteRawFrame(0x77, 0, 0, nil) } },
		"empty DATA": func(r *rawClient) func() {
			r.headers(1, false, fields())
			return func() { r.WriteData(1, false, nil) }
		},
		"empty CONTINUATION": func(r *rawClient) func() {
			r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			return func() { r.WriteContinuation(1, false, nil) }
		},
		"long CONTINUATION": func(r *rawClient) func() {
			r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
			return func() { r.WriteContinuation(1, false, make([]byte, 16384)) }
		},
		"reset before the message": func(r *rawClient) func() {
			list, id := slices.Clone(fields()), uint32(1)
			return func() {
				id += 2
				r.headers(id, false, list)
				r.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		},
	}
	for name, begin := range floods {
		t.Run(name, func(t *testing.T) {
			r := dialRaw(t, address)
			send := begin(r)
			if got := flood(r, send); got != "goaway ENHANCE_YOUR_CALM" && got != "closed" {
				t.Errorf("the connection ended with %q; want %q, or %q if the GOAWAY was lost", got, "goaway ENHANCE_YOUR_CALM", "closed")
			}
		})
	}
}

// A client may cancel each call right after it was sent. The call still counts for MaxStreams while
// its handler runs.
func TestRapidResetRunsAtMostMaxStreamsHandlers(t *testing.T) {
	const limit = 50
	var running, most atomic.Int64 // handlers
	release := make(chan struct{})
	_, address := startFast(t, fastgrpc.Options{MaxStreams: limit, Methods: map[string]fastgrpc.Handler{method: func(context.Context, *fastgrpc.Call) error {
		now := running.Add(1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		<-release
		running.Add(-1)
		return nil
	}}})
	r := dialRaw(t, address)
	for id := uint32(1); id < 2000; id += 2 { // 1000 calls
		r.call(id, "x")
		r.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	if got := r.outcome(1999); got != "reset REFUSED_STREAM" {
		t.Errorf("the outcome of the last call is %q; want %q", got, "reset REFUSED_STREAM")
	}
	if got := most.Load(); got > limit {
		t.Errorf("%d handlers ran at the same time; want at most %d", got, limit)
	}
	close(release)
	for id := uint32(2001); ; id += 2 { // until enough handlers have returned
		r.call(id, "x")
		if got := r.outcome(id); got != "reset REFUSED_STREAM" {
			break
		}
	}
}

// A response is sent in the parts that the client's windows allow.
func TestResponsesWaitForTheWindow(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	r := dialRaw(t, address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	r.call(1, "large")
	r.call(3, "x")
	var got []byte
	for len(got) < 300_000 {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatalf("the response ended after %d bytes: %v; want 300,000 bytes", len(got), err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			if f.StreamID != 1 {
				continue
			}
			got = append(got, f.Data()...)
			if len(got) == 10 { // the window is used up
				r.WriteWindowUpdate(1, 1)
				r.WriteWindowUpdate(0, 1<<20)
				r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			}
			if len(got) < 10 {
				t.Errorf("the first DATA has %d bytes; want 10, the whole window", len(got))
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			t.Fatalf("after %d bytes, the server sends %v; want DATA", len(got), f)
		}
	}
}

func TestStalledResponseIsCancelled(t *testing.T) {
	inBubble(t, fastgrpc.Options{WriteTimeout: time.Second}, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		begin := time.Now()
		r.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		r.call(1, "x")
		if got, took := r.outcome(1), time.Since(begin); got != "reset CANCEL" || !isAbout(took, time.Second) {
			t.Errorf("after %v the outcome is %q; want %q after 1s", took, got, "reset CANCEL")
		}
	})
}

// isAbout reports whether a time is the expected one, or longer by less than a quarter. Requests
// and responses are examined four times in their timeout.
func isAbout(took, expected time.Duration) bool {
	return took == expected || took > expected && took < expected*5/4
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	options := fastgrpc.Options{ReadTimeout: time.Second, KeepAlive: 10 * time.Second, IdleTimeout: time.Minute}
	for name, c := range map[string]struct {
		send  func(*rawClient)
		want  string
		after time.Duration
	}{
		"no preface": {send: func(*rawClient) {}, want: "closed", after: time.Second},
		"half a frame": {send: func(r *rawClient) {
			r.begin()
			r.write([]byte{0, 0, 8, 6}) // the length and the type of a ping
		}, want: "closed", after: time.Second},
		"half a request": {send: func(r *rawClient) {
			r.begin()
			r.headers(1, false, fields())
		}, want: "reset CANCEL", after: time.Second},
		"no answer to a ping": {send: func(r *rawClient) {
			r.begin()
			r.call(1, "wait", "grpc-timeout", "1H")
		}, want: "closed", after: 11 * time.Second},
		"idle": {send: func(r *rawClient) { r.begin() }, want: "goaway NO_ERROR", after: time.Minute},
		"HTTP/1.1": {send: func(r *rawClient) {
			r.write([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"))
		}, want: "goaway PROTOCOL_ERROR", after: 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, options, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
				begin := time.Now()
				c.send(r)
				if got, took := r.outcome(1), time.Since(begin); got != c.want || !isAbout(took, c.after) {
					t.Errorf("after %v the outcome is %q; want %q after %v", took, got, c.want, c.after)
				}
			})
		})
	}
}

// A client with an open call that sends nothing gets a ping after KeepAlive, and is disconnected
// ReadTimeout later.
func TestSilentClientIsDisconnectedInTime(t *testing.T) {
	o := fastgrpc.Options{KeepAlive: time.Hour, ReadTimeout: time.Minute}
	inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		r.begin()
		r.call(1, "wait", "grpc-timeout", "9H")
		begin := time.Now()
		if got := r.outcome(1); got != "closed" || time.Since(begin) != o.KeepAlive+o.ReadTimeout {
			t.Errorf("the outcome is %q after %v; want closed after %v", got, time.Since(begin), o.KeepAlive+o.ReadTimeout)
		}
	})
}

// After errors of Accept, Serve pauses. Close ends the pause.
func TestCloseEndsThePauseOfServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := fastgrpc.New(fastgrpc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error)
		go func() { served <- server.Serve(fullListener{bufconn.Listen(1)}) }()
		time.Sleep(time.Minute + time.Millisecond) // the pauses last a second now
		synctest.Wait()
		begin := time.Now()
		server.Close()
		if err := <-served; err != fastgrpc.ErrServerClosed || time.Since(begin) != 0 {
			t.Errorf("Serve returns %v after %v; want ErrServerClosed without a pause", err, time.Since(begin))
		}
	})
}

// A fullListener accepts no connection, as if too many files were open.
type fullListener struct{ net.Listener }

func (fullListener) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// A stream error ends its stream: the server ignores what follows on it.
func TestStreamOfAMalformedFrameIsOver(t *testing.T) {
	var handled atomic.Int64
	_, address := startFast(t, fastgrpc.Options{Parallel: 1, Methods: map[string]fastgrpc.Handler{method: func(ctx context.Context, call *fastgrpc.Call) error {
		handled.Add(1)
		return handle(ctx, call)
	}}})
	r := dialRaw(t, address)
	r.headers(1, false, fields())
	r.logError(r.WriteWindowUpdate(1, 0))
	r.logError(r.WriteData(1, true, message("x")))
	r.call(3, "x")
	if got := r.outcome(3); got != good || handled.Load() != 1 {
		t.Errorf("the outcome of the next call is %q, and %d calls were handled; want %q and 1", got, handled.Load(), good)
	}
}

// A client may use the whole window of a connection, and no byte more.
func TestWholeWindowOfAConnectionIsUsable(t *testing.T) {
	const streamWindow, connWindow = 1<<16 - 1, 1 << 20
	end := make(chan struct{})
	defer close(end)
	readNothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end })
	_, address := startFast(t, fastgrpc.Options{Fallback: readNothing})
	r := dialRaw(t, address)
	id := uint32(1)
	for left := connWindow; left > 0; id += 2 {
		r.headers(id, false, fields(":path", "/a.B/C"))
		for n := min(left, streamWindow); n > 0; {
			part := min(n, 16<<10)
			r.logError(r.WriteData(id, false, make([]byte, part)))
			left, n = left-part, n-part
		}
	}
	r.call(id, "x", "content-type", "application/json")
	if got := r.outcome(id); got != "415/3" {
		t.Errorf("with a full window, the outcome of a call without data is %q; want %q", got, "415/3")
	}
	r.logError(r.WriteData(id-2, false, []byte("x")))
	if got := r.outcome(id + 2); got != "goaway FLOW_CONTROL_ERROR" {
		t.Errorf("the outcome of a byte beyond the window is %q; want %q", got, "goaway FLOW_CONTROL_ERROR")
	}
}

// The messages of 200 incomplete calls would take 3 MB. The server keeps at most 1 MB, and refuses
// the other calls with RESOURCE_EXHAUSTED.
func TestIncompleteMessagesHaveABound(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	r := dialRaw(t, address)
	refused := make(chan string, 1)
	go func() {
		for {
			f, err := r.ReadFrame()
			if err != nil {
				refused <- err.Error()
				return
			}
			if h, ok := f.(*http2.MetaHeadersFrame); ok {
				for _, field := range h.Fields {
					if field.Name == "grpc-status" {
						refused <- field.Value
						return
					}
				}
			}
		}
	}()
	part := append([]byte{0, 0, 0, 0xff, 0xff}, make([]byte, 16000)...) // of a message of 65,535 bytes
	for id := uint32(1); id < 400; id += 2 {
		r.headers(id, false, fields())
		r.WriteData(id, false, part)
	}
	if got := <-refused; got != "8" {
		t.Errorf("the first grpc-status is %q; want 8, RESOURCE_EXHAUSTED", got)
	}
}

func TestShutdownAnswersCallsInFlight(t *testing.T) {
	begun, release := make(chan struct{}, 10), make(chan struct{})
	server, address := startFast(t, fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: func(_ context.Context, call *fastgrpc.Call) error {
		begun <- struct{}{}
		<-release
		return nil
	}}})
	conn := dial(t, address)
	answers := make(chan error, 10)
	for range 10 {
		go func() {
			_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(within(t, time.Minute), &rls.RateLimitRequest{Domain: "x"})
			answers <- err
		}()
	}
	for range 10 {
		<-begun
	}
	idle := dialRaw(t, address)
	idle.call(1, "x", ":path", "/a.B/C")
	if got := idle.outcome(1); got != "200/12" {
		t.Errorf("the outcome of a call of an unknown method is %q; want %q", got, "200/12")
	}
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(within(t, time.Minute)) }()
	if got := idle.outcome(3); got != "goaway NO_ERROR" {
		t.Errorf("the connection of an idle client ended with %q; want %q", got, "goaway NO_ERROR")
	}
	idle.Close()
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v while calls were in flight; want that it waits for them", err)
	default:
	}
	close(release)
	for range 10 {
		if err := <-answers; err != nil {
			t.Errorf("a call that was in flight at Shutdown: %v; want no error", err)
		}
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown returned %v; want no error", err)
	}
	if n := server.Connections(); n != 0 {
		t.Errorf("%d connections are open after Shutdown; want 0", n)
	}
}

// Each connection ends at its MaxAge, and no call fails.
func TestOldConnectionsAreRenewed(t *testing.T) {
	const want = 5 // connections
	var mu sync.Mutex
	addrs := make(map[string]bool) // the address of the client in each connection
	_, address := startFast(t, fastgrpc.Options{MaxAge: 50 * time.Millisecond, MaxAgeGrace: time.Minute, Methods: map[string]fastgrpc.Handler{
		method: func(ctx context.Context, call *fastgrpc.Call) error {
			mu.Lock()
			addrs[call.Addr().String()] = true
			mu.Unlock()
			return handle(ctx, call)
		},
	}})
	client := rls.NewRateLimitServiceClient(dial(t, address))
	connections := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(addrs)
	}
	for begin := time.Now(); connections() < want; {
		if _, err := client.ShouldRateLimit(within(t, time.Minute), &rls.RateLimitRequest{Domain: "x"}); err != nil {
			t.Fatalf("a call fails after %v: %v; want no error while connections are renewed", time.Since(begin), err)
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("after %v there were %d connections; want %d", time.Since(begin), connections(), want)
		}
	}
}

func TestCloseEndsAllGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	fallback := newStandard()
	server, err := fastgrpc.New(fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: handle}, Fallback: fallback})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	var clients []*grpc.ClientConn
	var all sync.WaitGroup
	for range 10 {
		conn := dial(t, l.Addr().String())
		clients = append(clients, conn)
		if _, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		for _, domain := range []string{"x", "wait"} {
			all.Go(func() {
				rls.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: domain})
			})
		}
		if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	server.Close()
	fallback.Stop()
	all.Wait()
	for _, conn := range clients {
		conn.Close()
	}
	if err := <-served; err != fastgrpc.ErrServerClosed {
		t.Errorf("Serve returned %v; want ErrServerClosed", err)
	}
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines run; want %d, as before the test\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestCallsWithoutAuthorizationAreRefused(t *testing.T) {
	refusal := status.Error(codes.Unauthenticated, "there is no token")
	fallback := newStandard()
	t.Cleanup(fallback.Stop)
	_, address := startFast(t, fastgrpc.Options{Fallback: fallback, Authorize: func(c fastgrpc.Caller) error {
		if !strings.HasPrefix(c.Method, "/") || c.Addr == nil {
			return errors.New("the caller has no method or no address")
		}
		if !slices.Equal(c.Authorization, []string{"Bearer right"}) {
			return refusal
		}
		return nil
	}})
	conn := dial(t, address)
	for _, c := range []struct {
		tokens []string
		want   codes.Code
	}{
		{nil, codes.Unauthenticated},
		{[]string{"Bearer wrong"}, codes.Unauthenticated},
		{[]string{"Bearer right"}, codes.OK},
		{[]string{"Bearer right", "Bearer right"}, codes.Unauthenticated},
	} {
		ctx := metadata.NewOutgoingContext(within(t, time.Minute), metadata.MD{"authorization": c.tokens})
		_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "x"})
		_, fallbackErr := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
		if status.Code(err) != c.want || status.Code(fallbackErr) != c.want {
			t.Errorf("tokens %q: the handler's method returns %v, and the fallback's %v; want %v from both", c.tokens, err, fallbackErr, c.want)
		}
	}
}

// Each open call takes about 20 KB. Without this bound, a client without a token could keep many
// calls open.
func TestOpenCallsOfPublicMethodsHaveABound(t *testing.T) {
	const most = 16 // as the documentation of Options.IsRestricted states
	_, address := startFast(t, fastgrpc.Options{
		Methods:      map[string]fastgrpc.Handler{method: func(context.Context, *fastgrpc.Call) error { return nil }},
		IsRestricted: func(name string) bool { return name == method },
	})
	r := dialRaw(t, address)
	id := uint32(1)
	for range most {
		r.headers(id, false, fields())
		id += 2
	}
	r.headers(id, false, fields())
	if got := r.outcome(id); got != "reset REFUSED_STREAM" {
		t.Errorf("the outcome of call %d is %q; want %q", most+1, got, "reset REFUSED_STREAM")
	}
	r.headers(id+2, false, fields(":path", "/other/Method"))
	if got := r.outcome(id + 2); got != "200/12" {
		t.Errorf("the outcome of a call of another method is %q; want %q", got, "200/12")
	}
	r.logError(r.WriteRSTStream(1, http2.ErrCodeCancel))
	r.logError(r.WriteData(3, true, message("x")))
	if got := r.outcome(3); !strings.HasPrefix(got, "200/0") {
		t.Errorf("the outcome of a call that was open is %q; want %q", got, "200/0")
	}
	for i := range uint32(2) { // one call was cancelled, and one was answered
		r.headers(id+4+2*i, false, fields())
	}
	r.logError(r.WriteData(id+6, true, message("x")))
	if got := r.outcome(id + 6); !strings.HasPrefix(got, "200/0") {
		t.Errorf("the outcome of a call after others have ended is %q; want %q", got, "200/0")
	}
}

func TestTLSNeedsH2(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"test.example"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	server, err := fastgrpc.New(fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: handle}})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	go server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}))
	t.Cleanup(func() { server.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "test.example"})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(within(t, time.Minute), &rls.RateLimitRequest{Domain: "x"}); err != nil {
		t.Errorf("a client that offers h2: %v; want no error", err)
	}
	withoutH2, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "test.example"})
	if err != nil {
		t.Fatal(err)
	}
	defer withoutH2.Close()
	withoutH2.SetDeadline(time.Now().Add(time.Minute))
	if n, err := withoutH2.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
		t.Errorf("a client that does not offer h2 gets %d bytes, %v; want that the connection is closed", n, err)
	}
}

func TestConnectionsHaveABound(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{MaxConnections: 2})
	for i := range 3 {
		r := dialRaw(t, address)
		r.call(1, "x")
		want := good
		if i == 2 {
			want = "closed"
		}
		if got := r.outcome(1); got != want {
			t.Errorf("the outcome of the call of client %d is %q; want %q", i, got, want)
		}
	}
}

// A brokenError panics when its text is read, as a nil pointer in an error does.
type brokenError struct{}

func (brokenError) Error() string { panic("this is a test") }

func TestErrorThatPanicsEndsItsCallOnly(t *testing.T) {
	broken := func(ctx context.Context, call *fastgrpc.Call) error {
		if strings.Contains(string(call.Request), "broken") {
			return brokenError{}
		}
		return handle(ctx, call)
	}
	list := func(ctx context.Context, calls []*fastgrpc.Call) {
		for _, call := range calls {
			call.Err = broken(ctx, call)
		}
	}
	for _, o := range []fastgrpc.Options{{}, {Parallel: 1}, {Lists: map[string]fastgrpc.ListHandler{method: list}}} {
		o.Methods = map[string]fastgrpc.Handler{method: broken}
		_, address := startFast(t, o)
		r := dialRaw(t, address)
		var together []byte // so that both calls can be in one list
		for _, id := range []uint32{1, 3} {
			var b bytes.Buffer
			f := http2.NewFramer(&b, nil)
			r.logError(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(fields()), EndHeaders: true}))
			r.logError(f.WriteData(id, true, message("broken")))
			together = append(together, b.Bytes()...)
		}
		r.write(together)
		if got := r.outcome(3); got != "200/13" {
			t.Errorf("the outcome of a call whose error panics is %q; want %q", got, "200/13")
		}
		r.call(5, "x")
		if got := r.outcome(5); got != good {
			t.Errorf("the outcome of the next call is %q; want %q", got, good)
		}
	}
}

// A response that waits for a window is dropped when its call is cancelled, and others are sent.
func TestCancelledCallLeavesTheBlockedResponses(t *testing.T) {
	for _, cancelled := range []uint32{1, 3} {
		_, address := startFast(t, fastgrpc.Options{Parallel: 1})
		r := dialRaw(t, address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		r.call(1, "x")
		r.call(3, "x")
		for waiting := 0; waiting < 2; { // until both responses wait
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := f.(*http2.MetaHeadersFrame); ok {
				waiting++
			}
		}
		r.logError(r.WriteRSTStream(cancelled, http2.ErrCodeCancel))
		r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
		r.call(5, "x")
		r.call(7, "x")
		ends := make(map[uint32]int) // by stream
		for ends[7] == 0 {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if f.Header().StreamID == cancelled && f.Header().Type == http2.FrameData {
				t.Errorf("the server sends %v for the call %d, which was cancelled; want nothing", f, cancelled)
			}
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamEnded() {
				ends[h.StreamID]++
			}
		}
		if want := map[uint32]int{4 - cancelled: 1, 5: 1, 7: 1}; !maps.Equal(ends, want) {
			t.Errorf("call %d was cancelled, and the ends of responses are %v; want %v", cancelled, ends, want)
		}
	}
}
