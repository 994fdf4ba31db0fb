package main

import (
	"fmt"
	"strings"
	"time"
)

// An alert has a section with its name in docs/runbooks.md.
type alert struct {
	name     string
	query    string
	wait     time.Duration // how long the query must have results before the alert fires
	severity string        // critical, warning or info, as docs/runbooks.md defines them
	summary  string        // one line

	description string // Prometheus replaces {{ $value }} and {{ $labels.… }} in it

	// Inputs of two unit tests. The alert fires in the test with the inputs fires, and it does not
	// fire in the test with the inputs quiet.
	fires, quiet []input
}

// An input is a series of a unit test, and its values in each minute. The values have the notation
// of promtool: 1x30 is the value 1 thirty-one times, and 0+60x30 is 0, 60, 120 and so on up to
// 1800.
type input struct{ series, values string }

const runbooks = "https://github.com/penstock/penstock/blob/main/docs/runbooks.md"

// seriesAt returns a series of the named instance.
func seriesAt(instance, name, labels, values string) input {
	if labels != "" {
		labels = ", " + labels
	}
	return input{fmt.Sprintf("%s{job=%q, instance=%q%s}", name, "penstock", instance, labels), values}
}

// series returns a series of the instance a.
func series(name, labels, values string) []input {
	return []input{seriesAt("a", name, labels, values)}
}

// together joins the inputs of several series.
func together(lists ...[]input) (all []input) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// unlessStoreDecides ends a query about a rate of 2 minutes, so that its alert does not fire after
// the end of a short outage. An instance reports for 10 s after the end that the store fails. The
// store memory has no such series.
const unlessStoreDecides = " unless on (job) sum by (job) (rate_limiter_store_degraded) == 0"

// alerts are all alerts. docs/runbooks.md has the reasons for their thresholds.
var alerts = []alert{
	{
		name: "PenstockDown", query: `up{job="penstock"} == 0`, wait: 2 * time.Minute, severity: "warning",
		summary: "An instance of Penstock cannot be scraped", description: "Prometheus does not reach {{ $labels.instance }}.",
		fires: series("up", "", "0x30"), quiet: series("up", "", "1x30"),
	},
	{
		name: "PenstockAllDown", query: `absent(up{job="penstock"} == 1)`, wait: time.Minute, severity: "critical",
		summary: "No instance of Penstock can be scraped", description: "Prometheus has no instance of the job {{ $labels.job }}, or reaches none.",
		fires: series("up", "", "0x30"), quiet: together(series("up", "", "1x30"), []input{seriesAt("b", "up", "", "0x30")}),
	},
	{
		name: "PenstockStoreDegraded", query: "sum by (job) (rate_limiter_store_degraded) > 0", wait: 30 * time.Second, severity: "critical",
		summary: "Redis does not decide", description: "{{ $value }} instances of {{ $labels.job }} get no decisions. Each limit uses its on_failure.",
		fires: series("rate_limiter_store_degraded", "", "1x30"), quiet: series("rate_limiter_store_degraded", "", "0x30"),
	},
	{
		name: "PenstockBreakerOpen", query: "max by (job, node) (rate_limiter_breaker_state) > 0", wait: time.Minute, severity: "warning",
		summary: "A circuit breaker is open", description: "The server {{ $labels.node }} of Redis is not used by at least one instance of {{ $labels.job }}.",
		fires: series("rate_limiter_breaker_state", `node="default"`, "2x30"), quiet: series("rate_limiter_breaker_state", `node="default"`, "0x30"),
	},
	{
		name: "PenstockRequestsUnlimited", query: "sum by (job) (rate(rate_limiter_requests_uncounted_total[2m])) > 0" + unlessStoreDecides, wait: time.Minute, severity: "critical",
		summary: "Requests pass without a limit", description: `{{ $value | printf "%.1f" }} requests a second pass although a limit with on_failure: open does not count them.`,
		fires: series("rate_limiter_requests_uncounted_total", "", "0+60x30"),
		quiet: together(series("rate_limiter_requests_uncounted_total", "", "0+60x30"), series("rate_limiter_store_degraded", "", "1x24 0x6")),
	},
	{
		name: "PenstockRequestsRefused", query: `sum by (job) (rate(rate_limiter_decisions_total{source="closed"}[2m])) > 0` + unlessStoreDecides, wait: time.Minute, severity: "critical",
		summary: "Requests are refused because Redis does not decide", description: `{{ $value | printf "%.1f" }} requests a second get status 503, because of on_failure: closed.`,
		fires: together(series("rate_limiter_decisions_total", `source="closed"`, "0+60x30"), series("rate_limiter_store_degraded", "", "1x30"),
			[]input{seriesAt("b", "rate_limiter_store_degraded", "", "0x30")}),
		quiet: together(series("rate_limiter_decisions_total", `source="closed"`, "7x30"), series("rate_limiter_decisions_total", `source="store"`, "0+60x30")),
	},
	{
		name:  "PenstockStoreErrors",
		query: "sum by (job, reason) (rate(rate_limiter_errors_total[5m])) / on (job) group_left () job:rate_limiter_requests:rate5m > 0.01", wait: 5 * time.Minute, severity: "warning",
		summary: "Calls to Redis fail", description: "Calls fail with the reason {{ $labels.reason }}, for {{ $value | humanizePercentage }} of the requests of {{ $labels.job }}.",
		fires: together(series("rate_limiter_errors_total", `reason="timeout"`, "0+2x30"), series("rate_limiter_requests_total", `rule="a"`, "0+100x30")),
		quiet: together(series("rate_limiter_errors_total", `reason="timeout"`, "0+2x30"), series("rate_limiter_requests_total", `rule="a"`, "0+1000x30")),
	},
	{
		name: "PenstockStoreRejectsCalls", query: `sum by (job, reason) (rate(rate_limiter_errors_total{reason=~"permission_denied|corrupt|rejected|invalid|other"}[5m])) > 0`,
		wait: time.Minute, severity: "warning",
		summary: "Redis rejects calls", description: "Calls of {{ $labels.job }} fail with the reason {{ $labels.reason }}, which lasts until someone fixes its cause.",
		fires: series("rate_limiter_errors_total", `reason="corrupt"`, "0+1x30"),
		quiet: together(series("rate_limiter_errors_total", `reason="corrupt"`, "3x30"), series("rate_limiter_errors_total", `reason="timeout"`, "0+1x30")),
	},
	{
		name: "PenstockUnknownOutcomes", query: "sum by (job) (rate(rate_limiter_decisions_unknown_outcome_total[5m])) > 1", wait: 5 * time.Minute, severity: "warning",
		summary: "Replies of Redis are lost", description: `{{ $value | printf "%.1f" }} calls a second fail although their charges may have been made.`,
		fires: series("rate_limiter_decisions_unknown_outcome_total", "", "0+120x30"), quiet: series("rate_limiter_decisions_unknown_outcome_total", "", "0+30x30"),
	},
	{
		name: "PenstockReloadFailed", query: "max by (job, instance) (rate_limiter_config_last_reload_successful == bool 0) == 1", wait: 5 * time.Minute, severity: "warning",
		summary: "A policy was not loaded", description: "{{ $labels.instance }} keeps its old rules, because the new file has mistakes.",
		fires: series("rate_limiter_config_last_reload_successful", "", "0x30"), quiet: series("rate_limiter_config_last_reload_successful", "", "1x30"),
	},
	{
		name: "PenstockLatencyHigh", query: "job:rate_limiter_latency_seconds:p99_rate5m > 0.1", wait: 10 * time.Minute, severity: "warning",
		summary: "Decisions take long", description: "1 % of the decisions of {{ $labels.job }} take longer than {{ $value | humanizeDuration }}.",
		fires: together(series("rate_limiter_latency_seconds_bucket", `le="0.1"`, "0+90x30"), series("rate_limiter_latency_seconds_bucket", `le="0.25"`, "0+100x30"), series("rate_limiter_latency_seconds_bucket", `le="+Inf"`, "0+100x30")),
		quiet: together(series("rate_limiter_latency_seconds_bucket", `le="0.1"`, "0+100x30"), series("rate_limiter_latency_seconds_bucket", `le="0.25"`, "0+100x30"), series("rate_limiter_latency_seconds_bucket", `le="+Inf"`, "0+100x30")),
	},
	{
		name: "PenstockManyRejections", query: "job_rule:rate_limiter_rejected:ratio_rate5m > 0.2 and job_rule:rate_limiter_rejected:rate5m > 1", wait: 10 * time.Minute, severity: "warning",
		summary: "A rule rejects many requests", description: "The rule {{ $labels.rule }} rejects {{ $value | humanizePercentage }} of its requests.",
		fires: together(series("rate_limiter_requests_total", `rule="search"`, "0+600x30"), series("rate_limiter_rejected_total", `rule="search"`, "0+300x30")),
		quiet: together(series("rate_limiter_requests_total", `rule="search"`, "0+600x30"), series("rate_limiter_rejected_total", `rule="search"`, "0+90x30"),
			series("rate_limiter_requests_total", `rule="rare"`, "0+6x30"), series("rate_limiter_rejected_total", `rule="rare"`, "0+6x30")),
	},
	{
		name:  "PenstockManyNearLimit",
		query: "job_rule:rate_limiter_near_limit:rate5m / (job_rule:rate_limiter_requests:rate5m > 0) > 0.2 and job_rule:rate_limiter_near_limit:rate5m > 1", wait: 10 * time.Minute, severity: "warning",
		summary: "Many requests of a rule are near its limit", description: "Of the requests of the rule {{ $labels.rule }}, {{ $value | humanizePercentage }} have little of their limit left.",
		fires: together(series("rate_limiter_requests_total", `rule="search"`, "0+600x30"), series("rate_limiter_near_limit_total", `rule="search"`, "0+300x30")),
		quiet: together(series("rate_limiter_requests_total", `rule="search"`, "0+600x30"), series("rate_limiter_near_limit_total", `rule="search"`, "0+90x30"),
			series("rate_limiter_requests_total", `rule="rare"`, "0+6x30"), series("rate_limiter_near_limit_total", `rule="rare"`, "0+6x30")),
	},
	{
		name:  "PenstockRejectionsJumped",
		query: "job_rule:rate_limiter_rejected:rate5m > 3 * job_rule:rate_limiter_rejected:rate5m offset 1d and job_rule:rate_limiter_rejected:rate5m > 1", wait: 10 * time.Minute, severity: "warning",
		summary: "A rule rejects more than yesterday", description: `The rule {{ $labels.rule }} rejects {{ $value | printf "%.1f" }} requests a second, more than three times as many as a day ago.`,
		fires: series("rate_limiter_rejected_total", `rule="search"`, "0+60x1440 86400+300x60"), quiet: series("rate_limiter_rejected_total", `rule="search"`, "0+300x1500"),
	},
	{
		name: "PenstockManyWaiting", query: "sum by (job) (rate_limiter_requests_waiting) > 500", wait: 5 * time.Minute, severity: "warning",
		summary: "Many requests wait for their turn", description: "{{ $value }} requests wait, because their limits have max_wait.",
		fires: series("rate_limiter_requests_waiting", "", "600x30"), quiet: series("rate_limiter_requests_waiting", "", "400x30"),
	},
	{
		name: "PenstockInstancesDisagree", query: `min by (job) (rate_limiter_instances) < on (job) count by (job) (up{job="penstock"} == 1)`, wait: 2 * time.Minute, severity: "warning",
		summary: "Instances do not see each other", description: "An instance of {{ $labels.job }} counts only {{ $value }} instances, fewer than are up.",
		fires: together(series("up", "", "1x30"), []input{seriesAt("b", "up", "", "1x30")}, series("rate_limiter_instances", "", "1x30"), []input{seriesAt("b", "rate_limiter_instances", "", "2x30")}),
		quiet: together(series("up", "", "1x30"), []input{seriesAt("b", "up", "", "0x30")}, series("rate_limiter_instances", "", "2x30")),
	},
	{
		name: "PenstockClockStepped", query: "max by (job, direction) (increase(rate_limiter_clock_steps_total[10m])) > 0", severity: "warning",
		summary: "The clock of Redis has stepped", description: "The clock of a server stepped {{ $labels.direction }} by more than 100 ms.",
		fires: series("rate_limiter_clock_steps_total", `direction="back"`, "0x20 1x10"), quiet: series("rate_limiter_clock_steps_total", `direction="back"`, "1x30"),
	},
	{
		name: "PenstockAuthFailures",
		query: "sum by (job, reason) (rate(rate_limiter_api_auth_failures_total[10m])) > 1 or sum by (job, reason) (rate(rate_limiter_grpc_auth_failures_total[10m])) > 1" +
			" or sum by (job, reason) (rate(rate_limiter_resp_auth_failures_total[10m])) > 1 or sum by (job, reason) (rate(rate_limiter_admin_auth_failures_total[10m])) > 1", wait: 10 * time.Minute, severity: "warning",
		summary: "Callers send a wrong token", description: `{{ $value | printf "%.1f" }} calls a second are refused with the reason {{ $labels.reason }}.`,
		fires: series("rate_limiter_grpc_auth_failures_total", `reason="wrong_token"`, "0+120x30"), quiet: series("rate_limiter_api_auth_failures_total", `reason="no_token"`, "0+30x30"),
	},
	{
		name: "PenstockCertificateExpires", query: "min by (job, instance, listener) (rate_limiter_certificate_expiry_timestamp_seconds) - time() < 14 * 86400", wait: time.Hour, severity: "warning",
		summary: "A certificate expires", description: "The certificate of the listener {{ $labels.listener }} of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}.",
		fires: series("rate_limiter_certificate_expiry_timestamp_seconds", `listener="api"`, "864000x90"), quiet: series("rate_limiter_certificate_expiry_timestamp_seconds", `listener="api"`, "2592000x90"),
	},
	{
		name: "PenstockLogLinesLost", query: "sum by (job, instance) (increase(rate_limiter_log_lines_lost_total[10m])) > 0", severity: "warning",
		summary: "Log lines are lost", description: `{{ $labels.instance }} has lost about {{ $value | printf "%.0f" }} lines in 10 minutes.`,
		fires: series("rate_limiter_log_lines_lost_total", "", "0+1x30"), quiet: series("rate_limiter_log_lines_lost_total", "", "9x30"),
	},
	{
		name: "PenstockStoreEvicts", query: "max by (job, node) (increase(rate_limiter_store_evicted_keys_total[10m])) > 0", severity: "critical",
		summary: "Redis deletes counters", description: `The server {{ $labels.node }} has deleted about {{ $value | printf "%.0f" }} keys in 10 minutes. Clients may use their limits again.`,
		fires: series("rate_limiter_store_evicted_keys_total", `node="default"`, "0+1x30"), quiet: series("rate_limiter_store_evicted_keys_total", `node="default"`, "5x30"),
	},
	{
		name: "PenstockStoreLostKeys", query: "max by (job) (increase(rate_limiter_store_losses_total[10m])) > 0", severity: "warning",
		summary: "Redis has lost its counters", description: "Redis was emptied, or restarted without its data. Clients may use their limits again.",
		fires: series("rate_limiter_store_losses_total", "", "0x20 1x10"), quiet: series("rate_limiter_store_losses_total", "", "1x30"),
	},
	{
		name: "PenstockStoreMayEvict", query: "max by (job, node) (rate_limiter_store_can_evict) == 1", wait: 5 * time.Minute, severity: "warning",
		summary: "Redis may delete counters", description: "The maxmemory-policy of the server {{ $labels.node }} is not noeviction.",
		fires: series("rate_limiter_store_can_evict", `node="default"`, "1x30"), quiet: series("rate_limiter_store_can_evict", `node="default"`, "0x30"),
	},
	{
		name: "PenstockStoreMemoryFull", query: "max by (job, node) (rate_limiter_store_memory_used_bytes / (rate_limiter_store_memory_max_bytes > 0)) > 0.8", wait: 5 * time.Minute, severity: "warning",
		summary: "Redis is nearly full", description: "The server {{ $labels.node }} uses {{ $value | humanizePercentage }} of its maxmemory.",
		fires: together(series("rate_limiter_store_memory_used_bytes", `node="default"`, "90x30"), series("rate_limiter_store_memory_max_bytes", `node="default"`, "100x30")),
		quiet: together(series("rate_limiter_store_memory_used_bytes", `node="default"`, "70x30"), series("rate_limiter_store_memory_max_bytes", `node="default"`, "100x30"),
			series("rate_limiter_store_memory_used_bytes", `node="10.0.0.1:6379"`, "90x30"), series("rate_limiter_store_memory_max_bytes", `node="10.0.0.1:6379"`, "0x30")),
	},
	{
		name: "PenstockStoreKeysGrow", query: "max by (job, node) (rate_limiter_store_keys) > 2 * max by (job, node) (rate_limiter_store_keys offset 1d) > 100000", wait: 30 * time.Minute, severity: "warning",
		summary: "Redis has twice as many keys as yesterday", description: `The server {{ $labels.node }} has {{ $value | humanize }} keys, more than twice as many as a day ago.`,
		fires: series("rate_limiter_store_keys", `node="default"`, "100000x1440 300000x60"), quiet: series("rate_limiter_store_keys", `node="default"`, "10000x1440 30000x60"),
	},
	{
		name: "PenstockStoreCPUHigh", query: "job_node:rate_limiter_store_cpu_seconds:rate5m > 0.8", wait: 10 * time.Minute, severity: "warning",
		summary: "Redis has little CPU left", description: "The main thread of the server {{ $labels.node }} is busy for {{ $value | humanizePercentage }} of the time.",
		fires: series("rate_limiter_store_cpu_seconds_total", `node="default"`, "0+54x30"), quiet: series("rate_limiter_store_cpu_seconds_total", `node="default"`, "0+30x30"),
	},
	{
		name: "PenstockStoreSlow", query: "job:rate_limiter_store_probe_seconds:p99_rate5m > 0.05", wait: 5 * time.Minute, severity: "warning",
		summary: "Redis answers slowly", description: "1 % of the self-tests take longer than {{ $value | humanizeDuration }}.",
		fires: together(series("rate_limiter_store_probe_seconds_bucket", `le="0.05"`, "0+50x30"), series("rate_limiter_store_probe_seconds_bucket", `le="0.1"`, "0+60x30"), series("rate_limiter_store_probe_seconds_bucket", `le="+Inf"`, "0+60x30")),
		quiet: together(series("rate_limiter_store_probe_seconds_bucket", `le="0.05"`, "0+60x30"), series("rate_limiter_store_probe_seconds_bucket", `le="0.1"`, "0+60x30"), series("rate_limiter_store_probe_seconds_bucket", `le="+Inf"`, "0+60x30")),
	},
	{
		name: "PenstockStoreManyScripts", query: "max by (job, node) (rate_limiter_store_cached_scripts) > 500", wait: 10 * time.Minute, severity: "warning",
		summary: "Other programs fill the script cache of Redis", description: "The server {{ $labels.node }} has {{ $value }} scripts in its cache.",
		fires: series("rate_limiter_store_cached_scripts", `node="default"`, "600x30"), quiet: series("rate_limiter_store_cached_scripts", `node="default"`, "60x30"),
	},
	{
		name: "PenstockStoreManyClients", query: "max by (job, node) (rate_limiter_store_clients / (rate_limiter_store_max_clients > 0)) > 0.8", wait: 5 * time.Minute, severity: "warning",
		summary: "Redis has nearly as many clients as it accepts", description: "The server {{ $labels.node }} has {{ $value | humanizePercentage }} of its maxclients.",
		fires: together(series("rate_limiter_store_clients", `node="default"`, "900x30"), series("rate_limiter_store_max_clients", `node="default"`, "1000x30")),
		quiet: together(series("rate_limiter_store_clients", `node="default"`, "100x30"), series("rate_limiter_store_max_clients", `node="default"`, "1000x30")),
	},
	{
		name: "PenstockReplicationLags", query: "max by (job, node) (rate_limiter_store_replication_lag_bytes) > 1e6", wait: 5 * time.Minute, severity: "warning",
		summary: "A replica of Redis is behind", description: "A replica of the server {{ $labels.node }} has not received the last {{ $value | humanize1024 }}B of data.",
		fires: series("rate_limiter_store_replication_lag_bytes", `node="default"`, "2000000x30"), quiet: series("rate_limiter_store_replication_lag_bytes", `node="default"`, "1000x30"),
	},
	{
		name: "PenstockStoreRightMissing", query: `max by (job, right) (rate_limiter_store_right_missing{right="info"}) == 1`, wait: 10 * time.Minute, severity: "info",
		summary: "The health of Redis is not known", description: "The user of {{ $labels.job }} in Redis lacks the right +{{ $labels.right }}.",
		fires: series("rate_limiter_store_right_missing", `right="info"`, "1x30"),
		quiet: together(series("rate_limiter_store_right_missing", `right="info"`, "0x30"), series("rate_limiter_store_right_missing", `right="scan"`, "1x30")),
	},
}

// runbook returns the URL of the section about an alert.
func (a *alert) runbook() string { return runbooks + "#" + strings.ToLower(a.name) }

func alertsYAML(alerts []alert) string {
	var b strings.Builder
	b.WriteString(generated + "# Load rules.yaml too. The queries with the metric up contain the job name penstock, as in prometheus.yml. Change it here if your job has another name.\ngroups:\n  - name: penstock\n    rules:\n")
	for _, a := range alerts {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n", a.name, quoted(a.query))
		if a.wait > 0 {
			fmt.Fprintf(&b, "        for: %ds\n", int(a.wait.Seconds()))
		}
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n        annotations:\n          summary: %s\n          description: %s\n          runbook_url: %s\n",
			a.severity, quoted(a.summary), quoted(a.description), quoted(a.runbook()))
	}
	return b.String()
}

// testsYAML returns two unit tests of each alert, for promtool.
func testsYAML() string {
	var b strings.Builder
	b.WriteString("rule_files: [alerts.yaml, rules.yaml]\nevaluation_interval: 1m\ntests:\n")
	for _, a := range alerts {
		a.writeTest(&b, a.fires, 1)
		a.writeTest(&b, a.quiet, 0)
	}
	return b.String()
}

// writeTest writes a test that expects a number of firing alerts near the end of the inputs.
// Queries that compare with yesterday have inputs of more than a day.
func (a *alert) writeTest(b *strings.Builder, inputs []input, firing int) {
	at := "25m"
	if a.wait >= time.Hour {
		at = "80m"
	}
	if strings.Contains(a.query, "offset 1d") {
		at = "24h40m"
	}
	fmt.Fprintf(b, "  - interval: 1m\n    name: %s\n    input_series:\n", quoted(fmt.Sprintf("%s: want %d firing", a.name, firing)))
	for _, in := range inputs {
		fmt.Fprintf(b, "      - {series: %s, values: %s}\n", quoted(in.series), quoted(in.values))
	}
	fmt.Fprintf(b, "    promql_expr_test:\n      - eval_time: %s\n        expr: %s\n        exp_samples: [{labels: '{}', value: %d}]\n",
		at, quoted(fmt.Sprintf(`count(ALERTS{alertname=%q, alertstate="firing"}) or vector(0)`, a.name)), firing)
}
