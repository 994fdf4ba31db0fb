package metrics

import "github.com/prometheus/client_golang/prometheus"

// Callers are the clients of a listener, which may be refused for their token or password.
type Callers struct {
	name, help string
	Reasons    []string
}

// All listeners that check tokens or passwords.
var (
	AdminCallers = Callers{"admin", "Requests to the admin address that were refused because of a wrong token, or because they had none.", []string{"no_token", "wrong_token"}}
	APICallers   = Callers{"api", "Calls in JSON that were refused because of a wrong token, or because they had none.", []string{"no_token", "wrong_token", "not_operator"}}
	GRPCCallers  = Callers{"grpc", "Calls of gRPC clients that were refused because of a wrong token, or because they had none.", []string{"no_token", "wrong_token"}}
	RESPCallers  = Callers{"resp", "Commands of Redis clients that were refused because of a wrong password, or because none had been sent.", []string{"no_password", "wrong_password"}}
)

// AddAuthFailures registers a series for each reason. It returns a function that counts a refusal
// by its reason. It is called once for each kind of callers.
func (m *Metrics) AddAuthFailures(c Callers) (count func(reason string)) {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rate_limiter_" + c.name + "_auth_failures_total", Help: c.help}, []string{"reason"})
	for _, reason := range c.Reasons {
		failures.WithLabelValues(reason)
	}
	m.registry.MustRegister(failures)
	return func(reason string) { failures.WithLabelValues(reason).Inc() }
}

// AddOverload returns a function that counts a request that was refused with 503, or with the
// status UNAVAILABLE of gRPC, because all of a resource was in use. resource is one of "memory" and
// "upstream".
func (m *Metrics) AddOverload(resource string) (count func()) {
	return m.overloads.WithLabelValues(resource).Inc
}

// AddRequestMemory registers the memory of requests in flight. Each scrape calls taken, which
// returns bytes. AddRequestMemory is called once.
func (m *Metrics) AddRequestMemory(taken func() int64) {
	m.addGauge("request_memory_bytes", "Estimate of the memory that HTTP requests in flight, and large gRPC calls, take.", func() float64 { return float64(taken()) })
}

func (m *Metrics) addGauge(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rate_limiter_" + name, Help: help}, value))
}

// AddRESP registers the number of Redis clients that are connected. AddRESP is called once.
func (m *Metrics) AddRESP(connections func() int) {
	m.addGauge("resp_connections", "Redis clients that are connected.", func() float64 { return float64(connections()) })
}

// AddChargedTwice registers the series of the proxy. It returns a function that counts a request
// that two instances have charged. AddChargedTwice is called once.
func (m *Metrics) AddChargedTwice() (count func()) {
	requests := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rate_limiter_charged_twice_total",
		Help: "Requests that another instance with the same store, prefix and policy had already charged before it forwarded them here.",
	})
	m.registry.MustRegister(requests)
	return requests.Inc
}

type GRPCCalls map[string][]prometheus.Counter // by service; the index is the status code

// AddGRPC registers the series of gRPC clients. codes are the names of all status codes, by number.
// connections returns how many clients are connected. AddGRPC is called once.
func (m *Metrics) AddGRPC(services, codes []string, connections func() int) GRPCCalls {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_grpc_calls_total",
		Help: "Calls of gRPC clients, by service and status code.",
	}, []string{"service", "code"})
	counters := make(GRPCCalls)
	for _, service := range services {
		for _, code := range codes {
			counters[service] = append(counters[service], calls.WithLabelValues(service, code))
		}
	}
	m.registry.MustRegister(calls)
	m.addGauge("grpc_connections", "Connections of gRPC clients.", func() float64 { return float64(connections()) })
	return counters
}

// Count counts a call by the number of its code. It ignores services and codes that are unknown.
func (c GRPCCalls) Count(service string, code uint32) {
	if counters := c[service]; uint64(code) < uint64(len(counters)) {
		counters[code].Inc()
	}
}
