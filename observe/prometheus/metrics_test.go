package penstockprom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	"github.com/penstock/penstock/policy"
)

var (
	search = observe.Rule{Name: "search", Limit: "second", Algorithm: "token-bucket"}
	login  = observe.Rule{Name: "login", Limit: "hour", Algorithm: "sliding-log"}
)

// scrapedMetrics are Metrics with the registry that scrapes them.
type scrapedMetrics struct {
	*Metrics
	registry *prometheus.Registry
}

// newScrapedMetrics makes Metrics and a registry for them.
func newScrapedMetrics(o Options) scrapedMetrics {
	s := scrapedMetrics{New(o), prometheus.NewPedanticRegistry()}
	s.registry.MustRegister(s.Metrics)
	return s
}

// count counts a request.
func (s scrapedMetrics) count(rule observe.Rule, outcome admission.Outcome, latency time.Duration) {
	s.ObserveRequest(&admission.Event{Rule: rule.Name, Limit: rule.Limit, Algorithm: rule.Algorithm, Outcome: outcome, Latency: latency})
}

// gather returns the metrics of a scrape.
func (s scrapedMetrics) gather(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// sums returns the value of each metric in a scrape, added over its series, and the number of all
// series. The value of a histogram is how many latencies it has.
func (s scrapedMetrics) sums(t *testing.T) (found map[string]float64, series int) {
	t.Helper()
	found = make(map[string]float64)
	for _, family := range s.gather(t) {
		for _, metric := range family.Metric {
			found[family.GetName()] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			series++
		}
	}
	return found, series
}

func TestNamesAndHelpPassThePrometheusLinter(t *testing.T) {
	s := newScrapedMetrics(Options{})
	s.SetRules([]observe.Rule{search})
	s.count(search, admission.Allowed, time.Millisecond)
	s.SetGuards(someGuards)
	problems, err := testutil.GatherAndLint(s.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("the linter reports the problems %v and the error %v; want none", problems, err)
	}
	t.Logf("counted: %d metrics without a complaint of the linter", len(s.gather(t)))
}

func TestAllowedPlusRejectedIsRequestsInEveryScrape(t *testing.T) {
	s := newScrapedMetrics(Options{})
	s.SetRules([]observe.Rule{search, login})
	const workers = 8
	each, outcomes := effort.Of(4_000, 100_000), admission.Outcomes()
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				rule := []observe.Rule{search, login, {Name: "gone", Limit: "y", Algorithm: "x"}}[i%3]
				outcome := outcomes[(i/3+w)%len(outcomes)]
				if isWithoutRule(outcome) {
					rule = observe.Rule{}
				}
				s.count(rule, outcome, time.Microsecond)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	scrapes := 0
	for isRunning := true; isRunning; scrapes++ {
		select {
		case <-ended:
			isRunning = false
		default:
		}
		got, _ := s.sums(t)
		if got["rate_limiter_requests_total"] != got["rate_limiter_allowed_total"]+got["rate_limiter_rejected_total"] {
			t.Fatalf("scrape %d has %v requests, %v allowed and %v rejected; want the requests to be the sum of allowed and rejected", scrapes,
				got["rate_limiter_requests_total"], got["rate_limiter_allowed_total"], got["rate_limiter_rejected_total"])
		}
	}
	got, _ := s.sums(t)
	all := float64(workers * each)
	shadows := got["rate_limiter_shadow_allowed_total"] + got["rate_limiter_shadow_rejected_total"]
	if got["rate_limiter_requests_total"]+shadows != all || got["rate_limiter_latency_seconds"] != all || got["rate_limiter_shadow_rejected_total"] == 0 {
		t.Errorf("the counts are %v; want %v requests and shadows together, as many latencies, and some rejected by shadows", got, all)
	}
	t.Logf("counted: %d scrapes in which the sums agreed (%v requests)", scrapes, all)
}

func TestEachOutcomeBelongsToASum(t *testing.T) {
	for _, o := range admission.Outcomes() {
		s := newScrapedMetrics(Options{})
		s.SetRules([]observe.Rule{search})
		s.count(search, o, 0)
		got, _ := s.sums(t)
		want := "rate_limiter_rejected_total"
		switch o.String() {
		case "allowed", "failed_open", "unlimited", "exempt":
			want = "rate_limiter_allowed_total"
		case "shadow_allowed", "shadow_denied":
			want = strings.Replace("rate_limiter_"+o.String()+"_total", "denied", "rejected", 1)
		}
		for _, name := range []string{"requests", "allowed", "rejected", "shadow_allowed", "shadow_rejected"} {
			metric := "rate_limiter_" + name + "_total"
			isShadow := strings.Contains(want, "shadow")
			wantCount := 0.0
			if metric == want || name == "requests" && !isShadow {
				wantCount = 1
			}
			if got[metric] != wantCount {
				t.Errorf("after a request of outcome %s, %s is %v; want %v", o, metric, got[metric], wantCount)
			}
		}
	}
}

func TestAllCountsAreExported(t *testing.T) {
	s := newScrapedMetrics(Options{})
	s.SetRules([]observe.Rule{search})
	s.count(search, admission.Denied, time.Millisecond)
	s.CountError(penstock.NewStoreError(penstock.ReasonTimeout, nil))
	s.TokenRejected(&policy.TokenError{Reason: "expired"})
	s.AddWaiting(func() int { return 7 })
	page := s.page(t)
	for _, line := range []string{
		`rate_limiter_requests_total{algorithm="token-bucket",limit="second",outcome="denied",rule="search"} 1`,
		`rate_limiter_rejected_total{algorithm="token-bucket",limit="second",rule="search"} 1`,
		`rate_limiter_latency_seconds_count{algorithm="token-bucket",limit="second",rule="search"} 1`,
		`rate_limiter_decisions_total{source="store"} 1`,
		`rate_limiter_errors_total{reason="timeout"} 1`,
		`rate_limiter_decisions_unknown_outcome_total 1`,
		`rate_limiter_tokens_rejected_total{reason="expired"} 1`,
		`rate_limiter_requests_waiting 7`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("the page is\n%s\nwant the line %s", page, line)
		}
	}
}

func TestRequestsCreateNoSeries(t *testing.T) {
	s := newScrapedMetrics(Options{})
	s.SetRules([]observe.Rule{search, login})
	for _, o := range admission.Outcomes() {
		s.count(search, o, time.Millisecond)
	}
	s.count(observe.Rule{Name: "unknown", Limit: "x", Algorithm: "y"}, admission.Denied, time.Millisecond)
	_, before := s.sums(t)
	unknownNames := effort.Of(10_000, 1_000_000)
	for i := range unknownNames {
		s.count(observe.Rule{Name: fmt.Sprintf("search\n%d", i), Limit: "x", Algorithm: "\xff"}, admission.Denied, time.Duration(i))
		s.CountError(fmt.Errorf("dial tcp: lookup %d", i))
	}
	if _, after := s.sums(t); after != before {
		t.Errorf("there are %d series after the requests; want %d, as before", after, before)
	}
	t.Logf("counted: %d unknown names that made no series", unknownNames)
}

// No label of any series contains the key of an event.
func TestNoKeyIsALabel(t *testing.T) {
	const secret = "user:secret-4711"
	s := newScrapedMetrics(Options{TraceID: func(context.Context) string { return "4bf92f3577b34da6a3ce929d0e0e4736" }})
	s.SetRules([]observe.Rule{search})
	s.SetGuards(someGuards)
	plan := penstock.PerSecond(5).WithName("second").MustCompile()
	charges := []penstock.Charge{{Key: secret, Plan: plan, Cost: 1}}
	decision := penstock.Single(penstock.Status{Granted: 1})
	for _, o := range admission.Outcomes() {
		err := penstock.NewStoreError(penstock.ReasonTimeout, errors.New(secret))
		s.ObserveRequest(&admission.Event{
			Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Key: secret, Outcome: o,
			Charges: charges, Decision: &decision, Latency: time.Millisecond, Err: err,
		})
		s.ObserveStoreError(guard.Event{Plan: plan, Err: err, Reason: "timeout"})
	}
	for _, family := range s.gather(t) {
		if text := family.String(); strings.Contains(text, "4711") {
			t.Errorf("the metric %s is %s; want no key in it", family.GetName(), text)
		}
	}
}

func TestSeriesFollowTheRules(t *testing.T) {
	s := newScrapedMetrics(Options{})
	series := func(rules ...observe.Rule) int {
		s.SetRules(rules)
		_, n := s.sums(t)
		return n
	}
	none, one, two := series(), series(search), series(search, login)
	s.count(search, admission.Allowed, time.Millisecond)
	s.count(login, admission.Allowed, time.Millisecond)
	again := series(search)
	isSameForEachRule := two-one == one-none
	if !isSameForEachRule || again != one+1 { // one more: the histogram
		t.Errorf("with 0, 1, 2 and again 1 rules there are %d, %d, %d and %d series; want the same number for each rule, and at the end one more for the histogram", none, one, two, again)
	}
	if got, _ := s.sums(t); got["rate_limiter_allowed_total"] != 1 {
		t.Errorf("the rule that stayed has %v allowed requests; want 1", got["rate_limiter_allowed_total"])
	}
}

// A program without a policy has one Rule for each limit.
func TestDecisionsAreCountedAsRequests(t *testing.T) {
	s := newScrapedMetrics(Options{})
	store := penstock.Wrap(memstore.New(memstore.Options{}), guard.Observe(s.ObserveDecision))
	limiter, err := penstock.NewLimiter(store, "mail", penstock.PerHour(2).WithName("hour"))
	if err != nil {
		t.Fatal(err)
	}
	s.SetRules(observe.RulesOfPlans(limiter.Plans()...))
	for range 3 {
		if _, err := limiter.Allow(t.Context(), "user:42"); err != nil {
			t.Fatal(err)
		}
	}
	want := `
		# HELP rate_limiter_requests_total Requests by rule, limit and outcome. If several limits applied, the one that denied or was closest to denying is named.
		# TYPE rate_limiter_requests_total counter
		rate_limiter_requests_total{algorithm="token-bucket",limit="hour",outcome="abandoned",rule="mail"} 0
		rate_limiter_requests_total{algorithm="token-bucket",limit="hour",outcome="allowed",rule="mail"} 2
		rate_limiter_requests_total{algorithm="token-bucket",limit="hour",outcome="denied",rule="mail"} 1
		rate_limiter_requests_total{algorithm="token-bucket",limit="hour",outcome="failed_closed",rule="mail"} 0
		rate_limiter_requests_total{algorithm="token-bucket",limit="hour",outcome="failed_open",rule="mail"} 0
	`
	for _, o := range admission.Outcomes() {
		if o != admission.ShadowAllowed && o != admission.ShadowDenied {
			want += fmt.Sprintf("rate_limiter_requests_total{algorithm=\"other\",limit=\"other\",outcome=%q,rule=\"other\"} 0\n", o)
		}
	}
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), "rate_limiter_requests_total"); err != nil {
		t.Error(err)
	}
	if got, _ := s.sums(t); got["rate_limiter_decisions_total"] != 3 || got["rate_limiter_latency_seconds"] != 3 {
		t.Errorf("the counts are %v; want 3 decisions and 3 latencies", got)
	}
}

type traceKey struct{}

func TestLatenciesHaveExemplars(t *testing.T) {
	s := newScrapedMetrics(Options{TraceID: func(ctx context.Context) string {
		id, _ := ctx.Value(traceKey{}).(string)
		return id
	}})
	s.SetRules([]observe.Rule{search})
	exemplars := func() (ids []string) {
		for _, family := range s.gather(t) {
			for _, metric := range family.Metric {
				for _, bucket := range metric.GetHistogram().GetBucket() {
					for _, label := range bucket.GetExemplar().GetLabel() {
						ids = append(ids, label.GetName()+"="+label.GetValue())
					}
				}
			}
		}
		return ids
	}
	observeIn := func(ctx context.Context) {
		s.ObserveRequest(&admission.Event{Context: ctx, Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Latency: 3 * time.Millisecond})
	}
	observeIn(nil)
	observeIn(t.Context())
	observeIn(context.WithValue(t.Context(), traceKey{}, strings.Repeat("a", 1000))) // longer than an exemplar may be
	observeIn(context.WithValue(t.Context(), traceKey{}, "\xff"))
	if ids := exemplars(); len(ids) > 0 {
		t.Errorf("the exemplars of requests without a valid trace id are %v; want none", ids)
	}
	observeIn(context.WithValue(t.Context(), traceKey{}, "4bf92f3577b34da6a3ce929d0e0e4736"))
	if ids := exemplars(); len(ids) != 1 || ids[0] != "trace_id=4bf92f3577b34da6a3ce929d0e0e4736" {
		t.Errorf("the exemplars are %v; want only that of the valid trace id", ids)
	}
	if got, _ := s.sums(t); got["rate_limiter_latency_seconds"] != 5 {
		t.Errorf("%v latencies are counted; want 5", got["rate_limiter_latency_seconds"])
	}
}

// A rule whose name is not UTF-8 has no series. Scrapes and requests still succeed.
func TestRuleNamesThatAreNotUTF8HaveNoSeries(t *testing.T) {
	s := newScrapedMetrics(Options{})
	invalid := observe.Rule{Name: "\xff", Limit: "x", Algorithm: "y"}
	s.SetRules([]observe.Rule{search, invalid})
	s.count(invalid, admission.Denied, time.Millisecond)
	s.count(search, admission.Denied, time.Millisecond)
	if got, _ := s.sums(t); got["rate_limiter_rejected_total"] != 1 || got["rate_limiter_latency_seconds"] != 1 {
		t.Errorf("the counts are %v; want one rejected request and one latency", got)
	}
}

func BenchmarkObserveRequest(b *testing.B) {
	s := newScrapedMetrics(Options{})
	s.SetRules([]observe.Rule{search, login})
	b.ReportAllocs()
	for b.Loop() {
		s.count(login, admission.Denied, 300*time.Microsecond)
	}
}
