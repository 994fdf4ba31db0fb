package envoyrls

import (
	"context"
	"errors"
	"sync"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ServiceName is the name of the gRPC service.
const ServiceName = "envoy.service.ratelimit.v3.RateLimitService"

// Register registers the service of an engine with a grpc-go server. The server should bound the
// size of messages: MaxRecvMsgSize of 64 KiB is ample for Envoy.
func Register(to grpc.ServiceRegistrar, e *Engine) {
	rlsv3.RegisterRateLimitServiceServer(to, &server{engine: e})
}

type server struct {
	rlsv3.UnimplementedRateLimitServiceServer
	engine *Engine
}

// exchanges pools the messages of calls.
var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// An exchange is the request and the response of one call.
type exchange struct {
	request  Request
	response Response
}

// maxEntriesKept is the capacity of Entries above which its memory is not reused.
const maxEntriesKept = 32

// release empties the request, and returns x to the pool unless x is too large.
func (x *exchange) release() {
	x.request.Domain = ""
	for i := range x.request.Descriptors {
		d := &x.request.Descriptors[i]
		clear(d.Entries)
		if cap(d.Entries) > maxEntriesKept {
			d.Entries = nil
		}
		*d = Descriptor{Entries: d.Entries[:0]}
	}
	if cap(x.request.Descriptors) <= MaxDescriptors {
		exchanges.Put(x)
	}
}

// ShouldRateLimit decides a request.
func (s *server) ShouldRateLimit(ctx context.Context, m *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	r, err := s.engine.decideProto(ctx, m)
	if err != nil {
		return nil, grpcError(err)
	}
	return r, nil
}

// decideProto decides a message.
func (e *Engine) decideProto(ctx context.Context, m *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	x := exchanges.Get().(*exchange)
	defer x.release()
	x.request.fromProto(m)
	if err := e.Decide(ctx, &x.request, &x.response); err != nil {
		return nil, err
	}
	return x.response.toProto()
}

// grpcError returns the gRPC status for an error of Decide. Envoy treats all codes alike: its
// failure_mode_deny decides whether the request passes.
func grpcError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return status.Error(codes.Code(e.Code), e.Text)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}
