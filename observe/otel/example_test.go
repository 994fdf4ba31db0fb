package penstockotel_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	penstockotel "github.com/penstock/penstock/observe/otel"
	"github.com/penstock/penstock/policy"
)

// The gate of a service with a policy reports each request. A real program has providers with
// exporters of its own, and passes them in the options or sets them globally.
func Example() {
	reader, exporter := sdkmetric.NewManualReader(), tracetest.NewInMemoryExporter()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))

	spec, err := policy.Simple("search", policy.ByAddress(), guard.FailLocal, penstock.PerMinute(2).WithName("minute"))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := policy.New(spec)
	if err != nil {
		log.Fatal(err)
	}
	metrics, err := penstockotel.NewMetrics(penstockotel.MetricsOptions{Provider: meters})
	if err != nil {
		log.Fatal(err)
	}
	metrics.SetRules(observe.RulesOf(rules)) // call this after each reload of the policy too
	spans := penstockotel.NewSpans(penstockotel.SpansOptions{Provider: tracers})

	controller, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{
		Observe: func(e *admission.Event) {
			metrics.ObserveRequest(e)
			spans.ObserveRequest(e)
		},
		TokenRejected: metrics.TokenRejected,
	})
	if err != nil {
		log.Fatal(err)
	}
	metrics.AddWaiting(controller.Waiting)
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	api := gate.Middleware(http.NotFoundHandler())
	for range 3 { // in a real program, otelhttp starts the span of a request
		ctx, span := tracers.Tracer("server").Start(context.Background(), "GET")
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/search", nil))
		span.End()
	}

	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		log.Fatal(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "ratelimit.decisions" {
			fmt.Println(m.Name, sum.DataPoints[0].Value)
		}
	}
	// Output:
	// ratelimit.decide
	// GET
	// ratelimit.decide
	// GET
	// ratelimit.decide
	// GET
	// ratelimit.decisions 3
}
