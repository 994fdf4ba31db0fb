package penstockprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/observe"
)

var ruleLabels = []string{"rule", "limit", "algorithm"}

// Each request is counted once, by its outcome, and each scrape computes the sums. So in every
// scrape rate_limiter_requests_total is exactly the sum of rate_limiter_allowed_total and
// rate_limiter_rejected_total. Every request that passed counts as allowed, whatever the reason.
var (
	requestsDesc = newDesc("rate_limiter_requests_total", "Requests by rule, limit and outcome. If several limits applied, the one that denied or was closest to denying is named.",
		"rule", "limit", "algorithm", "outcome")
	allowedDesc        = newDesc("rate_limiter_allowed_total", "Requests that passed: within their limits, without a limit, exempt, or failed open.", ruleLabels...)
	nearLimitDesc      = newDesc("rate_limiter_near_limit_total", "Requests that passed with little of their limit left: at least 80 % of it is used, or what near_limit sets.", ruleLabels...)
	rejectedDesc       = newDesc("rate_limiter_rejected_total", "Requests that did not pass: over a limit, refused, malformed, failed closed, or abandoned by the client.", ruleLabels...)
	shadowAllowedDesc  = newDesc("rate_limiter_shadow_allowed_total", "Requests that shadows would have allowed.", ruleLabels...)
	shadowRejectedDesc = newDesc("rate_limiter_shadow_rejected_total", "Requests that shadows would have rejected.", ruleLabels...)

	decisionsDesc      = newDesc("rate_limiter_decisions_total", "Requests that limits applied to, by the source of the decision.", "source")
	failuresDesc       = newDesc("rate_limiter_errors_total", "Store calls that failed, by reason.", "reason")
	unknownOutcomeDesc = newDesc("rate_limiter_decisions_unknown_outcome_total", "Store calls that failed although their charges may have been made.")
	uncountedDesc      = newDesc("rate_limiter_requests_uncounted_total", "Requests that passed although a limit with on_failure open did not count them.")
	tokensRejectedDesc = newDesc("rate_limiter_tokens_rejected_total", "Requests whose token was rejected, by reason; they are limited like requests without a token.", "reason")
	waitingDesc        = newDesc("rate_limiter_requests_waiting", "Requests that wait until their limits allow them.")

	breakerStateDesc     = newDesc("rate_limiter_breaker_state", "State of the circuit breaker of a store node: 0 closed, 1 half open, 2 open.", "node")
	breakerChangesDesc   = newDesc("rate_limiter_breaker_changes_total", "Changes of circuit breakers, by their new state.", "to")
	denyCacheEntriesDesc = newDesc("rate_limiter_deny_cache_entries", "Entries in the denial cache.")
	leaseUnitsDesc       = newDesc("rate_limiter_lease_units_total", "Leased units: drawn is the total from the store; spent, returned, expired and lost are what became of them.", "fate")
	holdsUnreturnedDesc  = newDesc("rate_limiter_holds_unreturned", "Slots of in_flight limits that are returned when the store answers again, or once more in case a late charge takes them.")
	holdsReturnedDesc    = newDesc("rate_limiter_holds_returned_late_total", "Slots of in_flight limits that were returned late, because the store did not answer when they ended.")
	instancesDesc        = newDesc("rate_limiter_instances", "Running instances that share this store.")
	clockStepsDesc       = newDesc("rate_limiter_clock_steps_total", "Jumps of the store's clock by more than 100 ms.", "direction")
	lossesDesc           = newDesc("rate_limiter_store_losses_total", "How often the store has lost its keys, and with them the counters.")
	scriptsDesc          = newDesc("rate_limiter_scripts_total", "Lua scripts that the store did not have (noscript), that were loaded (load), or that were sent with a decision (eval).", "event")
	scriptsInFlightDesc  = newDesc("rate_limiter_scripts_in_flight", "Lua scripts of decisions that the store has not answered yet.")
	scriptsQueuedDesc    = newDesc("rate_limiter_scripts_queued", "Lua scripts of decisions that wait until scripts in flight have ended.")
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		requestsDesc, allowedDesc, nearLimitDesc, rejectedDesc, shadowAllowedDesc, shadowRejectedDesc, decisionsDesc, failuresDesc, unknownOutcomeDesc, uncountedDesc, tokensRejectedDesc, waitingDesc,
		breakerStateDesc, breakerChangesDesc, denyCacheEntriesDesc, leaseUnitsDesc, holdsUnreturnedDesc, holdsReturnedDesc, instancesDesc, clockStepsDesc, lossesDesc, scriptsDesc, scriptsInFlightDesc, scriptsQueuedDesc,
	} {
		to <- desc
	}
	m.latency.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	s := samples(to)
	m.collectRequests(s)
	m.collectNearLimit(s)
	m.latency.Collect(to)
	m.Decisions(func(source penstock.Source, n uint64) { s.counter(decisionsDesc, n, source.String()) })
	m.Errors(func(reason string, n uint64) { s.counter(failuresDesc, n, reason) })
	s.counter(unknownOutcomeDesc, m.UnknownOutcomes())
	s.counter(uncountedDesc, m.Uncounted())
	m.TokensRejected(func(reason string, n uint64) { s.counter(tokensRejectedDesc, n, reason) })
	s.gauge(waitingDesc, m.Waiting())
	if g := m.Guards(); g != nil {
		m.BreakerChanges(func(to guard.State, n uint64) { s.counter(breakerChangesDesc, n, to.String()) })
		collectGuards(s, g)
	}
}

// ManyRules bounds the number of series. If there are at most ManyRules limits, a limit without
// requests has series with the value 0. If there are more, it has none.
const ManyRules = 500

func (m *Metrics) collectRequests(s samples) {
	hasManyRules := len(m.Rules()) > ManyRules
	m.Requests(func(rule observe.Rule, byOutcome []uint64) {
		var total, allowed uint64
		for o, n := range byOutcome {
			total += n
			if admission.Outcome(o).IsAdmitted() {
				allowed += n
			}
		}
		shadowAllowed, shadowDenied := byOutcome[admission.ShadowAllowed], byOutcome[admission.ShadowDenied]
		if hasManyRules && rule != observe.Other && total == 0 {
			return
		}
		for i, n := range byOutcome {
			o := admission.Outcome(i)
			if o == admission.ShadowAllowed || o == admission.ShadowDenied {
				continue
			}
			// A rule has series with the value 0 only for the outcomes that its requests can have.
			isLimitOfNewIdentities := rule.Limit == reserved.NewIdentities
			isOutcomeOfNewIdentities := o == admission.DeniedNewIdentity
			canOccur := !isWithoutRule(o) && isLimitOfNewIdentities == isOutcomeOfNewIdentities
			if rule == observe.Other || n > 0 || canOccur {
				s.counter(requestsDesc, n, rule.Name, rule.Limit, rule.Algorithm, o.String())
			}
		}
		s.counter(allowedDesc, allowed, rule.Name, rule.Limit, rule.Algorithm)
		s.counter(rejectedDesc, total-allowed-shadowAllowed-shadowDenied, rule.Name, rule.Limit, rule.Algorithm)
		s.counter(shadowAllowedDesc, shadowAllowed, rule.Name, rule.Limit, rule.Algorithm)
		s.counter(shadowRejectedDesc, shadowDenied, rule.Name, rule.Limit, rule.Algorithm)
	})
}

// collectNearLimit adds no series for a limit without requests if there are more than ManyRules.
func (m *Metrics) collectNearLimit(s samples) {
	hasManyRules := len(m.Rules()) > ManyRules
	m.NearLimit(func(rule observe.Rule, n uint64) {
		isOfNewIdentities := rule.Limit == reserved.NewIdentities
		if n > 0 || !hasManyRules && !isOfNewIdentities || rule == observe.Other {
			s.counter(nearLimitDesc, n, rule.Name, rule.Limit, rule.Algorithm)
		}
	})
}

// isWithoutRule reports whether an outcome is decided before any rule is matched.
func isWithoutRule(o admission.Outcome) bool {
	return o == admission.Unlimited || o == admission.Exempt || o == admission.Refused || o == admission.Malformed
}

func collectGuards(s samples, g *observe.Guards) {
	if g.Stats != nil {
		stats := g.Stats()
		for node, severity := range observe.Breakers(stats.Breakers) {
			s.gauge(breakerStateDesc, severity, node)
		}
		s.gauge(denyCacheEntriesDesc, int(stats.DenyCacheEntries))
		s.counter(leaseUnitsDesc, uint64(stats.Lease.Drawn), "drawn")
		s.counter(leaseUnitsDesc, uint64(stats.Lease.Spent), "spent")
		s.counter(leaseUnitsDesc, uint64(stats.Lease.Returned), "returned")
		s.counter(leaseUnitsDesc, uint64(stats.Lease.Expired), "expired")
		s.counter(leaseUnitsDesc, uint64(stats.Lease.Lost), "lost")
		s.gauge(holdsUnreturnedDesc, int(stats.HoldsUnreturned))
		s.counter(holdsReturnedDesc, uint64(stats.HoldsReturnedLate))
	}
	if g.Instances != nil {
		s.gauge(instancesDesc, g.Instances())
	}
	if g.ClockSteps != nil {
		back, forward := g.ClockSteps()
		s.counter(clockStepsDesc, uint64(back), "back")
		s.counter(clockStepsDesc, uint64(forward), "forward")
	}
	if g.Losses != nil {
		s.counter(lossesDesc, uint64(g.Losses()))
	}
	if g.Scripts != nil {
		missing, loaded, evals := g.Scripts()
		s.counter(scriptsDesc, uint64(missing), "noscript")
		s.counter(scriptsDesc, uint64(loaded), "load")
		s.counter(scriptsDesc, uint64(evals), "eval")
	}
	if g.ScriptsInFlight != nil {
		inFlight, queued := g.ScriptsInFlight()
		s.gauge(scriptsInFlightDesc, inFlight)
		s.gauge(scriptsQueuedDesc, queued)
	}
}

// samples is the channel to the registry. Each of its methods sends one sample.
type samples chan<- prometheus.Metric

func (s samples) counter(desc *prometheus.Desc, n uint64, labels ...string) {
	s.send(desc, prometheus.CounterValue, float64(n), labels)
}

func (s samples) gauge(desc *prometheus.Desc, n int, labels ...string) {
	s.send(desc, prometheus.GaugeValue, float64(n), labels)
}

// send sends a sample. It omits a sample whose label is not UTF-8, because an error would end the
// whole scrape.
func (s samples) send(desc *prometheus.Desc, kind prometheus.ValueType, n float64, labels []string) {
	if metric, err := prometheus.NewConstMetric(desc, kind, n, labels...); err == nil {
		s <- metric
	}
}
