package metrics

import "github.com/prometheus/client_golang/prometheus"

// AddAdmin registers the series of the admin address. It returns a function that counts a request
// that was refused because its operator token was wrong or missing. AddAdmin is called once.
func (m *Metrics) AddAdmin() (authFailed func(hasToken bool)) {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_admin_auth_failures_total",
		Help: "Requests to the admin address that were refused because of a wrong token, or because they had none.",
	}, []string{"reason"})
	noToken, wrongToken := failures.WithLabelValues("no_token"), failures.WithLabelValues("wrong_token")
	m.registry.MustRegister(failures)
	return func(hasToken bool) {
		if hasToken {
			wrongToken.Inc()
		} else {
			noToken.Inc()
		}
	}
}
