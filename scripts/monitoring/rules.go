package main

import (
	"fmt"
	"strings"
)

// A rule records the result of a query as a new series, name. rules.yaml shows the comment.
type rule struct{ name, query, comment string }

// rules make queries over long times cheap. Alerts use them too. The names of rules follow the
// convention of Prometheus: the remaining labels, the metric, and the operation.
var rules = []rule{
	{"job_rule:rate_limiter_requests:rate5m", "sum by (job, rule) (rate(rate_limiter_requests_total[5m]))", "requests per second of each rule"},
	{"job_rule:rate_limiter_rejected:rate5m", "sum by (job, rule) (rate(rate_limiter_rejected_total[5m]))", "rejected requests per second of each rule"},
	{"job_rule:rate_limiter_rejected:ratio_rate5m", "job_rule:rate_limiter_rejected:rate5m / (job_rule:rate_limiter_requests:rate5m > 0)", "ratio of rejected requests to all requests of each rule"},
	{"job_rule:rate_limiter_near_limit:rate5m", "sum by (job, rule) (rate(rate_limiter_near_limit_total[5m]))", "requests per second of each rule that are near their limit"},
	{"job:rate_limiter_requests:rate5m", "sum by (job) (rate(rate_limiter_requests_total[5m]))", "requests per second"},
	{"job:rate_limiter_latency_seconds:p99_rate5m", "histogram_quantile(0.99, sum by (job, le) (rate(rate_limiter_latency_seconds_bucket[5m])))", "the time within which 99 % of decisions end"},
	{"job:rate_limiter_store_probe_seconds:p99_rate5m", "histogram_quantile(0.99, sum by (job, le) (rate(rate_limiter_store_probe_seconds_bucket[5m])))", "the time within which 99 % of the self-tests of Redis end"},
	{"job_node:rate_limiter_store_cpu_seconds:rate5m", "max by (job, node) (rate(rate_limiter_store_cpu_seconds_total[5m]))", "fraction of the time that the main thread of each Redis server is busy"},
	{"job_node:rate_limiter_store_script_seconds:mean_rate5m",
		"max by (job, node) (rate(rate_limiter_store_script_seconds_total[5m])) / (max by (job, node) (rate(rate_limiter_store_script_calls_total[5m])) > 0)", "mean time of a script in each Redis server"},
}

func rulesYAML(rules []rule) string {
	var b strings.Builder
	b.WriteString(generated + "groups:\n  - name: penstock\n    rules:\n")
	for _, r := range rules {
		if r.comment != "" {
			fmt.Fprintf(&b, "      # %s\n", r.comment)
		}
		fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n", r.name, quoted(r.query))
	}
	return b.String()
}
