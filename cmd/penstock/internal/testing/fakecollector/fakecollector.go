// Package fakecollector is an OpenTelemetry collector for tests.
package fakecollector

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A Collector keeps what it receives by OTLP over HTTP.
type Collector struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []string // as Spans returns them
	metrics  []string // names
	resource string   // as Resource returns it
}

// New starts a Collector. Close ends it.
func New() *Collector {
	c := new(Collector)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = c.add(r.URL.Path, body)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}))
	return c
}

func (c *Collector) add(path string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch path {
	case "/v1/traces":
		var request tracepb.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			return err
		}
		for _, resource := range request.ResourceSpans {
			c.resource = fmt.Sprint(resource.Resource.Attributes)
			for _, scope := range resource.ScopeSpans {
				for _, s := range scope.Spans {
					text := fmt.Sprintf("%s %x %x %s", s.Name, s.TraceId, s.ParentSpanId, s.Status.GetCode())
					for _, a := range s.Attributes {
						value := a.Value.GetStringValue()
						if value == "" {
							value = fmt.Sprint(a.Value.GetIntValue())
						}
						text += " " + a.Key + "=" + value
					}
					c.spans = append(c.spans, text)
				}
			}
		}
	case "/v1/metrics":
		var request metricspb.ExportMetricsServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			return err
		}
		for _, resource := range request.ResourceMetrics {
			for _, scope := range resource.ScopeMetrics {
				for _, m := range scope.Metrics {
					c.metrics = append(c.metrics, m.Name)
				}
			}
		}
	}
	return nil
}

// Spans returns the spans, each as "name trace-id parent-span-id status attribute=value …".
func (c *Collector) Spans() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Metrics returns the name of each metric of each export, in the order in which they came.
func (c *Collector) Metrics() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.metrics)
}

// Resource returns the attributes of the resource, as the last export of spans had them.
func (c *Collector) Resource() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource
}
