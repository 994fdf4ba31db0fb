package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// sources are the label values of rate_limiter_decisions_total.
var sources = []penstock.Source{
	penstock.FromStore, penstock.FromDenyCache, penstock.FromLease, penstock.FromFallback, penstock.FromOpen, penstock.FromClosed,
}

// Decided counts a request by the source of its decision. FromOpen: the request passed unlimited.
func (m *Metrics) Decided(source penstock.Source) { m.decisions[source].Inc() }

// BreakerChanged counts a change of a breaker.
func (m *Metrics) BreakerChanged(to guard.State) { m.breakerChanges.WithLabelValues(to.String()).Inc() }

// Guards are the functions that a scrape calls to read the state of the guards.
type Guards struct {
	Stats      func() guard.Stats
	Instances  func() int
	ClockSteps func() (back, forward int64)
	Scripts    func() (missing, loaded, evals int64)
}

var (
	breakerState = prometheus.NewDesc("rate_limiter_breaker_state", "State of the circuit breaker of a store node: 0 closed, 1 half open, 2 open.", []string{"node"}, nil)
	denials      = prometheus.NewDesc("rate_limiter_deny_cache_entries", "Entries in the denial cache.", nil, nil)
	leaseUnits   = prometheus.NewDesc("rate_limiter_lease_units_total", "Leased units: drawn is the total from the store; spent, returned, expired and lost are what became of them.", []string{"fate"}, nil)
	instances    = prometheus.NewDesc("rate_limiter_instances", "Running instances that share this store.", nil, nil)
	clockSteps   = prometheus.NewDesc("rate_limiter_clock_steps_total", "Jumps of the store's clock by more than 100 ms.", []string{"direction"}, nil)
	scripts      = prometheus.NewDesc("rate_limiter_scripts_total", "Lua scripts that the store did not have (noscript), that were loaded (load), or that were sent with a decision (eval).", []string{"event"}, nil)
)

// Guards registers the series of the guards. It is called once.
func (m *Metrics) Guards(g Guards) { m.registry.MustRegister(g, m.breakerChanges) }

// Describe implements prometheus.Collector.
func (Guards) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{breakerState, denials, leaseUnits, instances, clockSteps, scripts} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (g Guards) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, labels...)
	}
	counter := func(desc *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	stats := g.Stats()
	for node, state := range shown(stats.Breakers) {
		gauge(breakerState, severity(state), node)
	}
	gauge(denials, float64(stats.Deny.Entries))
	counter(leaseUnits, stats.Lease.Drawn, "drawn")
	counter(leaseUnits, stats.Lease.Spent, "spent")
	counter(leaseUnits, stats.Lease.Returned, "returned")
	counter(leaseUnits, stats.Lease.Expired, "expired")
	counter(leaseUnits, stats.Lease.Lost, "lost")
	gauge(instances, float64(g.Instances()))
	back, forward := g.ClockSteps()
	counter(clockSteps, back, "back")
	counter(clockSteps, forward, "forward")
	missing, loaded, evals := g.Scripts()
	counter(scripts, missing, "noscript")
	counter(scripts, loaded, "load")
	counter(scripts, evals, "eval")
}

// maxNodes is how many nodes have a series of their own. A Cluster has one node for each primary,
// and one for each set of primaries that decide together.
const maxNodes = 64

// shown returns the breakers by the label of their node. Beyond maxNodes, the worst state of all
// others is under the label other.
func shown(breakers map[string]guard.State) map[string]guard.State {
	all := make(map[string]guard.State, len(breakers))
	for i, node := range slices.Sorted(maps.Keys(breakers)) {
		label, state := Node(node), breakers[node]
		if i >= maxNodes {
			label = otherLabel
			if severity(all[label]) > severity(state) {
				continue
			}
		}
		all[label] = state
	}
	return all
}

// Node is the label of a node, or "default" for a store that is one node.
func Node(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func severity(s guard.State) float64 {
	switch s {
	case guard.StateHalfOpen:
		return 1
	case guard.StateOpen:
		return 2
	}
	return 0
}
