package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/policy"
)

// checks collects the series of requests. Each request is counted once, by its outcome, and a
// scrape adds them up. So in every scrape rate_limiter_requests_total is exactly the sum of
// rate_limiter_allowed_total and rate_limiter_rejected_total. Allowed includes every request that
// passed, whatever the reason.
type checks struct{ metrics *Metrics }

var (
	requests = prometheus.NewDesc("rate_limiter_requests_total", "Requests by rule, limit and outcome. If several limits applied, the one that denied or was closest to denying is named.",
		[]string{"rule", "limit", "algorithm", "outcome"}, nil)
	allowed = prometheus.NewDesc("rate_limiter_allowed_total", "Requests that passed: within their limits, without a limit, exempt, or failed open.",
		[]string{"rule", "limit", "algorithm"}, nil)
	rejected = prometheus.NewDesc("rate_limiter_rejected_total", "Requests that did not pass: over a limit, refused, malformed, failed closed, or abandoned by the client.",
		[]string{"rule", "limit", "algorithm"}, nil)
	shadowAllowed = prometheus.NewDesc("rate_limiter_shadow_allowed_total", "Requests that shadows would have allowed.",
		[]string{"rule", "limit", "algorithm"}, nil)
	shadowRejected = prometheus.NewDesc("rate_limiter_shadow_rejected_total", "Requests that shadows would have rejected.",
		[]string{"rule", "limit", "algorithm"}, nil)
)

func (checks) Describe(ch chan<- *prometheus.Desc) {
	ch <- requests
	ch <- allowed
	ch <- rejected
	ch <- shadowAllowed
	ch <- shadowRejected
}

// manyRules is the number of limits above which a limit without traffic has no series, instead of
// zeros.
const manyRules = 500

func (c checks) Collect(ch chan<- prometheus.Metric) {
	rules := *c.metrics.rules.Load()
	for rule, s := range rules {
		if len(rules) > manyRules && rule != other && s.isIdle() {
			continue
		}
		count := func(desc *prometheus.Desc, n uint64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{rule.Name, rule.Limit, rule.Algorithm}, more...)...)
		}
		var sums [2]uint64
		for _, o := range outcomes {
			n := s.outcomes[o].Load()
			if counted := sumOf(o); counted != sumShadow {
				sums[counted] += n
				if rule == other || n > 0 || !isWithoutRule(o) && (o == admission.DeniedNewIdentity) == (rule.Limit == policy.NewIdentities) {
					count(requests, n, o.String())
				}
			}
		}
		count(allowed, sums[sumAllowed])
		count(rejected, sums[sumRejected])
		count(shadowAllowed, s.outcomes[admission.ShadowAllowed].Load())
		count(shadowRejected, s.outcomes[admission.ShadowDenied].Load())
	}
}

// isWithoutRule is true for outcomes that are decided before any rule is matched.
func isWithoutRule(o admission.Outcome) bool {
	return o == admission.Unlimited || o == admission.Exempt || o == admission.Refused || o == admission.Malformed
}
