package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// checks collects what requests ended in. Each is counted once, by its outcome, and the sums are
// made when somebody asks: so in every scrape rate_limiter_requests_total is exactly
// rate_limiter_allowed_total and rate_limiter_rejected_total together. Allowed is what was let
// through, whatever the reason.
type checks struct{ metrics *Metrics }

var (
	requests = prometheus.NewDesc("rate_limiter_requests_total", "Requests that were decided, by the limit that mattered most and how that ended.",
		[]string{"rule", "limit", "algorithm", "outcome"}, nil)
	allowed = prometheus.NewDesc("rate_limiter_allowed_total", "Requests that were let through: within the limits, without any, exempt, or without an answer of the store.",
		[]string{"rule", "limit", "algorithm"}, nil)
	rejected = prometheus.NewDesc("rate_limiter_rejected_total", "Requests that were turned away (over a limit, refused, malformed, without an answer), or that went away before they were let in.",
		[]string{"rule", "limit", "algorithm"}, nil)
	shadowAllowed = prometheus.NewDesc("rate_limiter_shadow_allowed_total", "Requests that limits on trial would have let through.",
		[]string{"rule", "limit", "algorithm"}, nil)
	shadowRejected = prometheus.NewDesc("rate_limiter_shadow_rejected_total", "Requests that limits on trial would have turned away.",
		[]string{"rule", "limit", "algorithm"}, nil)
)

func (checks) Describe(ch chan<- *prometheus.Desc) {
	ch <- requests
	ch <- allowed
	ch <- rejected
	ch <- shadowAllowed
	ch <- shadowRejected
}

// manyRules is the number of limits above which those without traffic have no series, instead of
// zeros.
const manyRules = 500

func (c checks) Collect(ch chan<- prometheus.Metric) {
	rules := *c.metrics.rules.Load()
	for rule, s := range rules {
		if len(rules) > manyRules && rule != other && s.idle() {
			continue
		}
		count := func(desc *prometheus.Desc, n uint64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{rule.Name, rule.Limit, rule.Algorithm}, more...)...)
		}
		var sums [2]uint64
		for _, o := range outcomes {
			n := s.outcomes[o].Load()
			if in := sumOf(o); in != sumShadow {
				sums[in] += n
				if rule == other || n > 0 || !withoutRule(o) && (o == httplimit.DeniedNew) == (rule.Limit == policy.NewIdentities) {
					count(requests, n, o.String())
				}
			}
		}
		count(allowed, sums[sumAllowed])
		count(rejected, sums[sumRejected])
		count(shadowAllowed, s.outcomes[httplimit.ShadowAllowed].Load())
		count(shadowRejected, s.outcomes[httplimit.ShadowDenied].Load())
	}
}

// withoutRule tells outcomes that come before any rule is looked at.
func withoutRule(o httplimit.Outcome) bool {
	return o == httplimit.Unlimited || o == httplimit.Exempt || o == httplimit.Refused || o == httplimit.Malformed
}
