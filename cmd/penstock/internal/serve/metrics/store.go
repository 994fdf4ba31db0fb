package metrics

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/observe"
	penstockprom "github.com/penstock/penstock/observe/prometheus"
)

// StoreHealth is what is known of the store's servers. Numbers that are not known have no series.
type StoreHealth struct {
	IsDegraded bool                // the store fails to make decisions, or failed a moment ago
	Servers    []redisops.Server   // nil: not known
	Keys       *redisops.KeySample // nil: not known
	Missing    []string            // of StoreRights: those that the user lacks
}

// StoreRights are the rights that the metrics of the store need, besides those of decisions.
var StoreRights = []string{"dbsize", "info", "scan"}

type storeCollector struct {
	metrics *Metrics
	health  func() StoreHealth
}

// A serverSeries is a number of each server of the store.
type serverSeries struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*redisops.Server) float64
}

func newServerSeries(name string, kind prometheus.ValueType, help string, value func(*redisops.Server) float64) serverSeries {
	return serverSeries{prometheus.NewDesc("rate_limiter_store_"+name, help, []string{"node"}, nil), kind, value}
}

var (
	storeDegraded = prometheus.NewDesc("rate_limiter_store_degraded", "1 if the store fails to make decisions, or failed within the last 10 s, else 0.", nil, nil)
	storeRights   = prometheus.NewDesc("rate_limiter_store_right_missing", "1 if the store's user lacks a right that some metrics need, else 0.", []string{"right"}, nil)
	storeRuleKeys = prometheus.NewDesc("rate_limiter_store_rule_keys", "Keys of a rule in the store, estimated from a sample.", []string{"rule"}, nil)

	allServerSeries = []serverSeries{
		newServerSeries("memory_used_bytes", prometheus.GaugeValue, "Memory in use, by server.", func(s *redisops.Server) float64 { return float64(s.Used) }),
		newServerSeries("memory_max_bytes", prometheus.GaugeValue, "The server's maxmemory; 0 is no bound.", func(s *redisops.Server) float64 { return float64(s.Max) }),
		newServerSeries("can_evict", prometheus.GaugeValue, "1 if the server may delete counters when its memory is full, else 0.", func(s *redisops.Server) float64 { return boolean(s.Evicts()) }),
		newServerSeries("keys", prometheus.GaugeValue, "Keys in all databases of the server, of all programs.", func(s *redisops.Server) float64 { return float64(s.Keys) }),
		newServerSeries("evicted_keys_total", prometheus.CounterValue, "Keys that the server deleted because its memory was full.", func(s *redisops.Server) float64 { return float64(s.Evicted) }),
		newServerSeries("expired_keys_total", prometheus.CounterValue, "Keys whose TTL ended.", func(s *redisops.Server) float64 { return float64(s.Expired) }),
		newServerSeries("cpu_seconds_total", prometheus.CounterValue, "CPU time of the server's main thread, which runs all scripts.", func(s *redisops.Server) float64 { return s.CPU.Seconds() }),
		newServerSeries("script_calls_total", prometheus.CounterValue, "Script calls on the server, of all clients.", func(s *redisops.Server) float64 { return float64(s.Scripts) }),
		newServerSeries("script_seconds_total", prometheus.CounterValue, "Time that script calls took in the server.", func(s *redisops.Server) float64 { return s.ScriptTime.Seconds() }),
		newServerSeries("cached_scripts", prometheus.GaugeValue, "Scripts in the server's cache.", func(s *redisops.Server) float64 { return float64(s.CachedScripts) }),
		newServerSeries("clients", prometheus.GaugeValue, "Clients that are connected to the server.", func(s *redisops.Server) float64 { return float64(s.Clients) }),
		newServerSeries("max_clients", prometheus.GaugeValue, "The server's maxclients.", func(s *redisops.Server) float64 { return float64(s.MaxClients) }),
		newServerSeries("refused_connections_total", prometheus.CounterValue, "Connections that the server closed because it had too many.", func(s *redisops.Server) float64 { return float64(s.Refused) }),
		newServerSeries("replicas", prometheus.GaugeValue, "Replicas that are connected to the server.", func(s *redisops.Server) float64 { return float64(s.Replicas) }),
		newServerSeries("replication_lag_bytes", prometheus.GaugeValue, "Bytes that the slowest replica of the server has not received.", func(s *redisops.Server) float64 { return float64(s.Lag) }),
	}
)

func boolean(isTrue bool) float64 {
	if isTrue {
		return 1
	}
	return 0
}

// AddStore registers the series of the store's servers. Each scrape calls health, which must not
// wait. AddStore is called once.
func (m *Metrics) AddStore(health func() StoreHealth) {
	m.registry.MustRegister(storeCollector{m, health}, m.storeProbes)
}

func newStoreProbes() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "rate_limiter_store_probe_seconds",
		Help:    "How long successful self-tests of the store took. There is one self-test each second.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25},
	})
}

// StoreProbed records how long a self-test of the store took.
func (m *Metrics) StoreProbed(took time.Duration) { m.storeProbes.Observe(took.Seconds()) }

func (storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- storeDegraded
	ch <- storeRights
	ch <- storeRuleKeys
	for _, s := range allServerSeries {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector. It omits a sample whose label is not UTF-8, because the
// store's replies name the servers. A panic here would end the process: the registry calls Collect
// in a goroutine of its own.
func (c storeCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, n float64, labels ...string) {
		if metric, err := prometheus.NewConstMetric(desc, kind, n, labels...); err == nil {
			ch <- metric
		}
	}
	health := c.health()
	send(storeDegraded, prometheus.GaugeValue, boolean(health.IsDegraded))
	for _, right := range StoreRights {
		send(storeRights, prometheus.GaugeValue, boolean(slices.Contains(health.Missing, right)), right)
	}
	servers := slices.Clone(health.Servers)
	slices.SortFunc(servers, func(a, b redisops.Server) int { return strings.Compare(a.Address, b.Address) })
	for _, s := range servers[:min(len(servers), labels.MaxNodes)] {
		for _, series := range allServerSeries {
			send(series.desc, series.kind, series.value(&s), labels.Node(s.Address))
		}
	}
	if health.Keys == nil {
		return
	}
	for rule, n := range c.ruleKeys(health.Keys.Groups) {
		send(storeRuleKeys, prometheus.GaugeValue, n, rule)
	}
}

// ruleKeys returns the number of keys of each rule. Keys of the store itself and of deleted rules
// count as the rule other. If there are many rules, those without keys are left out.
func (c storeCollector) ruleKeys(groups map[string]float64) map[string]float64 {
	rules := c.metrics.Rules()
	all := map[string]float64{observe.Other.Name: 0}
	for _, rule := range rules {
		if len(rules) <= penstockprom.ManyRules || groups[rule.Name] > 0 {
			all[rule.Name] = 0
		}
	}
	for group, n := range groups {
		if _, isRule := all[group]; !isRule {
			group = observe.Other.Name
		}
		all[group] += n
	}
	return all
}
