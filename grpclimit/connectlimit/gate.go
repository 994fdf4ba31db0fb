package connectlimit

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/protoadapt"

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

	// AddressHeader is the header with the client's address: X-Forwarded-For, Forwarded, or one with a
	// single address. Default: X-Forwarded-For.
	AddressHeader string

	// Dialects are the formats of the headers about limits: draft-11, draft-07, draft-06, x-ratelimit,
	// or none alone, which sends no such headers. Default: draft-11.
	Dialects []string

	// Domain is the domain of the ErrorInfo in the details of errors. Default: penstock.
	Domain string

	// Exempt reports whether calls of a procedure ("/package.Service/Method") are exempt from all
	// limits. Default: calls of health checks, reflection and channelz are exempt.
	Exempt func(procedure string) bool

	// Cost returns the cost of a call. Rules find it in the header Call-Cost, where it replaces what
	// the client sent. A limit with cost: {header: Call-Cost, max: N} charges it, but at most N. The
	// message is the request of a unary call, or a message of a stream. It is nil when a stream
	// begins. Default: rules find the Call-Cost that the client sent.
	Cost func(ctx context.Context, procedure string, message any) int64

	// Messages says that the messages that a client sends on a stream are charged. The first
	// message is charged with the stream. Each further one is charged as a call of its own, except
	// that it takes no slots of in_flight limits. Default: a stream is charged once, when it
	// begins.
	Messages bool

	// MaxMessageWait is how long a message over a limit may wait. Meanwhile, flow control slows the
	// client down. Default: it does not wait, and Receive returns CodeResourceExhausted.
	MaxMessageWait time.Duration
}

// A Gate is a connect.Interceptor that admits calls within the limits of a policy. It limits only
// handlers: as an interceptor of a client it has no effect. Make one with New. Many goroutines may
// use it at the same time.
type Gate struct{ calls *calls.Gate }

// New makes a Gate that applies the rules of a Controller. Other transports may use the same
// Controller. An error wraps penstock.ErrInvalid.
func New(controller *admission.Controller, o Options) (*Gate, error) {
	gate, err := calls.New("connectlimit", controller, calls.Options(o))
	if err != nil {
		return nil, err
	}
	return &Gate{gate}, nil
}

// WrapUnary implements connect.Interceptor.
func (g *Gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if request.Spec().IsClient || g.calls.Exempts(request.Spec().Procedure) {
			return next(ctx, request)
		}
		c := callOf(request.Spec(), request.Peer(), request.Header())
		c.HTTPMethod, c.Message = request.HTTPMethod(), request.Any()
		a, refusal := g.calls.Admit(ctx, c)
		if refusal != nil {
			return nil, errorOf(refusal)
		}
		fields := g.calls.Fields(a)
		var result admission.Result // of a handler that panics
		defer func() { a.Done(result) }()
		answer, err := next(calls.WithAdmission(ctx, a), request)
		result.Status = statusOf(err)
		if err != nil {
			return answer, withFields(err, fields)
		}
		setFields(answer.Header(), fields)
		return answer, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g *Gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor. A stream is charged when it begins, and its
// messages are charged if Options.Messages is set. Slots are returned when the handler returns.
func (g *Gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if g.calls.Exempts(conn.Spec().Procedure) {
			return next(ctx, conn)
		}
		a, refusal := g.calls.Admit(ctx, callOf(conn.Spec(), conn.Peer(), conn.RequestHeader()))
		if refusal != nil {
			return errorOf(refusal)
		}
		var result admission.Result // of a handler that panics
		defer func() { a.Done(result) }()
		s := &stream{StreamingHandlerConn: conn, ctx: ctx, gate: g.calls, fields: g.calls.Fields(a)}
		err := next(calls.WithAdmission(ctx, a), s)
		result.Status = statusOf(err)
		return err
	}
}

// A stream charges the messages that it receives. It sets the headers about limits when the handler
// sends its first message. If a stream fails with headers, clients do not retry it.
type stream struct {
	connect.StreamingHandlerConn
	ctx      context.Context
	gate     *calls.Gate
	fields   map[string][]string // about limits, still to be sent; nil if there are none
	messages calls.Messages
}

func (s *stream) Receive(message any) error {
	if err := s.StreamingHandlerConn.Receive(message); err != nil || !s.gate.ChargesMessages() {
		return err
	}
	c := callOf(s.Spec(), s.Peer(), s.RequestHeader())
	c.Message = message
	refusal, err := s.messages.Received(s.ctx, s.gate, c)
	switch {
	case refusal != nil:
		return errorOf(refusal)
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, err)
	case err != nil:
		return connect.NewError(connect.CodeCanceled, err)
	}
	return nil
}

func (s *stream) Send(message any) error {
	if s.fields != nil {
		setFields(s.ResponseHeader(), s.fields)
		s.fields = nil
	}
	return s.StreamingHandlerConn.Send(message)
}

// callOf returns a call in the form that package calls decides. It has no message.
func callOf(spec connect.Spec, peer connect.Peer, header http.Header) *calls.Call {
	return &calls.Call{
		Method: spec.Procedure, Peer: clientaddress.PeerOf(peer.Addr),
		Metadata: requestHeader(header),
	}
}

type requestHeader http.Header

func (h requestHeader) Values(lower string) []string { return h[http.CanonicalHeaderKey(lower)] }

func (h requestHeader) Has(test func(name string) bool) bool { return syntax.HasHeader(h, test) }

// setFields copies fields, whose names are in lower case, to a header.
func setFields(header http.Header, fields map[string][]string) {
	for name, values := range fields {
		header[http.CanonicalHeaderKey(name)] = values
	}
}

// withFields returns a handler's error with fields in the metadata of its connect.Error. The
// handler's error stays as it is, because the handler may return it for several calls at the same
// time.
func withFields(err error, fields map[string][]string) error {
	var failed *connect.Error
	if len(fields) == 0 || !errors.As(err, &failed) || failed == nil || connect.IsWireError(err) {
		return err // connect-go sends no metadata of errors from another server
	}
	shared := *failed // Meta makes a map if there is none, and must not do that in the handler's error
	own := connect.NewError(failed.Code(), failed.Unwrap())
	for _, detail := range failed.Details() {
		own.AddDetail(detail)
	}
	maps.Copy(own.Meta(), shared.Meta())
	setFields(own.Meta(), fields)
	return &errorWithFields{error: err, own: own}
}

// An errorWithFields is a handler's error, with a connect.Error that replaces the handler's.
type errorWithFields struct {
	error
	own *connect.Error
}

// Unwrap returns own first, so errors.As and connect-go find it before the handler's connect.Error.
func (e *errorWithFields) Unwrap() []error { return []error{e.own, e.error} }

func errorOf(r *calls.Refusal) *connect.Error {
	err := connect.NewError(connect.Code(r.Code()), errors.New(r.Message))
	for _, d := range r.Details {
		if detail, e := connect.NewErrorDetail(protoadapt.MessageV2Of(d)); e == nil {
			err.AddDetail(detail)
		}
	}
	fields := maps.Clone(r.Fields)
	if fields == nil {
		fields = make(map[string][]string)
	}
	if pushback := r.Pushback(); pushback != "" {
		fields["grpc-retry-pushback-ms"] = []string{pushback}
	}
	if fields["retry-after"] == nil && r.RetryAfter > 0 && r.RetryAfter != penstock.Never {
		fields["retry-after"] = []string{r.RetrySeconds()}
	}
	setFields(err.Meta(), fields)
	return err
}

// statusOf returns the HTTP status of a call that ends with err. The setting on_status lists such
// statuses.
func statusOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	return calls.HTTPStatus(codes.Code(connect.CodeOf(err)))
}

// DecisionOf returns the decision about the call that has this context. The bool is false if no
// limit applied to the call.
func DecisionOf(ctx context.Context) (penstock.Decision, bool) { return calls.DecisionOf(ctx) }

// Settle sets the true cost of the call that has this context. When the handler has returned, the
// charges of limits with cost.actual are adjusted to this cost. A second Settle replaces the first.
// Settle returns an error if no limit of the call can be settled.
func Settle(ctx context.Context, actual int64) error {
	return calls.Settle(ctx, "connectlimit", actual)
}

var _ connect.Interceptor = (*Gate)(nil)
