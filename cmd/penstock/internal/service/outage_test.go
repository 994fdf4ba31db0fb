package service

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
)

func TestGateGoesOnWithoutItsStore(t *testing.T) {
	const policy = `
rules:
  - {name: open, match: {path: /open}, per: everyone, limits: [{rate: 1/d}]}
  - {name: closed, match: {path: /closed}, per: everyone, limits: [{rate: 1/d, on_failure: closed}]}
`
	const outages, outage = 3, 3 // requests of each kind
	redis := redistest.Start(t)
	redis.Kill()
	r := startLimited(t, hello, policy, map[string]string{"store": redis.URL(), "store-timeout": "200ms"})
	down := func(what string) {
		t.Helper()
		for range outage {
			if res := r.mustSend("GET", "/open"); res.StatusCode != 200 {
				t.Errorf("%s, what is open got %s", what, res.Status)
			}
			if res := r.mustSend("GET", "/closed"); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
				t.Errorf("%s, what is closed got %s, Retry-After %q", what, res.Status, res.Header.Get("Retry-After"))
			}
			if res := r.mustSend("GET", "/other"); res.StatusCode != 200 {
				t.Errorf("%s, what nobody limits got %s", what, res.Status)
			}
		}
		if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
			t.Errorf("%s, the gate says %q", what, body)
		}
	}
	up := func(what string) {
		t.Helper()
		for _, path := range []string{"/open", "/closed"} {
			await(t, what+", limits to count again", func() bool { return r.mustSend("GET", path).StatusCode == 429 })
		}
	}
	down("without a store from the beginning")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	up("after it came up")
	redis.Kill()
	down("after it was killed")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	up("after it was back")
	redis.Pause()
	down("while it hangs")
	redis.Resume()
	up("after it hung")
	for series, least := range map[string]int{
		`rate_limiter_requests_total{algorithm="tokenbucket",limit="day",outcome="failed_open",rule="open"}`:     outages * outage,
		`rate_limiter_requests_total{algorithm="tokenbucket",limit="day",outcome="failed_closed",rule="closed"}`: outages * outage,
		`rate_limiter_errors_total{reason="unreached"}`:                                                          2 * outage,
		`rate_limiter_errors_total{reason="timeout"}`:                                                            2 * outage,
	} {
		var n int
		if _, err := fmt.Sscan(r.metric(series), &n); err != nil || n < least {
			t.Errorf("%s is %d, %v; want at least %d", series, n, err, least)
		}
	}
	if n := len(r.log.lines("level=ERROR", "the store does not answer")); n == 0 || n > 5 {
		t.Errorf("that made %d lines in the log:\n%s", n, r.log)
	}
	t.Logf("counted: %d requests without a store (%d outages)", 3*outages*outage, outages)
}
