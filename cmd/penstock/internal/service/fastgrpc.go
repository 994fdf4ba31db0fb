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

	"github.com/penstock/penstock/grpclimit/envoyrls"
	"github.com/penstock/penstock/grpclimit/fastgrpc"
)

// serveFast serves a gRPC listener. Package fastgrpc serves Envoy's rate limit service, and grpc-go
// all other services.
func (s *service) serveFast(made *server, grpcServer *grpc.Server, calls *grpcCalls, authenticate authenticator, config *tls.Config) error {
	o := fastgrpc.Options{
		Methods: make(map[string]fastgrpc.Handler), Fallback: grpcServer,
		MaxConnections: int(s.Settings.MaxConnections), // the listener has a lower bound
		MaxStreams:     maxStreams, MaxMessage: maxMessage, MaxHeaderList: int(s.Settings.MaxHeader),
		IdleTimeout: s.Settings.IdleTimeout, ReadTimeout: s.Settings.HeaderTimeout, WriteTimeout: s.Settings.StallTimeout, KeepAlive: s.Settings.StallTimeout,
		MaxAge: maxConnectionAge, MaxAgeGrace: maxConnectionAgeGrace,
	}
	if s.Settings.Store == "" {
		o.Parallel = 1 // the memory store has no round trips to overlap
	}
	if authenticate != nil {
		o.IsPublic = func(method string) bool { return serviceName(method) == healthService }
		o.Authorize = func(c fastgrpc.Caller) error { return authenticate(c.Method, c.Authorization, c.Addr) }
	}
	if s.envoy != nil {
		engine := s.envoy.engine
		o.Methods[envoyrls.Method] = calls.counted(envoyrls.Method, func(ctx context.Context, call *fastgrpc.Call) (err error) {
			call.Response, err = engine.DecideMessage(ctx, call.Request, call.Response)
			return err
		})
		o.Lists = map[string]fastgrpc.ListHandler{envoyrls.Method: calls.countedList(envoyrls.Method, func(ctx context.Context, list []*fastgrpc.Call) {
			messages := make([]envoyrls.Message, len(list))
			for i, call := range list {
				messages[i] = envoyrls.Message{Request: call.Request, Response: call.Response}
			}
			engine.DecideMessages(ctx, messages)
			for i, call := range list {
				call.Response, call.Err = messages[i].Response, messages[i].Err
			}
		})}
	}
	fast, err := fastgrpc.New(o)
	if err != nil {
		return err
	}
	made.serve = func(l net.Listener) error {
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
	end := sync.OnceFunc(func() { close(calls.ending) })
	made.shutdown = func(ctx context.Context) {
		end()
		fast.Shutdown(ctx)
	}
	made.stop = func() {
		end()
		fast.Close()
		grpcServer.Stop()
	}
	return nil
}

// counted wraps a handler of fastgrpc as unary wraps those of grpc-go: with metrics, spans and
// recovery from panics.
func (c *grpcCalls) counted(method string, handler fastgrpc.Handler) fastgrpc.Handler {
	return func(ctx context.Context, call *fastgrpc.Call) (err error) {
		c.service.inFlight.Add(1)
		end := noSpan
		if t := c.service.telemetry; t != nil {
			ctx, end = t.Call(ctx, method, call.Header)
		}
		defer func() {
			err = c.ended(method, recover(), err)
			end(status.Code(err))
			c.service.inFlight.Add(-1)
		}()
		return handler(ctx, call)
	}
}

// countedList is like counted, for a handler of lists.
func (c *grpcCalls) countedList(method string, handler fastgrpc.ListHandler) fastgrpc.ListHandler {
	return func(ctx context.Context, list []*fastgrpc.Call) {
		c.service.inFlight.Add(int64(len(list)))
		defer func() {
			value := recover()
			for _, call := range list {
				call.Err = c.ended(method, value, call.Err)
			}
			c.service.inFlight.Add(-int64(len(list)))
		}()
		handler(ctx, list)
	}
}
