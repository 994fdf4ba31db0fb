package command

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/load"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// TestLoadCountsAsTheServerDoes: the report of a load test and the metrics of the server have the
// same numbers, and the server keeps its limit for each client.
func TestLoadCountsAsTheServerDoes(t *testing.T) {
	config := writeFile(t, "rules.yaml", "rules: [{name: api, per: {key: header X-API-Key}, limits: [{rate: 5/s, burst: 8}]}]\n")
	p := startProcess(t, "--config="+config, "--admin-listen=127.0.0.1:0")
	code, out, stderr := command("load", "--target", "http://"+p.listen+"/api/fares/estimate", "--arrivals", "400/s poisson for 1s; 100 at 500ms", "--clients", "10", "-H", "X-API-Key: k$client",
		"--limit", "5/s, burst 8", "--fail-if", "over_limit > 0", "--fail-if", "denied > 99%", "--fail-if", "unanswered >= 1", "-o", "json")
	var r load.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		t.Fatalf("exit status %d, %v, %s\n%s", code, err, stderr, out)
	}
	counted := make(map[string]int64)
	for _, m := range regexp.MustCompile(`(?m)^rate_limiter_(allowed|rejected)_total{[^}]*rule="api"} (\d+)`).FindAllStringSubmatch(mustGet(t, "http://"+p.admin+"/metrics"), -1) {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		counted[m[1]] += n
	}
	if r.Allowed != counted["allowed"] || r.Denied != counted["rejected"] || r.Sent != r.Allowed+r.Denied || r.Allowed < 80 || r.Denied < 100 {
		t.Errorf("load counts %+v, and the server %v; want the same numbers, with at least 80 allowed and 100 denied", r.Counts, counted)
	}
	if r.Latency.Count != r.Allowed || r.Denials.Count != r.Denied || r.Limit.Counters != 10 || r.Limit.Excess != 0 {
		t.Errorf("the latencies have %d and %d requests, and the report is %+v; want all of %+v, and 10 counters", r.Latency.Count, r.Denials.Count, r.Limit, r.Counts)
	}
}

func TestLoadFindsALimitThatDoesNotHold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) }))
	defer server.Close()
	args := []string{"load", "--target", server.URL, "--arrivals", "30 at 0s", "--limit", "10/s, burst 20", "--fail-if", "over_limit > 0"}
	code, out, stderr := command(args...)
	missing := missingIn(out, "30 requests sent", "30 (100 %) allowed", "--limit: at most 20 and 10/s for each client", "OVER THE LIMIT: 1 of 1 counters admitted", "client 1 30 in")
	if code != exitProblem || missing != nil || !strings.Contains(stderr, "--fail-if over_limit > 0 holds") {
		t.Errorf("exit status %d, %s; the report lacks %q:\n%s", code, stderr, missing, out)
	}
	server.Close()
	code, out, stderr = command(args...)
	if code != exitUnreachable || !strings.Contains(stderr, "no request was answered") || !strings.Contains(out, "30 (100 %) without an answer: connection refused") {
		t.Errorf("without a server: exit status %d, %s\n%s; want %d", code, stderr, out, exitUnreachable)
	}
}

// Answers that failed say nothing about the limit, unless --allowed-status names their status.
func TestLoadJudgesOnlyAnswersThatWereAdmitted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer server.Close()
	args := []string{"load", "--target", server.URL, "--arrivals", "30 at 0s", "--limit", "5/15min", "--fail-if", "over_limit > 0"}
	code, out, stderr := command(args...)
	if code != exitInternal || !strings.Contains(out, "no answer has a status below 400; for a limit on failures, write --allowed-status 401") || !strings.Contains(stderr, "over_limit > 0 was not judged, because no limit was") {
		t.Errorf("exit status %d, %s; want %d, and the reason in\n%s", code, stderr, exitInternal, out)
	}
	code, out, stderr = command(append(args, "--allowed-status", "401")...)
	if missing := missingIn(out, "30 (100 %) allowed", "OVER THE LIMIT"); code != exitProblem || missing != nil {
		t.Errorf("exit status %d, %s; the report lacks %q:\n%s", code, stderr, missing, out)
	}
}

// The store of the target spends half of its time in scripts.
func TestLoadMeasuresTheStore(t *testing.T) {
	redis := redistest.Start(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := redis.Do("EVAL", "for i = 1, 1000000 do end", "0"); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	args := []string{"load", "--target", server.URL, "--arrivals", "10 at 0s; 10 at 200ms", "--store", redis.URL()}
	for condition, want := range map[string]int{"store_cpu > 0.1%": exitProblem, "store_cpu > 101%": exitOK, "p99 > 60s": exitOK} {
		if code, out, stderr := command(append(args, "--fail-if", condition)...); code != want || !strings.Contains(out, redis.URL()+": its busiest server used ") {
			t.Errorf("--fail-if %q: exit status %d, %s; want %d\n%s", condition, code, stderr, want, out)
		}
	}
	gone := redistest.Start(t) // the report is printed also if the store cannot be read at the end
	stop := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { gone.Kill() }))
	defer stop.Close()
	if code, out, stderr := command("load", "--target", stop.URL, "--arrivals", "1 at 0s", "--store", gone.URL()); code == exitOK || !strings.Contains(out, "1 request sent") || !strings.Contains(stderr, "--store: the servers cannot be measured") {
		t.Errorf("a store that ends: exit status %d, %s; want an error, and the report in\n%s", code, stderr, out)
	}
	if code, _, stderr := command("load", "--target", server.URL, "--fail-if", "store_cpu > 1%"); code != exitUsage || !strings.Contains(stderr, "add --store") {
		t.Errorf("without --store: exit status %d, %s; want %d", code, stderr, exitUsage)
	}
	if code, _, stderr := command("load", "--target", server.URL, "--store", "redis://127.0.0.1:1"); code == exitOK || !strings.Contains(stderr, "--store: the servers cannot be measured") {
		t.Errorf("without a server: exit status %d, %s; want an error", code, stderr)
	}
}

// A machine that is too slow says nothing about the server.
func TestLatenciesOfASlowMachineAreNotJudged(t *testing.T) {
	for _, c := range []struct {
		isSlow bool
		p99    float64
		unsent int64
		failIf []string
		code   int
		want   string
	}{
		{false, 11, 0, []string{"p99 > 10ms"}, exitProblem, "--fail-if p99 > 10ms holds"},
		{false, 11, 0, []string{"p99 > 11ms", "p99 > 0.5s"}, exitOK, ""},
		{false, 11, 0, []string{"p99 >= 11000us"}, exitProblem, "holds"},
		{true, 11, 0, []string{"p99 > 10ms"}, exitInternal, "p99 > 10ms was not judged"},
		{true, 1, 0, []string{"p99 > 10ms"}, exitInternal, "was not judged"},
		{true, 11, 0, []string{"p99 > 10ms", "failed > 2"}, exitProblem, "failed > 2 holds"},
		{true, 11, 0, []string{"failed > 30%"}, exitOK, ""},
		{false, 0, 0, []string{"p99 > 10ms"}, exitInternal, "because no request was allowed"},
		{false, 11, 5, []string{"p99 > 10ms"}, exitProblem, "holds"},
		{false, 1, 5, []string{"p99 > 10ms"}, exitInternal, "because requests were not sent"},
	} {
		r := &load.Report{Counts: load.Counts{Sent: 10, Failed: 3}, Latency: load.Latency{Count: int64(c.p99), P99: c.p99}, Client: load.Client{IsLimit: c.isSlow}, Unsent: c.unsent, Limit: &load.LimitReport{}}
		var thresholds []*threshold
		for _, text := range c.failIf {
			x, err := readThreshold(text, []string{"failed"}, load.Quantiles)
			if err != nil {
				t.Fatal(err)
			}
			thresholds = append(thresholds, x)
		}
		var stderr bytes.Buffer
		code := exitStatus(newLoad(), judgeLoad(context.Background(), &stderr, r, thresholds))
		if code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%+v: exit status %d, %s; want %d", c, code, stderr.String(), c.code)
		}
	}
}

func TestLoadReportsWhenInterrupted(t *testing.T) {
	requests := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests <- struct{}{} }))
	defer server.Close()
	c := exec.Command(os.Args[0], "load", "--target", server.URL, "--arrivals", "20/s for 1h")
	c.Env = []string{"BE_PENSTOCK=1"}
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-requests
	}
	c.Process.Signal(syscall.SIGINT)
	if err := c.Wait(); err != nil || !strings.Contains(out.String(), "interrupted; this is the report so far") || !strings.Contains(out.String(), "(100 %) allowed") {
		t.Errorf("%v; want the report so far:\n%s", err, out.String())
	}
}

func TestLoadExplainsMistakes(t *testing.T) {
	const target = "--target http://127.0.0.1:1/ "
	for args, want := range map[string]string{
		"":                                         "a target is missing; write --target http://localhost:8080/",
		"extra":                                    `the argument "extra" is one too many`,
		"--target localhost:8080":                  "no URL with http:// or https://; write a URL",
		"--target ftp://a/":                        "no URL with http:// or https://",
		target + "--arrivals soon":                 `arrivals "soon"`,
		target + "--arrivals burst":                "add --limit",
		target + "--arrivals 10/s":                 "a rate needs an end",
		target + "--limit fast":                    "--limit: ",
		target + "-H X-API-Key":                    "write 'Name: value'",
		target + "--clients 0":                     "--clients is 0; write 1 to 1000000",
		target + "--on-denied retry":               "write drop or wait",
		target + "--timeout 0s":                    "--timeout is 0s",
		target + "-H X-API-Key:$clinet":            "a variable that is not known; $client and $address are",
		target + "--allowed-status 429":            "write statuses from 400 to 599 without 429",
		target + "--max-in-flight 0":               "--max-in-flight is 0",
		target + "--fail-if p99>10":                "p99 is a time; write us, ms or s",
		target + "--fail-if denied>1ms":            "denied is a count",
		target + "--fail-if p95>1ms":               `no count "p95"`,
		target + "--fail-if p99<1ms":               "'p99 > 10ms'",
		target + "-o yaml":                         `unknown output "yaml"`,
		target + "--source-addresses x":            "--source-addresses: ",
		target + "--source-addresses ::/8":         "more than 256 source addresses",
		target + "--source-addresses 127.0.0.0/30": "write --clients 4",
		target + "--clients 200000 --target http://a/?a=$address": "only 131072 have an $address",
	} {
		code, out, stderr := command(append([]string{"load"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) || out != "" {
			t.Errorf("load %s: exit status %d, %q and the output %.200q; want 2, and an error with %q", args, code, stderr, out, want)
		}
	}
	for _, text := range []string{"0 http://a/", "a b http://a/", "5 POST x http://a/", "G@T http://a/", " "} {
		if code, _, stderr := command("load", "--target", text); code != exitUsage || !strings.Contains(stderr, "the target ") {
			t.Errorf("load --target %q: exit status %d, %s; want 2", text, code, stderr)
		}
	}
}
