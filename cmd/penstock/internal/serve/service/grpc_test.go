package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/memory"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/telemetry"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// An echo is a gRPC service for tests. It responds with what the function returns.
type echo func(ctx context.Context, text string) (string, error)

const echoMethod = "/penstock.test.Echo/Say"

func (e echo) register(r grpc.ServiceRegistrar) {
	say := func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		request := new(wrapperspb.StringValue)
		if err := decode(request); err != nil {
			return nil, err
		}
		return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: echoMethod}, func(ctx context.Context, request any) (any, error) {
			text, err := e(ctx, request.(*wrapperspb.StringValue).Value)
			return wrapperspb.String(text), err
		})
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "penstock.test.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: say}},
	}, e)
}

// withEcho adds an echo to the gRPC listener.
func withEcho(e echo) func(*Options) { return func(o *Options) { o.testHooks.services = e.register } }

// grpcClient connects to the gRPC listener.
func (r *testService) grpcClient(config *tls.Config, options ...grpc.DialOption) *grpc.ClientConn {
	r.Helper()
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	target := "passthrough:///" + r.GRPC
	if strings.HasPrefix(r.GRPC, "/") {
		target = "unix:" + r.GRPC
	}
	conn, err := grpc.NewClient(target, append(options, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	return conn
}

// callContext returns a context for one call.
func callContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// say calls the echo service with a text.
func say(ctx context.Context, conn *grpc.ClientConn, text string) (string, error) {
	answer := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, echoMethod, wrapperspb.String(text), answer)
	return answer.Value, err
}

func capitalize(_ context.Context, text string) (string, error) { return strings.ToUpper(text), nil }

func TestHealthAndReflectionOverGRPC(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	conn := r.grpcClient(nil)
	for name, want := range map[string]codes.Code{"": codes.OK, "penstock.test.Echo": codes.OK, "nobody": codes.NotFound} {
		answer, err := healthpb.NewHealthClient(conn).Check(callContext(t), &healthpb.HealthCheckRequest{Service: name})
		if status.Code(err) != want || want == codes.OK && answer.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("the health of %q is %v (error %v); want %v", name, answer, err, want)
		}
	}
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(callContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if text := answer.String(); !strings.Contains(text, "penstock.test.Echo") || !strings.Contains(text, "grpc.health.v1.Health") {
		t.Errorf("reflection lists %s; want the echo and the health service", text)
	}
	if text := r.log.String(); !strings.Contains(text, "grpc="+r.GRPC) {
		t.Errorf("the line \"listening\" has no gRPC address: %s", text)
	}
}

// Clients keep streams of health checks and reflection open. Each connection may have at most
// maxRestricted of them, with a token or without.
func TestOpenHealthChecksAndReflectionAreBounded(t *testing.T) {
	for name, token := range map[string]string{"without a token": "", "with a token": "some-token-of-callers"} {
		t.Run(name, func(t *testing.T) { testOpenStreamsAreBounded(t, token) })
	}
}

func testOpenStreamsAreBounded(t *testing.T, token string) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "caller-token": token}, withEcho(capitalize))
	conn := r.grpcClient(nil)
	watch := func(ctx context.Context) error {
		stream, err := healthpb.NewHealthClient(conn).Watch(ctx, new(healthpb.HealthCheckRequest))
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	reflect := func(ctx context.Context) error {
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token))
		if err == nil {
			err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	first, endFirst := context.WithCancel(callContext(t))
	if err := watch(first); err != nil {
		t.Fatal(err)
	}
	for i := range maxRestricted - 1 {
		open := watch
		if i%2 == 0 {
			open = reflect
		}
		if err := open(callContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err, other := watch(callContext(t)), reflect(callContext(t)); err == nil || other == nil {
		t.Errorf("with the token %q, a connection has more than %d such streams open; want the next ones refused", token, maxRestricted)
	}
	if answer, err := say(metadata.AppendToOutgoingContext(callContext(t), "authorization", "Bearer "+token), conn, "hello"); answer != "HELLO" {
		t.Errorf("with the token %q, another call of that connection gets %q (error %v); want HELLO", token, answer, err)
	}
	endFirst()
	eventually.True(t, "room for another stream", func() bool { return watch(callContext(t)) == nil })
}

func TestGRPCOverUnixSocket(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "unix:" + filepath.Join(t.TempDir(), "grpc.sock")}, withEcho(capitalize))
	if answer, err := say(callContext(t), r.grpcClient(nil), "hello"); answer != "HELLO" {
		t.Errorf("the response is %q (error %v); want HELLO", answer, err)
	}
}

func TestGRPCCallsNeedTheToken(t *testing.T) {
	const token = "0123456789abcdef"
	reached := 0
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "caller-token": token}, withEcho(func(context.Context, string) (string, error) {
		reached++
		return "", nil
	}))
	conn := r.grpcClient(nil)
	for _, c := range []struct {
		authorization []string
		want          codes.Code
	}{
		{nil, codes.Unauthenticated},
		{[]string{token}, codes.Unauthenticated},
		{[]string{"Bearer"}, codes.Unauthenticated},
		{[]string{"Bearer "}, codes.Unauthenticated},
		{[]string{"Bearer " + token[1:]}, codes.Unauthenticated},
		{[]string{"Bearer " + token + "0"}, codes.Unauthenticated},
		{[]string{"Basic " + token}, codes.Unauthenticated},
		{[]string{"Bearer " + token, "Bearer " + token}, codes.Unauthenticated},
		{[]string{"Bearer " + token}, codes.OK},
		{[]string{"bearer " + token}, codes.OK},
	} {
		ctx := metadata.NewOutgoingContext(callContext(t), metadata.MD{"authorization": c.authorization})
		if _, err := say(ctx, conn, "x"); status.Code(err) != c.want {
			t.Errorf("a call with the authorization %q returned the error %v; want %v", c.authorization, err, c.want)
		}
	}
	if reached != 2 {
		t.Errorf("%d calls reached the service; want 2", reached)
	}
	if _, err := healthpb.NewHealthClient(conn).Check(callContext(t), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("a health check without the token returned %v; want no error", err)
	}
	for reason, want := range map[string]string{"no_token": "1", "wrong_token": "7"} {
		if n := r.metric(`rate_limiter_grpc_auth_failures_total{reason="` + reason + `"}`); n != want {
			t.Errorf("%s refusals are counted with reason %s; want %s", n, reason, want)
		}
		if lines := r.log.Lines("level=WARN", "a gRPC call was refused", "reason="+reason); len(lines) != 1 {
			t.Errorf("the lines about refusals with reason %s are %q; want one", reason, lines)
		}
	}
	if text := r.log.String(); strings.Contains(text, token[1:]) {
		t.Errorf("the log shows the token: %s", text)
	}
}

func TestGRPCCallersNeedACertificate(t *testing.T) {
	authority := newAuthority(t)
	certificate := authority.issue(1)
	r := start(t, nil, map[string]string{
		"grpc": "127.0.0.1:0", "caller-tls-cert": authority.path("cert.pem"), "caller-tls-key": authority.path("key.pem"), "caller-client-ca": authority.path("ca.pem"),
	}, withEcho(capitalize))
	if _, err := say(callContext(t), r.grpcClient(&tls.Config{RootCAs: authority.pool}), "x"); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate, the error is %v; want Unavailable", err)
	}
	if answer, err := say(callContext(t), r.grpcClient(&tls.Config{RootCAs: authority.pool, Certificates: []tls.Certificate{certificate}}), "x"); answer != "X" {
		t.Errorf("with a certificate, the response is %q (error %v); want X", answer, err)
	}
	plain := r.grpcClient(nil)
	if _, err := say(callContext(t), plain, "x"); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS, the error is %v; want Unavailable", err)
	}
}

func TestPanicEndsOneGRPCCallOnly(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(func(_ context.Context, text string) (string, error) {
		if text == "panic" {
			panic("no such limit")
		}
		return text, nil
	}))
	conn := r.grpcClient(nil)
	if _, err := say(callContext(t), conn, "panic"); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "no such limit") {
		t.Errorf("a handler that panics returned %v; want Internal, without the text of the panic", err)
	}
	if answer, err := say(callContext(t), conn, "next"); answer != "next" {
		t.Errorf("after a panic, the next response is %q (error %v); want next", answer, err)
	}
	if lines := r.log.Lines("level=ERROR", "panic in a gRPC call", echoMethod, "grpc_test.go"); len(lines) != 1 {
		t.Errorf("%d lines report the panic with its stack; want 1: %s", len(lines), r.log)
	}
	for code, want := range map[string]string{"OK": "1", "Internal": "1", "Unknown": "0"} {
		if n := r.metric(`rate_limiter_grpc_calls_total{code="` + code + `",service="penstock.test.Echo"}`); n != want {
			t.Errorf("%s calls with code %s are counted; want %s", n, code, want)
		}
	}
}

// contextOfCall returns a context as a call of c has it whose message has come.
func contextOfCall(ctx context.Context, c *grpcCalls) context.Context {
	c.messageTimeout = cmp.Or(c.messageTimeout, time.Minute) // 0 could end the call before its timer is stopped
	call := &grpcCall{calls: c, connection: new(grpcConnection)}
	ctx = call.start(ctx)
	call.stopTimer()
	return ctx
}

// grpc-go runs interceptors and taps in goroutines of its own, which recover from nothing.
func TestPanicBeforeTheHandlerIsAnError(t *testing.T) {
	counts := metrics.New("", nil, 0).AddGRPC([]string{"a.B"}, []string{"Internal"}, func() int { return 0 })
	log := new(logbuffer.Buffer)
	c := &grpcCalls{service: &service{Options: Options{Log: log.Logger()}, telemetry: new(telemetry.Telemetry)}, counts: counts}
	_, err := c.interceptUnary(contextOfCall(t.Context(), c), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(context.Context, any) (any, error) {
		t.Error("the handler is called; want a panic of the telemetry before that")
		return nil, nil
	})
	if status.Code(err) != codes.Internal || c.service.inFlight.Load() != 0 {
		t.Errorf("a panic of the telemetry becomes %v, with %d calls in flight; want INTERNAL, and 0", err, c.service.inFlight.Load())
	}
	check := c.checkBeforeReading(func(string, []string, net.Addr) error { panic("this is a test") })
	ctx := peer.NewContext(t.Context(), new(peer.Peer))
	if _, err := check(ctx, &tap.Info{FullMethodName: "/a.B/C"}); status.Code(err) != codes.Internal {
		t.Errorf("a panic while a call is authenticated becomes %v; want INTERNAL", err)
	}
}

func TestLargeGRPCMessagesAreRefused(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	conn := r.grpcClient(nil)
	if _, err := say(callContext(t), conn, strings.Repeat("x", maxMessage)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message above the limit returned %v; want ResourceExhausted", err)
	}
	if _, err := say(callContext(t), conn, strings.Repeat("x", maxMessage-10)); err != nil {
		t.Errorf("a message below the limit returned %v; want no error", err)
	}
	ctx := metadata.AppendToOutgoingContext(callContext(t), "x", strings.Repeat("x", 20<<10)) // max_header is 16 KB
	if _, err := say(ctx, conn, "x"); err == nil {
		t.Error("metadata above max_header was accepted; want an error")
	}
}

// A health check or a reflection call needs no large message, and a Watch keeps its name.
func TestLargeHealthChecksAndReflectionAreRefused(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	conn := r.grpcClient(nil)
	for size, want := range map[int]codes.Code{maxRestrictedMessage - 100: codes.OK, maxRestrictedMessage + 1: codes.ResourceExhausted} {
		name := strings.Repeat("x", size)
		watch, err := healthpb.NewHealthClient(conn).Watch(callContext(t), &healthpb.HealthCheckRequest{Service: name})
		if err == nil {
			_, err = watch.Recv()
		}
		if status.Code(err) != want {
			t.Errorf("Watch of a name of %d bytes returned %v; want %v", size, err, want)
		}
		reflecting, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(callContext(t))
		for range 2 { // the second message has the same bound
			if err == nil {
				err = reflecting.Send(&reflectionpb.ServerReflectionRequest{Host: name, MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			}
			if err == nil {
				_, err = reflecting.Recv()
			}
		}
		if status.Code(err) != want {
			t.Errorf("reflection with %d bytes returned %v; want %v", size, err, want)
		}
		if want == codes.OK {
			want = codes.NotFound
		}
		if _, err := healthpb.NewHealthClient(conn).Check(callContext(t), &healthpb.HealthCheckRequest{Service: name}); status.Code(err) != want {
			t.Errorf("Check of a name of %d bytes returned %v; want %v", size, err, want)
		}
	}
}

// The process has at most max_connections streams of health checks open. Further ones are refused,
// and single checks are still answered.
func TestOpenHealthChecksOfAllConnectionsAreBounded(t *testing.T) {
	const limit = 20
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "max-connections": strconv.Itoa(limit)}, withEcho(capitalize))
	conns := []*grpc.ClientConn{r.grpcClient(nil), r.grpcClient(nil)}
	for i := range limit + 1 {
		watch, err := healthpb.NewHealthClient(conns[i%2]).Watch(callContext(t), new(healthpb.HealthCheckRequest))
		if err == nil {
			_, err = watch.Recv()
		}
		want := codes.OK
		if i == limit {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want {
			t.Fatalf("Watch %d ends with %v; want %v", i+1, err, want)
		}
	}
	if _, err := healthpb.NewHealthClient(conns[0]).Check(callContext(t), new(healthpb.HealthCheckRequest)); err != nil {
		t.Errorf("beside %d streams, a single health check ends with %v; want an answer", limit, err)
	}
}

// Calls in flight complete before the service stops. Health checks report NOT_SERVING immediately.
// Open health checks and reflection streams do not keep the service from stopping.
func TestGRPCCallsAreDrained(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "drain-timeout": "1m"}, withEcho(func(context.Context, string) (string, error) {
		close(entered)
		<-leave
		return "done", nil
	}))
	conn, watchConn := r.grpcClient(nil), r.grpcClient(nil)
	watch, err := healthpb.NewHealthClient(watchConn).Watch(callContext(t), &healthpb.HealthCheckRequest{Service: "penstock.test.Echo"})
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := watch.Recv(); err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("before the drain, health is %v (error %v); want SERVING", answer, err)
	}
	reflecting, err := reflectionpb.NewServerReflectionClient(watchConn).ServerReflectionInfo(callContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := reflecting.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := reflecting.Recv(); err != nil {
		t.Fatal(err)
	}
	type result struct {
		answer string
		err    error
	}
	called := make(chan result, 1)
	go func() {
		answer, err := say(callContext(t), conn, "x")
		called <- result{answer, err}
	}()
	<-entered
	r.stop()
	if answer, err := watch.Recv(); err != nil || answer.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("during the drain, health is %v (error %v); want NOT_SERVING", answer, err)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("during the drain, the health check is still open after NOT_SERVING")
	}
	if _, err := reflecting.Recv(); err == nil || err == io.EOF {
		t.Errorf("during the drain, reflection ended with %v; want an error that is not EOF", err)
	}
	eventually.True(t, "the listener to close", func() bool {
		conn, err := net.Dial("tcp", r.GRPC)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(leave)
	if got := <-called; got.answer != "done" {
		t.Errorf("the call in flight ended with %+v; want its response", got)
	}
	r.wait()
	if lines := r.log.Lines("shutting down", "in_flight=1"); len(lines) != 1 {
		t.Errorf("the line \"shutting down\" does not count one call in flight: %s", r.log)
	}
}

// A call that does not end is cut off at the drain timeout.
func TestGRPCCallIsCutOffAtTheDrainTimeout(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "drain-timeout": "10ms"}, withEcho(func(ctx context.Context, _ string) (string, error) {
		close(entered)
		<-ctx.Done()
		return "", ctx.Err()
	}))
	called := make(chan error, 1)
	conn := r.grpcClient(nil)
	go func() {
		_, err := say(callContext(t), conn, "x")
		called <- err
	}()
	<-entered
	r.stop()
	if err := <-called; status.Code(err) != codes.Unavailable {
		t.Errorf("the client got %v; want Unavailable", err)
	}
}

func TestConnectedGRPCClientsAreCounted(t *testing.T) {
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "max-connections": "3"})
	const series = "rate_limiter_grpc_connections"
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", r.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	eventually.True(t, "3 clients to be counted", func() bool { return r.metric(series) == "3" })
	fourth := r.grpcClient(nil)
	fourth.Connect()
	eventually.True(t, "the limit to be logged", func() bool { return len(r.log.Lines("max_connections is reached", "address=grpc")) == 1 })
	if n := r.metric(series); n != "3" {
		t.Errorf("%s clients are connected; want 3, the value of max_connections", n)
	}
	conns[0].Close()
	if _, err := healthpb.NewHealthClient(fourth).Check(callContext(t), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after another client has left, the fourth got %v; want it served", err)
	}
	if n := r.metric(series); n != "3" {
		t.Errorf("%s clients are connected; want 3 with the fourth", n)
	}
	conns[1].Close()
	eventually.True(t, "only 2 clients to be connected", func() bool { return r.metric(series) == "2" })
}

// Connections that do not use gRPC end after the header timeout, or the idle timeout. Other clients
// are served meanwhile.
func TestHostileGRPCConnectionsAreClosed(t *testing.T) {
	t.Parallel() // it waits most of the time
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "header-timeout": "1s", "idle-timeout": "2s", "max-connections": "100"}, withEcho(capitalize))
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// A frame begins with its length (3 bytes), type (1), flags (1) and stream (4).
	settingsFrame := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	conns := make(map[string]net.Conn)
	for name, sent := range map[string]string{
		"nothing":              "",
		"HTTP/1.1":             "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"RESP":                 "*1\r\n$4\r\nPING\r\n",
		"half a preface":       preface[:10],
		"no settings":          preface,
		"a huge frame":         preface + "\xff\xff\xff\x00\x00\x00\x00\x00\x01",
		"data on stream 0":     preface + settingsFrame + "\x00\x00\x01\x00\x00\x00\x00\x00\x01x",
		"an even stream id":    preface + settingsFrame + "\x00\x00\x01\x01\x05\x00\x00\x00\x02\x82",
		"broken HPACK":         preface + settingsFrame + "\x00\x00\x04\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff",
		"endless CONTINUATION": preface + settingsFrame + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82" + strings.Repeat("\x00\x00\x01\x09\x00\x00\x00\x00\x01\x82", 20_000),
		"a TLS hello":          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	} {
		conn, err := net.Dial("tcp", r.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, sent) // fails if the service has closed the connection
		conns[name] = conn
		if answer, err := say(callContext(t), r.grpcClient(nil), name); answer != strings.ToUpper(name) {
			t.Errorf("beside a client that sends %s, another got %q (error %v); want the same text in capitals", name, answer, err)
		}
	}
	for name, conn := range conns {
		conn.SetDeadline(time.Now().Add(patience)) // if one stays open, the others are still judged
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection of a client that sent %s stays open; want it closed", name)
		}
	}
}

// A call whose message does not come ends after header_timeout. A call whose message has come may
// last longer.
func TestGRPCCallsWithoutAMessageEnd(t *testing.T) {
	t.Parallel()      // it waits most of the time
	const calls = 300 // more than one connection may have at grpc-go, so some wait
	ended := make(chan struct{})
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "header-timeout": "1s"}, withEcho(func(ctx context.Context, text string) (string, error) {
		select {
		case <-ended: // after the calls without a message
			return text, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}))
	long := make(chan error, 1)
	go func() {
		_, err := say(callContext(t), r.grpcClient(nil), "long")
		long <- err
	}()
	conn := r.grpcClient(nil)
	var streams sync.WaitGroup
	for range calls {
		streams.Go(func() {
			stream, err := conn.NewStream(callContext(t), &grpc.StreamDesc{ClientStreams: true}, echoMethod)
			if err == nil {
				err = stream.RecvMsg(new(wrapperspb.StringValue))
			}
			if status.Code(err) != codes.Canceled {
				t.Errorf("a call without a message ends with %v; want the server to cancel it", err)
			}
		})
	}
	streams.Wait()
	close(ended)
	if err := <-long; err != nil {
		t.Errorf("a call with a message, which lasts longer than header_timeout, ends with %v; want its answer", err)
	}
}

// A health check or a reflection call whose message does not come, or does not come as a whole,
// ends after header_timeout. So does a reflection call without a further message. An open Watch
// continues.
func TestHealthChecksAndReflectionWithoutAMessageEnd(t *testing.T) {
	t.Parallel() // it waits most of the time
	r := startWithoutLeakCheck(t, nil, map[string]string{"grpc": "127.0.0.1:0", "header-timeout": "1s"}, withEcho(capitalize))
	conn := r.grpcClient(nil)
	watch, err := healthpb.NewHealthClient(conn).Watch(callContext(t), new(healthpb.HealthCheckRequest))
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	reflecting, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(callContext(t))
	if err == nil {
		err = reflecting.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	}
	if err == nil {
		_, err = reflecting.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	c := r.frames()
	for i, method := range []string{"/" + healthService + "/Check", "/" + healthService + "/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
		id := uint32(1 + 2*i)
		c.begin(id, method)
		c.WriteData(id, false, []byte{0, 0, 0, 1, 0, '\n'}) // a part of a message
		c.flush()
		if got, want := c.outcome(id), strconv.Itoa(int(codes.Canceled)); got != want {
			t.Errorf("a call of %s with a part of a message has the outcome %q; want status %s", method, got, want)
		}
	}
	if _, err := reflecting.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("a reflection call without a second message ends with %v; want it canceled", err)
	}
	r.stop()
	if answer, err := watch.Recv(); err != nil || answer.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the open Watch receives %v, %v; want that it is open until the shutdown", answer, err)
	}
}

// At most so many messages as there are places may take long. Further ones end after slowMessage,
// and those that come at once are not counted.
func TestSlowMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, places = 5 * time.Second, 32
		slow := slowMessages{limit: places}
		var canceled atomic.Int64
		var timers []*messageTimer
		wait := func() *messageTimer {
			timer := new(messageTimer)
			ctx, cancel := context.WithCancel(t.Context())
			timer.startTimer(ctx, &slow, timeout, func() { cancel(); canceled.Add(1) }, func() {})
			timers = append(timers, timer)
			return timer
		}
		expect := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if canceled := canceled.Load(); canceled != want {
				t.Fatalf("%s, %d calls are canceled; want %d", when, canceled, want)
			}
		}
		for range 10 * places {
			wait().stopTimer() // the message comes at once
		}
		for range places + 3 {
			wait()
		}
		expect("at once", 0)
		time.Sleep(slowMessage)
		expect("after slowMessage", 3)
		for _, timer := range timers { // the first canceled ones end too
			timer.stopTimer()
			timer.stopTimer() // counts once
		}
		time.Sleep(timeout)
		expect("after the messages have come", 3)
		for range places + 1 {
			wait()
		}
		time.Sleep(slowMessage)
		expect("with free places", 3+1)
		time.Sleep(timeout - slowMessage)
		expect("after the timeout", 3+1+places)
	})
}

// While many idle clients are connected, another client is still served.
func TestIdleGRPCClientsDoNotBlockOthers(t *testing.T) {
	n := effort.Of(100, 8_000)
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "max-connections": strconv.Itoa(2 * n)}, withEcho(capitalize))
	var clients []*grpc.ClientConn
	for range n {
		conn := r.grpcClient(nil)
		conn.Connect()
		clients = append(clients, conn)
	}
	eventually.True(t, "all clients to connect", func() bool { return r.metric("rate_limiter_grpc_connections") == strconv.Itoa(n) })
	for _, conn := range []*grpc.ClientConn{clients[0], clients[n-1], r.grpcClient(nil)} {
		if answer, err := say(callContext(t), conn, "x"); answer != "X" {
			t.Errorf("beside idle clients, the response is %q (error %v); want X", answer, err)
		}
	}
	t.Logf("counted: %d idle gRPC clients", n)
}

// A shutdown ends a health check only after it has sent NOT_SERVING. Reflection ends immediately.
func TestHealthChecksEndAfterTheirLastStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, method := range []string{"/" + healthService + "/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} {
			noConnections := func() int { return 0 }
			counts := metrics.New("test", nil, 80).AddGRPC([]string{serviceName(method)}, []string{codes.OK.String()}, noConnections)
			s := &service{memory: memory.New(0, func() {})}
			calls := &grpcCalls{service: s, counts: counts, maxOpenStreams: 1, ending: make(chan struct{})}
			err := calls.interceptStream(nil, discardStream{ctx: contextOfCall(ctx, calls)}, &grpc.StreamServerInfo{FullMethod: method}, func(_ any, stream grpc.ServerStream) error {
				send := func(status healthpb.HealthCheckResponse_ServingStatus) error {
					return stream.SendMsg(&healthpb.HealthCheckResponse{Status: status})
				}
				isHealth := strings.Contains(method, healthService)
				if isHealth {
					if err := send(healthpb.HealthCheckResponse_SERVING); err != nil {
						return err
					}
				}
				close(calls.ending)
				synctest.Wait()
				if hasEnded := stream.Context().Err() != nil; hasEnded == isHealth {
					t.Errorf("%s: the shutdown has ended the stream: %t; want %t", method, hasEnded, !isHealth)
				}
				if isHealth {
					if err := send(healthpb.HealthCheckResponse_NOT_SERVING); err != nil {
						return err
					}
					synctest.Wait()
					if stream.Context().Err() == nil {
						t.Error("the stream is open after NOT_SERVING was sent")
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s returned the error %v; want none", method, err)
			}
		}
	})
}

// A discardStream discards the messages that are sent.
type discardStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s discardStream) Context() context.Context { return s.ctx }
func (s discardStream) SendMsg(any) error        { return nil }
