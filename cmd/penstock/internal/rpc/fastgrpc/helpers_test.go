package fastgrpc_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
	"github.com/penstock/penstock/internal/panicked"
)

// method is the only method of the servers in these tests that has a Handler.
const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// decide decides the requests of all servers in these tests. The domain selects the response.
func decide(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	switch r.GetDomain() {
	case "fail":
		return nil, status.Error(codes.InvalidArgument, "100 % wrong: ü, \n and \x7f")
	case "details":
		s, err := status.New(codes.ResourceExhausted, "later").WithDetails(&rls.RateLimitRequest{Domain: "detail"})
		if err != nil {
			return nil, err
		}
		return nil, s.Err()
	case "panic":
		panic("this is a test")
	case "wait": // until the deadline
		<-ctx.Done()
		return nil, ctx.Err()
	case "large":
		answer := &rls.RateLimitResponse{RawBody: make([]byte, 300_000)}
		for i := range answer.RawBody {
			answer.RawBody[i] = byte(i)
		}
		return answer, nil
	}
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK, RawBody: []byte(r.GetDomain())}, nil
}

// rateLimits is the service of grpc-go's servers in these tests.
type rateLimits struct {
	rls.UnimplementedRateLimitServiceServer
}

func (rateLimits) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (answer *rls.RateLimitResponse, err error) {
	defer func() {
		if recover() != nil {
			err = status.Error(codes.Internal, panicked.Message)
		}
	}()
	return decide(ctx, r)
}

// handle is the Handler of method.
func handle(ctx context.Context, call *fastgrpc.Call) error {
	var r rls.RateLimitRequest
	if err := proto.Unmarshal(call.Request, &r); err != nil {
		return status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	answer, err := decide(ctx, &r)
	if err == nil {
		call.Response, err = proto.MarshalOptions{}.MarshalAppend(call.Response, answer)
	}
	return err
}

// newStandard returns grpc-go's server with rate limits, health and reflection.
func newStandard(options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(options...)
	rls.RegisterRateLimitServiceServer(s, rateLimits{})
	healthpb.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	return s
}

// listen returns a listener on a free port.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startFast starts a server of this package until the end of the test, and returns its address.
func startFast(t testing.TB, o fastgrpc.Options) (*fastgrpc.Server, string) {
	t.Helper()
	if o.Methods == nil {
		o.Methods = map[string]fastgrpc.Handler{method: handle}
	}
	s, err := fastgrpc.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; err != fastgrpc.ErrServerClosed {
			t.Errorf("Serve returned %v; want ErrServerClosed", err)
		}
	})
	return s, l.Addr().String()
}

// startStandard starts grpc-go's server until the end of the test, and returns its address.
func startStandard(t testing.TB, options ...grpc.ServerOption) string {
	t.Helper()
	s, l := newStandard(options...), listen(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-served
	})
	return l.Addr().String()
}

func dial(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// inBubble runs a test with a server and one client, under synctest.
func inBubble(t *testing.T, o fastgrpc.Options, test func(t *testing.T, server *fastgrpc.Server, r *rawClient)) {
	synctest.Test(t, func(t *testing.T) {
		if o.Methods == nil {
			o.Methods = map[string]fastgrpc.Handler{method: handle}
		}
		server, err := fastgrpc.New(o)
		if err != nil {
			t.Fatal(err)
		}
		l := bufconn.Listen(1 << 16)
		served := make(chan struct{})
		go func() {
			server.Serve(bubbleListener{l})
			close(served)
		}()
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		test(t, server, newRaw(t, conn))
		conn.Close()
		server.Close()
		<-served
	})
}

// A bubbleListener accepts connections in memory. Their timeouts are those of package net.
type bubbleListener struct{ *bufconn.Listener }

func (l bubbleListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return bubbleConn{conn}, err
}

type bubbleConn struct{ net.Conn }

func (c bubbleConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}
