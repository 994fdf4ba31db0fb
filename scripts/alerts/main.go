// Command alerts checks the alerts and the dashboard of deploy/ with promtool, and runs them in a
// real Prometheus. Prometheus scrapes two instances of Penstock, which share a real Redis. Their
// Redis user has the rights that "penstock acl --role metrics" prints. The command kills Redis and
// starts it again, and then kills the instances. After each step, the expected alerts must fire,
// and others must not. The arguments are the penstock binary, the folder deploy, and the folder
// that "monitoring -test" has written.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("alerts: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: alerts PENSTOCK DEPLOY CHECKS")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(binary, deploy, checks string) error {
	dir, err := os.MkdirTemp("", "alerts-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e := &experiment{binary: binary, deploy: filepath.Join(deploy, "prometheus"), checks: checks, dir: dir}
	defer e.end()
	steps := []func() error{
		e.checkFiles,
		e.startRedis, e.startInstances, e.checkScrape,
		e.startPrometheus, e.awaitQuiet, e.checkQueries,
		e.checkOutage, e.checkLostInstances,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// An experiment has the arguments of the command, and the servers that it runs.
type experiment struct {
	binary string // path of penstock
	deploy string // folder deploy/prometheus
	checks string // folder that "monitoring -test" has written
	dir    string // temporary folder

	redis        *redistest.Server
	store        string // URL of Redis, with the user that e.allowUser makes
	instances    []*instance
	prometheus   string // address of Prometheus
	processes    []*process
	stopRequests context.CancelFunc // ends sendRequests
}

// An instance is a running penstock serve.
type instance struct {
	*process
	listen string // address of the proxy
	admin  string // address of the metrics and health checks
}

func (e *experiment) end() {
	if e.stopRequests != nil {
		e.stopRequests()
	}
	for _, p := range e.processes {
		p.kill()
	}
	if e.redis != nil {
		e.redis.Close()
	}
}

// promtool runs promtool. If it fails, the error has its output.
func promtool(stdin string, args ...string) error {
	cmd := exec.Command("promtool", args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// checkFiles makes promtool check the files and run the unit tests of the alerts.
func (e *experiment) checkFiles() error {
	// All files are copied into one folder, because tests.yaml names the files that it tests without
	// a folder.
	file := func(name string) string { return filepath.Join(e.dir, name) }
	copyFile := func(from, name string) error {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		return os.WriteFile(file(name), text, 0o644)
	}
	for _, name := range []string{"alerts.yaml", "rules.yaml"} {
		if err := copyFile(e.deploy, name); err != nil {
			return err
		}
	}
	for _, name := range []string{"soon.yaml", "queries.yaml", "tests.yaml"} {
		if err := copyFile(e.checks, name); err != nil {
			return err
		}
	}
	if err := errors.Join(
		promtool("", "check", "config", filepath.Join(e.deploy, "prometheus.yml")),
		promtool("", "check", "rules", file("alerts.yaml"), file("rules.yaml"), file("queries.yaml")),
		promtool("", "test", "rules", file("tests.yaml")),
	); err != nil {
		return err
	}
	tests, err := os.ReadFile(file("tests.yaml"))
	if err != nil {
		return err
	}
	count := bytes.Count(tests, []byte("promql_expr_test"))
	log.Printf("promtool accepts the configuration and the rules, and %d unit tests pass", count)
	return nil
}

// startRedis starts Redis, and makes the user of the instances. Redis has a maxmemory, because a
// query of the dashboard has no result without one.
func (e *experiment) startRedis() (err error) {
	if e.redis, err = redistest.Launch("--maxmemory", "100mb"); err != nil {
		return err
	}
	e.store = "redis://limiter:SECRET@" + e.redis.Addr
	return e.allowUser()
}

// allowUser makes a user in Redis with the rights that "penstock acl" prints.
func (e *experiment) allowUser() error {
	line, err := exec.Command(e.binary, "acl", "--role", "metrics").Output()
	if err != nil {
		return err
	}
	_, err = e.redis.Do(strings.Fields(string(line))...)
	return err
}

func (e *experiment) startInstances() error {
	ctx, cancel := context.WithCancel(context.Background())
	e.stopRequests = cancel
	for i := range 2 {
		in := &instance{listen: freeAddress(), admin: freeAddress()}
		cmd := exec.Command(e.binary, "serve", "--demo", "--store", e.store, "--listen", in.listen, "--admin-listen", in.admin,
			"--api", freeAddress(), "--grpc", freeAddress(), "--resp", freeAddress())
		var err error
		if in.process, err = e.start(fmt.Sprint("instance", i), cmd); err != nil {
			return err
		}
		if err := in.await("the instance is ready", func() error {
			_, err := get("http://" + in.admin + "/readyz")
			return err
		}); err != nil {
			return err
		}
		e.instances = append(e.instances, in)
		go sendRequests(ctx, "http://"+in.listen+"/api/fares/estimate")
	}
	return nil
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
// all metrics.
func (e *experiment) checkScrape() error {
	page := ""
	err := e.instances[0].await("the metrics have rate_limiter_store_rule_keys", func() (err error) {
		if page, err = get("http://" + e.instances[0].admin + "/metrics"); err != nil {
			return err
		}
		if !strings.Contains(page, "\nrate_limiter_store_rule_keys{") {
			return errors.New("/metrics has no series rate_limiter_store_rule_keys")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if strings.Contains(page, "rate_limiter_store_right_missing{right=\"info\"} 1") {
		return errors.New(`the Redis user that "penstock acl --role metrics" prints lacks the right +info`)
	}
	// promtool gets Penstock's own metrics only: it also checks names, and the names of the metrics
	// go_* and process_* come from a library.
	var ownMetrics strings.Builder
	series := 0
	for line := range strings.Lines(page) {
		if strings.Contains(line, "rate_limiter_") {
			ownMetrics.WriteString(line)
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
	}
	if err := promtool(ownMetrics.String(), "check", "metrics"); err != nil {
		return err
	}
	log.Printf("promtool accepts the %d series of an instance", series)
	return nil
}

// startPrometheus runs Prometheus with the configuration of deploy/. It changes the addresses,
// shortens the intervals, makes alerts fire soon, and adds the queries of the dashboard as rules.
func (e *experiment) startPrometheus() error {
	text, err := os.ReadFile(filepath.Join(e.deploy, "prometheus.yml"))
	if err != nil {
		return err
	}
	config := string(text)
	for _, change := range []struct{ from, to string }{
		{`"127.0.0.1:9180"`, `"` + e.instances[0].admin + `", "` + e.instances[1].admin + `"`},
		{"scrape_interval: 15s", "scrape_interval: 1s"},
		{"evaluation_interval: 15s", "evaluation_interval: 1s"},
		{"rules.yaml, alerts.yaml", "rules.yaml, soon.yaml, queries.yaml"},
	} {
		if !strings.Contains(config, change.from) {
			return fmt.Errorf("prometheus.yml does not contain the text %q, which this test replaces", change.from)
		}
		config = strings.Replace(config, change.from, change.to, 1)
	}
	file := filepath.Join(e.dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	e.prometheus = freeAddress()
	p, err := e.start("prometheus", exec.Command("prometheus", "--config.file", file,
		"--storage.tsdb.path", filepath.Join(e.dir, "data"), "--web.listen-address", e.prometheus))
	if err != nil {
		return err
	}
	return p.await("Prometheus reaches both instances", func() error {
		up, err := e.query(`count(up{job="penstock"} == 1)`)
		if err == nil && up != "2" {
			err = fmt.Errorf("Prometheus reaches %q instances; want 2", up)
		}
		return err
	})
}

// A loadedRule is a rule in a response of Prometheus' API.
type loadedRule struct {
	Name, Type, Query, Health, LastError, State string
	Alerts                                      []struct {
		State               string
		Labels, Annotations map[string]string
	}
}

// loadedRules returns all rules that Prometheus has loaded, those for alerts included.
func (e *experiment) loadedRules() (all []loadedRule, err error) {
	text, err := get("http://" + e.prometheus + "/api/v1/rules")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Groups []struct{ Rules []loadedRule }
		}
	}
	err = json.Unmarshal([]byte(text), &answer)
	for _, group := range answer.Data.Groups {
		all = append(all, group.Rules...)
	}
	return all, err
}

// query returns the first number in the result of a query, or "" if the result is empty.
func (e *experiment) query(text string) (string, error) {
	page, err := get("http://" + e.prometheus + "/api/v1/query?query=" + url.QueryEscape(text))
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

// firingAlerts returns the names of the alerts that fire. It fails if Prometheus cannot evaluate a
// rule or fill in the description of an alert.
func (e *experiment) firingAlerts() (names []string, err error) {
	rules, err := e.loadedRules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if r.Health == "err" {
			return nil, fmt.Errorf("Prometheus cannot evaluate %s: %s", r.Name, r.LastError)
		}
		for _, a := range r.Alerts {
			if a.State != "firing" {
				continue
			}
			if !slices.Contains(names, r.Name) {
				names = append(names, r.Name)
			}
			if text := a.Annotations["description"]; !isFilledIn(text) {
				return nil, fmt.Errorf("the template of the description of alert %s was not filled in: %q", r.Name, text)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// isFilledIn reports whether Prometheus could fill in the template of a description. If it could
// not, the description is the template or "error expanding template".
func isFilledIn(description string) bool {
	isError := strings.Contains(description, "error") && strings.Contains(description, "expanding")
	return !isError && !strings.Contains(description, "<no value>") && !strings.Contains(description, "{{")
}

// awaitFiring waits until all alerts in firing fire, and none of those in quiet. event is what has
// just happened, for messages.
func (e *experiment) awaitFiring(event string, firing, quiet []string) error {
	begin := time.Now()
	var current []string // the alerts that fire
	what := fmt.Sprintf("after %s, the alerts %q fire, and the alerts %q do not", event, firing, quiet)
	err := e.prometheusProcess().await(what, func() (err error) {
		if current, err = e.firingAlerts(); err != nil {
			return err
		}
		for _, name := range firing {
			if !slices.Contains(current, name) {
				return fmt.Errorf("%s does not fire; the firing alerts are %q", name, current)
			}
		}
		for _, name := range quiet {
			if slices.Contains(current, name) {
				return fmt.Errorf("%s fires; the firing alerts are %q", name, current)
			}
		}
		return nil
	})
	if err == nil {
		log.Printf("%.0f s after %s, the firing alerts are %q", time.Since(begin).Seconds(), event, current)
	}
	return err
}

func (e *experiment) prometheusProcess() *process {
	return e.processes[slices.IndexFunc(e.processes, func(p *process) bool { return p.name == "prometheus" })]
}

// awaitQuiet waits until Prometheus evaluates all rules, and no alert fires.
func (e *experiment) awaitQuiet() error {
	if err := e.prometheusProcess().await("all rules are evaluated, and no alert fires", func() error {
		rules, err := e.loadedRules()
		if err != nil {
			return err
		}
		alerts := 0
		for _, r := range rules {
			if r.Health != "ok" {
				return fmt.Errorf("the health of rule %s is %q, with the error %q; want ok", r.Name, r.Health, r.LastError)
			}
			if r.State == "firing" {
				return fmt.Errorf("the alert %s fires", r.Name)
			}
			if r.Type == "alerting" {
				alerts++
			}
		}
		text, err := os.ReadFile(filepath.Join(e.dir, "alerts.yaml"))
		if want := bytes.Count(text, []byte("- alert: ")); err == nil && alerts != want {
			err = fmt.Errorf("%d alerts are loaded; want %d", alerts, want)
		}
		return err
	}); err != nil {
		return err
	}
	rules, err := e.loadedRules()
	if err != nil {
		return err
	}
	log.Printf("Prometheus evaluates all %d rules, and no alert fires", len(rules))
	return nil
}

// checkQueries checks that the queries of the dashboard have results. Some queries may have none
// here: those that show only numbers above zero, and those about an application or about TLS.
func (e *experiment) checkQueries() error {
	rules, err := e.loadedRules()
	if err != nil {
		return err
	}
	withResult, withoutResult := 0, 0
	for _, r := range rules {
		if !strings.HasPrefix(r.Name, "query:") {
			continue
		}
		isOfApplication := strings.Contains(r.Query, "hikaricp") || strings.Contains(r.Query, `job="backend"`)
		isOfTLS := strings.Contains(r.Query, "certificate")
		mayBeEmpty := strings.HasSuffix(r.Query, "> 0") || isOfApplication || isOfTLS
		err := e.prometheusProcess().await("the dashboard shows "+r.Query, func() error {
			n, err := e.query("count(" + r.Name + ")")
			switch {
			case err != nil:
			case n != "":
				withResult++
			case mayBeEmpty:
				withoutResult++
			default:
				err = errors.New("the query has no result")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	log.Printf("%d queries of the dashboard have results; %d would need an error, a shadow, an application or TLS", withResult, withoutResult)
	return nil
}

func (e *experiment) checkOutage() error {
	// An instance notices a loss of keys only after two heartbeats that are 10 s apart.
	if err := e.prometheusProcess().await("the instances have run for 12 s", func() error {
		old, err := e.query(`min(time() - process_start_time_seconds{job="penstock"}) > 12`)
		if err == nil && old == "" {
			err = errors.New("an instance is younger")
		}
		return err
	}); err != nil {
		return err
	}
	e.redis.Kill()
	quiet := []string{"PenstockDown", "PenstockAllDown", "PenstockStoreRejectsCalls", "PenstockRequestsUnlimited", "PenstockReloadFailed", "PenstockStoreEvicts"}
	if err := e.awaitFiring("the kill of Redis", []string{"PenstockStoreDegraded", "PenstockBreakerOpen", "PenstockStoreErrors"}, quiet); err != nil {
		return err
	}
	if err := errors.Join(e.redis.Restart(), e.allowUser()); err != nil {
		return err
	}
	return e.awaitFiring("the restart of Redis without its data", []string{"PenstockStoreLostKeys"}, append(quiet, "PenstockStoreDegraded", "PenstockBreakerOpen"))
}

func (e *experiment) checkLostInstances() error {
	e.instances[1].kill()
	if err := e.awaitFiring("the kill of one instance", []string{"PenstockDown"}, []string{"PenstockAllDown"}); err != nil {
		return err
	}
	e.instances[0].kill()
	return e.awaitFiring("the kill of all instances", []string{"PenstockDown", "PenstockAllDown"}, nil)
}

// A process is a running server with its log file.
type process struct {
	name, log string // log is the path of the file
	cmd       *exec.Cmd
	done      chan struct{} // is closed when the process has ended
}

func (e *experiment) start(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name, filepath.Join(e.dir, name+".log"), cmd, make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	e.processes = append(e.processes, p)
	go func() {
		_ = cmd.Wait() // await reports a process that has ended
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// await waits until check returns nil, for a minute at most. The parameter what describes the
// expected state. If await fails, its error has the end of the process' log.
func (p *process) await(what string, check func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		hasEnded := false
		select {
		case <-p.done:
			hasEnded = true
		default:
		}
		if hasEnded || time.Now().After(deadline) {
			const shown = 2000 // bytes of the log
			text, _ := os.ReadFile(p.log)
			return fmt.Errorf("%s: this never became true: %s: %w\n%s", p.name, what, err, text[max(0, len(text)-shown):])
		}
	}
}

func get(url string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", url, res.Status, text)
	}
	return string(text), err
}

// freeAddress returns an address on which nothing listens.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
