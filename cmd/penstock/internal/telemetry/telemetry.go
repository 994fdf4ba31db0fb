// Package telemetry exports the service's metrics and spans by OTLP, and continues the traces of
// its callers. The variables OTEL_… of OpenTelemetry configure it. Without them it does nothing.
//
// No request waits for a collector. If a queue has no room for a span, the span is dropped.
package telemetry

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	prometheusbridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/redact"
	penstockotel "github.com/penstock/penstock/observe/otel"
)

// Options of Open. All must be set.
type Options struct {
	Plan    Plan
	Metrics prometheus.Gatherer // what is exported
	Version string
	Log     *slog.Logger
}

// A Plan is what is exported. PlanOf makes it from the environment.
type Plan struct {
	Traces       Protocol // "": spans are not exported
	Metrics      Protocol // "": metrics are not exported
	IsContinuing bool     // traces of callers are continued

	// Warnings are about values that are ignored.
	Warnings []string
}

// TraceID returns a function that returns the id of a request's trace, for exemplars; nil: requests
// have no traces.
func (p Plan) TraceID() func(context.Context) string {
	if !p.HasTraces() {
		return nil
	}
	return penstockotel.SampledTraceID
}

// HasTraces reports whether requests have traces.
func (p Plan) HasTraces() bool { return p.Traces != "" || p.IsContinuing }

// A Protocol of OTLP.
type Protocol string

// The protocols that exporters have.
const (
	HTTP Protocol = "http/protobuf"
	GRPC Protocol = "grpc"
)

// IsOn reports whether Open does anything.
func (p Plan) IsOn() bool { return p.HasTraces() || p.Metrics != "" }

// PlanOf reads the variables that choose what is exported. The exporters and the SDK read all
// others, such as headers, timeouts, the sampler and attributes of the resource.
//
// A signal is exported if its exporter is otlp, or if there is an endpoint for it and its exporter
// is not none.
func PlanOf(getenv func(string) string) (p Plan) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return Plan{}
	}
	p.Traces = p.protocolOf(getenv, "TRACES")
	p.Metrics = p.protocolOf(getenv, "METRICS")
	propagators := getenv("OTEL_PROPAGATORS")
	p.IsContinuing = p.Traces != "" && propagators == ""
	for name := range strings.SplitSeq(propagators, ",") {
		switch strings.TrimSpace(name) {
		case "tracecontext":
			p.IsContinuing = true
		case "", "none", "baggage": // the upstream always gets the header baggage
		default:
			p.warn("OTEL_PROPAGATORS: %q is not supported and is ignored; write tracecontext or none", name)
		}
	}
	return p
}

// protocolOf returns how a signal, TRACES or METRICS, is exported. It returns "" if it is not.
func (p *Plan) protocolOf(getenv func(string) string, signal string) Protocol {
	hasEndpoint := getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	variable := "OTEL_" + signal + "_EXPORTER"
	switch name := getenv(variable); name {
	case "otlp":
	case "":
		if !hasEndpoint {
			return ""
		}
	case "none":
		return ""
	case "prometheus": // /metrics is always served
		return ""
	default:
		p.warn("%s: %q is not supported, and nothing is exported; write otlp or none", variable, name)
		return ""
	}
	variable = "OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL"
	name := getenv(variable)
	if name == "" {
		variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
		name = getenv(variable)
	}
	switch Protocol(name) {
	case "", HTTP:
		return HTTP
	case GRPC:
		return GRPC
	}
	p.warn("%s: %q is not supported; http/protobuf is used. Write that or grpc", variable, name)
	return HTTP
}

func (p *Plan) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// Telemetry exports until Close. A nil Telemetry does nothing.
type Telemetry struct {
	spans      *penstockotel.Spans // nil: spans are not exported
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	shutdown   []func(context.Context) error
}

// scope is the name of the tracer.
const scope = "github.com/penstock/penstock/cmd/penstock"

// Open starts the exports of the Plan. It returns nil if there are none. It does not connect: the
// collector may start later. Mistakes of the configuration are only logged.
func Open(o Options) *Telemetry {
	for _, warning := range o.Plan.Warnings {
		o.Log.Warn(warning)
	}
	if !o.Plan.IsOn() {
		return nil
	}
	logErrors(o.Log)
	ctx := context.Background() // the exporters do not connect with it
	var provider trace.TracerProvider = noop.NewTracerProvider()
	t := &Telemetry{propagator: propagation.NewCompositeTextMapPropagator()}
	if o.Plan.IsContinuing {
		t.propagator = propagation.TraceContext{}
	}
	about := describe(ctx, o)
	if o.Plan.Traces != "" {
		if exporter, err := newSpanExporter(ctx, o.Plan.Traces); err != nil {
			o.Log.Warn("spans are not exported: the variables OTEL_… are wrong", "err", redact.Quoted(err.Error()))
		} else {
			spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
			provider = spans
			t.spans = penstockotel.NewSpans(penstockotel.SpansOptions{Provider: spans})
			t.shutdown = append(t.shutdown, spans.Shutdown)
		}
	}
	if o.Plan.Metrics != "" {
		if exporter, err := newMetricExporter(ctx, o.Plan.Metrics); err != nil {
			o.Log.Warn("metrics are not exported: the variables OTEL_… are wrong", "err", redact.Quoted(err.Error()))
		} else {
			source := prometheusbridge.NewMetricProducer(prometheusbridge.WithGatherer(o.Metrics))
			reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(source))
			t.shutdown = append(t.shutdown, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about)).Shutdown)
		}
	}
	t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version))
	o.Log.Info("OpenTelemetry is on", "spans", orNone(o.Plan.Traces), "metrics", orNone(o.Plan.Metrics), "continues_traces", o.Plan.IsContinuing)
	return t
}

// Spans returns what makes a span for each decision. It is nil if spans are not exported.
func (t *Telemetry) Spans() *penstockotel.Spans {
	if t == nil {
		return nil
	}
	return t.spans
}

// TraceOf returns a function that returns the id of the trace that the request of an event belongs
// to, for log lines; nil: requests have no traces.
func (t *Telemetry) TraceOf() func(*admission.Event) string {
	if t == nil {
		return nil
	}
	return func(e *admission.Event) string { return penstockotel.TraceID(e.Context) }
}

func orNone(p Protocol) Protocol {
	if p == "" {
		return "none"
	}
	return p
}

func newSpanExporter(ctx context.Context, p Protocol) (sdktrace.SpanExporter, error) {
	if p == GRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func newMetricExporter(ctx context.Context, p Protocol) (sdkmetric.Exporter, error) {
	if p == GRPC {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

// describe returns the resource, which describes this instance to the collector. OTEL_SERVICE_NAME
// and OTEL_RESOURCE_ATTRIBUTES come last, so they take precedence. Each process has an id of its
// own: otherwise a collector would mix the metrics of instances.
func describe(ctx context.Context, o Options) *resource.Resource {
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(
			attribute.String("service.name", "penstock"),
			attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", rand.Text()),
		),
		resource.WithFromEnv())
	if err != nil { // what could be read is in about
		o.Log.Warn("a part of OTEL_RESOURCE_ATTRIBUTES is ignored", "err", redact.Quoted(err.Error()))
	}
	return about
}

// errorInterval is how often an error of an exporter is logged at most.
const errorInterval = 10 * time.Second

// logErrors sends what the SDK reports to the log. The SDK has one handler for the whole process.
func logErrors(log *slog.Logger) {
	line := &logthrottle.Line{Every: errorInterval}
	otel.SetLogger(logr.New(sdkLog{log}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if skipped, isDue := line.Due(); isDue {
			log.Warn("OpenTelemetry could not export; requests are not affected", "err", redact.Quoted(err.Error()), "unlogged", skipped)
		}
	}))
}

// sdkLog logs what the SDK reports about wrong variables. It omits their values, which may be
// secrets.
type sdkLog struct{ log *slog.Logger }

func (s sdkLog) Error(err error, message string, _ ...any) {
	s.log.Warn("a variable OTEL_… is wrong and is ignored", "problem", message, "err", redact.Quoted(err.Error()))
}

func (s sdkLog) Init(logr.RuntimeInfo)          {}
func (s sdkLog) Enabled(int) bool               { return false }
func (s sdkLog) Info(int, string, ...any)       {}
func (s sdkLog) WithValues(...any) logr.LogSink { return s }
func (s sdkLog) WithName(string) logr.LogSink   { return s }

// closeTimeout is how long Close waits for a collector.
const closeTimeout = time.Second

// Close exports what is left, for a second at most, and ends the export.
func (t *Telemetry) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, shutdown := range t.shutdown {
		all.Go(func() {
			if err := shutdown(ctx); err != nil {
				otel.Handle(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // an exporter that hangs ends with its own timeout
	}
}

// Environment returns the Plan for the environment of this process.
func Environment() Plan { return PlanOf(os.Getenv) }
