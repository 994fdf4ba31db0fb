package checkapi

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/guard"
)

// Register makes a gRPC server answer the calls of the service. It checks the tokens by itself:
// they are in the metadata authorization, as "Bearer TOKEN".
func (s *Service) Register(r grpc.ServiceRegistrar) {
	penstockv1.RegisterLimitServiceServer(r, grpcServer{service: s})
}

// A grpcServer is a Service that authenticates its callers.
type grpcServer struct {
	penstockv1.UnimplementedLimitServiceServer
	service *Service
}

// answerBefore is how long before the deadline of a call the store must have answered. Then there
// is time left for the fallback, and for the answer.
const answerBefore = 5 * time.Millisecond

// answer authenticates the caller, and calls a function of the service.
func answer[Request, Response any](ctx context.Context, g grpcServer, needs permission, call func(context.Context, *Request) (*Response, error), r *Request) (*Response, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if err := g.service.tokens.authorize(values, needs); err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		ctx = guard.AnswerBy(ctx, deadline.Add(-min(answerBefore, time.Until(deadline)/4)))
	}
	response, err := call(ctx, r)
	if err != nil {
		return nil, unanswered(err)
	}
	return response, nil
}

func (g grpcServer) Check(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return answer(ctx, g, caller, g.service.Check, r)
}

func (g grpcServer) CheckBatch(ctx context.Context, r *penstockv1.CheckBatchRequest) (*penstockv1.CheckBatchResponse, error) {
	return answer(ctx, g, caller, g.service.CheckBatch, r)
}

func (g grpcServer) Reserve(ctx context.Context, r *penstockv1.ReserveRequest) (*penstockv1.ReserveResponse, error) {
	return answer(ctx, g, caller, g.service.Reserve, r)
}

func (g grpcServer) Settle(ctx context.Context, r *penstockv1.SettleRequest) (*penstockv1.SettleResponse, error) {
	return answer(ctx, g, caller, g.service.Settle, r)
}

func (g grpcServer) Acquire(ctx context.Context, r *penstockv1.AcquireRequest) (*penstockv1.AcquireResponse, error) {
	return answer(ctx, g, caller, g.service.Acquire, r)
}

func (g grpcServer) Renew(ctx context.Context, r *penstockv1.RenewRequest) (*penstockv1.RenewResponse, error) {
	return answer(ctx, g, caller, g.service.Renew, r)
}

func (g grpcServer) Release(ctx context.Context, r *penstockv1.ReleaseRequest) (*penstockv1.ReleaseResponse, error) {
	return answer(ctx, g, caller, g.service.Release, r)
}

func (g grpcServer) Peek(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.CheckResponse, error) {
	return answer(ctx, g, operator, g.service.Peek, r)
}

func (g grpcServer) Reset(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.ResetResponse, error) {
	return answer(ctx, g, operator, g.service.Reset, r)
}

func (g grpcServer) Explain(ctx context.Context, r *penstockv1.CheckRequest) (*penstockv1.ExplainResponse, error) {
	return answer(ctx, g, operator, g.service.Explain, r)
}
