package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/fakecollector"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
)

func TestExportsOfTheEnvironment(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	for _, row := range []struct{ environment, want string }{
		{"", `traces "" metrics "" continues false`},
		{endpoint, `traces "http/protobuf" metrics "http/protobuf" continues true`},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://a", `traces "http/protobuf" metrics "" continues true`},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://a", `traces "" metrics "http/protobuf" continues false`},
		{"OTEL_TRACES_EXPORTER=otlp", `traces "http/protobuf" metrics "" continues true`},
		{"OTEL_METRICS_EXPORTER=otlp", `traces "" metrics "http/protobuf" continues false`},
		{endpoint + " OTEL_TRACES_EXPORTER=none", `traces "" metrics "http/protobuf" continues false`},
		{endpoint + " OTEL_METRICS_EXPORTER=none", `traces "http/protobuf" metrics "" continues true`},
		{endpoint + " OTEL_METRICS_EXPORTER=prometheus", `traces "http/protobuf" metrics "" continues true`},
		{endpoint + " OTEL_SDK_DISABLED=True", `traces "" metrics "" continues false`},
		{endpoint + " OTEL_SDK_DISABLED=false", `traces "http/protobuf" metrics "http/protobuf" continues true`},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc", `traces "grpc" metrics "grpc" continues true`},
		{endpoint + " OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", `traces "http/protobuf" metrics "grpc" continues true`},
		{endpoint + " OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", `traces "http/protobuf" metrics "http/protobuf" continues true ` +
			`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: "http/json" is not supported, and http/protobuf is used; write http/protobuf or grpc`},
		{endpoint + " OTEL_TRACES_EXPORTER=zipkin", `traces "" metrics "http/protobuf" continues false OTEL_TRACES_EXPORTER: "zipkin" is not supported, and nothing is exported; write otlp or none`},
		{"OTEL_PROPAGATORS=tracecontext,baggage", `traces "" metrics "" continues true`},
		{endpoint + " OTEL_PROPAGATORS=none", `traces "http/protobuf" metrics "http/protobuf" continues false`},
		{"OTEL_PROPAGATORS=b3", `traces "" metrics "" continues false OTEL_PROPAGATORS: "b3" is not supported and is ignored; write tracecontext or none`},
		{"OTEL_SERVICE_NAME=shop OTEL_RESOURCE_ATTRIBUTES=a=b", `traces "" metrics "" continues false`},
	} {
		e := ExportsOf(func(name string) string {
			for pair := range strings.FieldsSeq(row.environment) {
				if value, found := strings.CutPrefix(pair, name+"="); found {
					return value
				}
			}
			return ""
		})
		exports := fmt.Sprintf("traces %q metrics %q continues %v", e.Traces, e.Metrics, e.ShouldContinueTraces)
		got := strings.Join(append([]string{exports}, e.Warnings...), " ")
		if got != row.want {
			t.Errorf("the environment %q:\ngot  %s\nwant %s", row.environment, got, row.want)
		}
	}
}

// Without variables no goroutine starts, and Handler returns the handler that it is given.
func TestNothingHappensWithoutVariables(t *testing.T) {
	before := runtime.NumGoroutine()
	var exports Exports
	tel := Open(Options{Exports: exports, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	next := http.NotFoundHandler()
	isSameHandler := fmt.Sprintf("%p", tel.Handler(next)) == fmt.Sprintf("%p", next)
	if tel != nil || tel.Spans() != nil || exports.TraceID() != nil || !isSameHandler {
		t.Error("telemetry is partly on; want all of it off")
	}
	header := http.Header{"Traceparent": {"a"}}
	tel.Inject(t.Context(), header)
	tel.Close()
	if n := runtime.NumGoroutine(); n > before || header.Get("Traceparent") != "a" {
		t.Errorf("%d goroutines became %d, and the header is %v; want no change", before, n, header)
	}
}

const (
	traceID     = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceParent = "00-" + traceID + "-00f067aa0ba902b7-01"
)

func TestSpansAndMetricsAreExported(t *testing.T) {
	c := fakecollector.New()
	defer c.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_SERVICE_NAME", "shop-limits")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	registry, counter := prometheus.NewRegistry(), prometheus.NewCounter(prometheus.CounterOpts{Name: "rate_limiter_requests_total"})
	registry.MustRegister(counter)
	tel := Open(Options{Exports: Environment(), Metrics: registry, Version: "v1.2.3", Log: slog.New(slog.DiscardHandler)})
	tel.closeTimeout = time.Minute // so that a busy machine loses no span
	upstream := make(http.Header)
	handler := tel.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counter.Inc()
		tel.Spans().ObserveRequest(&admission.Event{Context: r.Context(), Outcome: admission.Unlimited})
		upstream.Set("Tracestate", "other=1")
		tel.Inject(r.Context(), upstream)
		w.WriteHeader(http.StatusBadGateway)
	}))
	r := httptest.NewRequest("BREW", "/users/secret-4711?token=secret-4711", nil)
	r.Header.Set("traceparent", traceParent)
	handler.ServeHTTP(httptest.NewRecorder(), r)
	_, end := tel.Call(t.Context(), "/a.B/C", http.Header{"Traceparent": {traceParent}}.Get)
	end(codes.ResourceExhausted)
	tel.Close()

	spans := c.Spans()
	if len(spans) != 3 || !strings.HasPrefix(spans[0], "ratelimit.decide "+traceID) ||
		spans[1] != "HTTP "+traceID+" 00f067aa0ba902b7 STATUS_CODE_ERROR http.request.method=_OTHER url.scheme=http http.response.status_code=502" ||
		spans[2] != "a.B/C "+traceID+" 00f067aa0ba902b7 STATUS_CODE_UNSET rpc.system.name=grpc rpc.method=a.B/C rpc.response.status_code=RESOURCE_EXHAUSTED" {
		t.Errorf("the collector got the spans\n%s\nwant a decision in the caller's trace, an HTTP span with status 502, and a gRPC span with RESOURCE_EXHAUSTED", strings.Join(spans, "\n"))
	}
	if parent := upstream.Get("Traceparent"); !strings.HasPrefix(parent, "00-"+traceID) || strings.Contains(parent, "00f067aa0ba902b7") || upstream.Get("Tracestate") != "" {
		t.Errorf("the upstream got %v; want the caller's trace with a new span", upstream)
	}
	if !slices.Contains(c.Metrics(), "rate_limiter_requests_total") {
		t.Errorf("the collector got the metrics %v; want rate_limiter_requests_total among them", c.Metrics())
	}
	for _, want := range []string{"shop-limits", "v1.2.3", "deployment.environment.name", "service.instance.id"} {
		if !strings.Contains(c.Resource(), want) {
			t.Errorf("the resource has the attributes %s; want %s among them", c.Resource(), want)
		}
	}
	if all := fmt.Sprint(spans); strings.Contains(all, "4711") {
		t.Errorf("the path or the query of the request is in a span; want neither: %s", all)
	}
}

// A collector that accepts connections but never responds delays no request, and Close returns.
func TestAHangingCollectorDelaysNothing(t *testing.T) {
	var hanging atomic.Int64
	reached, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if hanging.Add(1) == 1 {
			close(reached)
		}
		<-release
		hanging.Add(-1)
	}))
	defer server.Close()
	defer close(release)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // ms between exports
	tel := Open(Options{Exports: Environment(), Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	served := 0
	handler := tel.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	send := func() { handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)) }
	send()
	<-reached
	const more = 5000 // twice as many as the queue of the SDK holds, which has 2048 places
	for range more {
		send()
	}
	if hanging.Load() == 0 {
		t.Error("no export waits for the collector; want at least one")
	}
	tel.Close()
	if hanging.Load() == 0 || served != more+1 {
		t.Errorf("%d requests were served while %d exports waited; want %d requests, and at least one export", served, hanging.Load(), more+1)
	}
	t.Logf("counted: %d requests served beside a collector that hangs", served)
}

// If nothing listens at the endpoint, the log reports it once, without secrets.
func TestAnUnreachableCollectorIsLogged(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", server.URL+"/v1/traces")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer secret-4711")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "50") // ms
	log := new(logbuffer.Buffer)
	tel := Open(Options{Exports: Environment(), Metrics: prometheus.NewRegistry(), Log: log.Logger()})
	tel.closeTimeout = time.Minute // so that a busy machine logs the failure before the check
	_, end := tel.Call(context.Background(), "/a.B/C", http.Header{}.Get)
	end(codes.OK)
	tel.Close()
	if text := log.String(); strings.Count(text, "OpenTelemetry could not export") != 1 || strings.Contains(text, "4711") {
		t.Errorf("the log has\n%s\nwant one line about the failed export, without the secret", text)
	}
}

// With wrong variables telemetry starts anyway, and the log has no secrets.
func TestWrongVariablesPreventNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "://no url")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/does/not/exist")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "=,=%zz")
	t.Setenv("OTEL_TRACES_SAMPLER", "never")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization Bearer secret-4711")
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		log := new(logbuffer.Buffer)
		tel := Open(Options{Exports: Environment(), Metrics: prometheus.NewRegistry(), Log: log.Logger()})
		if tel == nil {
			t.Fatalf("%s: telemetry is off; want it on", protocol)
		}
		tel.Close()
		if text := log.String(); strings.Contains(text, "4711") || !strings.Contains(text, "parse url") {
			t.Errorf("%s: the log has\n%s\nwant the mistake in the URL, without the secret", protocol, text)
		}
	}
}
