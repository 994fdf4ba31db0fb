package main

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// admitted is a count of so many within a second.
func admitted(n int64) count {
	from := time.Now()
	return count{admitted: n, from: from, to: from.Add(time.Second)}
}

func TestEachPolicyHasItsBound(t *testing.T) {
	rows := []struct {
		seen   second
		policy string
		want   string
	}{
		{second{store: true}, "open", "220"},
		{second{store: true}, "closed", "220"},
		{second{store: true}, "local", "220"},
		{second{store: true, lost: true}, "closed", "240"},
		{second{without: true}, "open", "any"},
		{second{without: true}, "closed", "0"},
		{second{without: true}, "local", "221"},
		{second{store: true, without: true}, "open", "any"},
		{second{store: true, without: true}, "closed", "220"},
		{second{store: true, without: true}, "local", "441"},
	}
	for _, row := range rows {
		if got := row.seen.bound(row.policy, admitted(1)).String(); got != row.want {
			t.Errorf("%+v: the bound of %s is %s; want %s", row.seen, row.policy, got, row.want)
		}
	}
	seconds := []second{{store: true}, {store: true, without: true}, {without: true}, {without: true}, {store: true, without: true, lost: true}, {store: true}}
	for policy, want := range map[string]string{"open": "any", "closed": "1260", "local": "1702"} {
		if got := total(policy, seconds, 6*time.Second).String(); got != want {
			t.Errorf("the bound of %s over all is %s; want %s", policy, got, want)
		}
	}
	t.Logf("counted: %d bounds of policies", len(rows)+3)
}

func TestAnOutageThatGoesWrongIsFoundOut(t *testing.T) {
	fine := [len(policies)]count{admitted(200), admitted(200), admitted(200)}
	byRedis := measures{map[string]int64{"store": 600}, map[float64]int64{0.25: 600, math.Inf(1): 600}}
	without := measures{map[string]int64{"fallback": 200, "open": 200, "closed": 200}, map[float64]int64{0.001: 600, math.Inf(1): 600}}
	alone := [len(policies)]count{admitted(400), {refused: 400}, admitted(221)}
	slow := measures{byRedis.sources, map[float64]int64{0.25: 500, 0.5: 599, math.Inf(1): 600}}
	s := &stage{start: time.Now()}
	s.judge(time.Now(), alone, without)
	s.judge(time.Now(), [len(policies)]count{admitted(400), admitted(220), admitted(430)}, slow) // clients have counted later than gates
	s.strict, s.seconds = true, nil
	s.judge(time.Now(), fine, byRedis)
	if s.wrong != nil {
		t.Errorf("what is as it should be is judged: %q", s.wrong)
	}
	much := fine
	much[2] = admitted(300)
	s.judge(time.Now(), much, byRedis)
	failing := fine
	failing[0].refused, failing[2].failed = 1, 1
	s.judge(time.Now(), failing, byRedis)
	s.judge(time.Now(), fine, without) // the second before was Redis'
	s.judge(time.Now(), fine, without)
	s.judge(time.Now(), [len(policies)]count{admitted(9000), {}, admitted(221)}, without)
	s.judge(time.Now(), fine, slow)
	want := []string{"local let 300 through", "requests of open failed, and 1 were refused", "1 requests of local failed", "closed let 200 through", "the p99"}
	for i, what := range want {
		if len(s.wrong) != len(want) || !strings.Contains(strings.Join(s.wrong, "\n"), what) {
			t.Fatalf("%d: %q is not all that was found:\n%s", i, what, strings.Join(s.wrong, "\n"))
		}
	}
	t.Logf("counted: %d faults of an outage found", len(want))
}

func TestMeasuresAreReadAsTheyAreServed(t *testing.T) {
	const page = `# TYPE rate_limiter_decisions_total counter
rate_limiter_decisions_total{source="store"} 1.2e+06
rate_limiter_decisions_total{source="open"} 7
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="0.25"} 98
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="0.3"} 100
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="+Inf"} 100
rate_limiter_waiting 0
`
	m := measures{make(map[string]int64), make(map[float64]int64)}
	for range 2 {
		if err := m.add(page); err != nil {
			t.Fatal(err)
		}
	}
	if m.sources["store"] != 2_400_000 || m.without() != 14 || math.Abs(m.p99()-0.275) > 1e-9 {
		t.Errorf("read %v, p99 %v", m, m.p99())
	}
	if d := m.since(m); d.without() != 0 || d.p99() != 0 {
		t.Errorf("between a moment and itself: %v", d)
	}
	if err := m.add(`rate_limiter_decisions_total{source="store"} many`); err == nil {
		t.Error("a page that cannot be read is taken for one that can")
	}
}

func TestAnswersAreCountedByWhatTheyMean(t *testing.T) {
	l := new(load)
	now := time.Now()
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, 0} {
		l.note(1, status, now, now.Add(time.Second))
	}
	if c := l.take()[1]; c != (count{1, 1, 1, 2, now, now.Add(time.Second)}) {
		t.Errorf("counted %+v", c)
	}
	if c := l.take()[1]; c != (count{}) {
		t.Errorf("counted twice: %+v", c)
	}
}
