package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
)

// What a gate has drawn in advance is there for others when it has closed, and it is an instance no more.
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
	if len(r.log.lines("level=ERROR", "the store does not answer", "reason=refused", "needs=+evalsha")) != 1 {
		t.Errorf("logged %s", r.log)
	}
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("the gate says %q", body)
	}
}
