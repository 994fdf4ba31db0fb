package extauthz

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/policy"
)

// ContextPrefix is the prefix of the headers in which rules find Envoy's context_extensions: the
// extension plan is the header X-Context-Plan. Headers of clients with this prefix are removed.
const ContextPrefix = "X-Context-"

// A Server decides for Envoy whether a request may pass. Make one with New.
type Server struct {
	authv3.UnimplementedAuthorizationServer

	controller *admission.Controller
	options    forwardauth.Options

	mu      sync.Mutex                          // held while a handler is made
	refused *policy.Rules                       // the last rules for which no handler could be made
	handler atomic.Pointer[forwardauth.Handler] // nil until the rules can be enforced
}

// New makes a Server that applies the rules of a Controller. If they have limits that ext_authz
// cannot enforce (see forwardauth.Check), Options.Misused is called with the reason, and the
// response to each check is an error until a reload brings other rules. Once the Server has
// enforced rules, it keeps them if a reload brings such limits.
func New(controller *admission.Controller, o forwardauth.Options) *Server {
	s := &Server{controller: controller, options: o}
	s.current()
	return s
}

func (s *Server) Register(r grpc.ServiceRegistrar) { authv3.RegisterAuthorizationServer(r, s) }

// current returns the handler, or nil while the rules cannot be enforced.
func (s *Server) current() *forwardauth.Handler {
	if h := s.handler.Load(); h != nil {
		return h
	}
	rules := s.controller.Rules()
	s.mu.Lock()
	defer s.mu.Unlock()
	if rules == s.refused { // Misused was called for these rules
		return s.handler.Load()
	}
	h, err := forwardauth.New(s.controller, s.options)
	if err != nil {
		s.refused = rules
		s.options.Misused(fmt.Errorf("ext_authz over gRPC decides nothing: %w", err))
		return nil
	}
	s.handler.Store(h)
	return h
}

// Check decides the request that Envoy describes.
func (s *Server) Check(ctx context.Context, q *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	h := s.current()
	if h == nil {
		return failed("the policy has limits that ext_authz cannot enforce; the log names them"), nil
	}
	answer := recorder{header: make(http.Header)}
	r := describe(ctx, q)
	outcome := h.Decide(&answer, r, addressOf(q.GetAttributes().GetSource().GetAddress()))
	switch {
	case outcome.IsAdmitted():
		return allowed(&answer, r.Header), nil
	case outcome == admission.Abandoned:
		return failed("the call ended before there was a decision"), nil
	}
	return denied(&answer, outcome), nil
}

// describe converts a CheckRequest to the form of forwardauth. A missing part stays empty, and
// forwardauth then responds with status 400.
func describe(ctx context.Context, q *authv3.CheckRequest) *http.Request {
	d := q.GetAttributes().GetRequest().GetHttp()
	r := (&http.Request{Method: d.GetMethod(), Host: d.GetHost(), RequestURI: d.GetPath(), Header: headersOf(d), URL: new(url.URL), Body: http.NoBody}).WithContext(ctx)
	if p, ok := peer.FromContext(ctx); ok {
		r.RemoteAddr = p.Addr.String()
	}
	for name, value := range q.GetAttributes().GetContextExtensions() {
		r.Header[http.CanonicalHeaderKey(ContextPrefix+name)] = []string{value}
	}
	return r
}

// headersOf returns the headers of a request, but no pseudo headers and no headers with
// ContextPrefix. A header that was sent twice has two values if Envoy's encode_raw_headers is set.
// Otherwise Envoy has joined them.
func headersOf(r *authv3.AttributeContext_HttpRequest) http.Header {
	headers := make(http.Header, len(r.GetHeaders())+len(r.GetHeaderMap().GetHeaders()))
	add := func(name, value string) {
		if name = http.CanonicalHeaderKey(name); name != "" && name[0] != ':' && !strings.HasPrefix(name, ContextPrefix) {
			headers[name] = append(headers[name], value)
		}
	}
	for _, h := range r.GetHeaderMap().GetHeaders() {
		if len(h.GetRawValue()) > 0 {
			add(h.GetKey(), string(h.GetRawValue()))
		} else {
			add(h.GetKey(), h.GetValue())
		}
	}
	if len(headers) == 0 {
		for name, value := range r.GetHeaders() {
			add(name, value)
		}
	}
	return headers
}

// addressOf returns an address in the form of http.Request.RemoteAddr: "@" for a pipe, "" for none.
func addressOf(a *corev3.Address) string {
	switch {
	case a.GetPipe() != nil:
		return "@"
	case a.GetSocketAddress() != nil:
		return net.JoinHostPort(a.GetSocketAddress().GetAddress(), fmt.Sprint(a.GetSocketAddress().GetPortValue()))
	}
	return ""
}

type recorder struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

// headerOptions returns the headers of the response for Envoy. Each replaces others of its name.
func (r *recorder) headerOptions() (all []*corev3.HeaderValueOption) {
	for name, values := range r.header {
		all = append(all, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: name, Value: strings.Join(values, ", ")},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	slices.SortFunc(all, func(a, b *corev3.HeaderValueOption) int { return strings.Compare(a.Header.Key, b.Header.Key) })
	return all
}

// describingHeaders are the headers in which other proxies describe a request. Envoy sets none of
// them. If one is present, the client has sent it.
var describingHeaders = []string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Original-Method", "X-Original-Uri", "X-Original-Url"}

// allowed returns the response for a request that may pass. sent are the headers of the request.
func allowed(answer *recorder, sent http.Header) *authv3.CheckResponse {
	ok := &authv3.OkHttpResponse{ResponseHeadersToAdd: answer.headerOptions()}
	for _, name := range describingHeaders {
		if sent[name] != nil {
			ok.HeadersToRemove = append(ok.HeadersToRemove, name)
		}
	}
	return &authv3.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.OK)}, HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: ok}}
}

// denied returns the response for a request that must not pass.
func denied(answer *recorder, outcome admission.Outcome) *authv3.CheckResponse {
	code := codes.PermissionDenied
	switch outcome {
	case admission.Denied, admission.DeniedNewIdentity:
		code = codes.ResourceExhausted
	case admission.FailedClosed:
		code = codes.Unavailable
	case admission.Malformed:
		code = codes.InvalidArgument
	}
	return &authv3.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(code)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status: statusOf(answer.status), Headers: answer.headerOptions(), Body: answer.body.String(),
		}},
	}
}

// statusOf returns an HTTP status in Envoy's form. A status that Envoy does not know becomes 429.
func statusOf(status int) *typev3.HttpStatus {
	code := typev3.StatusCode(status)
	if typev3.StatusCode_name[int32(code)] == "" {
		code = typev3.StatusCode_TooManyRequests
	}
	return &typev3.HttpStatus{Code: code}
}

// failed returns the response for a request without a decision. Then failure_mode_allow decides.
func failed(reason string) *authv3.CheckResponse {
	return &authv3.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(codes.Unavailable), Message: reason},
		HttpResponse: &authv3.CheckResponse_ErrorResponse{ErrorResponse: &authv3.DeniedHttpResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable},
		}},
	}
}
