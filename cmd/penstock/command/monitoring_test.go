package command

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// servedLabels has the label values of a scrape: by series, then by label.
type servedLabels map[string]map[string]map[string]bool

var (
	sampleLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? [^ ]+$`) // NAME{LABELS} VALUE

	// Parts of PromQL.
	literal     = regexp.MustCompile(`"[^"]*"`)
	grouping    = regexp.MustCompile(`\b(?:by|on|ignoring|without|group_left|group_right) \(([^)]*)\)`)
	timeSpan    = regexp.MustCompile(`\[[^\]]*\]|\boffset \w+|\b\d[\w.]*`)   // or another number
	word        = regexp.MustCompile(`([a-zA-Z_:][\w:]*)(\{[^}]*\}|\s*\()?`) // a series with its selector, or a function with "("
	matcher     = regexp.MustCompile(`(\w+)(=~|=|!=|!~)"([^"]*)"`)           // a label and its values, in a selector
	plainValues = regexp.MustCompile(`^[\w|]*$`)                             // values of a matcher: words with | between them, and no other regular expression

	// Parts of Grafana's queries.
	grafanaVariable = regexp.MustCompile(`\$\{\w+\}`)
	labelValues     = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`) // a query for the values of a label
)

// labelsOf parses a scrape. Like Prometheus, it adds the labels job and instance to each series.
func labelsOf(page string) servedLabels {
	all := make(servedLabels)
	add := func(series string) {
		if all[series] == nil {
			all[series] = map[string]map[string]bool{"job": {"penstock": true}, "instance": {}}
		}
	}
	add("up")
	for _, m := range sampleLine.FindAllStringSubmatch(page, -1) {
		series, labels := m[1], m[2]
		add(series)
		for _, p := range labelPair.FindAllStringSubmatch(labels, -1) {
			label, value := p[1], p[2]
			if all[series][label] == nil {
				all[series][label] = make(map[string]bool)
			}
			all[series][label][value] = true
		}
	}
	return all
}

// check reports each series in a query that no instance serves, and each label and value that a
// series does not have. It returns the number of series in the query.
func (all servedLabels) check(t *testing.T, where, query string) (seriesCount int) {
	t.Helper()
	groupedBy := "" // the labels of all groupings, with commas
	rest := grafanaVariable.ReplaceAllString(query, " ")
	for _, m := range grouping.FindAllStringSubmatch(rest, -1) {
		groupedBy += "," + m[1]
	}
	rest = grouping.ReplaceAllString(rest, " ")
	rest = timeSpan.ReplaceAllString(literalsToSpaces(rest), " ")
	labels := map[string]bool{} // of all series in the query
	for _, m := range word.FindAllStringSubmatch(rest, -1) {
		name, suffix := m[1], m[2] // the suffix is a selector, the "(" of a function, or ""
		switch {
		case strings.HasSuffix(suffix, "("), slices.Contains([]string{"and", "or", "unless", "bool", "by", "on"}, name):
			continue
		case all[name] == nil:
			t.Errorf("%s: no instance has the series %s of the query %s", where, name, query)
			continue
		}
		seriesCount++
		for label := range all[name] {
			labels[label] = true
		}
		if suffix == "" {
			continue
		}
		_, selector, _ := strings.Cut(query, name+"{")
		selector, _, _ = strings.Cut(selector, "}")
		for _, m := range matcher.FindAllStringSubmatch(selector, -1) {
			label, values := m[1], m[3]
			if all[name][label] == nil {
				t.Errorf("%s: the series %s has no label %s, as in the query %s", where, name, label, query)
			}
			if !plainValues.MatchString(values) {
				continue
			}
			for value := range strings.SplitSeq(values, "|") {
				if !all[name][label][value] {
					t.Errorf("%s: no series %s has %s=%q, as in the query %s", where, name, label, value, query)
				}
			}
		}
	}
	for label := range strings.SplitSeq(groupedBy, ",") {
		if label = strings.TrimSpace(label); label != "" && !labels[label] {
			t.Errorf("%s: no series has the label %s, as in the query %s", where, label, query)
		}
	}
	return seriesCount
}

// literalsToSpaces replaces string literals by spaces, so that all other text keeps its position.
func literalsToSpaces(text string) string {
	return literal.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat(" ", len(s)) })
}

// yamlValues returns the values of a field in a file with one field per line.
func yamlValues(t *testing.T, file, field string) (values []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../deploy/prometheus", file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		value, found := strings.CutPrefix(strings.TrimLeft(strings.TrimSpace(line), "- "), field+": ")
		if found && strings.HasPrefix(value, `"`) && json.Unmarshal([]byte(value), &value) != nil {
			t.Errorf("%s: the value %s of %s is not a string", file, value, field)
		}
		if found {
			values = append(values, value)
		}
	}
	return values
}

// queriesOfDashboard returns the queries of all panels and variables.
func queriesOfDashboard(t *testing.T) (queries []string) {
	t.Helper()
	d := readDashboard(t)
	for _, p := range d.panels() {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if m := labelValues.FindStringSubmatch(v.Definition); m != nil {
			series, label := m[1], m[2]
			queries = append(queries, "count by ("+label+") ("+series+")")
		}
	}
	return queries
}

var promqlBlock = regexp.MustCompile("(?s)```promql\n(.*?)```")

// checkMonitoring checks each query of the dashboard, the alerts, the rules and the docs against a
// scrape.
func checkMonitoring(t *testing.T, page string) {
	t.Helper()
	all := labelsOf(page)
	for _, name := range yamlValues(t, "rules.yaml", "record") {
		all[name] = make(map[string]map[string]bool)
		labels, _, _ := strings.Cut(name, ":") // a recorded series begins with its labels, as in rule_limit:…
		for label := range strings.SplitSeq(labels, "_") {
			all[name][label] = map[string]bool{}
		}
	}
	queries := map[string][]string{"rules.yaml": yamlValues(t, "rules.yaml", "expr"), "alerts.yaml": yamlValues(t, "alerts.yaml", "expr"), "dashboard.json": queriesOfDashboard(t)}
	docs, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("the docs are %q, %v; want some pages", docs, err)
	}
	for _, path := range docs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range promqlBlock.FindAllStringSubmatch(string(text), -1) {
			queries[path] = append(queries[path], strings.Split(strings.TrimSpace(m[1]), "\n")...)
		}
	}
	seriesCount := 0
	for _, where := range slices.Sorted(maps.Keys(queries)) {
		for _, query := range queries[where] {
			n := all.check(t, where, query)
			if n == 0 && !strings.Contains(query, "${") {
				t.Errorf("%s: no series was found in the query %s; want at least one", where, query)
			}
			seriesCount += n
		}
	}
	if len(queries["rules.yaml"]) < 5 || len(queries["alerts.yaml"]) < 20 || len(queries["dashboard.json"]) < 50 {
		t.Errorf("found %d rules, %d alerts and %d queries of the dashboard; want at least 5, 20 and 50", len(queries["rules.yaml"]), len(queries["alerts.yaml"]), len(queries["dashboard.json"]))
	}
	t.Logf("counted: %d series in queries of the dashboard, alerts, rules and docs that an instance has", seriesCount)
}
