package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/grpclimit"
	"github.com/penstock/penstock/memstore"
)

func limiterOf(t testing.TB, store penstock.Store, limit penstock.Limit) *penstock.Limiter {
	t.Helper()
	limiter, err := penstock.NewLimiter(store, "client", limit)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// limited returns the options of a connection whose calls a Limiter limits.
func limited(limiter *penstock.Limiter, o grpclimit.ClientOptions) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(limiter, o)), grpc.WithChainStreamInterceptor(grpclimit.StreamClient(limiter, o))}
}

func TestClientsWithNegativeMaxWaitFailAtOnce(t *testing.T) {
	served := atomic.Int64{}
	s := &shop{buy: func(context.Context, string) (string, error) { served.Add(1); return "", nil }}
	limiter := limiterOf(t, fixedClockStore(), penstock.PerHour(2))
	conn := dial(t, serve(t, s), limited(limiter, grpclimit.ClientOptions{MaxWait: -1})...)
	for range 2 {
		if r := buy(t, conn, "Buy", "a"); r.err != nil {
			t.Fatal(r.err)
		}
	}
	r := buy(t, conn, "Buy", "a")
	var notSent *grpclimit.NotSentError
	if !errors.As(r.err, &notSent) || notSent.RetryAfter != 30*time.Minute || notSent.Key != conn.Target() || !errors.As(r.err, new(*penstock.DeniedError)) {
		t.Errorf("the third call: %#v; want a NotSentError with the key %q, RetryAfter 30m and a DeniedError", r.err, conn.Target())
	}
	if status.Code(r.err) != codes.ResourceExhausted || detail[*errdetails.RetryInfo](t, r.err).RetryDelay.AsDuration() != 30*time.Minute {
		t.Errorf("the status of the third call: %v; want RESOURCE_EXHAUSTED, and RetryInfo of 30 minutes", status.Convert(r.err))
	}
	stream, err := conn.NewStream(patient(t), &grpc.StreamDesc{}, "/test.Shop/Chat")
	if !errors.As(err, &notSent) {
		t.Errorf("NewStream returns %v and the error %v; want a NotSentError", stream, err)
	}
	if served.Load() != 2 {
		t.Errorf("%d calls reached the server; want 2", served.Load())
	}
}

func TestClientsWaitUpToMaxWait(t *testing.T) {
	limiter := limiterOf(t, memstore.New(memstore.Options{}), penstock.PerSecond(1000).WithBurst(1))
	conn := dial(t, serve(t, new(shop)), limited(limiter, grpclimit.ClientOptions{Messages: true})...)
	for range 20 {
		if r := buy(t, conn, "Buy", "a"); r.err != nil {
			t.Errorf("a call: %v; want that it waits and is sent", r.err)
		}
	}
	stream := chat(t, conn)
	for range 20 {
		if answer, err := say(stream, "a"); answer != "a" {
			t.Errorf("a message: response %q, error %v; want that it waits and is sent", answer, err)
		}
	}
	slow := limiterOf(t, fixedClockStore(), penstock.PerHour(1))
	conn = dial(t, serve(t, new(shop)), limited(slow, grpclimit.ClientOptions{MaxWait: time.Minute})...)
	buy(t, conn, "Buy", "a")
	if r := buy(t, conn, "Buy", "a"); !errors.As(r.err, new(*grpclimit.NotSentError)) {
		t.Errorf("a call that would wait for an hour: %v; want a NotSentError", r.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := conn.Invoke(ctx, "/test.Shop/Buy", wrapperspb.String(""), new(wrapperspb.StringValue)); status.Code(err) != codes.Canceled {
		t.Errorf("a call whose context has ended: %v; want the error of the context", err)
	}
}

// A call is charged one unit, even if the client retries it.
func TestRetriesOfAClientAreNotCharged(t *testing.T) {
	attempts := atomic.Int64{}
	s := &shop{buy: func(context.Context, string) (string, error) {
		attempts.Add(1)
		return "", status.Error(codes.Unavailable, "busy")
	}}
	limiter := limiterOf(t, fixedClockStore(), penstock.PerHour(100))
	conn := dial(t, serve(t, s), append(limited(limiter, grpclimit.ClientOptions{MaxWait: -1}), grpc.WithDefaultServiceConfig(retrying))...)
	buy(t, conn, "Buy", "a")
	d, err := limiter.Peek(t.Context(), conn.Target())
	if err != nil || attempts.Load() != 3 || d.Remaining() != 99 {
		t.Errorf("the server got %d attempts, and %d units are left, %v; want 3 attempts, 99 units and no error", attempts.Load(), d.Remaining(), err)
	}
}

func TestClientChargesItsKeysAndCosts(t *testing.T) {
	limiter := limiterOf(t, fixedClockStore(), penstock.PerHour(10))
	conn := dial(t, serve(t, new(shop)), limited(limiter, grpclimit.ClientOptions{
		MaxWait: -1, Messages: true,
		Key: func(_ context.Context, _ *grpc.ClientConn, method string) string { return method },
		Cost: func(_ context.Context, _ string, message any) int64 {
			if message, ok := message.(*wrapperspb.StringValue); ok {
				return int64(len(message.Value))
			}
			return 1
		},
	})...)
	buy(t, conn, "Buy", "123")
	stream := chat(t, conn)
	for _, text := range []string{"the first is charged with the stream", "12", "1234"} {
		if _, err := say(stream, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.SendMsg(wrapperspb.String("12345")); !errors.As(err, new(*grpclimit.NotSentError)) {
		t.Errorf("a message over the limit: %v; want a NotSentError", err)
	}
	for key, want := range map[string]int64{"/test.Shop/Buy": 7, "/test.Shop/Chat": 3, "/test.Shop/Look": 10} {
		if d, err := limiter.Peek(t.Context(), key); err != nil || d.Remaining() != want {
			t.Errorf("the key %s has %d units left, %v; want %d and no error", key, d.Remaining(), err, want)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Errorf("CloseSend: %v; want no error", err)
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		t.Errorf("the stream ended with %v; want io.EOF, so no error", err)
	}
}

func TestFailClosedSendsNothingWhileTheStoreFails(t *testing.T) {
	limiter := limiterOf(t, unavailable{}, penstock.PerHour(1))
	if r := buy(t, dial(t, serve(t, new(shop)), limited(limiter, grpclimit.ClientOptions{})...), "Buy", "a"); r.err != nil {
		t.Errorf("a call without FailClosed: %v; want that it is sent", r.err)
	}
	r := buy(t, dial(t, serve(t, new(shop)), limited(limiter, grpclimit.ClientOptions{FailClosed: true})...), "Buy", "a")
	if status.Code(r.err) != codes.Unavailable || !errors.Is(r.err, penstock.ErrUnavailable) {
		t.Errorf("a call with FailClosed: %v; want UNAVAILABLE with an ErrUnavailable", r.err)
	}
}

// This test calls ContextLimiter as go-grpc-middleware does. That middleware turns every error into
// RESOURCE_EXHAUSTED.
func TestContextLimiterDeniesOverTheLimit(t *testing.T) {
	var limiter interface{ Limit(context.Context) error } = grpclimit.ContextLimiter{Limiter: limiterOf(t, fixedClockStore(), penstock.PerHour(1))}
	middleware := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := limiter.Limit(ctx); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		return handler(ctx, request)
	}
	conn := dial(t, serve(t, new(shop), grpc.ChainUnaryInterceptor(middleware)))
	for _, c := range []struct {
		method string
		want   codes.Code
	}{{"Buy", codes.OK}, {"Buy", codes.ResourceExhausted}, {"Look", codes.OK}} {
		if r := buy(t, conn, c.method, "a"); status.Code(r.err) != c.want {
			t.Errorf("%s: %v; want %v", c.method, r.err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	down := grpclimit.ContextLimiter{Limiter: limiterOf(t, unavailable{}, penstock.PerHour(1)), Key: func(context.Context) string { return "k" }}
	if err := down.Limit(t.Context()); err != nil {
		t.Errorf("Limit while the store fails returns %v; want nil", err)
	}
	if err := down.Limit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Limit with a context that has ended returns %v; want context.Canceled", err)
	}
}
