package metrics

import "github.com/prometheus/client_golang/prometheus"

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
