package grpclimit

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/internal/calls"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/clientaddress"
)

// Options configure a Gate. The zero value is useful.
type Options struct {
	// TrustedProxies are the proxies that may name the client in AddressHeader: networks such as
	// 10.0.0.0/8, or unix for peers on a unix socket. Default: none, so the peer is the client.
	TrustedProxies []string

	// AddressHeader is the metadata with the client's address: X-Forwarded-For, Forwarded, or one with
	// a single address. Default: X-Forwarded-For.
	AddressHeader string

	// Dialects are the formats of the metadata about limits: draft-11, draft-07, draft-06,
	// x-ratelimit, or none alone, which sends no such metadata. Default: draft-11.
	Dialects []string

	// Domain is the domain of the ErrorInfo in the details of errors. Default: penstock.
	Domain string

	// Exempt reports whether calls of a method ("/package.Service/Method") are exempt from all limits.
	// Default: calls of health checks, reflection and channelz are exempt.
	Exempt func(method string) bool

	// Cost returns the cost of a call. Rules find it in the header Call-Cost, where it replaces what
	// the client sent. A limit with cost: {header: Call-Cost, max: N} charges it, but at most N. The
	// message is the request of a unary call, or a message of a stream. It is nil when a stream
	// begins. Default: rules find the call-cost that the client sent.
	Cost func(ctx context.Context, method string, message any) int64

	// Messages says that the messages that a client sends on a stream are charged. The first
	// message is charged with the stream. Each further one is charged as a call of its own, except
	// that it takes no slots of in_flight limits. Default: a stream is charged once, when it
	// begins.
	Messages bool

	// MaxMessageWait is how long a message over a limit may wait. Meanwhile, flow control slows the
	// client down. Default: it does not wait, and RecvMsg returns RESOURCE_EXHAUSTED.
	MaxMessageWait time.Duration
}

// A Gate admits calls within the limits of a policy. Make one with New. Many goroutines may use it
// at the same time.
type Gate struct{ calls *calls.Gate }

// New makes a Gate that applies the rules of a Controller. Other transports may use the same
// Controller. An error wraps penstock.ErrInvalid.
func New(controller *admission.Controller, o Options) (*Gate, error) {
	gate, err := calls.New("grpclimit", controller, calls.Options(o))
	if err != nil {
		return nil, err
	}
	return &Gate{gate}, nil
}

// Unary is a grpc.UnaryServerInterceptor. Chain it before interceptors that do work, and after
// interceptors that authenticate the connection.
func (g *Gate) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if g.calls.Exempts(info.FullMethod) {
		return handler(ctx, request)
	}
	c, ctx := withServerCall(ctx)
	a, refusal := g.calls.Admit(ctx, callOf(ctx, info.FullMethod, request))
	if refusal != nil {
		return nil, c.refuse(refusal, func(md metadata.MD) { grpc.SetTrailer(ctx, md) })
	}
	fields := g.calls.Fields(a)
	var result admission.Result // of a handler that panics
	defer func() { a.Done(result) }()
	answer, err := handler(calls.WithAdmission(ctx, a), request)
	result.Status = calls.HTTPStatus(status.Code(err))
	// A call that fails must not get a header: clients would not retry it.
	if fields != nil && err == nil {
		grpc.SetHeader(ctx, fields) // has no effect if the handler has already sent the header
	} else if fields != nil {
		grpc.SetTrailer(ctx, fields)
	}
	return answer, err
}

// Stream is a grpc.StreamServerInterceptor. It charges a stream when the stream begins, and charges
// its messages if Options.Messages is set. Slots are returned when the handler returns.
func (g *Gate) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if g.calls.Exempts(info.FullMethod) {
		return handler(srv, stream)
	}
	c, ctx := withServerCall(stream.Context())
	a, refusal := g.calls.Admit(ctx, callOf(ctx, info.FullMethod, nil))
	if refusal != nil {
		return c.refuse(refusal, stream.SetTrailer)
	}
	var result admission.Result // of a handler that panics
	defer func() { a.Done(result) }()
	s := &serverStream{ServerStream: stream, gate: g.calls, call: c, method: info.FullMethod, fields: g.calls.Fields(a)}
	s.ctx = calls.WithAdmission(ctx, a)
	err := handler(srv, s)
	result.Status = calls.HTTPStatus(status.Code(err))
	if err != nil && s.fields != nil {
		stream.SetTrailer(s.fields)
	}
	return err
}

// callOf returns a call, or a message of a stream, in the form that package calls decides.
func callOf(ctx context.Context, method string, message any) *calls.Call {
	c := &calls.Call{Method: method, Message: message, Metadata: incoming{ctx}}
	if authority := c.Metadata.Values(":authority"); len(authority) > 0 {
		c.Authority = authority[0]
	}
	if p, ok := peer.FromContext(ctx); ok {
		c.Peer = clientaddress.PeerAt(p.Addr)
	}
	return c
}

// incoming are the metadata of the call that has this context.
type incoming struct{ ctx context.Context }

func (i incoming) Values(lower string) []string {
	return metadata.ValueFromIncomingContext(i.ctx, lower)
}

func (i incoming) Has(test func(name string) bool) bool {
	md, _ := metadata.FromIncomingContext(i.ctx) // a copy: grpc-go has no other way to list the names
	return syntax.HasHeader(md, test)
}

// A serverStream sends the metadata about limits with the first message, and charges messages.
type serverStream struct {
	grpc.ServerStream
	ctx    context.Context
	gate   *calls.Gate
	call   *serverCall
	method string
	fields metadata.MD // about limits, still to be sent; nil if there are none

	messages calls.Messages
}

func (s *serverStream) Context() context.Context { return s.ctx }

// setFields sets the header as late as possible: if a stream fails with a header, clients do not
// retry it.
func (s *serverStream) setFields() {
	if s.fields != nil {
		s.ServerStream.SetHeader(s.fields)
		s.fields = nil
	}
}

func (s *serverStream) SendHeader(md metadata.MD) error {
	s.setFields()
	return s.ServerStream.SendHeader(md)
}

func (s *serverStream) SendMsg(message any) error {
	s.setFields()
	return s.ServerStream.SendMsg(message)
}

func (s *serverStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil || !s.gate.ChargesMessages() {
		return err
	}
	refusal, err := s.messages.Received(s.ctx, s.gate, callOf(s.ctx, s.method, message))
	switch {
	case refusal != nil:
		return s.call.refuse(refusal, s.ServerStream.SetTrailer)
	case err != nil:
		return status.FromContextError(err).Err()
	}
	return nil
}

// A serverCall is the state that all Gates of one call share.
type serverCall struct {
	hasPushback atomic.Bool // the trailer has a pushback; clients that get a second one do not retry
}

type serverCallKey struct{}

func withServerCall(ctx context.Context) (*serverCall, context.Context) {
	if c, ok := ctx.Value(serverCallKey{}).(*serverCall); ok {
		return c, ctx
	}
	c := new(serverCall)
	return c, context.WithValue(ctx, serverCallKey{}, c)
}

// pushbackField is the trailer field that tells a client with a retry policy when to retry.
const pushbackField = "grpc-retry-pushback-ms"

// refuse returns the error of a refused call. It sets all metadata in the trailer, and the pushback
// only once for each call. A client that gets a header or two pushbacks does not retry.
func (c *serverCall) refuse(r *calls.Refusal, setTrailer func(metadata.MD)) error {
	trailer := make(metadata.MD, len(r.Fields)+1)
	for name, values := range r.Fields {
		trailer[name] = values
	}
	if pushback := r.Pushback(); pushback != "" && !c.hasPushback.Swap(true) {
		trailer[pushbackField] = []string{pushback}
	}
	if len(trailer) > 0 {
		setTrailer(trailer)
	}
	answer := status.New(r.Code(), r.Message)
	if detailed, err := answer.WithDetails(r.Details...); err == nil {
		answer = detailed
	}
	return answer.Err()
}

// DecisionOf returns the decision about the call that has this context. The bool is false if no
// limit applied to the call.
func DecisionOf(ctx context.Context) (penstock.Decision, bool) { return calls.DecisionOf(ctx) }

// Settle sets the true cost of the call that has this context. When the handler has returned, the
// charges of limits with cost.actual are adjusted to this cost. A second Settle replaces the first.
// Settle returns an error if no limit of the call can be settled.
func Settle(ctx context.Context, actual int64) error { return calls.Settle(ctx, "grpclimit", actual) }
