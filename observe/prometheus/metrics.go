// Package penstockprom exports what package admission, the guards and the stores report to
// Prometheus. The service penstock serve exports the same series, which docs/operations.md lists.
// Requests never create a series, and no key is ever a label.
package penstockprom

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/observe"
)

// Options configure New. The zero value is useful.
type Options struct {
	// TraceID returns the id of the trace that a request belongs to, or "" if it belongs to none.
	// The exemplars of the latency histogram then have the label trace_id with this id. Return only
	// ids of sampled traces, like penstockotel.SampledTraceID. Default: no exemplars.
	TraceID func(context.Context) string
}

// Metrics are a prometheus.Collector of observe.Counts, whose methods receive the reports. Make
// them with New. Many goroutines may use them at once.
type Metrics struct {
	*observe.Counts
	latency *prometheus.HistogramVec
}

// New makes Metrics. Register them with one registry.
func New(o Options) *Metrics {
	m := &Metrics{latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rate_limiter_latency_seconds",
		Help: "Time until a request was decided, or until its decision failed.",
		// From a decision in memory to ten times 250 ms, the default timeout of a decision.
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .3, .5, 1, 2.5},

		// Each bucket is at most 10 % wider than the one before. A histogram with more than 160
		// buckets is reset, but at most once an hour.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, ruleLabels)}
	m.Counts = observe.New(observe.Options{
		Histogram: func(rule observe.Rule) observe.Histogram {
			observer, err := m.latency.GetMetricWithLabelValues(rule.Name, rule.Limit, rule.Algorithm)
			if err != nil { // a label is not UTF-8
				return discardingHistogram{}
			}
			return histogram{observer, o.TraceID}
		},
		Removed: func(rule observe.Rule) { m.latency.DeleteLabelValues(rule.Name, rule.Limit, rule.Algorithm) },
	})
	return m
}

// A discardingHistogram is the histogram of a rule without series.
type discardingHistogram struct{}

func (discardingHistogram) Observe(context.Context, time.Duration) {}

// A histogram has the latencies of one rule.
type histogram struct {
	prometheus.Observer
	traceID func(context.Context) string // nil: no exemplars
}

// Observe implements observe.Histogram.
func (h histogram) Observe(ctx context.Context, latency time.Duration) {
	if h.traceID != nil {
		if id := h.traceID(ctx); canBeExemplar(id) {
			h.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(latency.Seconds(), prometheus.Labels{"trace_id": id})
			return
		}
	}
	h.Observer.Observe(latency.Seconds())
}

// canBeExemplar tells whether client_golang accepts an id. It panics for other ids.
func canBeExemplar(id string) bool {
	return id != "" && utf8.ValidString(id) && utf8.RuneCountInString("trace_id")+utf8.RuneCountInString(id) <= prometheus.ExemplarMaxRunes
}
