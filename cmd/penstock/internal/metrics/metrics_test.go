package metrics

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/penstock/penstock/admission"
)

var search, login = Rule{"search", "second", "token-bucket"}, Rule{"login", "hour", "sliding-log"}

func TestNamesAndHelpPassThePrometheusLinter(t *testing.T) {
	m := New("v1.2.3")
	m.SetRules([]Rule{search})
	m.CountRequest(search, admission.Allowed, time.Millisecond)
	m.Guards(someGuards)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("counted: %d metrics without a complaint of the linter", len(families))
}

// sums returns the counters of a scrape, summed over their series, and the number of series.
func sums(t *testing.T, m *Metrics) (map[string]float64, int) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found, series := make(map[string]float64), 0
	for _, family := range families {
		for _, metric := range family.Metric {
			found[family.GetName()] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			series++
		}
	}
	return found, series
}

func TestAllowedPlusRejectedIsRequestsInEveryScrape(t *testing.T) {
	m := New("")
	m.SetRules([]Rule{search, login})
	const workers, each = 8, 20_000
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				rule, outcome := []Rule{search, login, {"gone", "y", "x"}}[i%3], outcomes[(i/3+w)%len(outcomes)]
				if isWithoutRule(outcome) {
					rule = Rule{}
				}
				m.CountRequest(rule, outcome, time.Microsecond)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	scrapes := 0
	for running := true; running; scrapes++ {
		select {
		case <-ended:
			running = false
		default:
		}
		got, _ := sums(t, m)
		if got["rate_limiter_requests_total"] != got["rate_limiter_allowed_total"]+got["rate_limiter_rejected_total"] {
			t.Fatalf("scrape %d: %v requests, %v allowed, %v rejected", scrapes, got["rate_limiter_requests_total"], got["rate_limiter_allowed_total"],
				got["rate_limiter_rejected_total"])
		}
	}
	got, _ := sums(t, m)
	if got["rate_limiter_requests_total"]+got["rate_limiter_shadow_allowed_total"]+got["rate_limiter_shadow_rejected_total"] != workers*each ||
		got["rate_limiter_latency_seconds"] != workers*each || got["rate_limiter_shadow_rejected_total"] == 0 {
		t.Errorf("counted %v", got)
	}
	t.Logf("counted: %d scrapes in which the sums agreed (%d checks)", scrapes, workers*each)
}

func TestEachOutcomeHasItsSum(t *testing.T) {
	for _, o := range outcomes {
		m := New("")
		m.SetRules([]Rule{search})
		m.CountRequest(search, o, 0)
		got, _ := sums(t, m)
		want := "rate_limiter_rejected_total"
		switch o.String() {
		case "allowed", "failed_open", "unlimited", "exempt":
			want = "rate_limiter_allowed_total"
		case "shadow_allowed", "shadow_denied":
			want = strings.Replace("rate_limiter_"+o.String()+"_total", "denied", "rejected", 1)
		}
		for _, name := range []string{"allowed", "rejected", "shadow_allowed", "shadow_rejected"} {
			if name = "rate_limiter_" + name + "_total"; (got[name] == 1) != (name == want) {
				t.Errorf("%s: %s is %v", o, name, got[name])
			}
		}
	}
}

func TestTrafficMakesNoSeries(t *testing.T) {
	m := New("")
	m.SetRules([]Rule{search, login})
	for _, o := range outcomes {
		m.CountRequest(search, o, time.Millisecond)
	}
	m.CountRequest(Rule{"unknown", "x", "y"}, admission.Denied, time.Millisecond)
	_, before := sums(t, m)
	const hostile = 100_000
	for i := range hostile {
		m.CountRequest(Rule{fmt.Sprintf("search\n%d", i), "x", "\xff"}, admission.Denied, time.Duration(i))
		m.Error(fmt.Sprint("dial tcp: lookup ", i), false)
	}
	if _, after := sums(t, m); after != before {
		t.Errorf("%d series became %d", before, after)
	}
	t.Logf("counted: %d unknown names that made no series", hostile)
}

func TestSeriesFollowTheRules(t *testing.T) {
	m := New("")
	series := func(rules ...Rule) int {
		m.SetRules(rules)
		_, n := sums(t, m)
		return n
	}
	none, one, two := series(), series(search), series(search, login)
	m.CountRequest(search, admission.Allowed, time.Millisecond)
	m.CountRequest(login, admission.Allowed, time.Millisecond)
	if again := series(search); two-one != one-none || again != one+1 { // its histogram
		t.Errorf("with 0, 1, 2 and 1 rules there are %d, %d, %d and %d series", none, one, two, again)
	}
	if got, _ := sums(t, m); got["rate_limiter_allowed_total"] != 1 {
		t.Errorf("the rule that stayed lost its count: %v", got["rate_limiter_allowed_total"])
	}
}

func TestARuleBesideThePolicyStays(t *testing.T) {
	m, call := New(""), Rule{"call", "call", "token-bucket"}
	m.SetRules([]Rule{search})
	m.CountRequest(search, admission.Allowed, time.Millisecond)
	m.AddRule(call)
	for _, rules := range [][]Rule{{search}, {search, login}, {login}, nil, {search}} {
		m.CountRequest(call, admission.Denied, time.Millisecond)
		m.SetRules(rules)
	}
	counts := *m.rules.Load()
	if n := counts[call].outcomes[admission.Denied].Load(); n != 5 {
		t.Errorf("%d calls are counted; want 5", n)
	}
	if len(counts) != 3 || counts[search].outcomes[admission.Allowed].Load() != 0 || counts[login] != nil {
		t.Errorf("after rule search was removed and added there are %v", counts)
	}
	m.SetRules([]Rule{search})
	m.CountRequest(search, admission.Allowed, time.Millisecond)
	m.AddRule(login)
	if n := (*m.rules.Load())[search].outcomes[admission.Allowed].Load(); n != 1 {
		t.Errorf("a rule of the policy has %d requests after another was added; want 1", n)
	}
}

func TestCheckAllocatesNothing(t *testing.T) {
	m := New("")
	m.SetRules([]Rule{search, login})
	if n := testing.AllocsPerRun(10_000, func() { m.CountRequest(login, admission.Denied, 3*time.Millisecond) }); n != 0 {
		t.Errorf("a check allocates %v times", n)
	}
}

func TestReloadsAreCounted(t *testing.T) {
	m := New("")
	const reload, stamp, total = "rate_limiter_config_last_reload_successful", "rate_limiter_config_last_reload_success_timestamp_seconds", "rate_limiter_config_reloads_total"
	m.Loaded(time.Unix(100, 0))
	if got, _ := sums(t, m); got[reload] != 1 || got[stamp] != 100 || got[total] != 0 {
		t.Errorf("after the first load: %v", got)
	}
	m.Reloaded(errors.New("line 3"), time.Unix(200, 0))
	if got, _ := sums(t, m); got[reload] != 0 || got[stamp] != 100 || got[total] != 1 {
		t.Errorf("after a broken reload: %v", got)
	}
	m.Reloaded(nil, time.Unix(300, 0))
	if got, _ := sums(t, m); got[reload] != 1 || got[stamp] != 300 || got[total] != 2 {
		t.Errorf("after a good reload: %v", got)
	}
}

func TestPageHasTheNames(t *testing.T) {
	m := New("v1.2.3")
	m.SetRules([]Rule{search})
	m.CountRequest(search, admission.Denied, 3*time.Millisecond)
	m.AddWaiting(func() int { return 2 })
	m.AddWaiting(func() int { return 3 })
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequest("GET", "/metrics", nil))
	page, _ := io.ReadAll(recorder.Body)
	for _, line := range []string{
		`rate_limiter_requests_total{algorithm="token-bucket",limit="second",outcome="denied",rule="search"} 1`,
		`rate_limiter_allowed_total{algorithm="token-bucket",limit="second",rule="search"} 0`,
		`rate_limiter_rejected_total{algorithm="token-bucket",limit="second",rule="search"} 1`,
		`rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="search",le="0.005"} 1`,
		`rate_limiter_shadow_rejected_total{algorithm="token-bucket",limit="second",rule="search"} 0`,
		`rate_limiter_errors_total{reason="unreachable"} 0`,
		`rate_limiter_requests_waiting 5`,
		`version="v1.2.3"`,
		`go_goroutines`, `process_open_fds`,
	} {
		if !strings.Contains(string(page), line) {
			t.Errorf("the page lacks %s", line)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	m := New("")
	m.SetRules([]Rule{search, login})
	b.ReportAllocs()
	for b.Loop() {
		m.CountRequest(login, admission.Denied, 300*time.Microsecond)
	}
}
