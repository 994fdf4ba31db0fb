// Command monitoring writes the files in deploy/ that monitor Penstock with Prometheus and Grafana:
// the dashboard, the alerts and the recording rules. A test checks that those files are up to date.
//
//	go run ./monitoring ../deploy
//
// With -test it writes the files that "make alerts" needs:
//
//   - soon.yaml: the same alerts, which fire after a second
//   - queries.yaml: a recording rule for each query of the dashboard
//   - tests.yaml: unit tests for promtool, with a firing and a quiet case of each alert
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	isTest := flag.Bool("test", false, "write the files that make alerts needs")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: monitoring [-test] FOLDER")
		os.Exit(2)
	}
	files := deployedFiles()
	if *isTest {
		files = testFiles()
	}
	if err := writeFiles(flag.Arg(0), files); err != nil {
		fmt.Fprintln(os.Stderr, "monitoring:", err)
		os.Exit(1)
	}
}

// deployedFiles returns the texts of the files in deploy/ by their paths.
func deployedFiles() map[string]string {
	return map[string]string{
		"grafana/dashboard.json": dashboardJSON(),
		"prometheus/alerts.yaml": alertsYAML(alerts),
		"prometheus/rules.yaml":  rulesYAML(rules),
	}
}

func writeFiles(folder string, files map[string]string) error {
	for path, text := range files {
		path = filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// testFiles returns the texts of the files that make alerts needs, by their paths.
func testFiles() map[string]string {
	soon := make([]alert, len(alerts))
	for i, a := range alerts {
		soon[i] = a
		soon[i].wait = time.Second
	}
	var queries []rule
	for i, query := range queriesOf(dashboard()) {
		queries = append(queries, rule{name: fmt.Sprintf("query:%d", i), query: withoutVariables(query)})
	}
	return map[string]string{
		"soon.yaml":    alertsYAML(soon),
		"queries.yaml": rulesYAML(queries),
		"tests.yaml":   testsYAML(),
	}
}

// quoted returns a text as a JSON string, which is also valid in YAML.
func quoted(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		panic(err) // JSON has a form for every string
	}
	return strings.TrimSuffix(b.String(), "\n")
}

const generated = "# Written by scripts/monitoring (make monitoring). Change it there.\n"
