package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestServiceRunsWithoutItsStore(t *testing.T) {
	t.Parallel() // it waits most of the time
	const policy = `
rules:
  - {name: open, match: {path: /open}, per: {key: header X-API-Key}, limits: [{rate: 1/d, on_failure: open}]}
  - {name: mixed, match: {path: /mixed}, per: {key: header X-API-Key}, limits: [{rate: 9/h}, {rate: 1/d, on_failure: open}]}
  - {name: closed, match: {path: /closed}, per: {key: header X-API-Key}, limits: [{rate: 1/d, on_failure: closed}]}
  - {name: local, match: {path: /local}, per: {key: header X-API-Key}, limits: [{rate: 1/d}]}
`
	const logInterval = 10 * time.Second // between two lines of the same kind, as in package core
	began := time.Now()
	const outages = 2
	const rounds = 2 // how often each path is tried in an outage
	redis := redistest.Start(t)
	redis.Kill()
	r := startWithoutLeakCheck(t, hello, limitedBy(t, policy, map[string]string{"store": redis.URL(), "store-timeout": "200ms"}))
	caller := 0
	// sendTwice returns the statuses of two requests of a new client.
	sendTwice := func(path string) string {
		caller++
		key := fmt.Sprint("X-API-Key: ", caller)
		first, second := r.mustSend("GET", path, key), r.mustSend("GET", path, key)
		if first.StatusCode == 503 && first.Header.Get("Retry-After") == "" {
			t.Errorf("a 503 for %s has no Retry-After", path)
		}
		return fmt.Sprint(first.StatusCode, " ", second.StatusCode)
	}
	checkDown := func(when string) {
		t.Helper()
		for range rounds {
			for path, want := range map[string]string{"/open": "200 200", "/closed": "503 503", "/local": "200 429", "/mixed": "200 200", "/other": "200 200"} {
				if got := sendTwice(path); got != want {
					t.Errorf("%s, two requests for %s got %s; want %s", when, path, got, want)
				}
			}
		}
		if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
			t.Errorf("%s, /readyz is %q; want degraded: store", when, body)
		}
	}
	checkUp := func(when string) {
		t.Helper()
		const state, decisions = `rate_limiter_breaker_state{node="default"}`, `rate_limiter_decisions_total{source="store"}`
		for _, path := range []string{"/open", "/closed", "/local", "/mixed"} {
			eventually.True(t, when+", Redis to decide again", func() bool {
				before := r.metric(decisions)
				return sendTwice(path) == "200 429" && r.metric(decisions) != before && r.metric(state) == "0"
			})
		}
	}
	checkDown("without a store from the start")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	checkUp("after Redis came up")
	redis.Kill()
	checkDown("after Redis was killed")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	checkUp("after Redis restarted")
	redis.Pause()
	checkDown("while Redis hangs")
	redis.Resume()
	checkUp("after Redis resumed")
	for series, least := range map[string]int{
		`rate_limiter_requests_total{algorithm="token-bucket",limit="day",outcome="failed_open",rule="open"}`:     2 * outages * rounds,
		`rate_limiter_requests_total{algorithm="token-bucket",limit="day",outcome="failed_closed",rule="closed"}`: 2 * outages * rounds,
		`rate_limiter_decisions_total{source="open"}`:                                                             2 * outages * rounds,
		`rate_limiter_decisions_total{source="closed"}`:                                                           2 * outages * rounds,
		`rate_limiter_decisions_total{source="fallback"}`:                                                         2 * outages * rounds,
		`rate_limiter_requests_uncounted_total`:                                                                   4 * outages * rounds,
		`rate_limiter_errors_total{reason="unreachable"}`:                                                         2,
		`rate_limiter_errors_total{reason="timeout"}`:                                                             5,
		`rate_limiter_errors_total{reason="breaker_open"}`:                                                        outages * rounds,
		`rate_limiter_decisions_unknown_outcome_total`:                                                            5,
		`rate_limiter_breaker_changes_total{to="open"}`:                                                           outages,
		`rate_limiter_breaker_changes_total{to="closed"}`:                                                         outages,
	} {
		var n int
		if _, err := fmt.Sscan(r.metric(series), &n); err != nil || n < least {
			t.Errorf("%s is %d (error %v); want at least %d", series, n, err, least)
		}
	}
	intervals := 1 + int(time.Since(began)/logInterval)
	if n, most := len(r.log.Lines("level=ERROR", "the store made no decision")), 5+3*intervals; n == 0 || n > most {
		t.Errorf("%d lines about the store were logged; want 1 to %d:\n%s", n, most, r.log)
	}
	if n, most := len(r.log.Lines("level=ERROR", "requests pass unlimited", "critical=true")), outages+intervals; n == 0 || n > most {
		t.Errorf("%d lines about unlimited requests were logged; want 1 to %d:\n%s", n, most, r.log)
	}
	const paths = 4
	t.Logf("counted: %d clients without a store (%d outages)", paths*outages*rounds, outages)
}
