package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstock/penstock"
)

// ClientOptions configure the interceptors of a client. The zero value is useful.
type ClientOptions struct {
	// Key returns the Limiter's key for a call. The method is "/package.Service/Method". Default: the
	// target of the connection, so that all calls to one target share the limits.
	Key func(ctx context.Context, conn *grpc.ClientConn, method string) string

	// Cost returns how many units a call or a message costs. The message is nil when a stream begins.
	// Default: 1.
	Cost func(ctx context.Context, method string, message any) int64

	// MaxWait is how long a call or a message may wait before it is sent. If its context ends earlier,
	// the wait ends too. Default: 30 seconds. If MaxWait is negative, a call or a message never waits:
	// it fails if the limits do not admit it.
	MaxWait time.Duration

	// Messages is whether the messages that the client sends on a stream are charged too. The first
	// message is charged with the stream.
	Messages bool

	// FailClosed is whether calls fail while the Limiter's store is unavailable. By default they are
	// sent, because the server has its own limits. If guard.Standard is around the store, FailClosed
	// has no effect: the settings of guard.Standard decide.
	FailClosed bool
}

const defaultMaxWait = 30 * time.Second

// A NotSentError is the error of a call or message that was not sent: it would have waited for
// longer than MaxWait, or the store gave no answer and FailClosed is set. The server has not
// received it, so sending it again is safe. The gRPC status is RESOURCE_EXHAUSTED with the detail
// RetryInfo, or UNAVAILABLE if the store gave no answer.
type NotSentError struct {
	Key        string        // the Limiter's key for the call
	RetryAfter time.Duration // penstock.Never if the cost is larger than the limit; 0 if the time is unknown
	Err        error         // a *penstock.DeniedError, context.DeadlineExceeded after MaxWait, or an error of the store
}

func (e *NotSentError) Error() string { return "grpclimit: the call was not sent: " + e.Err.Error() }

func (e *NotSentError) Unwrap() error { return e.Err }

// GRPCStatus returns the gRPC status. Package status calls it.
func (e *NotSentError) GRPCStatus() *status.Status {
	if !errors.As(e.Err, new(*penstock.DeniedError)) && !errors.Is(e.Err, context.DeadlineExceeded) {
		return status.New(codes.Unavailable, e.Error())
	}
	s := status.New(codes.ResourceExhausted, e.Error())
	if e.RetryAfter > 0 && e.RetryAfter != penstock.Never {
		if detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			return detailed
		}
	}
	return s
}

// UnaryClient returns an interceptor that keeps calls within the limits of a Limiter. None of the
// limits may have the algorithm Concurrency. A call is charged once, however often the client
// retries it.
func UnaryClient(limiter *penstock.Limiter, o ClientOptions) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if err := o.admit(ctx, limiter, conn, method, request); err != nil {
			return err
		}
		return invoke(ctx, method, request, answer, conn, options...)
	}
}

// StreamClient is UnaryClient for streams. A stream is charged when it begins.
func StreamClient(limiter *penstock.Limiter, o ClientOptions) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := o.admit(ctx, limiter, conn, method, nil); err != nil {
			return nil, err
		}
		stream, err := begin(ctx, desc, conn, method, options...)
		if err != nil || !o.Messages {
			return stream, err
		}
		admit := func(message any) error { return o.admit(stream.Context(), limiter, conn, method, message) }
		return &clientStream{ClientStream: stream, admit: admit}, nil
	}
}

type clientStream struct {
	grpc.ClientStream
	admit        func(message any) error
	hasSentFirst bool // the first message, which was charged with the stream, has been sent
}

func (s *clientStream) SendMsg(message any) error {
	if s.hasSentFirst {
		if err := s.admit(message); err != nil {
			return err
		}
	}
	s.hasSentFirst = true
	return s.ClientStream.SendMsg(message)
}

// admit waits until a call or message may be sent. An error is the reason why it must not be sent.
func (o *ClientOptions) admit(ctx context.Context, limiter *penstock.Limiter, conn *grpc.ClientConn, method string, message any) error {
	key, cost := conn.Target(), int64(1)
	if o.Key != nil {
		key = o.Key(ctx, conn, method)
	}
	if o.Cost != nil {
		cost = o.Cost(ctx, method, message)
	}
	err := o.wait(ctx, limiter, key, cost)
	var denied *penstock.DeniedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &denied):
		return &NotSentError{Key: key, RetryAfter: denied.Decision.RetryAfter(), Err: err}
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, penstock.ErrUnavailable):
		if o.FailClosed {
			return &NotSentError{Key: key, Err: err}
		}
		return nil
	case errors.Is(err, context.DeadlineExceeded): // MaxWait has passed
		return &NotSentError{Key: key, Err: err}
	}
	return status.Error(codes.InvalidArgument, fmt.Sprintf("grpclimit: %v", err))
}

// wait charges cost units. It waits until the units are available, but at most for MaxWait.
func (o *ClientOptions) wait(ctx context.Context, limiter *penstock.Limiter, key string, cost int64) error {
	if o.MaxWait < 0 {
		d, err := limiter.AllowN(ctx, key, cost)
		if err == nil && !d.Allowed {
			return &penstock.DeniedError{Decision: d}
		}
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(o.MaxWait, defaultMaxWait))
	defer cancel()
	return limiter.WaitN(bounded, key, cost)
}
