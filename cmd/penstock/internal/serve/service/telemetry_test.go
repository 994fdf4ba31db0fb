package service

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/telemetry"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/fakecollector"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

const (
	callerSpan  = "00f067aa0ba902b7"               // the id of the span of each caller
	tracePrefix = "4bf92f3577b34da6a3ce929d0e0e47" // the id of each trace without its last two digits
)

// trace returns the id and the header traceparent of a sampled trace, by its number.
func trace(n int) (id, header string) {
	id = fmt.Sprintf("%s%02d", tracePrefix, n)
	return id, "00-" + id + "-" + callerSpan + "-01"
}

// withCollector makes the service export its telemetry to a collector.
func withCollector(t *testing.T, c *fakecollector.Collector) func(*Options) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	return func(o *Options) { o.Telemetry = telemetry.Environment() }
}

// For each protocol, the service continues the caller's trace in its own spans, and passes it to
// the upstream. The latency histograms have exemplars with the trace ids.
func TestTracesOfCallersAreContinued(t *testing.T) {
	c := fakecollector.New()
	defer c.Close()
	received := make(chan string, 2)
	upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("Traceparent") })
	r := start(t, upstream, limitedBy(t, "rules: [{name: all, match: {path: /*}, per: global, limits: [{name: hour, rate: 1/h}]}]", map[string]string{
		"grpc": "127.0.0.1:0", "api": "127.0.0.1:0", "envoy-config": envoyFolder(t, envoyLimits),
	}), withCollector(t, c))

	// Send a call by each protocol.
	proxyTrace, header := trace(1)
	for range 2 { // the second request is denied
		r.mustSend("GET", "/secret-4711", "traceparent: "+header)
	}
	forwarded := <-received
	apiTrace, header := trace(2)
	request, err := http.NewRequestWithContext(callContext(t), "POST", "http://"+r.API+"/v1/check", strings.NewReader(`{"rule": "all", "key": "user:secret-4711"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("traceparent", header)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	grpcTrace, header := trace(3)
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	if _, err := client.ShouldRateLimit(metadata.AppendToOutgoingContext(callContext(t), "traceparent", header), envoyRequest("192.0.2.1")); err != nil {
		t.Fatal(err)
	}

	// Read the metrics in the format that has exemplars.
	request, err = http.NewRequestWithContext(callContext(t), "GET", "http://"+r.Admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/openmetrics-text")
	response, err = http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	page, _ := io.ReadAll(response.Body)
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	exemplar := regexp.MustCompile(`rate_limiter_latency_seconds_bucket\{[^}]*rule="all"[^}]*\} \d+ # \{trace_id="` + tracePrefix + `0[12]"`)
	if !exemplar.Match(page) {
		t.Error("the latency histogram of rule all has no exemplar with the id of trace 1 or 2")
	}

	// Read the log and the spans.
	eventually.True(t, "the line of the denial", func() bool { return strings.Contains(r.log.String(), "trace_id="+proxyTrace) })
	r.wait() // the remaining spans are exported at the end
	spans := c.Spans()
	spansOf := func(trace, name string) (found []string) {
		for _, s := range spans {
			if strings.HasPrefix(s, name+" "+trace) {
				found = append(found, s)
			}
		}
		return found
	}
	if n := len(spansOf(proxyTrace, "GET")); n != 2 {
		t.Errorf("the proxy exported %d spans; want 2", n)
	}
	decided := spansOf(proxyTrace, "ratelimit.decide")
	if len(decided) != 2 || !strings.Contains(decided[0], "ratelimit.outcome=allowed ratelimit.rule=all ratelimit.limit=hour") || !strings.Contains(decided[1], "ratelimit.outcome=denied") {
		t.Errorf("the decision spans of the proxy are %q; want one allowed, then one denied", decided)
	}
	if parts := strings.Split(forwarded, "-"); len(parts) != 4 || parts[1] != proxyTrace || parts[2] == callerSpan {
		t.Errorf("the upstream got traceparent %q; want the caller's trace id, and a new span id", forwarded)
	}
	const method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	for _, want := range []struct{ trace, name string }{{apiTrace, "POST"}, {apiTrace, "ratelimit.decide"}, {grpcTrace, method}, {grpcTrace, "ratelimit.decide"}} {
		if n := len(spansOf(want.trace, want.name)); n != 1 {
			t.Errorf("trace %s has %d spans with the name %s; want 1", want.trace, n, want.name)
		}
	}
	if all := strings.Join(spans, "\n"); t.Failed() || strings.Contains(all, "4711") {
		t.Errorf("a check above failed, or a span shows the identity 4711; the spans are\n%s", all)
	}
	if !slices.Contains(c.Metrics(), "rate_limiter_requests_total") {
		t.Errorf("the exported metrics lack rate_limiter_requests_total: %v", c.Metrics())
	}
}

// Calls that arrive together have traces of their own.
func TestSimultaneousCallsHaveTheirOwnTraces(t *testing.T) {
	c := fakecollector.New()
	defer c.Close()
	r := start(t, nil, map[string]string{
		"grpc": "127.0.0.1:0", "envoy-config": envoyFolder(t, envoyLimits), "store": redistest.Start(t).URL(),
	}, withCollector(t, c))
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	const calls = 64
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			_, header := trace(i)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", header) // no deadline, so that the calls can be decided together
			if _, err := client.ShouldRateLimit(ctx, envoyRequest("192.0.2.1")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r.wait() // all spans are exported at the end
	spans := strings.Join(c.Spans(), "\n")
	for i := range calls {
		id, _ := trace(i)
		for _, name := range []string{"envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "ratelimit.decide"} {
			if n := strings.Count(spans, name+" "+id); n != 1 {
				t.Errorf("call %d has %d spans with the name %s; want 1", i, n, name)
			}
		}
	}
}

// With a collector that never responds, requests are served and the service stops.
func TestHangingCollectorDoesNotKeepTheServiceFromStopping(t *testing.T) {
	reached, release := make(chan struct{}, 10), make(chan struct{})
	c := fakecollector.New()
	defer c.Close()
	defer close(release)
	c.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-release
	})
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // milliseconds
	r := startWithoutLeakCheck(t, nil, nil, withCollector(t, c))
	r.mustGet("http://"+r.Listen+"/", 200)
	<-reached
	for range 20 {
		r.mustGet("http://"+r.Listen+"/", 200)
	}
	r.wait()
}
