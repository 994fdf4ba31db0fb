//go:build checks

// Package alerts checks the files of deploy/prometheus and deploy/grafana with promtool, and runs
// the alerts in a real Prometheus. Prometheus scrapes two instances of Penstock, which share a real
// Redis. Their Redis user has the rights that "penstock acl --role metrics" prints.
package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

const deploy = "../../deploy/"

func TestPromtoolAcceptsTheFiles(t *testing.T) {
	files := deploy + "prometheus/"
	process.Run(t, "promtool", "check", "config", files+"prometheus.yml")
	process.Run(t, "promtool", "check", "rules", files+"alerts.yaml", files+"rules.yaml", queriesFile(t))
	process.Run(t, "promtool", "test", "rules", files+"tests.yaml")
	t.Logf("counted: %d unit tests of alerts", strings.Count(process.ReadFile(t, files+"tests.yaml"), "promql_expr_test"))
}

// queriesFile writes a file with a recording rule for each query of the dashboard, and returns its
// path. Like Grafana, it replaces the variables by values.
func queriesFile(t *testing.T) (path string) {
	var dashboard struct {
		Panels     any
		Templating struct{ List []struct{ Name, Query any } }
	}
	if err := json.Unmarshal([]byte(process.ReadFile(t, deploy+"grafana/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "5m", "$job", ".+", "$instance", ".+", "$rule", ".+"}
	for _, v := range dashboard.Templating.List {
		variables = append(variables, fmt.Sprintf("${%v}", v.Name), fmt.Sprint(v.Query))
	}
	var rules []map[string]string
	var add func(any) // adds the queries in a value
	add = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, element := range value {
				add(element)
			}
		case map[string]any:
			if query, isQuery := value["expr"].(string); isQuery {
				rules = append(rules, map[string]string{"record": fmt.Sprint("query:", len(rules)), "expr": strings.NewReplacer(variables...).Replace(query)})
			}
			for _, field := range value {
				add(field)
			}
		}
	}
	add(dashboard.Panels)
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "queries.yaml")
	process.WriteFile(t, path, string(text))
	return path
}

// Redis is killed and started again, and then the instances are killed. After each step, the
// expected alerts fire, and others do not.
func TestAlertsFire(t *testing.T) {
	redis := redistest.Start(t, "--maxmemory", "100mb") // a query of the dashboard needs a maxmemory
	allowUser := func() {
		line := process.Run(t, process.Penstock(t), "acl", "--role", "metrics")
		if _, err := redis.Do(strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	allowUser()
	var instances []*process.Service
	for range 2 {
		s := process.Serve(t, "--demo", "--store=redis://limiter:SECRET@"+redis.Addr, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
			"--api=127.0.0.1:0", "--grpc=127.0.0.1:0", "--resp=127.0.0.1:0")
		go sendRequests(t.Context(), "http://"+s.Listen+"/api/fares/estimate")
		instances = append(instances, s)
	}
	checkScrape(t, instances[0])
	p := startPrometheus(t, instances[0].Admin, instances[1].Admin)
	p.awaitHealthyRules(strings.Count(process.ReadFile(t, deploy+"prometheus/alerts.yaml"), "- alert: "))
	p.checkQueries()

	// An instance notices a loss of keys only after two heartbeats that are 10 s apart.
	p.Await("the instances have run for 12 s", func() error {
		old, err := p.query(`min(time() - process_start_time_seconds{job="penstock"}) > 12`)
		if err == nil && old == "" {
			err = errors.New("an instance is younger")
		}
		return err
	})
	redis.Kill()
	quiet := []string{"PenstockDown", "PenstockAllDown", "PenstockStoreRejectsCalls", "PenstockRequestsUnlimited", "PenstockReloadFailed", "PenstockStoreEvicts"}
	p.awaitFiring("the kill of Redis", []string{"PenstockStoreDegraded", "PenstockBreakerOpen", "PenstockStoreErrors"}, quiet)
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	allowUser()
	p.awaitFiring("the restart of Redis without its data", []string{"PenstockStoreLostKeys"}, append(quiet, "PenstockStoreDegraded", "PenstockBreakerOpen"))
	instances[1].Signal(os.Kill)
	p.awaitFiring("the kill of one instance", []string{"PenstockDown"}, []string{"PenstockAllDown"})
	instances[0].Signal(os.Kill)
	p.awaitFiring("the kill of all instances", []string{"PenstockDown", "PenstockAllDown"}, nil)
}

// sendRequests sends ten requests a second until ctx ends.
func sendRequests(ctx context.Context, url string) {
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if res, err := http.Get(url); err == nil { // the instance may be killed
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}
	}
}

// checkScrape waits until an instance exports the metrics of its store, and makes promtool check
// Penstock's own metrics. The names of the metrics go_* and process_* come from a library.
func checkScrape(t *testing.T, s *process.Service) {
	page := ""
	s.Await("the metrics have rate_limiter_store_rule_keys", func() (err error) {
		page, err = process.Get("http://" + s.Admin + "/metrics")
		if err == nil && !strings.Contains(page, "\nrate_limiter_store_rule_keys{") {
			err = errors.New("/metrics has no such series")
		}
		return err
	})
	if strings.Contains(page, `rate_limiter_store_right_missing{right="info"} 1`) {
		t.Error(`the Redis user that "penstock acl --role metrics" prints lacks the right +info`)
	}
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(strings.Join(regexp.MustCompile(`(?m)^.*rate_limiter_.*\n`).FindAllString(page, -1), ""))
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// A prometheus is a running Prometheus.
type prometheus struct {
	*process.Process
	t   *testing.T
	api string // URL
}

// startPrometheus runs Prometheus with the configuration of deploy/. It changes the addresses,
// shortens the intervals, makes alerts fire soon, and adds the queries of the dashboard as rules.
func startPrometheus(t *testing.T, instances ...string) *prometheus {
	dir := t.TempDir()
	config := process.ReadFile(t, deploy+"prometheus/prometheus.yml")
	for _, change := range []struct{ from, to string }{
		{`"127.0.0.1:9180"`, `"` + strings.Join(instances, `", "`) + `"`},
		{"scrape_interval: 15s", "scrape_interval: 1s"},
		{"evaluation_interval: 15s", "evaluation_interval: 1s"},
		{"rules.yaml, alerts.yaml", "rules.yaml, alerts.yaml, " + queriesFile(t)},
	} {
		if !strings.Contains(config, change.from) {
			t.Fatalf("prometheus.yml does not contain the text %q, which this test replaces", change.from)
		}
		config = strings.Replace(config, change.from, change.to, 1)
	}
	process.WriteFile(t, dir+"/prometheus.yml", config)
	process.WriteFile(t, dir+"/rules.yaml", process.ReadFile(t, deploy+"prometheus/rules.yaml"))
	alerts := process.ReadFile(t, deploy+"prometheus/alerts.yaml")
	process.WriteFile(t, dir+"/alerts.yaml", regexp.MustCompile(`for: \w+`).ReplaceAllString(alerts, "for: 1s"))
	address := process.FreeAddress(t)
	p := &prometheus{t: t, api: "http://" + address + "/api/v1/", Process: process.Start(t, "prometheus", exec.Command("prometheus",
		"--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address))}
	p.Await("Prometheus reaches both instances", func() error {
		up, err := p.query(`count(up{job="penstock"} == 1)`)
		if err == nil && up != "2" {
			err = fmt.Errorf("Prometheus reaches %q instances; want 2", up)
		}
		return err
	})
	return p
}

// query returns the first number in the result of a query, or "" if the result is empty.
func (p *prometheus) query(text string) (string, error) {
	page, err := process.Get(p.api + "query?query=" + url.QueryEscape(text))
	if err != nil {
		return "", err
	}
	var answer struct {
		Data struct {
			Result []struct{ Value []any } // each value is a time and a number
		}
	}
	if err := json.Unmarshal([]byte(page), &answer); err != nil || len(answer.Data.Result) == 0 {
		return "", err
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1]), nil
}

// A rule is a rule in a response of Prometheus' API.
type rule struct {
	Name, Type, Query, Health, LastError string
	Alerts                               []struct {
		State       string
		Annotations map[string]string
	}
}

// rules returns all rules that Prometheus has loaded, and the names of the alerts that fire. It
// fails if Prometheus cannot evaluate a rule, or fill in the description of an alert.
func (p *prometheus) rules() (all []rule, firing []string, err error) {
	text, err := process.Get(p.api + "rules")
	if err != nil {
		return nil, nil, err
	}
	var answer struct {
		Data struct{ Groups []struct{ Rules []rule } }
	}
	err = json.Unmarshal([]byte(text), &answer)
	for _, group := range answer.Data.Groups {
		all = append(all, group.Rules...)
	}
	// If Prometheus cannot fill in a description, it is the template, or says "error expanding".
	unfilled := regexp.MustCompile(`error.* expanding|<no value>|\{\{`)
	for _, r := range all {
		if r.Health == "err" {
			return nil, nil, fmt.Errorf("Prometheus cannot evaluate %s: %s", r.Name, r.LastError)
		}
		for _, a := range r.Alerts {
			if a.State == "firing" && !slices.Contains(firing, r.Name) {
				firing = append(firing, r.Name)
			}
			if text := a.Annotations["description"]; a.State == "firing" && unfilled.MatchString(text) {
				return nil, nil, fmt.Errorf("the description of alert %s was not filled in: %q", r.Name, text)
			}
		}
	}
	slices.Sort(firing)
	return all, firing, err
}

// awaitFiring waits until all alerts in want fire, and none of those in quiet. event is what has
// just happened, for messages.
func (p *prometheus) awaitFiring(event string, want, quiet []string) {
	p.t.Helper()
	begin := time.Now()
	var firing []string
	p.Await(fmt.Sprintf("after %s, the alerts %q fire, and the alerts %q do not", event, want, quiet), func() (err error) {
		if _, firing, err = p.rules(); err != nil {
			return err
		}
		isFiring := func(name string) bool { return slices.Contains(firing, name) }
		isQuiet := func(name string) bool { return !isFiring(name) }
		if slices.ContainsFunc(want, isQuiet) || slices.ContainsFunc(quiet, isFiring) {
			err = fmt.Errorf("the firing alerts are %q", firing)
		}
		return err
	})
	p.t.Logf("%.0f s after %s, the firing alerts are %q", time.Since(begin).Seconds(), event, firing)
}

// awaitHealthyRules waits until Prometheus evaluates all rules, and no alert fires.
func (p *prometheus) awaitHealthyRules(wantAlerts int) {
	p.Await("all rules are evaluated, and no alert fires", func() error {
		all, firing, err := p.rules()
		if err != nil {
			return err
		}
		alerts := 0
		for _, r := range all {
			if r.Health != "ok" {
				return fmt.Errorf("the health of rule %s is %q; want ok", r.Name, r.Health)
			}
			if r.Type == "alerting" {
				alerts++
			}
		}
		if alerts != wantAlerts || len(firing) > 0 {
			return fmt.Errorf("%d alerts are loaded, and %q fire; want %d, and none", alerts, firing, wantAlerts)
		}
		return nil
	})
}

// checkQueries checks that the queries of the dashboard have results. Some queries may have none
// here: those that show only numbers above zero, and those about an application or about TLS.
func (p *prometheus) checkQueries() {
	all, _, err := p.rules()
	if err != nil {
		p.t.Fatal(err)
	}
	mayBeEmpty := regexp.MustCompile(`> 0$|hikaricp|job="backend"|certificate`)
	withResult := 0
	for _, r := range all {
		if !strings.HasPrefix(r.Name, "query:") {
			continue
		}
		p.Await("the dashboard shows "+r.Query, func() error {
			n, err := p.query("count(" + r.Name + ")")
			if n != "" {
				withResult++
			} else if err == nil && !mayBeEmpty.MatchString(r.Query) {
				err = errors.New("the query has no result")
			}
			return err
		})
	}
	p.t.Logf("%d rules are evaluated, and %d queries of the dashboard have results", len(all), withResult)
}
