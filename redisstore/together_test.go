package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Many callers make equal batches of one key. A script may cost the server at most 256 (maxCost of
// package coalesce). The first caller's batch costs 4, and each further equal batch costs 1. So a
// script decides at most 253 of them.
func TestCallersOfOneKeyShareMoreThanOneScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	held := g.holdThree()
	calls := held
	const waiting = 600
	for range waiting {
		calls = append(calls, g.call("k", 1))
	}
	g.awaitWaiters(waiting)
	go func() {
		for range 3 + 3 { // three that are held, and three for the waiting calls
			select {
			case g.client.releases <- nil:
			case <-t.Context().Done():
			}
		}
	}()
	want := len(held) + 30 // g.limit admits 30 of the waiting calls
	if granted := g.countGranted(calls); granted != want || g.client.scripts.Load() != 6 {
		t.Errorf("%d of %d calls were granted in %d scripts; want %d in 6", granted, len(calls), g.client.scripts.Load(), want)
	}
}

// Each caller of a script gets the server's error as if it were the only one.
func TestEachCallerOfAScriptGetsItsError(t *testing.T) {
	for _, fault := range []struct {
		name    string
		command string // makes the fault; as in redis-cli
		reason  penstock.Reason
	}{
		{name: "no right to run scripts", command: "ACL SETUSER default -eval -evalsha", reason: penstock.ReasonPermissionDenied},
		{name: "no right inside the script", command: "ACL SETUSER default -time", reason: penstock.ReasonPermissionDenied},
		{name: "out of memory", command: "CONFIG SET maxmemory 1", reason: penstock.ReasonOutOfMemory},
		{name: "replica", command: "REPLICAOF 127.0.0.1 1", reason: penstock.ReasonNotReady},
	} {
		for _, kind := range []string{"uniform", "mixed"} {
			t.Run(fault.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				g := newCoalescingTest(t, dial(server.URL())(t))
				calls := g.holdTwo()
				var together []*pendingCall
				for range 5 {
					if kind == "uniform" {
						together = append(together, g.call("k", 1))
						continue
					}
					held := penstock.Charge{Key: "k", Plan: penstock.InFlight(100, time.Hour).WithName("held").MustCompile(), Cost: 1, Holder: "someone"}
					together = append(together, g.callIn(context.Background(), nil, held))
				}
				g.awaitWaiters(5)
				clienttest.Do(fault.command)(t, server)
				g.client.pass(3) // two that are held, and one for the waiters
				for _, call := range append(calls, together...) {
					<-call.done
					var failure *penstock.StoreError
					if !errors.As(call.err, &failure) || failure.Reason != fault.reason || !errors.Is(call.err, penstock.ErrUnavailable) {
						t.Errorf("a caller got %v; want an error of reason %v", call.err, fault.reason)
					}
				}
			})
		}
	}
}

// With Options.Now, which may stop or jump, keys live for an hour longer than they need, because
// TTLs run by the server's clock.
func TestKeysLiveAnHourLongerWithOptionsNow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, o := range map[string]redisstore.Options{"the server's clock": {Prefix: "server"}, "Options.Now": {Prefix: "now", Now: clienttest.StandingClock().Now}} {
		store := open(t, server.URL(), o)
		limit := penstock.PerSecond(10)
		for _, batch := range [][]penstock.Charge{
			{spend("bucket", limit.MustCompile(), 1)},
			{spend("log", limit.With(penstock.SlidingLog).MustCompile(), 1)},
			{spend("window", limit.With(penstock.FixedWindow).MustCompile(), 1)},
			{spend("parts", limit.With(penstock.SubWindow(5)).MustCompile(), 1)},
			{spend("both", limit.MustCompile(), 1), spend("both", limit.With(penstock.SlidingWindow).WithName("other").MustCompile(), 1)},
			{{Key: "held", Plan: penstock.InFlight(3, time.Second).MustCompile(), Cost: 1, Holder: "someone"}},
		} {
			if d, err := store.Decide(t.Context(), batch); err != nil || !d.Allowed {
				t.Fatalf("%s: %v, %v; want a grant", name, d, err)
			}
		}
		keys := must(t, server, "KEYS", o.Prefix+"*").([]any)
		if len(keys) < 6 {
			t.Errorf("%s: there are %d keys; want 6 or more", name, len(keys))
		}
		for _, key := range keys {
			ttl := time.Duration(must(t, server, "PTTL", key.(string)).(int64)) * time.Millisecond
			least, most := time.Duration(0), 10*time.Second // twice the time that the state is used, and 5 s
			if o.Now != nil {
				least, most = time.Hour, time.Hour+most
			}
			if ttl <= least || ttl > most {
				t.Errorf("%s: %q has a TTL of %v; want between %v and %v", name, key, ttl, least, most)
			}
		}
	}
}
