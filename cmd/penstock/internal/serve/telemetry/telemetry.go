// Package telemetry exports the service's metrics and spans by OTLP, and continues the traces of
// its callers. The variables OTEL_… of OpenTelemetry configure it. Without them it does nothing.
//
// No request waits for a collector. If a queue has no room for a span, the span is dropped.
package telemetry

import (
	"cmp"
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
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	penstockotel "github.com/penstock/penstock/observe/otel"
)

// Options of Open. All must be set.
type Options struct {
	Exports Exports
	Metrics prometheus.Gatherer // the metrics that are exported
	Version string              // of Penstock
	Log     *slog.Logger
}

// Exports are what is exported, and how. ExportsOf makes them from the environment.
type Exports struct {
	Traces  Protocol // "": spans are not exported
	Metrics Protocol // "": metrics are not exported

	// ShouldContinueTraces is whether requests continue the traces of their callers.
	ShouldContinueTraces bool

	// Warnings are about values that are ignored.
	Warnings []string
}

// TraceID returns the function that exemplars of metrics need: it returns the trace ID of a request
// whose trace is sampled. TraceID returns nil if requests have no traces.
func (e Exports) TraceID() func(context.Context) string {
	if !e.HasTraces() {
		return nil
	}
	return penstockotel.SampledTraceID
}

func (e Exports) HasTraces() bool { return e.Traces != "" || e.ShouldContinueTraces }

type Protocol string

const (
	HTTP Protocol = "http/protobuf"
	GRPC Protocol = "grpc"
)

func (e Exports) IsOn() bool { return e.HasTraces() || e.Metrics != "" }

// ExportsOf reads the variables that choose what is exported. The exporters and the SDK read all
// others, such as headers, timeouts, the sampler and attributes of the resource.
//
// Traces are exported if their exporter is otlp, or if they have an endpoint and no exporter is
// set. The same holds for metrics.
func ExportsOf(getenv func(string) string) (e Exports) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return Exports{}
	}
	e.Traces = e.protocolOf(getenv, "TRACES")
	e.Metrics = e.protocolOf(getenv, "METRICS")
	propagators := getenv("OTEL_PROPAGATORS")
	e.ShouldContinueTraces = e.Traces != "" && propagators == ""
	for name := range strings.SplitSeq(propagators, ",") {
		switch strings.TrimSpace(name) {
		case "tracecontext":
			e.ShouldContinueTraces = true
		case "", "none":
		case "baggage": // nothing to do: the proxy forwards the header baggage to the upstream anyway
		default:
			e.warn("OTEL_PROPAGATORS: %q is not supported and is ignored; write tracecontext or none", name)
		}
	}
	return e
}

// protocolOf returns the protocol that exports a signal, which is TRACES or METRICS. It returns ""
// if the signal is not exported.
func (e *Exports) protocolOf(getenv func(string) string, signal string) Protocol {
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
	case "prometheus": // nothing to do: the admin listener always serves /metrics
		return ""
	default:
		e.warn("%s: %q is not supported, and nothing is exported; write otlp or none", variable, name)
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
	e.warn("%s: %q is not supported, and http/protobuf is used; write http/protobuf or grpc", variable, name)
	return HTTP
}

func (e *Exports) warn(format string, args ...any) {
	e.Warnings = append(e.Warnings, fmt.Sprintf(format, args...))
}

// Telemetry exports until Close. A nil Telemetry does nothing.
type Telemetry struct {
	spans      *penstockotel.Spans // nil: spans are not exported
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	shutdowns  []func(context.Context) error // of the exporters

	closeTimeout time.Duration // the longest time that Close waits for a collector
}

const scope = "github.com/penstock/penstock/cmd/penstock"

// Open starts the exports. It returns nil if there is nothing to start. It does not wait for a
// connection: the collector may start later. Wrong variables are only logged.
func Open(o Options) *Telemetry {
	for _, warning := range o.Exports.Warnings {
		o.Log.Warn(warning)
	}
	if !o.Exports.IsOn() {
		return nil
	}
	logErrors(o.Log)
	ctx := context.Background() // no call below uses the network
	var provider trace.TracerProvider = noop.NewTracerProvider()
	t := &Telemetry{propagator: propagation.NewCompositeTextMapPropagator(), closeTimeout: closeTimeout}
	if o.Exports.ShouldContinueTraces {
		t.propagator = propagation.TraceContext{}
	}
	self := newResource(ctx, o)
	if o.Exports.Traces != "" {
		if exporter, err := newSpanExporter(ctx, o.Exports.Traces); err != nil {
			o.Log.Warn("spans are not exported: the variables OTEL_… are wrong", "err", redact.Quoted(err.Error()))
		} else {
			spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(self))
			provider = spans
			t.spans = penstockotel.NewSpans(penstockotel.SpansOptions{Provider: spans})
			t.shutdowns = append(t.shutdowns, spans.Shutdown)
		}
	}
	if o.Exports.Metrics != "" {
		if exporter, err := newMetricExporter(ctx, o.Exports.Metrics); err != nil {
			o.Log.Warn("metrics are not exported: the variables OTEL_… are wrong", "err", redact.Quoted(err.Error()))
		} else {
			source := prometheusbridge.NewMetricProducer(prometheusbridge.WithGatherer(o.Metrics))
			reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(source))
			metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(self))
			t.shutdowns = append(t.shutdowns, metrics.Shutdown)
		}
	}
	t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version))
	o.Log.Info("OpenTelemetry is on", "spans", cmp.Or(o.Exports.Traces, "none"), "metrics", cmp.Or(o.Exports.Metrics, "none"), "continues_traces", o.Exports.ShouldContinueTraces)
	return t
}

// Spans returns the observer that makes a span for each decision. It is nil without exports.
func (t *Telemetry) Spans() *penstockotel.Spans {
	if t == nil {
		return nil
	}
	return t.spans
}

// TraceOf returns the function that log lines need: it returns the trace ID of an event's request.
// TraceOf returns nil if telemetry is off.
func (t *Telemetry) TraceOf() func(*admission.Event) string {
	if t == nil {
		return nil
	}
	return func(e *admission.Event) string { return penstockotel.TraceID(e.Context) }
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

// newResource returns the resource, which describes this instance to the collector.
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence, because they come last. Each
// process has an ID of its own: otherwise a collector would mix the metrics of instances.
func newResource(ctx context.Context, o Options) *resource.Resource {
	self, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(
			attribute.String("service.name", "penstock"),
			attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", rand.Text()),
		),
		resource.WithFromEnv())
	if err != nil { // self has all attributes that could be read
		o.Log.Warn("a part of OTEL_RESOURCE_ATTRIBUTES is ignored", "err", redact.Quoted(err.Error()))
	}
	return self
}

// errorInterval is the shortest time between two log lines about errors of exporters.
const errorInterval = 10 * time.Second

// logErrors makes the SDK write its errors to the log. The SDK has one handler in each process.
func logErrors(log *slog.Logger) {
	line := &logthrottle.Line{Every: errorInterval}
	otel.SetLogger(logr.New(sdkLog{log}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		line.Log(log.Warn, "OpenTelemetry could not export; requests are not affected", "err", redact.Quoted(err.Error()))
	}))
}

// sdkLog logs the SDK's messages about wrong variables. It omits the values of the variables, which
// may be secrets.
type sdkLog struct{ log *slog.Logger }

func (s sdkLog) Error(err error, message string, _ ...any) {
	s.log.Warn("a variable OTEL_… is wrong and is ignored", "problem", message, "err", redact.Quoted(err.Error()))
}

func (s sdkLog) Init(logr.RuntimeInfo)          {}
func (s sdkLog) Enabled(int) bool               { return false }
func (s sdkLog) Info(int, string, ...any)       {}
func (s sdkLog) WithValues(...any) logr.LogSink { return s }
func (s sdkLog) WithName(string) logr.LogSink   { return s }

const closeTimeout = time.Second

// Close exports what is left, within t.closeTimeout, and stops exporting.
func (t *Telemetry) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.closeTimeout)
	defer cancel()
	var exporters sync.WaitGroup
	for _, shutdown := range t.shutdowns {
		exporters.Go(func() {
			if err := shutdown(ctx); err != nil {
				otel.Handle(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		exporters.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // an exporter that hangs ends with its own timeout
	}
}

func Environment() Exports { return ExportsOf(os.Getenv) }
