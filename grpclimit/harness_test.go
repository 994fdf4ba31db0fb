package grpclimit_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// patience is the longest time that a test waits.
const patience = time.Minute

// ruleOf returns a policy with one rule, which matches all calls. The policies of these tests are
// written in Go, so that this module does not require what policy files need.
func ruleOf(t testing.TB, name string, key *policy.Identity, limits ...penstock.Limit) policy.Spec {
	t.Helper()
	spec, err := policy.Simple(name, key, guard.FailDefault, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// matching lets the rule of a policy match only calls with one of these paths.
func matching(t testing.TB, spec policy.Spec, paths ...string) policy.Spec {
	t.Helper()
	spec.Rules[0].Match.Paths = paths
	return spec
}

// valueOf returns the condition that a source has a value.
func valueOf(t testing.TB, source policy.Source, value string) policy.Condition {
	t.Helper()
	test := policy.Test{Source: source}
	if err := test.Add(value); err != nil {
		t.Fatal(err)
	}
	return policy.Condition{test}
}

func byHeader(name string) *policy.Identity { return policy.By("key", policy.Header(name)) }

func rulesOf(t testing.TB, spec policy.Spec) *policy.Rules {
	t.Helper()
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// fixedClockStore returns a memory store whose clock does not advance.
func fixedClockStore() penstock.Store {
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

func gateOf(t testing.TB, store penstock.Store, spec policy.Spec, o grpclimit.Options) *grpclimit.Gate {
	t.Helper()
	return gateOn(t, controllerOf(t, store, rulesOf(t, spec), admission.Options{}), o)
}

func gateOn(t testing.TB, c *admission.Controller, o grpclimit.Options) *grpclimit.Gate {
	t.Helper()
	gate, err := grpclimit.New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

// A shop is the service of the tests. Its methods /test.Shop/Buy and /test.Shop/Look are unary. Its
// method /test.Shop/Chat is a stream.
type shop struct {
	buy  func(ctx context.Context, text string) (string, error) // handles Buy and Look; default: returns the text
	chat func(stream grpc.ServerStream) error                   // handles Chat; default: returns each message
}

func (s *shop) handleUnary(ctx context.Context, text string) (string, error) {
	if s.buy == nil {
		return text, nil
	}
	return s.buy(ctx, text)
}

func (s *shop) handleChat(stream grpc.ServerStream) error {
	if s.chat != nil {
		return s.chat(stream)
	}
	for {
		message := new(wrapperspb.StringValue)
		switch err := stream.RecvMsg(message); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
		if err := stream.SendMsg(message); err != nil {
			return err
		}
	}
}

func (s *shop) register(r grpc.ServiceRegistrar) {
	unary := func(name string) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			request := new(wrapperspb.StringValue)
			if err := decode(request); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, request any) (any, error) {
				text, err := s.handleUnary(ctx, request.(*wrapperspb.StringValue).Value)
				return wrapperspb.String(text), err
			}
			if intercept == nil {
				return handle(ctx, request)
			}
			return intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: "/test.Shop/" + name}, handle)
		}}
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Shop", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{unary("Buy"), unary("Look")},
		Streams: []grpc.StreamDesc{{StreamName: "Chat", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error { return s.handleChat(stream) }}},
	}, s)
}

// serve serves a shop with these options, and health checks, until the test ends.
func serve(t testing.TB, s *shop, options ...grpc.ServerOption) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, listener, s, options...)
	return listener.Addr().String()
}

func serveOn(t testing.TB, listener net.Listener, s *shop, options ...grpc.ServerOption) {
	t.Helper()
	server := grpc.NewServer(append(options, grpc.WaitForHandlers(true))...)
	s.register(server)
	healthpb.RegisterHealthServer(server, health.NewServer())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v; want no error after Stop", err)
		}
	})
}

// guarded returns the options of a server with these Gates, the outermost first.
func guarded(gates ...*grpclimit.Gate) (options []grpc.ServerOption) {
	for _, g := range gates {
		options = append(options, grpc.ChainUnaryInterceptor(g.Unary), grpc.ChainStreamInterceptor(g.Stream))
	}
	return options
}

func dial(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// patient returns a context that ends after the patience of a test.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A reply is what a client gets from a call.
type reply struct {
	text            string
	err             error
	header, trailer metadata.MD
}

// buy calls a unary method of the shop. The metadata of the call are pairs of a name and a value.
func buy(t testing.TB, conn *grpc.ClientConn, method, text string, pairs ...string) (r reply) {
	t.Helper()
	answer := new(wrapperspb.StringValue)
	ctx := metadata.AppendToOutgoingContext(patient(t), pairs...)
	r.err = conn.Invoke(ctx, "/test.Shop/"+method, wrapperspb.String(text), answer, grpc.Header(&r.header), grpc.Trailer(&r.trailer))
	r.text = answer.Value
	return r
}

// chat opens a stream.
func chat(t testing.TB, conn *grpc.ClientConn, pairs ...string) grpc.ClientStream {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(patient(t), pairs...)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Shop/Chat")
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// say sends a message on a stream and returns the response.
func say(stream grpc.ClientStream, text string) (string, error) {
	stream.SendMsg(wrapperspb.String(text)) // if it fails, RecvMsg returns the reason
	answer := new(wrapperspb.StringValue)
	err := stream.RecvMsg(answer)
	return answer.Value, err
}

// detail returns the detail of type T that an error has. If it has none, the test fails.
func detail[T any](t testing.TB, err error) (found T) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(T); ok {
			return d
		}
	}
	t.Fatalf("the error %v has no detail of type %T; it has %v", err, found, status.Convert(err).Details())
	return found
}

// events collects the outcomes of the calls that a Gate decides.
type events struct {
	mu       sync.Mutex
	outcomes []string
}

func (e *events) observe(event *admission.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outcomes = append(e.outcomes, event.Outcome.String())
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.outcomes, " ")
}
