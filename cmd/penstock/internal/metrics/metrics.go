// Package metrics counts what the gate does, for Prometheus. Every series is known from the
// configuration: traffic never makes a new one.
package metrics

import (
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// A Rule is what decisions are counted by: one of its limits.
type Rule struct{ Name, Limit, Algorithm string }

// other stands for rules that are not known (any more). No rule can have this name.
var other = Rule{"(other)", "(other)", "(other)"}

// outcomes are how a request may end.
var outcomes = httplimit.Outcomes()

// A sum is what an outcome is counted in, besides by itself.
type sum uint8

const (
	sumAllowed  sum = iota // the request was let through
	sumRejected            // it was turned away, or went away
	sumShadow              // a limit on trial was asked besides; the request is counted where the others are
)

func sumOf(o httplimit.Outcome) sum {
	switch o {
	case httplimit.Allowed, httplimit.FailedOpen, httplimit.Exempt, httplimit.Unlimited:
		return sumAllowed
	case httplimit.ShadowAllowed, httplimit.ShadowDenied:
		return sumShadow
	}
	return sumRejected
}

// reasons that errors are counted by; others are counted as the last.
var reasons = append(storeReasons(), "invalid", "other")

func storeReasons() (names []string) {
	for _, r := range penstock.Reasons() {
		names = append(names, r.String())
	}
	return names
}

// Metrics of one gate. Methods may be called by many goroutines at once.
type Metrics struct {
	registry *prometheus.Registry
	latency  *prometheus.HistogramVec
	rules    atomic.Pointer[map[Rule]*series]
	mu       sync.Mutex           // held while rules change, and while one gets its histogram
	errors   []prometheus.Counter // by reason

	indeterminate  prometheus.Counter
	tokensRejected *prometheus.CounterVec
	decisions      []prometheus.Counter // by source
	breakerChanges *prometheus.CounterVec

	reloadOK, reloadTime  prometheus.Gauge
	reloaded, notReloaded prometheus.Counter
}

// series are those of one rule.
type series struct {
	outcomes []atomic.Uint64
	latency  atomic.Pointer[prometheus.Observer] // nil until something is observed
}

// idle tells whether nothing was ever counted.
func (s *series) idle() bool {
	for i := range s.outcomes {
		if s.outcomes[i].Load() > 0 {
			return false
		}
	}
	return true
}

// New makes Metrics that know no rules yet. The version is shown in rate_limiter_build_info.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.latency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "rate_limiter_latency_seconds",
		Help:    "How long checks took, until there was an answer or none.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .3, .5, 1, 2.5},

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"rule", "limit", "algorithm"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_errors_total",
		Help: "Questions that the store had no answer to.",
	}, []string{"reason"})
	for _, reason := range reasons {
		m.errors = append(m.errors, failures.WithLabelValues(reason))
	}
	m.indeterminate = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rate_limiter_indeterminate_total",
		Help: "Questions that the store may have answered, and charged for, though no answer came.",
	})
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_decisions_total",
		Help: "Requests that a limit was asked about, by who decided.",
	}, []string{"source"})
	for _, source := range sources {
		m.decisions = append(m.decisions, decisions.WithLabelValues(source.String()))
	}
	m.breakerChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_breaker_changes_total",
		Help: "How often breakers closed, opened and half opened.",
	}, []string{"to"})
	for _, state := range []guard.State{guard.StateClosed, guard.StateOpen, guard.StateHalfOpen} {
		m.breakerChanges.WithLabelValues(state.String())
	}
	m.tokensRejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_tokens_rejected_total",
		Help: "Requests whose token was rejected, by reason; they were limited like those without a token.",
	}, []string{"reason"})
	for _, reason := range policy.TokenReasons() {
		m.tokensRejected.WithLabelValues(reason)
	}
	m.reloadOK = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_successful",
		Help: "Whether the policy file was taken up when it was last read: 1 or 0.",
	})
	m.reloadTime = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_success_timestamp_seconds",
		Help: "When the policy file was last taken up.",
	})
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_config_reloads_total",
		Help: "How often the policy file was read again.",
	}, []string{"outcome"})
	m.reloaded, m.notReloaded = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "rate_limiter_build_info",
		Help:        "What runs here; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(checks{m}, m.latency, failures, m.indeterminate, m.tokensRejected, decisions, m.reloadOK, m.reloadTime, reloads, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.SetRules(nil)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// SetRules says what rules there are from now on. Those that stay keep their counts; the series of
// those that go end.
func (m *Metrics) SetRules(rules []Rule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.rules.Load()
	all := make(map[Rule]*series, len(rules)+1)
	for _, rule := range append(slices.Clone(rules), other) {
		if old != nil && (*old)[rule] != nil {
			all[rule] = (*old)[rule]
			continue
		}
		all[rule] = &series{outcomes: make([]atomic.Uint64, len(outcomes))}
	}
	m.rules.Store(&all)
	if old != nil {
		for rule := range *old {
			if all[rule] == nil {
				m.latency.DeleteLabelValues(rule.Name, rule.Limit, rule.Algorithm)
			}
		}
	}
}

// Check counts a check by a rule. A latency of 0 means that nobody was asked.
func (m *Metrics) Check(rule Rule, outcome httplimit.Outcome, latency time.Duration) {
	rules := *m.rules.Load()
	s := rules[rule]
	if s == nil {
		rule, s = other, rules[other]
	}
	s.outcomes[outcome].Add(1)
	if latency > 0 {
		m.observe(rule, s, latency)
	}
}

// observe notes how long a check took. A rule's histogram is made for its first check.
func (m *Metrics) observe(rule Rule, s *series, latency time.Duration) {
	histogram := s.latency.Load()
	if histogram == nil {
		if histogram = m.histogram(rule, s); histogram == nil {
			return
		}
	}
	(*histogram).Observe(latency.Seconds())
}

// histogram makes that of a rule; nil if the rule is gone.
func (m *Metrics) histogram(rule Rule, s *series) *prometheus.Observer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if (*m.rules.Load())[rule] != s {
		return nil
	}
	histogram := m.latency.WithLabelValues(rule.Name, rule.Limit, rule.Algorithm)
	s.latency.CompareAndSwap(nil, &histogram)
	return s.latency.Load()
}

// Error counts a call for which the store made no decision, and whether charges may have been made
// all the same.
func (m *Metrics) Error(reason string, mayBeCharged bool) {
	i := slices.Index(reasons, reason)
	if i < 0 {
		i = len(reasons) - 1
	}
	m.errors[i].Inc()
	if mayBeCharged {
		m.indeterminate.Inc()
	}
}

// TokenRejected counts a request whose token was rejected.
func (m *Metrics) TokenRejected(reason string) { m.tokensRejected.WithLabelValues(reason).Inc() }

// Waiting says who knows how many requests wait for their turn. It is called once.
func (m *Metrics) Waiting(now func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rate_limiter_waiting",
		Help: "Requests that wait for their turn.",
	}, func() float64 { return float64(now()) }))
}

// LinesLost sets the function that knows how many lines of the log were lost. It is called once.
func (m *Metrics) LinesLost(now func() int64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rate_limiter_log_lines_lost_total",
		Help: "Log lines that were not written: the reader of the log is gone or too slow, or the disk is full.",
	}, func() float64 { return float64(now()) }))
}

// Loaded notes that the policy file was read for the first time.
func (m *Metrics) Loaded(at time.Time) {
	m.reloadOK.Set(1)
	m.reloadTime.Set(float64(at.UnixNano()) / 1e9)
}

// Reloaded counts a reload of the policy file, which succeeded if err is nil.
func (m *Metrics) Reloaded(err error, at time.Time) {
	if err != nil {
		m.reloadOK.Set(0)
		m.notReloaded.Inc()
		return
	}
	m.Loaded(at)
	m.reloaded.Inc()
}
