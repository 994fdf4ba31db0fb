package service

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// serveFast makes result serve a gRPC listener: Envoy's rate limit service by package fastgrpc, and
// all other services by grpc-go.
func (s *service) serveFast(result *server, grpcServer *grpc.Server, calls *grpcCalls, authenticate authenticator, config *tls.Config) error {
	o := fastgrpc.Options{
		Methods:        make(map[string]fastgrpc.Handler),
		Fallback:       grpcServer,
		MaxConnections: int(s.Settings.MaxConnections), // newConnectionBudget limits the listener to this or fewer
		MaxStreams:     maxStreams,
		MaxMessage:     maxMessage,
		MaxHeaderList:  int(s.Settings.MaxHeader),
		IdleTimeout:    s.Settings.IdleTimeout,
		ReadTimeout:    s.Settings.HeaderTimeout,
		WriteTimeout:   s.Settings.StallTimeout,
		KeepAlive:      s.Settings.StallTimeout,
		MaxAge:         maxConnectionAge,
		MaxAgeGrace:    maxConnectionAgeGrace,
		IsRestricted:   isRestricted,
	}
	if s.Settings.Store == "" {
		o.Parallel = 1 // the memory store has no round trips to overlap
	}
	if authenticate != nil {
		o.Authorize = func(c fastgrpc.Caller) error { return authenticate(c.Method, c.Authorization, c.Addr) }
	}
	if s.envoy != nil {
		o.Methods[envoyrls.Method] = calls.wrapFast(envoyrls.Method, s.envoy.decideCall)
		if !s.Telemetry.HasTraces() { // the calls of a list have one context, so they would share a trace
			o.Lists = map[string]fastgrpc.ListHandler{envoyrls.Method: calls.wrapFastList(envoyrls.Method, s.envoy.decideCalls)}
		}
	}
	fast, err := fastgrpc.New(o)
	if err != nil {
		return err
	}
	result.serve = func(l net.Listener) error {
		if config != nil {
			config = config.Clone()
			config.NextProtos = append(slices.Clone(config.NextProtos), "h2")
			l = tls.NewListener(l, config)
		}
		if err := fast.Serve(l); !errors.Is(err, fastgrpc.ErrServerClosed) {
			return err
		}
		return nil
	}
	endStreams := sync.OnceFunc(func() { close(calls.ending) })
	result.shutdown = func(ctx context.Context) {
		endStreams()
		fast.Shutdown(ctx)
	}
	result.stop = func() {
		endStreams()
		fast.Close()
		grpcServer.Stop()
	}
	return nil
}

// decideCall decides one call of Envoy's rate limit service.
func (e *envoy) decideCall(ctx context.Context, call *fastgrpc.Call) (err error) {
	call.Response, err = e.engine.DecideMessage(ctx, call.Request, call.Response)
	return err
}

// decideCalls decides several calls of Envoy's rate limit service together.
func (e *envoy) decideCalls(ctx context.Context, calls []*fastgrpc.Call) {
	messages := make([]envoyrls.Message, len(calls))
	for i, call := range calls {
		messages[i] = envoyrls.Message{Request: call.Request, Response: call.Response}
	}
	e.engine.DecideMessages(ctx, messages)
	for i, call := range calls {
		call.Response, call.Err = messages[i].Response, messages[i].Err
	}
}

// wrapFast adds to a handler of fastgrpc what interceptUnary adds to handlers of grpc-go: metrics,
// spans and recovery from panics.
func (c *grpcCalls) wrapFast(method string, handler fastgrpc.Handler) fastgrpc.Handler {
	return func(ctx context.Context, call *fastgrpc.Call) (err error) {
		c.service.inFlight.Add(1)
		endSpan := noSpan
		if t := c.service.telemetry; t != nil {
			ctx, endSpan = t.Call(ctx, method, call.Header)
		}
		defer func() {
			err = c.finish(method, recover(), err)
			endSpan(status.Code(err))
			c.service.inFlight.Add(-1)
		}()
		return handler(ctx, call)
	}
}

// wrapFastList is like wrapFast for a handler of several calls. It makes no spans.
func (c *grpcCalls) wrapFastList(method string, handler fastgrpc.ListHandler) fastgrpc.ListHandler {
	return func(ctx context.Context, list []*fastgrpc.Call) {
		c.service.inFlight.Add(int64(len(list)))
		defer func() {
			panicValue := recover()
			for _, call := range list {
				call.Err = c.finish(method, panicValue, call.Err)
			}
			c.service.inFlight.Add(-int64(len(list)))
		}()
		handler(ctx, list)
	}
}
