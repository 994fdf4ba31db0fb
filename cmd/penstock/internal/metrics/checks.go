package metrics

import "github.com/prometheus/client_golang/prometheus"

// checks collects what checks ended in. Each check is counted once, by its outcome, and the sums are made when somebody asks: so in every
// scrape rate_limiter_requests_total is exactly rate_limiter_allowed_total and rate_limiter_rejected_total together. Allowed is what was
// let through, whatever the reason.
type checks struct{ metrics *Metrics }

var (
	requests = prometheus.NewDesc("rate_limiter_requests_total", "Checks of requests, by what they ended in.",
		[]string{"rule", "algorithm", "outcome"}, nil)
	allowed = prometheus.NewDesc("rate_limiter_allowed_total", "Checks that let the request through: within the limit, on trial, exempt, or without an answer.",
		[]string{"rule", "algorithm"}, nil)
	rejected = prometheus.NewDesc("rate_limiter_rejected_total", "Checks that turned the request away: over the limit, refused, or without an answer.",
		[]string{"rule", "algorithm"}, nil)
	shadowRejected = prometheus.NewDesc("rate_limiter_shadow_rejected_total", "Checks by rules on trial that would have turned the request away.",
		[]string{"rule", "algorithm"}, nil)
)

func (checks) Describe(ch chan<- *prometheus.Desc) {
	ch <- requests
	ch <- allowed
	ch <- rejected
	ch <- shadowRejected
}

func (c checks) Collect(ch chan<- prometheus.Metric) {
	for rule, s := range *c.metrics.rules.Load() {
		count := func(desc *prometheus.Desc, n uint64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{rule.Name, rule.Algorithm}, more...)...)
		}
		var let, turned, shadow uint64
		for o := range outcomes {
			n := s.outcomes[o].Load()
			switch {
			case o == ShadowDenied:
				shadow = n
				fallthrough
			case o.letThrough():
				let += n
			default:
				turned += n
			}
			count(requests, n, outcomeNames[o])
		}
		count(allowed, let)
		count(rejected, turned)
		count(shadowRejected, shadow)
	}
}
