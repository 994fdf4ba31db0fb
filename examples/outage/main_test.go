package main

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// admitted returns a count of n requests within a second.
func admitted(n int64) count {
	from := time.Now()
	return count{admitted: n, from: from, to: from.Add(time.Second)}
}

func TestEachFallbackHasItsBound(t *testing.T) {
	rows := []struct {
		seen     interval
		fallback string
		want     string
	}{
		{seen: interval{hasStore: true}, fallback: "open", want: "220"},
		{seen: interval{hasStore: true}, fallback: "closed", want: "220"},
		{seen: interval{hasStore: true}, fallback: "local", want: "220"},
		{seen: interval{hasStore: true, wasReset: true}, fallback: "closed", want: "240"},
		{seen: interval{hasFallback: true}, fallback: "open", want: "any"},
		{seen: interval{hasFallback: true}, fallback: "closed", want: "0"},
		{seen: interval{hasFallback: true}, fallback: "local", want: "221"},
		{seen: interval{hasStore: true, hasFallback: true}, fallback: "open", want: "any"},
		{seen: interval{hasStore: true, hasFallback: true}, fallback: "closed", want: "220"},
		{seen: interval{hasStore: true, hasFallback: true}, fallback: "local", want: "441"},
	}
	for _, row := range rows {
		if got := row.seen.boundOf(row.fallback, admitted(1)).String(); got != row.want {
			t.Errorf("%+v: the bound of %s is %s; want %s", row.seen, row.fallback, got, row.want)
		}
	}
	seconds := []interval{{hasStore: true}, {hasStore: true, hasFallback: true}, {hasFallback: true}, {hasFallback: true}, {hasStore: true, hasFallback: true, wasReset: true}, {hasStore: true}}
	for fallback, want := range map[string]string{"open": "any", "closed": "1260", "local": "1702"} {
		if got := totalBound(fallback, seconds, 6*time.Second).String(); got != want {
			t.Errorf("the bound of %s over all seconds is %s; want %s", fallback, got, want)
		}
	}
	t.Logf("counted: %d bounds of fallbacks", len(rows)+3)
}

func TestFailuresOfAnOutageAreFound(t *testing.T) {
	const open, local = 0, 2 // indexes in fallbacks
	fine := [len(fallbacks)]count{admitted(200), admitted(200), admitted(200)}
	byRedis := counters{map[string]int64{"store": 600}, map[float64]int64{0.25: 600, math.Inf(1): 600}}
	byFallbacks := counters{map[string]int64{"fallback": 200, "open": 200, "closed": 200}, map[float64]int64{0.001: 600, math.Inf(1): 600}}
	fromFallbacks := [len(fallbacks)]count{admitted(400), {refused: 400}, admitted(221)}
	slow := counters{byRedis.sources, map[float64]int64{0.25: 500, 0.5: 599, math.Inf(1): 600}}
	s := &experiment{start: time.Now()}
	s.check(time.Now(), fromFallbacks, byFallbacks)
	s.check(time.Now(), [len(fallbacks)]count{admitted(400), admitted(220), admitted(430)}, slow) // clients were counted later than instances
	s.shouldCheckTimes, s.seconds = true, nil
	s.check(time.Now(), fine, byRedis)
	if s.failures != nil {
		t.Errorf("a correct outage has the failures %q; want none", s.failures)
	}
	tooMany := fine
	tooMany[local] = admitted(300)
	s.check(time.Now(), tooMany, byRedis)
	failing := fine
	failing[open].refused, failing[local].failed = 1, 1
	s.check(time.Now(), failing, byRedis)
	s.check(time.Now(), fine, byFallbacks) // Redis decided in the second before
	s.check(time.Now(), fine, byFallbacks)
	s.check(time.Now(), [len(fallbacks)]count{admitted(9000), {}, admitted(221)}, byFallbacks)
	s.check(time.Now(), fine, slow)
	want := []string{"local let 300 through", "requests of open failed, and 1 were refused", "1 requests of local failed", "closed let 200 through", "the p99"}
	for i, what := range want {
		if len(s.failures) != len(want) || !strings.Contains(strings.Join(s.failures, "\n"), what) {
			t.Fatalf("the failures are\n%s\nwant %d, and number %d with %q", strings.Join(s.failures, "\n"), len(want), i+1, what)
		}
	}
	t.Logf("counted: %d failures of an outage found", len(want))
}

func TestCountersAreParsed(t *testing.T) {
	const page = `# TYPE rate_limiter_decisions_total counter
rate_limiter_decisions_total{source="store"} 1.2e+06
rate_limiter_decisions_total{source="open"} 7
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="0.25"} 98
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="0.3"} 100
rate_limiter_latency_seconds_bucket{algorithm="token-bucket",limit="second",rule="open",le="+Inf"} 100
rate_limiter_requests_waiting 0
`
	m := counters{make(map[string]int64), make(map[float64]int64)}
	for range 2 {
		if err := m.add(page); err != nil {
			t.Fatal(err)
		}
	}
	if m.sources["store"] != 2_400_000 || m.fallbackDecisions() != 14 || math.Abs(m.p99()-0.275) > 1e-9 {
		t.Errorf("read %v with the p99 %v; want 2.4 million decisions by the store, 14 without it, and 0.275", m, m.p99())
	}
	if d := m.since(m); d.fallbackDecisions() != 0 || d.p99() != 0 {
		t.Errorf("counters since themselves are %v; want zeros", d)
	}
	if err := m.add(`rate_limiter_decisions_total{source="store"} many`); err == nil {
		t.Error("a page with an invalid number returns no error; want one")
	}
}

func TestResponsesAreCountedByStatus(t *testing.T) {
	const closed = 1 // index in fallbacks
	l := new(load)
	now := time.Now()
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, 0} {
		l.record(closed, status, now, now.Add(time.Second))
	}
	if c := l.take()[closed]; c != (count{admitted: 1, denied: 1, refused: 1, failed: 2, from: now, to: now.Add(time.Second)}) {
		t.Errorf("the counts are %+v; want 1 admitted, 1 denied, 1 refused and 2 failed", c)
	}
	if c := l.take()[closed]; c != (count{}) {
		t.Errorf("after take the counts are %+v; want zeros", c)
	}
}
