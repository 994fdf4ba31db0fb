package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// sources are who may decide.
var sources = []penstock.Source{
	penstock.FromStore, penstock.FromDenyCache, penstock.FromLease, penstock.FromFallback, penstock.FromOpen, penstock.FromClosed,
}

// Decided counts a request by who decided. Those that FromOpen decided passed without being
// counted.
func (m *Metrics) Decided(source penstock.Source) { m.decisions[source].Inc() }

// BreakerChanged counts a change of a breaker.
func (m *Metrics) BreakerChanged(to guard.State) { m.breakerChanges.WithLabelValues(to.String()).Inc() }

// Guards are asked how they fare when somebody wants to know.
type Guards struct {
	Stats      func() guard.Stats
	Instances  func() int
	ClockSteps func() (back, forward int64)
	Scripts    func() (missing, loaded, evals int64)
}

var (
	breakerState = prometheus.NewDesc("rate_limiter_breaker_state", "The breaker of a node of the store: 0 closed, 1 half open, 2 open.", []string{"node"}, nil)
	denials      = prometheus.NewDesc("rate_limiter_deny_cache_entries", "Denials that are remembered.", nil, nil)
	leaseUnits   = prometheus.NewDesc("rate_limiter_lease_units_total", "Units of leases, by what became of them.", []string{"fate"}, nil)
	instances    = prometheus.NewDesc("rate_limiter_instances", "Gates on this store, as far as is known.", nil, nil)
	clockSteps   = prometheus.NewDesc("rate_limiter_clock_steps_total", "Steps that the store's clock was seen to make.", []string{"direction"}, nil)
	scripts      = prometheus.NewDesc("rate_limiter_scripts_total", "Scripts that the store did not know (noscript), that were loaded (load), and that decisions carried (eval).", []string{"event"}, nil)
)

// Guards says whom to ask. It is called once.
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

// maxNodes is how many parts of the store have a series of their own: a Cluster has one for each
// primary, and for those that are asked together.
const maxNodes = 64

// shown are the breakers by the label of their node. Beyond maxNodes, the worst of all others
// stands for them.
func shown(breakers map[string]guard.State) map[string]guard.State {
	all := make(map[string]guard.State, len(breakers))
	for i, node := range slices.Sorted(maps.Keys(breakers)) {
		label, state := Node(node), breakers[node]
		if i >= maxNodes {
			label = "(other)"
			if severity(all[label]) > severity(state) {
				continue
			}
		}
		all[label] = state
	}
	return all
}

// Node is the label of a node of the store, or of all of it.
func Node(name string) string {
	if name == "" {
		return "(store)"
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
