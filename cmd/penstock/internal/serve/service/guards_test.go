package service

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/core"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// When an instance closes, it returns its leased units to the store and removes its registration.
func TestClosingInstanceReturnsLeasesAndUnregisters(t *testing.T) {
	const policy = `
rules: [{name: all, per: global, limits: [{rate: 100000/d, algorithm: fixed-window, lease: 100, headers: true}]}]
`
	redis := redistest.Start(t)
	flags := map[string]string{"store": redis.URL(), "min-instances": "2"}
	var c *core.Core
	r := start(t, hello, limitedBy(t, policy, flags), func(o *Options) { o.testHooks.core = func(made *core.Core) { c = made } })
	countInstances := func() int64 {
		n, err := redis.Do("ZCARD", "ps1{%@}instances") // the key of all registrations
		if err != nil {
			t.Fatal(err)
		}
		return n.(int64)
	}
	eventually.True(t, "the instance to be counted", func() bool { return countInstances() == 1 })
	if n := r.metric("rate_limiter_instances"); n != "2" {
		t.Errorf("the metric has %s instances; want 2, the value of min-instances", n)
	}
	const fromLeases = 300 // decisions
	requests := 0
	eventually.True(t, fmt.Sprint(fromLeases, " decisions by leases"), func() bool {
		for range 100 {
			if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
				t.Fatalf("the response is %s; want 200", res.Status)
			}
			requests++
		}
		var n int
		fmt.Sscan(r.metric(`rate_limiter_decisions_total{source="lease"}`), &n)
		return n >= fromLeases
	})
	var drawn, spent int
	fmt.Sscan(r.metric(`rate_limiter_lease_units_total{fate="drawn"}`), &drawn)
	fmt.Sscan(r.metric(`rate_limiter_lease_units_total{fate="spent"}`), &spent)
	if drawn < spent || spent < fromLeases {
		t.Errorf("%d units were drawn and %d spent; want at least %d spent, and no more than were drawn", drawn, spent, fromLeases)
	}
	r.wait()
	if n := countInstances(); n != 0 {
		t.Errorf("after the instance closed, %v are registered; want 0", n)
	}
	next := startWithoutLeakCheck(t, hello, limitedBy(t, policy, flags))
	page := httptest.NewRecorder()
	c.Metrics.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	expired := 0 // on a busy machine, leased units may expire before they are returned
	if _, text, ok := strings.Cut(page.Body.String(), `rate_limiter_lease_units_total{fate="expired"} `); ok {
		fmt.Sscan(text, &expired)
	}
	left := next.mustSend("GET", "/").Header.Get("RateLimit")
	if !strings.Contains(left, fmt.Sprintf("r=%d;", 100_000-requests-expired-1)) || expired > 200 {
		t.Errorf("after %d requests and %d expired units, the next response has RateLimit %s; want all other units left, and at most 200 expired, which are two leases", requests, expired, left)
	}
	t.Logf("counted: %d requests, %d of them decided by leases", requests, spent)
}

func TestMissingRightIsLogged(t *testing.T) {
	redis := redistest.Start(t)
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +eval +time +get +set +setrange +del +pexpire +zadd +zcard +zrange +zrem +zremrangebyscore"
	if _, err := redis.Do(strings.Fields(rights)...); err != nil {
		t.Fatal(err)
	}
	r := startLimited(t, hello, "rules: [{name: all, per: global, limits: [{rate: 2/d}]}]\n", map[string]string{"store": "redis://gate:secret@" + redis.Addr})
	for _, want := range []int{200, 200, 429} { // the fallback decides, in this instance
		if res := r.mustSend("GET", "/"); res.StatusCode != want {
			t.Errorf("the response is %s; want %d", res.Status, want)
		}
	}
	if n := len(r.log.Lines("level=ERROR", "the store made no decision", "reason=permission_denied", "needs=+evalsha")); n != 1 {
		t.Errorf("%d lines name the missing right; want 1: %s", n, r.log)
	}
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("/readyz is %q; want degraded: store", body)
	}
}

// A foreign value at the key of the self-test is no outage: all other keys are decided.
func TestCorruptKeyOfTheSelfTestIsNoOutage(t *testing.T) {
	for name, isBeforeStart := range map[string]bool{"before the start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t)
			corrupt := func() {
				if _, err := redis.Do("SET", "ps1{gate}self-test", "junk"); err != nil {
					t.Fatal(err)
				}
			}
			if isBeforeStart {
				corrupt()
			}
			r := startLimited(t, hello, "rules: [{name: all, per: global, limits: [{rate: 2/d}]}]\n", map[string]string{"store": "redis://" + redis.Addr, "require-store": "true"})
			corrupt()
			for range 3 {
				if body := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200); strings.Contains(body, "degraded") {
					t.Errorf("/readyz is %q; want ok", body)
				}
			}
			if n := len(r.log.Lines("level=WARN", "the key of the self-test", "key=ps1{gate}self-test", "-c DEL 'ps1{gate}self-test'")); n != 1 {
				t.Errorf("%d lines name the key and the command that deletes it; want 1: %s", n, r.log)
			}
			if page := r.mustGet("http://"+r.Admin+"/metrics", 200); !strings.Contains(page, "rate_limiter_store_degraded 0") {
				t.Error("the metrics say that the store is degraded")
			}
		})
	}
}

// Redis may reply to PING and still be unable to run the scripts.
func TestStoreThatAnswersOnlyPingIsReportedAsFailing(t *testing.T) {
	effort.SkipUnderRace(t)
	const policy = "rules: [{name: all, per: global, limits: [{rate: 2/d}]}]\n"
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +evalsha +eval +time +get"
	for _, c := range []struct {
		reason        string
		breaks, fixes string // commands
	}{
		{reason: "out_of_memory", breaks: "CONFIG SET maxmemory 1", fixes: "CONFIG SET maxmemory 0"},
		{reason: "not_ready", breaks: "REPLICAOF 127.0.0.1 1", fixes: "REPLICAOF NO ONE"},
		{reason: "permission_denied", breaks: rights, fixes: rights + " +set +setrange"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			redis := redistest.Start(t)
			do := func(command string) {
				if _, err := redis.Do(strings.Fields(command)...); err != nil {
					t.Fatal(err)
				}
			}
			url := redis.URL()
			if c.reason == "permission_denied" {
				url = "redis://gate:secret@" + redis.Addr
			}
			do(c.breaks)
			flags := limitedBy(t, policy, map[string]string{"store": url, "require-store": "true"})
			o := options(t, nil, flags)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			o.Started = func(Addresses) { stop() }
			if err := Run(ctx, o); !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("Run with require-store returned %v; want ErrUnavailable", err)
			}
			delete(flags, "require-store")
			r := start(t, hello, flags)
			readiness := func() string { return r.mustGet("http://"+r.Admin+"/readyz?verbose", 200) }
			want := "service ok\nstore degraded: " + c.reason + "\npolicy ok\ndegraded: store\n"
			for range 3 { // each check of /readyz follows a self-test
				before := rejectedScripts(t, redis)
				eventually.True(t, "a self-test", func() bool { return rejectedScripts(t, redis) > before })
				if body := readiness(); body != want {
					t.Errorf("/readyz is %q; want %q", body, want)
				}
			}
			if len(r.log.Lines("the store decides again")) != 0 {
				t.Errorf("the log reports the end of the outage during the outage: %s", r.log)
			}
			do(c.fixes)
			eventually.True(t, "the store to decide", func() bool { return readiness() == "service ok\nstore ok\npolicy ok\nok\n" })
			// No request was sent, so the self-test has noticed the end of the outage.
			if n := len(r.log.Lines("level=INFO", "the store decides again")); n != 1 {
				t.Errorf("%d lines report the end of the outage; want 1: %s", n, r.log)
			}
			do(c.breaks) // between two self-tests
			if body := readiness(); body != want {
				t.Errorf("at the next outage /readyz is %q; want %q", body, want)
			}
		})
	}
}

// rejectedScripts returns how many script calls a server has rejected, or ended with an error.
func rejectedScripts(t *testing.T, redis *redistest.Server) (n int) {
	t.Helper()
	text, err := redis.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.(string)) {
		if strings.HasPrefix(line, "cmdstat_eval") {
			for _, field := range strings.Split(line, ",") {
				var calls int
				for _, name := range []string{"failed_calls=", "rejected_calls="} {
					if value, ok := strings.CutPrefix(strings.TrimSpace(field), name); ok {
						fmt.Sscan(value, &calls)
					}
				}
				n += calls
			}
		}
	}
	return n
}

// If a right is missing that only the scripts of one rule need, other rules are not affected.
func TestMissingRightAffectsOnlyTheRuleThatNeedsIt(t *testing.T) {
	effort.SkipUnderRace(t)
	redis := redistest.Start(t)
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +info +evalsha +eval +script|load +time +get +set +setrange +del +pexpire"
	if _, err := redis.Do(strings.Fields(rights)...); err != nil {
		t.Fatal(err)
	}
	const policy = `
rules:
  - {name: log, match: {path: /log}, per: global, limits: [{rate: 1000/h, algorithm: sliding-log}]}
  - {name: bucket, per: global, limits: [{rate: 1000/s, on_failure: closed}]}
`
	r := startLimited(t, hello, policy, map[string]string{"store": "redis://gate:secret@" + redis.Addr})
	for i := range 100 {
		if res := r.mustSend("GET", "/log"); res.StatusCode != 200 { // the fallback decides, in this instance
			t.Fatalf("request %d of rule log, which needs a missing right, got %s; want 200", i, res.Status)
		}
		if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
			t.Fatalf("request %d of rule bucket got %s; want 200", i, res.Status)
		}
	}
	if n := r.metric(`rate_limiter_decisions_total{source="store"}`); n != "100" {
		t.Errorf("the store made %s decisions; want 100", n)
	}
	// Commands on sorted sets begin with "z".
	if n := len(r.log.Lines("level=ERROR", "reason=permission_denied", "needs=+z")); n != 1 {
		t.Errorf("%d lines name the missing right; want 1: %s", n, r.log)
	}
}
