package penstockotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/observe"
)

// SpansOptions configure NewSpans. The zero value is useful.
type SpansOptions struct {
	// Provider makes the tracer. Default: the global provider.
	Provider trace.TracerProvider
}

// Spans make a span for each decision about a request whose trace is sampled. Other requests have
// no span. Many goroutines may use Spans at the same time.
type Spans struct{ tracer trace.Tracer }

// NewSpans makes Spans.
func NewSpans(o SpansOptions) *Spans {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	return &Spans{o.Provider.Tracer(scope)}
}

// spanName is the name of each span. Its kind is internal.
const spanName = "ratelimit.decide"

// ObserveRequest makes the span of a request's decision. The span includes the time in which the
// request waits for its turn. A denial does not make the span an error. If the store gave no
// answer, the span has an event. ObserveRequest is for the Observe of admission.Options and of all
// transports.
func (s *Spans) ObserveRequest(e *admission.Event) {
	if !isSampled(e.Context) {
		return
	}
	now := time.Now()
	var wait time.Duration
	attributes := append(make([]attribute.KeyValue, 0, 8), outcomeKey.String(e.Outcome.String()))
	if e.Rule != "" {
		attributes = append(attributes, attributesOf(observe.Rule{Name: e.Rule, Limit: e.Limit, Algorithm: e.Algorithm})...)
		attributes = append(attributes, sourceKey.String(e.Source.String()))
	}
	if d := e.Decision; d != nil && d.Len() == len(e.Charges) && d.Len() > 0 {
		strictest := d.Strictest()
		attributes = append(attributes, attribute.Int64("ratelimit.cost", e.Charges[strictest].Cost))
		if retryAfter := d.Status(strictest).RetryAfter; retryAfter > 0 && retryAfter != penstock.Never {
			attributes = append(attributes, attribute.Int64("ratelimit.retry_after_ms", retryAfter.Milliseconds()))
		}
		if e.Outcome == admission.Allowed {
			if wait = d.Wait(); wait > 0 {
				attributes = append(attributes, attribute.Int64("ratelimit.wait_ms", wait.Milliseconds()))
			}
		}
	}
	span := s.start(e.Context, now.Add(-e.Latency-wait), attributes)
	isWithoutAnswer := e.Outcome == admission.FailedOpen || e.Outcome == admission.FailedClosed
	hasError := e.Err != nil && e.Outcome != admission.Abandoned
	if isWithoutAnswer || hasError {
		addFailure(span, now, e.Err)
	}
	span.End(trace.WithTimestamp(now))
}

// ObserveDecision makes the span of a decision, for programs that call a Limiter or a store without
// package admission. It is for guard.Options.Observe and guard.Observe. Do not use it together with
// ObserveRequest, which makes spans of the same decisions.
func (s *Spans) ObserveDecision(e guard.Event) {
	if !isSampled(e.Context) {
		return
	}
	now := time.Now()
	attributes := append(make([]attribute.KeyValue, 0, 8), attribute.Bool("ratelimit.allowed", e.Allowed), attribute.Int("ratelimit.charges", e.Charges))
	if e.Plan != nil {
		attributes = append(attributes, attributesOf(observe.RulesOfPlans(e.Plan)[0])...)
	}
	if e.Err == nil {
		attributes = append(attributes, sourceKey.String(e.Source.String()))
	}
	span := s.start(e.Context, now.Add(-e.Latency), attributes)
	if e.Err != nil && e.Reason != "canceled" {
		addFailure(span, now, e.Err)
	}
	span.End(trace.WithTimestamp(now))
}

func (s *Spans) start(ctx context.Context, at time.Time, attributes []attribute.KeyValue) trace.Span {
	_, span := s.tracer.Start(ctx, spanName, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attributes...))
	return span
}

// addFailure adds an event to the span, which means that the store gave no answer. The event has
// only the reason of the error, because the error's text may contain a key.
func addFailure(span trace.Span, at time.Time, err error) {
	options := []trace.EventOption{trace.WithTimestamp(at)}
	if err != nil {
		options = append(options, trace.WithAttributes(errorKey.String(labels.Reason(err))))
	}
	span.AddEvent("ratelimit.store_failed", options...)
}

func isSampled(ctx context.Context) bool {
	return ctx != nil && trace.SpanContextFromContext(ctx).IsSampled()
}

// TraceID returns the id of the trace that a context belongs to, or "" if it belongs to none. Its
// form is that of the header traceparent: 32 hexadecimal digits. TraceID is for log lines.
func TraceID(ctx context.Context) string {
	if ctx == nil {
		return ""
	}
	if s := trace.SpanContextFromContext(ctx); s.HasTraceID() {
		return s.TraceID().String()
	}
	return ""
}

// SampledTraceID returns TraceID if the trace is sampled, and "" if it is not. It is for exemplars,
// which should lead to a trace that exists.
func SampledTraceID(ctx context.Context) string {
	if !isSampled(ctx) {
		return ""
	}
	return TraceID(ctx)
}
