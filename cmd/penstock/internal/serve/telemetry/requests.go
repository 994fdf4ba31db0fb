package telemetry

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
)

// Handler continues the trace of each request, and makes a span for the request. The span has
// neither the path nor the client's address: both may be identities.
func (t *Telemetry) Handler(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		method := methodOf(r)
		spanName := method
		if method == otherMethod {
			spanName = "HTTP"
		}
		ctx, span := t.tracer.Start(ctx, spanName, trace.WithSpanKind(trace.SpanKindServer))
		r = r.WithContext(ctx)
		if !span.IsRecording() {
			next.ServeHTTP(w, r)
			return
		}
		status := &statusWriter{ResponseWriter: w}
		defer func() { // also after a panic, which net/http recovers
			span.SetAttributes(attribute.String("http.request.method", method), attribute.String("url.scheme", schemeOf(r)))
			if status.code != 0 {
				span.SetAttributes(attribute.Int("http.response.status_code", status.code))
			}
			if status.code >= http.StatusInternalServerError {
				span.SetStatus(otelcodes.Error, "")
			}
			span.End()
		}()
		next.ServeHTTP(status, r)
	})
}

// otherMethod stands for all unknown methods in OpenTelemetry's semantic conventions.
const otherMethod = "_OTHER"

// methodOf returns the request's method, or otherMethod if the method is unknown: clients can send
// any text.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace, "QUERY":
		return r.Method
	}
	return otherMethod
}

func schemeOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

type statusWriter struct {
	http.ResponseWriter
	code int // 0: none yet
}

func (w *statusWriter) WriteHeader(code int) {
	isFinal := code >= 200 || code == http.StatusSwitchingProtocols
	if w.code == 0 && isFinal {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	w.code = cmp.Or(w.code, http.StatusOK)
	return w.ResponseWriter.Write(p)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Inject writes the trace of a request into the headers for the upstream. It replaces the trace
// headers that the client sent.
func (t *Telemetry) Inject(ctx context.Context, header http.Header) {
	if t == nil || len(t.propagator.Fields()) == 0 || !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	for _, name := range t.propagator.Fields() {
		header.Del(name)
	}
	t.propagator.Inject(ctx, propagation.HeaderCarrier(header))
}

// Call continues the trace of a gRPC call, and makes a span for the call. method is the full
// method, such as /a.B/C. getHeader returns a header of the call. The span lasts until end is
// called.
func (t *Telemetry) Call(ctx context.Context, method string, getHeader func(name string) string) (_ context.Context, end func(codes.Code)) {
	method = strings.TrimPrefix(method, "/")
	ctx, span := t.tracer.Start(t.propagator.Extract(ctx, carrier(getHeader)), method, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(code codes.Code) {
		if span.IsRecording() {
			span.SetAttributes(
				attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", method),
				attribute.String("rpc.response.status_code", nameOf(code)))
			if isServerError(code) {
				span.SetStatus(otelcodes.Error, "")
			}
		}
		span.End()
	}
}

type carrier func(name string) string

func (c carrier) Get(name string) string { return c(name) }
func (c carrier) Set(string, string)     {}
func (c carrier) Keys() []string         { return nil }

// nameOf returns the name of a status code in OpenTelemetry's form, such as DEADLINE_EXCEEDED.
func nameOf(code codes.Code) string {
	if int(code) < len(codeNames) {
		return codeNames[code]
	}
	return "UNKNOWN"
}

var codeNames = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
	"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// isServerError reports whether OpenTelemetry's semantic conventions count a code as an error of
// the server. They do not count RESOURCE_EXHAUSTED, the code of a denial.
func isServerError(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}
