// Package metrics counts what the service does, for Prometheus. The series of requests, guards and
// the store are those of module observe/prometheus; this package adds those of the service itself.
// All series follow from the configuration: requests never create a new one.
package metrics

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/observe"
	penstockprom "github.com/penstock/penstock/observe/prometheus"
)

// A Rule has the labels of one limit of a rule.
type Rule = observe.Rule

// Metrics are the metrics of one process. Many goroutines may call its methods at the same time.
type Metrics struct {
	*penstockprom.Metrics
	registry    *prometheus.Registry
	storeProbes prometheus.Histogram

	reloadOK, reloadTime  prometheus.Gauge
	reloaded, notReloaded prometheus.Counter
	overloads             *prometheus.CounterVec

	mu     sync.Mutex
	failed map[ConfigSource]bool // the sources whose last load failed
}

type ConfigSource string

const (
	ConfigPolicy ConfigSource = "policy"
	ConfigEnvoy  ConfigSource = "envoy" // files of envoyproxy/ratelimit, or xDS
)

// New makes Metrics without rules. The version is shown in rate_limiter_build_info. traceID returns
// the trace of a request for exemplars; nil: there are none. nearPercent defines "near the limit".
func New(version string, traceID func(context.Context) string, nearPercent int) *Metrics {
	m := &Metrics{
		Metrics:     penstockprom.New(penstockprom.Options{TraceID: traceID, NearPercent: nearPercent}),
		registry:    prometheus.NewRegistry(),
		storeProbes: newStoreProbes(),
		failed:      make(map[ConfigSource]bool),
	}
	m.reloadOK = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_successful",
		Help: "1 if the last load of the policy, and of Envoy's limits if there are any, succeeded; else 0.",
	})
	m.reloadTime = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_success_timestamp_seconds",
		Help: "Unix time of the last successful load of the policy or of Envoy's limits.",
	})
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_config_reloads_total",
		Help: "Reloads of the policy and of Envoy's limits, by outcome.",
	}, []string{"outcome"})
	m.reloaded, m.notReloaded = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	m.overloads = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_overload_refusals_total",
		Help: "Requests that were refused because all memory for requests, or all connections to the upstream, were in use.",
	}, []string{"resource"})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "rate_limiter_build_info",
		Help:        "Build information; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.Metrics, m.reloadOK, m.reloadTime, reloads, m.overloads, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Each calls f with each number that a limit or the whole instance has counted. Numbers of the
// whole instance have an empty rule, and the names that package activity defines.
func (m *Metrics) Each(f func(rule Rule, name string, n uint64)) {
	m.Requests(func(rule Rule, byOutcome []uint64) {
		for outcome, n := range byOutcome {
			f(rule, admission.Outcome(outcome).String(), n)
		}
	})
	m.Decisions(func(source penstock.Source, n uint64) { f(Rule{}, activity.SourcePrefix+source.String(), n) })
	m.Errors(func(reason string, n uint64) { f(Rule{}, activity.ErrorPrefix+reason, n) })
	f(Rule{}, activity.Uncounted, m.Uncounted())
}

// AddLinesLost registers the number of lost log lines. Each scrape calls lost. Call it once.
func (m *Metrics) AddLinesLost(lost func() int64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rate_limiter_log_lines_lost_total",
		Help: "Log lines that were lost: the reader of the log is gone or too slow, or the disk is full.",
	}, func() float64 { return float64(lost()) }))
}

// AddCertificate adds the certificate of a listener. Each scrape calls expiry. AddCertificate is
// called once for each listener.
func (m *Metrics) AddCertificate(listener string, expiry func() time.Time) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "rate_limiter_certificate_expiry_timestamp_seconds",
		Help:        "Unix time at which the certificate of a listener expires.",
		ConstLabels: prometheus.Labels{"listener": listener},
	}, func() float64 { return float64(expiry().Unix()) }))
}

func (m *Metrics) Loaded(at time.Time) {
	m.reloadOK.Set(1)
	m.reloadTime.Set(unixSeconds(at))
}

// Reloaded counts a reload, which succeeded if err is nil.
func (m *Metrics) Reloaded(source ConfigSource, err error, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.failed[source] = true
		m.reloadOK.Set(0)
		m.notReloaded.Inc()
		return
	}
	delete(m.failed, source)
	if len(m.failed) == 0 {
		m.reloadOK.Set(1)
	}
	m.reloadTime.Set(unixSeconds(at))
	m.reloaded.Inc()
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
