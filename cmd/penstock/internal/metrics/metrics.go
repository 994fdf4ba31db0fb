// Package metrics counts what the service does, for Prometheus. All series follow from the
// configuration: requests never create a new one.
package metrics

import (
	"maps"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

// A Rule has the labels of one limit of a rule.
type Rule struct{ Name, Limit, Algorithm string }

// other counts requests that belong to no current rule. A rule may also be named other; its series
// differ, because no algorithm is named other.
var other = Rule{otherLabel, otherLabel, otherLabel}

const otherLabel = "other"

// outcomes are all outcomes of a request.
var outcomes = admission.Outcomes()

// A sum is the total that an outcome belongs to.
type sum uint8

const (
	sumAllowed  sum = iota // the request passed
	sumRejected            // it was rejected, or its client left
	sumShadow              // a shadow decided; the request itself has another outcome
)

func sumOf(o admission.Outcome) sum {
	switch o {
	case admission.Allowed, admission.FailedOpen, admission.Exempt, admission.Unlimited:
		return sumAllowed
	case admission.ShadowAllowed, admission.ShadowDenied:
		return sumShadow
	}
	return sumRejected
}

// reasons are the label values of rate_limiter_errors_total. Unknown reasons are counted as
// "other".
var reasons = append(storeReasons(), "invalid", "other")

func storeReasons() (names []string) {
	for _, r := range penstock.Reasons() {
		names = append(names, r.String())
	}
	return names
}

// Metrics are those of one process. Methods may be called by many goroutines at once.
type Metrics struct {
	registry *prometheus.Registry
	latency  *prometheus.HistogramVec
	rules    atomic.Pointer[map[Rule]*series]
	mu       sync.Mutex           // held while rules change, and while a rule gets its histogram
	kept     []Rule               // those that are never removed
	owned    map[string][]Rule    // by their owner; "" is the policy
	waiting  []func() int         // guarded by mu; their sum is the gauge
	errors   []prometheus.Counter // by reason

	unknownOutcome prometheus.Counter
	tokensRejected *prometheus.CounterVec
	authFailures   *prometheus.CounterVec
	decisions      []prometheus.Counter // by source
	breakerChanges *prometheus.CounterVec
	storeProbes    prometheus.Histogram

	reloadOK, reloadTime  prometheus.Gauge
	reloaded, notReloaded prometheus.Counter
}

// series are the numbers of one rule.
type series struct {
	outcomes []atomic.Uint64
	latency  atomic.Pointer[prometheus.Observer] // nil until the first observation
}

// isIdle is true if nothing was ever counted.
func (s *series) isIdle() bool {
	for i := range s.outcomes {
		if s.outcomes[i].Load() > 0 {
			return false
		}
	}
	return true
}

// New makes Metrics without rules. The version is shown in rate_limiter_build_info.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), kept: []Rule{other}, owned: make(map[string][]Rule)}
	m.latency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "rate_limiter_latency_seconds",
		Help:    "Time until a request was decided, or until its decision failed.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .3, .5, 1, 2.5},

		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  160,
		NativeHistogramMinResetDuration: time.Hour,
	}, []string{"rule", "limit", "algorithm"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_errors_total",
		Help: "Store calls that failed, by reason.",
	}, []string{"reason"})
	for _, reason := range reasons {
		m.errors = append(m.errors, failures.WithLabelValues(reason))
	}
	m.unknownOutcome = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rate_limiter_decisions_unknown_outcome_total",
		Help: "Store calls that failed although their charges may have been made.",
	})
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_decisions_total",
		Help: "Requests that limits applied to, by the source of the decision.",
	}, []string{"source"})
	for _, source := range sources {
		m.decisions = append(m.decisions, decisions.WithLabelValues(source.String()))
	}
	m.breakerChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_breaker_changes_total",
		Help: "Changes of circuit breakers, by their new state.",
	}, []string{"to"})
	for _, state := range []guard.State{guard.StateClosed, guard.StateOpen, guard.StateHalfOpen} {
		m.breakerChanges.WithLabelValues(state.String())
	}
	m.tokensRejected = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_tokens_rejected_total",
		Help: "Requests whose token was rejected, by reason; they are limited like requests without a token.",
	}, []string{"reason"})
	for _, reason := range policy.TokenReasons() {
		m.tokensRejected.WithLabelValues(reason)
	}
	m.authFailures = newAuthFailures()
	m.storeProbes = newStoreProbes()
	m.reloadOK = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_successful",
		Help: "1 if the last load of the policy succeeded, else 0.",
	})
	m.reloadTime = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "rate_limiter_config_last_reload_success_timestamp_seconds",
		Help: "Unix time of the last successful load of the policy.",
	})
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_config_reloads_total",
		Help: "Reloads of the policy, by outcome.",
	}, []string{"outcome"})
	m.reloaded, m.notReloaded = reloads.WithLabelValues("success"), reloads.WithLabelValues("failure")
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rate_limiter_requests_waiting",
		Help: "Requests that wait until their limits allow them.",
	}, func() float64 { return float64(m.Waiting()) })
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "rate_limiter_build_info",
		Help:        "Build information; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(checks{m}, m.latency, failures, m.unknownOutcome, m.tokensRejected, decisions, m.reloadOK, m.reloadTime, reloads, waiting, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.SetRules(nil)
	return m
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// SetRules sets the current rules of the policy. Rules that stay keep their counts; the series of
// removed rules end.
func (m *Metrics) SetRules(rules []Rule) { m.SetRulesOf("", rules) }

// SetRulesOf is SetRules for rules that are not of the policy.
func (m *Metrics) SetRulesOf(owner string, rules []Rule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owned[owner] = slices.Clone(rules)
	m.updateRulesLocked()
}

// AddRule adds a rule that is not of the policy, so SetRules does not remove it.
func (m *Metrics) AddRule(rule Rule) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, rule)
	m.updateRulesLocked()
}

func (m *Metrics) updateRulesLocked() {
	old := m.rules.Load()
	rules := slices.Concat(slices.Collect(maps.Values(m.owned))...)
	all := make(map[Rule]*series, len(rules)+len(m.kept))
	for _, rule := range slices.Concat(rules, m.kept) {
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

// CountRequest counts the outcome of a rule for a request. A latency of 0 means that no store was
// called.
func (m *Metrics) CountRequest(rule Rule, outcome admission.Outcome, latency time.Duration) {
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

// Each calls f with each number that a limit, or the whole instance, has counted. The limit of the
// latter has no name.
func (m *Metrics) Each(f func(rule Rule, name string, n uint64)) {
	for rule, s := range *m.rules.Load() {
		for i := range s.outcomes {
			f(rule, outcomes[i].String(), s.outcomes[i].Load())
		}
	}
	for i, source := range sources {
		f(Rule{}, SourcePrefix+source.String(), valueOf(m.decisions[i]))
	}
	for i, reason := range reasons {
		f(Rule{}, ErrorPrefix+reason, valueOf(m.errors[i]))
	}
}

// The names that Each has for decisions by their source, and for errors of the store by their
// reason, begin with these.
const (
	SourcePrefix = "source:"
	ErrorPrefix  = "error:"
)

func valueOf(c prometheus.Counter) uint64 {
	var m dto.Metric
	_ = c.Write(&m) // a counter always has a value
	return uint64(m.GetCounter().GetValue())
}

// observe records how long a decision took. A rule's histogram is made for its first one.
func (m *Metrics) observe(rule Rule, s *series, latency time.Duration) {
	histogram := s.latency.Load()
	if histogram == nil {
		if histogram = m.histogram(rule, s); histogram == nil {
			return
		}
	}
	(*histogram).Observe(latency.Seconds())
}

// histogram makes the histogram of a rule; nil if the rule is gone.
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

// Error counts a call for which the store made no decision, and whether it may have been charged
// anyway.
func (m *Metrics) Error(reason string, mayBeCharged bool) {
	i := slices.Index(reasons, reason)
	if i < 0 {
		i = len(reasons) - 1
	}
	m.errors[i].Inc()
	if mayBeCharged {
		m.unknownOutcome.Inc()
	}
}

// TokenRejected counts a request whose token was rejected.
func (m *Metrics) TokenRejected(reason string) { m.tokensRejected.WithLabelValues(reason).Inc() }

// AddWaiting adds a function that counts waiting requests, such as those of one listener. Each
// scrape calls all of them.
func (m *Metrics) AddWaiting(now func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, now)
}

// Waiting returns how many requests wait now.
func (m *Metrics) Waiting() (sum int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, now := range m.waiting {
		sum += now()
	}
	return sum
}

// LinesLost sets the function that counts lost lines of the log. It is called once.
func (m *Metrics) LinesLost(now func() int64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rate_limiter_log_lines_lost_total",
		Help: "Log lines that were lost: the reader of the log is gone or too slow, or the disk is full.",
	}, func() float64 { return float64(now()) }))
}

// Loaded records the first load of the policy.
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
