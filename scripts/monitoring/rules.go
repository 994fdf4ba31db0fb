package main

import (
	"fmt"
	"strings"
)

// A rule records the result of a query as a new series.
type rule struct{ name, query, why string }

// rules are for queries over long times, and for alerts that use them. Their names have the form of
// Prometheus: the labels that are left, the metric, and what was done to it.
var rules = []rule{
	{"job_rule:rate_limiter_requests:rate5m", "sum by (job, rule) (rate(rate_limiter_requests_total[5m]))", "requests per second of each rule"},
	{"job_rule:rate_limiter_rejected:rate5m", "sum by (job, rule) (rate(rate_limiter_rejected_total[5m]))", "rejected requests per second of each rule"},
	{"job_rule:rate_limiter_rejected:ratio_rate5m", "job_rule:rate_limiter_rejected:rate5m / (job_rule:rate_limiter_requests:rate5m > 0)", "the rejected part of the requests of each rule"},
	{"job:rate_limiter_requests:rate5m", "sum by (job) (rate(rate_limiter_requests_total[5m]))", "requests per second"},
	{"job:rate_limiter_latency_seconds:p99_rate5m", "histogram_quantile(0.99, sum by (job, le) (rate(rate_limiter_latency_seconds_bucket[5m])))", "99 % of decisions took less"},
	{"job:rate_limiter_store_probe_seconds:p99_rate5m", "histogram_quantile(0.99, sum by (job, le) (rate(rate_limiter_store_probe_seconds_bucket[5m])))", "99 % of the self-tests of Redis took less"},
	{"job_node:rate_limiter_store_cpu_seconds:rate5m", "max by (job, node) (rate(rate_limiter_store_cpu_seconds_total[5m]))", "the busy part of the main thread of each server of Redis"},
	{"job_node:rate_limiter_store_script_seconds:mean_rate5m",
		"max by (job, node) (rate(rate_limiter_store_script_seconds_total[5m])) / (max by (job, node) (rate(rate_limiter_store_script_calls_total[5m])) > 0)", "time that a script takes in each server of Redis"},
}

func rulesYAML(rules []rule) string {
	var b strings.Builder
	b.WriteString(generated + "groups:\n  - name: penstock\n    rules:\n")
	for _, r := range rules {
		if r.why != "" {
			fmt.Fprintf(&b, "      # %s\n", r.why)
		}
		fmt.Fprintf(&b, "      - record: %s\n        expr: %s\n", r.name, quoted(r.query))
	}
	return b.String()
}
