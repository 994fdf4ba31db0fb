package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/penstock/penstock"
)

// A ContextLimiter implements the interface ratelimit.Limiter of go-grpc-middleware. It is for
// programs that already use that middleware. A [Gate] gives better responses: that middleware turns
// every error into RESOURCE_EXHAUSTED, even if the client has left, and sends no retry time.
type ContextLimiter struct {
	// Limiter has the limits. None of them may have the algorithm Concurrency.
	Limiter *penstock.Limiter

	// Key returns the Limiter's key for a call. Default: its method, so that all clients share the
	// limits of a method.
	Key func(ctx context.Context) string
}

// Limit charges one unit. If the limits deny the call, Limit returns a *penstock.DeniedError. If
// ctx ends before there is a decision, Limit returns the error of ctx. While the store gives no
// answer, Limit returns nil; with guard.Standard around the store, the guard's fallback decides
// instead.
func (l ContextLimiter) Limit(ctx context.Context) error {
	key := ""
	if l.Key != nil {
		key = l.Key(ctx)
	} else if method, ok := grpc.Method(ctx); ok {
		key = method
	}
	d, err := l.Limiter.Allow(ctx, key)
	switch {
	case err == nil && !d.Allowed:
		return &penstock.DeniedError{Decision: d}
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, penstock.ErrUnavailable):
		return nil
	}
	return err
}
