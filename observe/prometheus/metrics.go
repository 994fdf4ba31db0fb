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
	// TraceID returns the id of the trace that a request belongs to, or "" if it belongs to none. If
	// TraceID is set, exemplars of the latency histogram have this id as their label trace_id. Return
	// only ids of sampled traces, like penstockotel.SampledTraceID. Default: no exemplars.
	TraceID func(context.Context) string

	// NearPercent is the percentage of a limit that a request near the limit has used at least.
	// From 50 to 100; default: 80.
	NearPercent int
}

// Metrics are a prometheus.Collector of observe.Counts. Admission, guards and stores report to the
// methods of the Counts. Make Metrics with New. Many goroutines may use them at the same time.
type Metrics struct {
	*observe.Counts
	latency *prometheus.HistogramVec
}

// New makes Metrics. Register them with one registry.
func New(o Options) *Metrics {
	m := &Metrics{latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rate_limiter_latency_seconds",
		Help: "Time until a request was decided, or until its decision failed.",
		// The buckets, in seconds, reach from a decision in memory to ten times 250 ms, the default
		// timeout of a decision.
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .3, .5, 1, 2.5},

		// These three fields are for the native histogram. The upper bound of a bucket is at most 1.1
		// times that of the bucket before. A histogram with more than 160 buckets is reset, but at most
		// once an hour.
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, ruleLabels)}
	m.Counts = observe.New(observe.Options{
		NearPercent: o.NearPercent,
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

// A discardingHistogram is for a rule that cannot have series.
type discardingHistogram struct{}

func (discardingHistogram) Observe(context.Context, time.Duration) {}

type histogram struct {
	prometheus.Observer
	traceID func(context.Context) string // nil: no exemplars
}

const traceIDLabel = "trace_id" // of exemplars

// Observe implements observe.Histogram.
func (h histogram) Observe(ctx context.Context, latency time.Duration) {
	if h.traceID != nil {
		if id := h.traceID(ctx); canBeExemplar(id) {
			h.Observer.(prometheus.ExemplarObserver).ObserveWithExemplar(latency.Seconds(), prometheus.Labels{traceIDLabel: id})
			return
		}
	}
	h.Observer.Observe(latency.Seconds())
}

// canBeExemplar reports whether an exemplar may have this id. client_golang panics for other ids.
func canBeExemplar(id string) bool {
	if id == "" || !utf8.ValidString(id) {
		return false
	}
	runes := utf8.RuneCountInString(traceIDLabel) + utf8.RuneCountInString(id)
	return runes <= prometheus.ExemplarMaxRunes
}
