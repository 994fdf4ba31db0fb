package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/resplimit"
)

func newRESPAuthFailures() *prometheus.CounterVec {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_resp_auth_failures_total",
		Help: "Commands of Redis clients that were refused because of a wrong password, or because none had been sent.",
	}, []string{"reason"})
	for _, f := range resplimit.AuthFailures() {
		failures.WithLabelValues(f.String())
	}
	return failures
}

// AddRESP registers the series of Redis clients. connections returns how many of them are
// connected. AddRESP is called once.
func (m *Metrics) AddRESP(connections func() int) {
	m.registry.MustRegister(m.respAuthFailures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rate_limiter_resp_connections",
		Help: "Redis clients that are connected.",
	}, func() float64 { return float64(connections()) }))
}

// RESPAuthFailed counts a command that was refused for its client's password.
func (m *Metrics) RESPAuthFailed(f resplimit.AuthFailure) {
	m.respAuthFailures.WithLabelValues(f.String()).Inc()
}
