package metrics

import "github.com/prometheus/client_golang/prometheus"

// GRPCFailures are the reasons why calls are refused for their token.
var GRPCFailures = []string{"no_token", "wrong_token"}

// GRPCCalls counts the calls of gRPC clients.
type GRPCCalls struct {
	byService map[string][]prometheus.Counter // the index is the status code
	failures  map[string]prometheus.Counter   // by reason
}

// AddGRPC registers the series of gRPC clients. codes are the names of all status codes, by number.
// connections returns how many clients are connected. AddGRPC is called once.
func (m *Metrics) AddGRPC(services, codes []string, connections func() int) *GRPCCalls {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_grpc_calls_total",
		Help: "Calls of gRPC clients, by service and status code.",
	}, []string{"service", "code"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_grpc_auth_failures_total",
		Help: "Calls of gRPC clients that were refused because of a wrong token, or because they had none.",
	}, []string{"reason"})
	c := &GRPCCalls{make(map[string][]prometheus.Counter), make(map[string]prometheus.Counter)}
	for _, service := range services {
		for _, code := range codes {
			c.byService[service] = append(c.byService[service], calls.WithLabelValues(service, code))
		}
	}
	for _, reason := range GRPCFailures {
		c.failures[reason] = failures.WithLabelValues(reason)
	}
	m.registry.MustRegister(calls, failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rate_limiter_grpc_connections",
		Help: "Connections of gRPC clients.",
	}, func() float64 { return float64(connections()) }))
	return c
}

// Count counts a call by the number of its code. It ignores services and codes that are unknown.
func (c *GRPCCalls) Count(service string, code uint32) {
	if counters := c.byService[service]; uint64(code) < uint64(len(counters)) {
		counters[code].Inc()
	}
}

// AuthFailed counts a call that was refused for its token.
func (c *GRPCCalls) AuthFailed(reason string) {
	if counter := c.failures[reason]; counter != nil {
		counter.Inc()
	}
}
