package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/checkapi"
)

// AddAPI registers the series of calls in JSON. It returns a function that counts a call that was
// refused for its token. AddAPI is called once.
func (m *Metrics) AddAPI() (authFailed func(checkapi.AuthFailure)) {
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rate_limiter_api_auth_failures_total",
		Help: "Calls in JSON that were refused because of a wrong token, or because they had none.",
	}, []string{"reason"})
	for _, f := range checkapi.AuthFailures() {
		failures.WithLabelValues(f.String())
	}
	m.registry.MustRegister(failures)
	return func(f checkapi.AuthFailure) { failures.WithLabelValues(f.String()).Inc() }
}
