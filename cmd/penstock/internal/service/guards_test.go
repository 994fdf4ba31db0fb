package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
)

// What a gate has drawn in advance is there for others when it has closed, and it is an instance no
// more.
func TestAGateThatClosesLeavesNothingBehind(t *testing.T) {
	const policy = `
rules: [{name: all, per: everyone, limits: [{rate: 100000/d, algorithm: fixed-window, lease: 100, headers: true}]}]
`
	redis := redistest.Start(t)
	flags := map[string]string{"store": redis.URL(), "instances": "2"}
	r := startLimited(t, hello, policy, flags)
	instances := func() any {
		n, err := redis.Do("ZCARD", "ps1{%@}instances")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	await(t, "the gate to be counted", func() bool { return instances() == int64(1) })
	if n := r.metric("rate_limiter_instances"); n != "2" {
		t.Errorf("there are %s instances; want 2, as the setting says", n)
	}
	asked := 0
	await(t, "leases", func() bool {
		for range 100 {
			if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			asked++
		}
		var n int
		fmt.Sscan(r.metric(`rate_limiter_decisions_total{source="lease"}`), &n)
		return n >= 300
	})
	var drawn, spent int
	fmt.Sscan(r.metric(`rate_limiter_lease_units_total{fate="drawn"}`), &drawn)
	fmt.Sscan(r.metric(`rate_limiter_lease_units_total{fate="spent"}`), &spent)
	if drawn < spent || spent < 300 {
		t.Errorf("%d units were drawn, %d spent", drawn, spent)
	}
	r.wait()
	if n := instances(); n != int64(0) {
		t.Errorf("after it has closed, %v instances are counted", n)
	}
	next := startBeside(t, hello, limitedBy(t, policy, flags), limitsOf(t, limitedBy(t, policy, flags), nil))
	if left := next.mustSend("GET", "/").Header.Get("RateLimit"); !strings.Contains(left, fmt.Sprintf("r=%d;", 100_000-asked-1)) {
		t.Errorf("after %d requests, all else given back, the next is told %s", asked, left)
	}
	t.Logf("counted: %d requests, %d of them by leases", asked, spent)
}

func TestTheRightThatTheStoreLacksStandsInTheLog(t *testing.T) {
	redis := redistest.Start(t)
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +eval +time +get +set +setrange +del +pexpire +zadd +zcard +zrange +zrem +zremrangebyscore"
	if _, err := redis.Do(strings.Fields(rights)...); err != nil {
		t.Fatal(err)
	}
	r := startLimited(t, hello, "rules: [{name: all, per: everyone, limits: [{rate: 2/d}]}]\n", map[string]string{"store": "redis://gate:secret@" + redis.Addr})
	for _, want := range []int{200, 200, 429} { // by this gate alone
		if res := r.mustSend("GET", "/"); res.StatusCode != want {
			t.Errorf("got %s; want %d", res.Status, want)
		}
	}
	if len(r.log.lines("level=ERROR", "the store made no decision", "reason=permission_denied", "needs=+evalsha")) != 1 {
		t.Errorf("logged %s", r.log)
	}
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("the gate says %q", body)
	}
}

// Redis may answer a PING, and make no decision.
func TestAStoreThatDoesNotDecideIsNotTakenForOneThatDoes(t *testing.T) {
	const policy = "rules: [{name: all, per: everyone, limits: [{rate: 2/d}]}]\n"
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +evalsha +eval +time +get"
	for _, c := range []struct {
		reason, breaks, mends string
	}{
		{"out_of_memory", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"},
		{"not_ready", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"},
		{"permission_denied", rights, rights + " +set +setrange"},
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
			o.Gate = limitsOf(t, flags, nil)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			o.Started = func(Addresses) { stop() }
			if err := Run(ctx, o); !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("a gate that requires its store runs: %v", err)
			}
			delete(flags, "require-store")
			r := start(t, hello, flags, o.Gate)
			verbose := func() string { return r.mustGet("http://"+r.Admin+"/readyz?verbose", 200) }
			want := "gate ok\nstore degraded: " + c.reason + "\npolicy ok\ndegraded: store\n"
			for range 3 { // each after the watch has asked
				asked := evals(t, redis)
				await(t, "the gate to ask for itself", func() bool { return evals(t, redis) > asked })
				if body := verbose(); body != want {
					t.Errorf("the gate says %q; want %q", body, want)
				}
			}
			if len(r.log.lines("the store decides again")) != 0 {
				t.Errorf("logged %s", r.log)
			}
			do(c.mends)
			await(t, "the store to decide", func() bool { return verbose() == "gate ok\nstore ok\npolicy ok\nok\n" })
			if len(r.log.lines("level=INFO", "the store decides again")) != 1 { // though no request came
				t.Errorf("logged %s", r.log)
			}
			do(c.breaks) // while the gate knows of nothing
			if body := verbose(); body != want {
				t.Errorf("at the next outage the gate says %q; want %q", body, want)
			}
		})
	}
}

// evals counts what a server was asked to run, and did not.
func evals(t *testing.T, redis *redistest.Server) (n int) {
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

// A right that the scripts of one rule need keeps no other rule from the store.
func TestARightThatOneRuleNeedsIsMissedByThatRuleOnly(t *testing.T) {
	redis := redistest.Start(t)
	const rights = "ACL SETUSER gate on >secret ~ps1* -@all +ping +info +evalsha +eval +script|load +time +get +set +setrange +del +pexpire"
	if _, err := redis.Do(strings.Fields(rights)...); err != nil {
		t.Fatal(err)
	}
	const policy = `
rules:
  - {name: log, match: {path: /log}, per: everyone, limits: [{rate: 1000/h, algorithm: sliding-log}]}
  - {name: bucket, per: everyone, limits: [{rate: 1000/s, on_failure: closed}]}
`
	r := startLimited(t, hello, policy, map[string]string{"store": "redis://gate:secret@" + redis.Addr})
	for i := range 100 {
		if res := r.mustSend("GET", "/log"); res.StatusCode != 200 { // by this gate alone
			t.Fatalf("request %d of the rule that lacks a right got %s", i, res.Status)
		}
		if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
			t.Fatalf("request %d of the other rule got %s", i, res.Status)
		}
	}
	if n := r.metric(`rate_limiter_decisions_total{source="store"}`); n != "100" {
		t.Errorf("the store made %s decisions; want 100", n)
	}
	if n := len(r.log.lines("level=ERROR", "reason=permission_denied", "needs=+z")); n != 1 {
		t.Errorf("%d lines name the right; want 1: %s", n, r.log)
	}
}
