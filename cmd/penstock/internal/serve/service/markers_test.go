package service

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/core"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

const chargedTwice = "rate_limiter_charged_twice_total"

// Two instances in a row with one store, prefix and policy charge each request twice. The second
// one counts and logs that, and its summary has it for doctor. Requests that no enforced limit
// counts are charged nowhere, so they have no marker and do not grow the count.
func TestSecondInstanceInARowWarns(t *testing.T) {
	t.Parallel() // it waits most of the time
	redis := redistest.Start(t)
	const policy = "allow: {header X-Team: ours}\n" +
		"rules:\n  - {name: api, match: {path: /}, per: ip, limits: [{rate: 100000/d}]}\n" +
		"  - {name: trial, match: {path: /trial/}, shadow: true, per: ip, limits: [{rate: 100000/d}]}\n" +
		"  - {name: free, match: {path: /free/}, unlimited: true}\n"
	var upstreamMarker atomic.Pointer[[]string]
	upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		marker := r.Header[core.MarkerHeader]
		upstreamMarker.Store(&marker)
	})
	flags := map[string]string{"store": redis.URL()}
	second := startWithoutLeakCheck(t, upstream, limitedBy(t, policy, flags))
	var firstMarker atomic.Pointer[[]string] // of the latest request that the first instance has forwarded
	toSecond := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: second.Listen})
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		marker := r.Header[core.MarkerHeader]
		firstMarker.Store(&marker)
		toSecond.ServeHTTP(w, r)
	}))
	defer between.Close()
	forward := limitedBy(t, policy, map[string]string{"store": redis.URL(), "upstream": between.URL})
	first := startWithoutLeakCheck(t, nil, forward)

	second.mustSend("GET", "/", core.MarkerHeader+": forged", "X-A: b")
	if got := *upstreamMarker.Load(); len(got) > 1 || len(got) == 1 && got[0] == "forged" {
		t.Errorf("the upstream gets the marker %q; want none of the client", got)
	}
	var passed []string
	eventually.True(t, "the second instance to notice", func() bool {
		first.mustSend("GET", "/", core.MarkerHeader+": forged")
		passed = *upstreamMarker.Load()
		return second.metric(chargedTwice) != "0"
	})
	if own := first.metric(chargedTwice); own != "0" {
		t.Errorf("the first instance counts %s requests as charged twice; want 0", own)
	}
	if second.log.Lines("level=WARN", "already charged by another instance", "event=charged_twice") == nil {
		t.Error("the second instance logs nothing about requests that were charged twice")
	}
	if len(passed) != 1 || len(passed[0]) != 32 || strings.Contains(redis.URL(), passed[0]) {
		t.Errorf("the upstream gets the marker %q; want one of 32 digits", passed)
	}
	store, err := redisstore.Open(redis.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	eventually.True(t, "exactly one summary to have it for doctor", func() bool {
		written, _, err := redisops.ReadSummaries(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, w := range written {
			if s, err := activity.ParseSummary(w.Text); err == nil && s.IsChargedTwice {
				n++
			}
		}
		return n == 1
	})
	before := second.metric(chargedTwice)
	for range 5 {
		second.mustSend("GET", "/", core.MarkerHeader+": "+passed[0]) // its own marker
		second.mustSend("GET", "/")
	}
	marker := core.MarkerHeader + ": " + (*firstMarker.Load())[0]
	for _, request := range [][]string{{"/free/"}, {"/trial/"}, {"/", "X-Team: ours"}} {
		path, headers := request[0], request[1:]
		first.mustSend("GET", path, headers...)
		if got := *firstMarker.Load(); len(got) != 0 {
			t.Errorf("the first instance forwards %q with the marker %q; want none, because no limit charges it", request, got)
		}
		second.mustSend("GET", path, append(headers, marker)...)
	}
	if after := second.metric(chargedTwice); after != before {
		t.Errorf("requests that one instance at most has charged grow the count from %s to %s; want no change", before, after)
	}
}

// Instances with different policies do not warn: they charge different limits.
func TestInstanceInARowWithAnotherPolicyIsSilent(t *testing.T) {
	t.Parallel() // it waits most of the time
	redis := redistest.Start(t)
	second := startWithoutLeakCheck(t, hello, limitedBy(t, "rules:\n  - {name: service, per: ip, limits: [{rate: 100000/d}]}\n", map[string]string{"store": redis.URL()}))
	forward := limitedBy(t, "rules:\n  - {name: gateway, per: ip, limits: [{rate: 100000/d}]}\n", map[string]string{"store": redis.URL(), "upstream": "http://" + second.Listen})
	first := startWithoutLeakCheck(t, nil, forward)
	eventually.True(t, "the second instance to see the first", func() bool {
		first.mustSend("GET", "/")
		return len(getAdmin[adminapi.Instances](second, "instances").Instances) == 2
	})
	for range 5 {
		first.mustSend("GET", "/")
	}
	if n := second.metric(chargedTwice); n != "0" {
		t.Errorf("the second instance counts %s requests as charged twice; want 0", n)
	}
}
