package checkapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/guard"
)

// Register registers the service with a gRPC server. The service checks the tokens itself, in the
// metadata authorization: "Bearer TOKEN".
func (s *Service) Register(r grpc.ServiceRegistrar) {
	penstockv1.RegisterLimitServiceServer(r, grpcServer{service: s})
}

type grpcServer struct {
	penstockv1.UnimplementedLimitServiceServer
	service *Service
}

// answerBefore is the part of a call's time that is kept for the fallback and the response: the
// store must answer this long before the deadline. If less than four times answerBefore is left, a
// quarter of the time left is kept.
const answerBefore = 5 * time.Millisecond

// invoke authenticates the caller, and calls a function of the service.
func invoke[Request, Response any](ctx context.Context, g grpcServer, needs permission, call func(context.Context, *Request) (*Response, error), r *Request) (*Response, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if err := g.service.tokens.authorize(values, needs); err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		ctx = guard.WithAnswerDeadline(ctx, deadline.Add(-min(answerBefore, time.Until(deadline)/4)))
	}
	response, err := call(ctx, r)
	if err != nil {
		return nil, asFailure(err)
	}
	return response, nil
}

// checkBatchWithinMemory is CheckBatch for a request that grpc-go has decoded.
func (s *Service) checkBatchWithinMemory(ctx context.Context, r *penstockv1.CheckBatchRequest) (*penstockv1.CheckBatchResponse, error) {
	held := &heldMemory{memory: s.options.Memory}
	defer held.release()
	if size := int64(proto.Size(r)); size > smallCall {
		if err := held.take(size * memoryPerByte); err != nil {
			return nil, err
		}
	}
	if err := s.takeForAnswers(r, held); err != nil {
		return nil, err
	}
	return s.CheckBatch(ctx, r)
}

func (g grpcServer) Check(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return invoke(ctx, g, caller, g.service.Check, r)
}

func (g grpcServer) CheckBatch(ctx context.Context, r *penstockv1.CheckBatchRequest) (*penstockv1.CheckBatchResponse, error) {
	return invoke(ctx, g, caller, g.service.checkBatchWithinMemory, r)
}

func (g grpcServer) Reserve(ctx context.Context, r *penstockv1.ReserveRequest) (*penstockv1.ReserveResponse, error) {
	return invoke(ctx, g, caller, g.service.Reserve, r)
}

func (g grpcServer) Settle(ctx context.Context, r *penstockv1.SettleRequest) (*penstockv1.SettleResponse, error) {
	return invoke(ctx, g, caller, g.service.Settle, r)
}

func (g grpcServer) Acquire(ctx context.Context, r *penstockv1.AcquireRequest) (*penstockv1.AcquireResponse, error) {
	return invoke(ctx, g, caller, g.service.Acquire, r)
}

func (g grpcServer) Renew(ctx context.Context, r *penstockv1.RenewRequest) (*penstockv1.RenewResponse, error) {
	return invoke(ctx, g, caller, g.service.Renew, r)
}

func (g grpcServer) Release(ctx context.Context, r *penstockv1.ReleaseRequest) (*penstockv1.ReleaseResponse, error) {
	return invoke(ctx, g, caller, g.service.Release, r)
}

func (g grpcServer) Peek(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return invoke(ctx, g, operator, g.service.Peek, r)
}

func (g grpcServer) Reset(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.ResetResponse, error) {
	return invoke(ctx, g, operator, g.service.Reset, r)
}

func (g grpcServer) Explain(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.ExplainResponse, error) {
	return invoke(ctx, g, operator, g.service.Explain, r)
}
