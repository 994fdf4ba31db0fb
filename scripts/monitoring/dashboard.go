package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A panel is one chart, or one number, of the dashboard.
type panel struct {
	title, about string // about is shown when the user points at the panel
	kind         string // timeseries, stat or state-timeline
	unit         string // in Grafana's notation
	width        int    // in columns of the grid
	queries      []query
	max          float64 // of the axis; 0: the largest value of the data
	isStacked    bool
	warn         float64           // a stat is red from this value on; 0: never
	names        map[string]string // words to show instead of numbers
}

// Widths in columns of Grafana's grid.
const (
	gridColumns = 24
	chartWidth  = gridColumns / 3
	statWidth   = gridColumns / 6
)

type query struct{ text, legend string }

// A row is a section of the dashboard.
type row struct {
	title       string
	isCollapsed bool
	panels      []panel
}

// Label matchers of queries. They match what the user selects in the variables of the dashboard.
const (
	selected     = `job=~"$job", instance=~"$instance"`
	selectedRule = selected + `, rule=~"$rule"`
)

// chart returns a panel with a line over time for each series.
func chart(title, about, unit string, queries ...query) panel {
	return panel{title: title, about: about, kind: "timeseries", unit: unit, width: chartWidth, queries: queries}
}

func stacked(p panel) panel { p.isStacked = true; return p }

func upTo(max float64, p panel) panel { p.max = max; return p }

// stat returns a panel with one number, which is red from warn on if warn is not 0.
func stat(title, about, unit string, warn float64, text string) panel {
	return panel{title: title, about: about, kind: "stat", unit: unit, width: statWidth, warn: warn, queries: []query{{text, ""}}}
}

func withNames(names map[string]string, p panel) panel { p.names = names; return p }

// states returns a panel of a number over time. The panel shows the words in names, not the
// numbers.
func states(title, about string, names map[string]string, queries ...query) panel {
	return panel{title: title, about: about, kind: "state-timeline", unit: "none", width: chartWidth, queries: queries, names: names}
}

// rate returns a query for the rate per second of a counter. It adds the rates of all series that
// have the same values of the labels in by.
func rate(by, series, matchers string) string {
	return "sum by (" + by + ") (rate(" + series + "{" + matchers + "}[$__rate_interval]))"
}

// sumRate returns a query for the rate per second of a counter, added over all series.
func sumRate(series, matchers string) string {
	return "sum(rate(" + series + "{" + matchers + "}[$__rate_interval]))"
}

// quantile returns a query for the quantile q of a histogram, for each value of the labels in by.
// The parameter by is empty or ends with a comma.
func quantile(q, by, series, matchers string) string {
	return "histogram_quantile(" + q + ", " + rate(by+"le", series+"_bucket", matchers) + ")"
}

// percentile returns the query for a percentile of a histogram over all series, such as 99.
func percentile(percent float64, series, matchers string) query {
	q := strconv.FormatFloat(percent/100, 'f', -1, 64)
	return query{quantile(q, "", series, matchers), fmt.Sprintf("%g %%", percent)}
}

// ofServers returns a query for a number of each Redis server. All instances report the numbers of
// the same servers, so the query takes the largest number that an instance reports.
func ofServers(series string) string { return "max by (node) (" + series + "{" + selected + "})" }

// rateOfServers is ofServers for the rate per second of a counter.
func rateOfServers(series string) string {
	return "max by (node) (rate(" + series + "{" + selected + "}[$__rate_interval]))"
}

// dashboard returns all panels.
func dashboard() []row {
	noYes := map[string]string{"0": "no", "1": "yes"}
	const node, rule = "{{node}}", "{{rule}}" // legends
	return []row{
		{title: "Overview", panels: []panel{
			stat("Requests", "", "reqps", 0, sumRate("rate_limiter_requests_total", selected)),
			stat("Rejected", "", "percentunit", 0, sumRate("rate_limiter_rejected_total", selected)+" / "+sumRate("rate_limiter_requests_total", selected)),
			stat("Decided without Redis", "Decisions of fallbacks: on_failure is local, open or closed.", "percentunit", 0.001,
				sumRate("rate_limiter_decisions_total", selected+`, source=~"fallback|open|closed"`)+" / "+sumRate("rate_limiter_decisions_total", selected)),
			stat("99 % of decisions within", "", "s", 0.1, quantile("0.99", "", "rate_limiter_latency_seconds", selected)),
			stat("Instances", "Running instances that share the store.", "none", 0, "max(rate_limiter_instances{"+selected+"})"),
			withNames(map[string]string{"0": "decides", "1": "fails"},
				stat("Redis", "Fails if at least one instance gets no decisions.", "none", 1, "max(rate_limiter_store_degraded{"+selected+"})")),
		}},
		{title: "Requests", panels: []panel{
			stacked(chart("Requests by outcome", "", "reqps", query{rate("outcome", "rate_limiter_requests_total", selectedRule), "{{outcome}}"})),
			chart("Requests by rule", "", "reqps", query{rate("rule", "rate_limiter_requests_total", selectedRule), rule}),
			chart("Rejected requests by rule and limit", "", "reqps",
				query{rate("rule, limit", "rate_limiter_rejected_total", selectedRule), "{{rule}} {{limit}}"}),
			upTo(1, chart("Rejected part of each rule", "", "percentunit",
				query{rate("rule", "rate_limiter_rejected_total", selectedRule) + " / " + rate("rule", "rate_limiter_requests_total", selectedRule), rule})),
			chart("Shadows", "Requests that shadow limits would have rejected, beside the requests that limits rejected.", "reqps",
				query{rate("rule, limit", "rate_limiter_shadow_rejected_total", selectedRule) + " > 0", "shadow {{rule}} {{limit}}"},
				query{rate("rule", "rate_limiter_rejected_total", selectedRule), "enforced {{rule}}"}),
			chart("Requests that wait", "They wait because a limit has max_wait.", "none",
				query{"sum by (instance) (rate_limiter_requests_waiting{" + selected + "})", "{{instance}}"}),
		}},
		{title: "Decisions", panels: []panel{
			stacked(chart("Decisions by source", "Who decided: Redis, the deny cache, a lease, or a fallback.", "reqps",
				query{rate("source", "rate_limiter_decisions_total", selected), "{{source}}"})),
			chart("Uncounted requests", "They passed although a limit with on_failure: open did not count them.", "reqps",
				query{"sum by (instance) (rate(rate_limiter_requests_uncounted_total{" + selected + "}[$__rate_interval]))", "{{instance}}"}),
			chart("Time of decisions", "", "s",
				percentile(50, "rate_limiter_latency_seconds", selectedRule),
				percentile(95, "rate_limiter_latency_seconds", selectedRule),
				percentile(99, "rate_limiter_latency_seconds", selectedRule)),
			chart("99 % of decisions within, by rule", "", "s", query{quantile("0.99", "rule, ", "rate_limiter_latency_seconds", selectedRule), rule}),
			chart("Failed calls to Redis by reason", "", "ops",
				query{rate("reason", "rate_limiter_errors_total", selected) + " > 0", "{{reason}}"},
				query{sumRate("rate_limiter_decisions_unknown_outcome_total", selected), "may have been charged"}),
			states("Circuit breakers", "The worst state that an instance reports.", map[string]string{"0": "closed", "1": "half open", "2": "open"},
				query{"max by (node) (rate_limiter_breaker_state{" + selected + "})", node}),
			states("Redis decides", "", map[string]string{"0": "yes", "1": "no"}, query{"rate_limiter_store_degraded{" + selected + "}", "{{instance}}"}),
			chart("Changes of breakers", "", "ops", query{rate("to", "rate_limiter_breaker_changes_total", selected), "{{to}}"}),
			chart("Cached denials", "", "none", query{"sum by (instance) (rate_limiter_deny_cache_entries{" + selected + "})", "{{instance}}"}),
			chart("Leased units", "Units that instances drew in advance: drawn, spent, returned, expired or lost.", "ops",
				query{rate("fate", "rate_limiter_lease_units_total", selected), "{{fate}}"}),
		}},
		{title: "Redis", panels: []panel{
			chart("Time of self-tests", "Decisions that an instance sends once a second.", "s",
				percentile(50, "rate_limiter_store_probe_seconds", selected),
				percentile(99, "rate_limiter_store_probe_seconds", selected)),
			upTo(1, chart("CPU of the main thread", "1 is the most that a server can use, because one thread runs all scripts.", "percentunit",
				query{rateOfServers("rate_limiter_store_cpu_seconds_total"), node})),
			chart("Time of a script in Redis", "Mean over the scripts of all clients.", "s",
				query{rateOfServers("rate_limiter_store_script_seconds_total") + " / " + rateOfServers("rate_limiter_store_script_calls_total"), node}),
			chart("Memory", "", "bytes",
				query{ofServers("rate_limiter_store_memory_used_bytes"), "used " + node},
				query{ofServers("rate_limiter_store_memory_max_bytes") + " > 0", "maxmemory " + node}),
			chart("Keys", "Keys of all programs in all databases.", "short", query{ofServers("rate_limiter_store_keys"), node}),
			stacked(chart("Keys by rule", "Estimated from a sample. The user in Redis needs the rights of penstock acl --role metrics.", "short",
				query{`max by (rule) (rate_limiter_store_rule_keys{` + selectedRule + `})`, rule})),
			chart("Deleted keys", "An evicted counter is forgotten: its client may use the limit again.", "ops",
				query{rateOfServers("rate_limiter_store_evicted_keys_total"), "evicted " + node},
				query{rateOfServers("rate_limiter_store_expired_keys_total"), "expired " + node}),
			chart("Script calls", "Calls of all clients.", "ops", query{rateOfServers("rate_limiter_store_script_calls_total"), node}),
			chart("Clients", "", "none",
				query{ofServers("rate_limiter_store_clients"), node},
				query{rateOfServers("rate_limiter_store_refused_connections_total"), "refused a second " + node}),
			chart("Replication", "Bytes that the slowest replica has not received.", "bytes",
				query{ofServers("rate_limiter_store_replication_lag_bytes"), node}),
			chart("Replicas", "", "none", query{ofServers("rate_limiter_store_replicas"), node}),
			chart("Cached scripts", "If there are more than 500, other programs fill the cache.", "none",
				query{ofServers("rate_limiter_store_cached_scripts"), node}),
			chart("Scripts sent and loaded", "noscript: Redis had lost a script. eval: the right +script|load is missing.", "ops",
				query{rate("event", "rate_limiter_scripts_total", selected), "{{event}}"}),
			states("Servers that may evict counters", "", noYes, query{ofServers("rate_limiter_store_can_evict"), node}),
			states("Missing rights in Redis", "", noYes, query{"max by (right) (rate_limiter_store_right_missing{" + selected + "})", "{{right}}"}),
			chart("Steps of the clock of Redis", "", "none",
				query{"max by (direction) (increase(rate_limiter_clock_steps_total{" + selected + "}[$__rate_interval]))", "{{direction}}"}),
		}},
		{title: "Backend", isCollapsed: true, panels: []panel{
			chart("Allowed requests beside the backend's pool", "Set the variables to gauges of your backend, such as those of its connection pool.", "short",
				query{sumRate("rate_limiter_allowed_total", selectedRule), "requests a second"},
				query{"sum(${backend_used})", "in use"},
				query{"sum(${backend_max})", "pool"}),
			upTo(1, chart("Use of the backend's pool", "", "percentunit", query{"sum(${backend_used}) / sum(${backend_max})", "in use"})),
			chart("CPU of the backend", "In cores, of all its instances. Set the variable to a counter of CPU seconds.", "none",
				query{"sum(rate(${backend_cpu}[$__rate_interval]))", "cores"}),
			chart("Memory of the backend", "Of each instance. Set the variable to a gauge of bytes.", "bytes", query{"${backend_memory}", "{{instance}} {{pod}}"}),
		}},
		{title: "Instances", isCollapsed: true, panels: []panel{
			chart("CPU of instances", "", "percentunit", query{"rate(process_cpu_seconds_total{" + selected + "}[$__rate_interval])", "{{instance}}"}),
			chart("Memory of instances", "", "bytes", query{"process_resident_memory_bytes{" + selected + "}", "{{instance}}"}),
			chart("Open files", "", "none",
				query{"process_open_fds{" + selected + "}", "{{instance}}"},
				query{"min(process_max_fds{" + selected + "})", "limit"}),
			chart("Goroutines", "", "none", query{"go_goroutines{" + selected + "}", "{{instance}}"}),
			chart("Connections", "", "none",
				query{"sum(rate_limiter_grpc_connections{" + selected + "})", "gRPC"},
				query{"sum(rate_limiter_resp_connections{" + selected + "})", "Redis clients"}),
			chart("Calls by gRPC", "", "reqps", query{rate("service, code", "rate_limiter_grpc_calls_total", selected), "{{service}} {{code}}"}),
			chart("Refused callers", "Calls with a wrong token, or without one.", "ops",
				query{rate("reason", "rate_limiter_api_auth_failures_total", selected), "JSON: {{reason}}"},
				query{rate("reason", "rate_limiter_grpc_auth_failures_total", selected), "gRPC: {{reason}}"},
				query{rate("reason", "rate_limiter_resp_auth_failures_total", selected), "RESP: {{reason}}"},
				query{rate("reason", "rate_limiter_admin_auth_failures_total", selected), "admin: {{reason}}"}),
			chart("Rejected tokens", "Requests with such a token are limited as if they had no token.", "ops",
				query{rate("reason", "rate_limiter_tokens_rejected_total", selected) + " > 0", "{{reason}}"}),
			chart("Lost log lines", "", "ops", query{rate("instance", "rate_limiter_log_lines_lost_total", selected), "{{instance}}"}),
			states("The last reload of the policy succeeded", "", noYes,
				query{"rate_limiter_config_last_reload_successful{" + selected + "}", "{{instance}}"}),
			chart("Age of the policy", "Time since the policy was last loaded.", "s",
				query{"time() - rate_limiter_config_last_reload_success_timestamp_seconds{" + selected + "}", "{{instance}}"}),
			chart("Reloads", "", "ops", query{rate("outcome", "rate_limiter_config_reloads_total", selected), "{{outcome}}"}),
			chart("Certificates expire in", "Certificates of listeners with TLS.", "s",
				query{"min by (listener) (rate_limiter_certificate_expiry_timestamp_seconds{" + selected + "}) - time()", "{{listener}}"}),
			stat("Versions", "Number of different versions that run.", "none", 2, "count(count by (version) (rate_limiter_build_info{"+selected+"}))"),
		}},
	}
}

// seriesVariables are the variables of the dashboard that stand for series, with their defaults.
var seriesVariables = map[string]string{
	"backend_used":   "hikaricp_connections_active",
	"backend_max":    "hikaricp_connections_max",
	"backend_cpu":    `process_cpu_seconds_total{job="backend"}`,
	"backend_memory": `process_resident_memory_bytes{job="backend"}`,
}

// queriesOf returns the texts of all queries in some rows.
func queriesOf(rows []row) (texts []string) {
	for _, r := range rows {
		for _, p := range r.panels {
			for _, q := range p.queries {
				texts = append(texts, q.text)
			}
		}
	}
	return texts
}

var variable = regexp.MustCompile(`\$\{(\w+)\}`)

// withoutVariables replaces the variables in a query by values, as Grafana does before it sends the
// query.
func withoutVariables(text string) string {
	text = variable.ReplaceAllStringFunc(text, func(v string) string { return seriesVariables[v[2:len(v)-1]] })
	for _, v := range []struct{ name, value string }{{"$__rate_interval", "5m"}, {"$job", ".+"}, {"$instance", ".+"}, {"$rule", ".+"}} {
		text = strings.ReplaceAll(text, v.name, v.value)
	}
	return text
}

// object is a JSON object. Its fields are written in the order of their names.
type object = map[string]any

// schemaVersion is the version of Grafana 10.4 and 11. Later versions of Grafana convert the
// dashboard.
const schemaVersion = 39

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

func dashboardJSON() string {
	d := object{
		"title": "Penstock", "uid": "penstock", "tags": []string{"penstock", "rate-limiting"}, "schemaVersion": schemaVersion, "version": 1, "editable": true,
		"graphTooltip": 1, // all panels show the time at which the user points
		"description":  "Rate limits: which requests are allowed and rejected, who decides, and how well Redis works.",
		"time":         object{"from": "now-1h", "to": "now"}, "refresh": "30s", "timezone": "", "annotations": object{"list": []any{}},
		"links":  []any{object{"title": "Runbooks", "type": "link", "url": runbooks, "targetBlank": true, "icon": "doc"}},
		"panels": layout(dashboard()), "templating": object{"list": variables()},
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(d); err != nil {
		panic(err) // JSON has a form for all these values
	}
	return b.String()
}

func variables() []any {
	// values returns a variable whose values are the result of a query.
	values := func(name, label, text string) object {
		return object{"name": name, "label": label, "type": "query", "datasource": datasource, "query": object{"query": text, "refId": "values"}, "definition": text,
			"refresh":    2, // when the time range changes
			"sort":       1, // alphabetically
			"includeAll": true, "multi": true, "allValue": ".+", "current": object{"text": []string{"All"}, "value": []string{"$__all"}}}
	}
	// text returns a variable for series, which the user writes: a name, or one with labels.
	text := func(name, label string) object {
		value := seriesVariables[name]
		return object{"name": name, "label": label, "type": "textbox", "query": value, "current": object{"text": value, "value": value}}
	}
	return []any{
		object{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": object{}, "hide": 0},
		values("job", "Job", "label_values(rate_limiter_build_info, job)"),
		values("instance", "Instance", `label_values(rate_limiter_build_info{job=~"$job"}, instance)`),
		values("rule", "Rule", `label_values(rate_limiter_requests_total{job=~"$job"}, rule)`),
		text("backend_used", "Backend: series of the number in use"),
		text("backend_max", "Backend: series of the size of its pool"),
		text("backend_cpu", "Backend: counter of its CPU seconds"),
		text("backend_memory", "Backend: series of its memory"),
	}
}

// layout places the panels from left to right, and begins a new line when a line is full. A
// collapsed row contains its panels. The panels of other rows follow the row in the list.
func layout(rows []row) (placed []any) {
	id, y := 0, 0
	for _, r := range rows {
		id++
		header := object{
			"id": id, "type": "row", "title": r.title, "collapsed": r.isCollapsed, "panels": []any{},
			"gridPos": object{"h": 1, "w": gridColumns, "x": 0, "y": y},
		}
		y++
		var inside []any
		x, lineHeight := 0, 0 // lineHeight is that of the highest panel in the line
		for _, p := range r.panels {
			if x+p.width > gridColumns {
				x, y, lineHeight = 0, y+lineHeight, 0
			}
			id++
			inside = append(inside, p.object(id, object{"h": p.height(), "w": p.width, "x": x, "y": y}))
			x += p.width
			lineHeight = max(lineHeight, p.height())
		}
		y += lineHeight
		if r.isCollapsed {
			header["panels"] = inside
			inside = nil
		}
		placed = append(append(placed, header), inside...)
	}
	return placed
}

// height returns the height of the panel in units of Grafana's grid. A panel that is narrower than
// a chart shows one number.
func (p *panel) height() int {
	if p.width < chartWidth {
		return 4
	}
	return 8
}

// object returns the panel in the format of Grafana.
func (p *panel) object(id int, place object) object {
	targets := make([]any, len(p.queries))
	for i, q := range p.queries {
		targets[i] = object{
			"refId": string(rune('A' + i)), "datasource": datasource, "expr": q.text, "legendFormat": q.legend,
			"instant": p.kind == "stat", "range": p.kind != "stat",
		}
	}
	thresholds := []any{object{"color": "green", "value": nil}}
	if p.warn > 0 {
		thresholds = append(thresholds, object{"color": "red", "value": p.warn})
	}
	defaults := object{"unit": p.unit, "min": 0, "thresholds": object{"mode": "absolute", "steps": thresholds}}
	if p.max > 0 {
		defaults["max"] = p.max
	}
	if p.names != nil {
		shown := object{}
		for number, name := range p.names {
			shown[number] = object{"text": name}
		}
		defaults["mappings"] = []any{object{"type": "value", "options": shown}}
	}
	result := object{
		"id": id, "type": p.kind, "title": p.title, "description": p.about, "gridPos": place,
		"datasource": datasource, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}},
	}
	switch p.kind {
	case "timeseries":
		custom := object{
			"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": false,
			"stacking": object{"mode": "none", "group": "A"},
		}
		if p.isStacked {
			custom["fillOpacity"] = 30 // percent
			custom["stacking"] = object{"mode": "normal", "group": "A"}
		}
		defaults["custom"], defaults["color"] = custom, object{"mode": "palette-classic"}
		result["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	case "stat":
		result["options"] = object{"colorMode": "value", "graphMode": "none", "reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}}
	case "state-timeline":
		delete(defaults, "min")
		defaults["color"] = object{"mode": "palette-classic"}
		result["options"] = object{"mergeValues": true, "showValue": "auto", "legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}}
	}
	return result
}
