package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// A shadowedCall is a call in flight that has a shadow.
type shadowedCall struct {
	*pendingCall
	shadow batches.Batch
}

// withShadow returns a list of one batch with a shadow.
func withShadow(enforced []penstock.Charge, shadow *batches.Batch) []*batches.Batch {
	shadow.Err = batches.ErrUndecided
	return []*batches.Batch{{Charges: enforced, Shadows: []*batches.Batch{shadow}}}
}

// callWithShadow makes an enforced charge, with another charge as its shadow.
func (g *coalescingTest) callWithShadow(enforced, shadow penstock.Charge) *shadowedCall {
	ctx, cancel := context.WithCancel(context.Background())
	call := &shadowedCall{pendingCall: &pendingCall{cancel: cancel, done: make(chan struct{})}, shadow: batches.Batch{Charges: []penstock.Charge{shadow}}}
	list := withShadow([]penstock.Charge{enforced}, &call.shadow)
	go func() {
		defer close(call.done)
		batches.Of(g.store)(ctx, list)
		call.decision, call.err = list[0].Decision, list[0].Err
	}()
	return call
}

// looserLimit returns a limit for shadows. It has the algorithm of g.limit, and admits 50 units
// instead of 30.
func looserLimit(g *coalescingTest) *penstock.Plan {
	l := g.limit.Limit()
	l.Name, l.Count, l.Burst = "looser", 50, 50
	return l.MustCompile()
}

// wait returns when the call has ended. If the store has left the shadow, wait fails the test.
func (call *shadowedCall) wait(g *coalescingTest) {
	g.Helper()
	<-call.done
	if call.shadow.Err == batches.ErrUndecided {
		g.Error("the store has left the shadow; want it decided")
	}
}

func TestShadowsGoInTheScriptOfTheEnforcedBatch(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	allowed, allowedShadows := 0, 0
	for range 60 {
		call := g.callWithShadow(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looserLimit(g), Cost: 1})
		g.client.pass(1)
		call.wait(g)
		if call.err != nil || call.shadow.Err != nil {
			t.Fatalf("the enforced batch: %v; the shadow: %v; want no error", call.err, call.shadow.Err)
		}
		if call.decision.Allowed {
			allowed++
		}
		if call.shadow.Decision.Allowed {
			allowedShadows++
		}
	}
	if scripts := g.client.scripts.Load(); scripts != 60 || allowed != 30 || allowedShadows != 50 {
		t.Errorf("in %d scripts, %d calls and %d shadows were allowed; want 60, 30 and 50", scripts, allowed, allowedShadows)
	}
}

// 64 callers with shadows need as many scripts as 64 callers without shadows.
func TestShadowsOfWaitingCallersNeedNoScript(t *testing.T) {
	server := redistest.Shared(t)
	for _, hasShadows := range []bool{false, true} {
		g := newCoalescingTest(t, dial(server.URL())(t))
		calls := g.holdTwo()
		var shadowed []*shadowedCall
		for range 62 {
			charge := penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}
			if hasShadows {
				call := g.callWithShadow(charge, penstock.Charge{Key: "k", Plan: looserLimit(g), Cost: 1})
				calls, shadowed = append(calls, call.pendingCall), append(shadowed, call)
			} else {
				calls = append(calls, g.call("k", 1))
			}
		}
		waiting := 62
		if hasShadows {
			waiting *= 2
		}
		g.awaitWaiters(waiting)
		g.client.pass(3) // two that are held, and one for the waiters
		if granted := g.countGranted(calls); granted != 32 || g.client.scripts.Load() != 3 {
			t.Errorf("with shadows %t: %d calls were granted in %d scripts; want 32 (2 that are held, and 30 under their key) in 3", hasShadows, granted, g.client.scripts.Load())
		}
		allowedShadows := 0
		for _, call := range shadowed {
			if call.shadow.Err != nil {
				t.Errorf("the shadow: %v; want no error", call.shadow.Err)
			}
			if call.shadow.Decision.Allowed {
				allowedShadows++
			}
		}
		if hasShadows && allowedShadows != 50 {
			t.Errorf("%d shadows were allowed; want 50", allowedShadows)
		}
	}
}

// If each caller has its own key, scripts fill up. Each script still has batches with their
// shadows.
func TestShadowsOfManyKeysShareTheirScripts(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := append(g.holdThree(), g.call("odd", 1)) // so that pairs do not fill a script exactly
	var shadowed []*shadowedCall
	for i := range 62 {
		key := fmt.Sprint("key", i)
		call := g.callWithShadow(penstock.Charge{Key: key, Plan: g.limit, Cost: 1}, penstock.Charge{Key: key, Plan: looserLimit(g), Cost: 1})
		calls, shadowed = append(calls, call.pendingCall), append(shadowed, call)
	}
	g.awaitWaiters(1 + 2*62)
	g.client.pass(3 + 2) // three that are held, and two for the waiters
	if granted := g.countGranted(calls); granted != len(calls) || g.client.scripts.Load() != 5 {
		t.Errorf("%d of %d calls were granted in %d scripts; want all in 5", granted, len(calls), g.client.scripts.Load())
	}
	for i, call := range shadowed {
		isGranted := call.shadow.Decision.Allowed && call.shadow.Decision.Remaining() == 49
		if call.shadow.Err != nil || !isGranted {
			t.Errorf("shadow %d: %+v, %v; want a grant with 49 left", i, call.shadow.Decision, call.shadow.Err)
		}
	}
}

// The enforced batch and its shadow each get the answer that they would get alone.
func TestShadowsAndEnforcedBatchesAreIndependent(t *testing.T) {
	server := redistest.Shared(t)
	seed := effort.Seed()
	random := rand.New(rand.NewPCG(seed, 1))
	for _, algorithm := range []func(penstock.Limit) penstock.Limit{
		func(l penstock.Limit) penstock.Limit { return l },
		func(l penstock.Limit) penstock.Limit { l.Algorithm = penstock.FixedWindow; return l },
		func(l penstock.Limit) penstock.Limit { l.Algorithm = penstock.SlidingWindow; return l },
	} {
		now := time.UnixMicro(1_700_000_000_000_000)
		clock := func() time.Time { return now }
		store := newStore(t, dial(server.URL())(t), redisstore.Options{Prefix: newPrefix(), Now: clock})
		// Memory keeps unneeded state, as Redis does: the next limit may be slower.
		memory := memstore.Options{Now: clock, Linger: time.Hour}
		enforced, shadow := memstore.New(memory), memstore.New(memory)
		for step := range 300 {
			charge := func(name string, count int64) []penstock.Charge {
				l := penstock.PerMinute(count)
				l.Name, l.Group = name, "g"
				return []penstock.Charge{{Key: fmt.Sprint(random.IntN(2)), Plan: algorithm(l).MustCompile(), Cost: random.Int64N(8)}}
			}
			enforcedCharges, shadowCharges := charge("limit", 20), charge("candidate", 5+random.Int64N(40))
			batch := &batches.Batch{Charges: shadowCharges}
			list := withShadow(enforcedCharges, batch)
			batches.Of(store)(t.Context(), list)
			got, err := list[0].Decision, list[0].Err
			if err != nil || batch.Err != nil {
				t.Fatalf("seed %d, step %d: the enforced batch: %v; the shadow: %v; want two decisions", seed, step, err, batch.Err)
			}
			want, _ := enforced.Decide(t.Context(), enforcedCharges)
			wantShadow, _ := shadow.Decide(t.Context(), shadowCharges)
			areEqual := func(a, b penstock.Decision) bool { return a.Allowed == b.Allowed && a.Status(0) == b.Status(0) }
			if !areEqual(got, want) || !areEqual(batch.Decision, wantShadow) {
				t.Fatalf("seed %d, step %d: %+v with %+v\ngot  %+v\nwant %+v\nshadow got  %+v\nshadow want %+v", seed, step, enforcedCharges, shadowCharges, got, want, batch.Decision, wantShadow)
			}
			now = now.Add(time.Duration(random.Int64N(3_000_000)) * time.Microsecond)
		}
	}
}

// A foreign value under a shadow's key fails the shadow, but not the enforced batch, and the other
// way round.
func TestForeignValueFailsOnlyItsOwnBatch(t *testing.T) {
	server := redistest.Shared(t)
	for _, isQueued := range []bool{false, true} {
		g := newCoalescingTest(t, dial(server.URL())(t))
		limit := looserLimit(g).Limit()
		limit.Group = "candidates" // so that it has another string in Redis
		bad := penstock.Charge{Key: "malformed", Plan: limit.MustCompile(), Cost: 1}
		key, err := redisstore.KeyOf(bad, redisstore.Options{Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Do("LPUSH", key, "x"); err != nil {
			t.Fatal(err)
		}
		var calls []*pendingCall
		if isQueued {
			calls = g.holdTwo()
		}
		good := penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}
		call := g.callWithShadow(good, bad)
		if isQueued {
			g.awaitWaiters(2)
		}
		g.client.pass(1 + len(calls))
		call.wait(g)
		g.countGranted(calls)
		var failure *penstock.StoreError
		isShadowCorrupt := errors.As(call.shadow.Err, &failure) && failure.Reason == penstock.ReasonCorrupt
		if call.err != nil || !call.decision.Allowed || !isShadowCorrupt {
			t.Errorf("queued %t: the enforced batch: %+v, %v; the shadow: %v; want a grant, and an error of reason corrupt", isQueued, call.decision, call.err, call.shadow.Err)
		}
		corrupt := g.callWithShadow(bad, good)
		g.client.pass(1)
		corrupt.wait(g)
		isCorrupt := errors.As(corrupt.err, &failure) && failure.Reason == penstock.ReasonCorrupt
		if !isCorrupt || corrupt.shadow.Err != nil || !corrupt.shadow.Decision.Allowed {
			t.Errorf("queued %t: the enforced batch: %v; the shadow: %+v, %v; want an error of reason corrupt, and a grant", isQueued, corrupt.err, corrupt.shadow.Decision, corrupt.shadow.Err)
		}
	}
}

// If the script fails, the enforced batch and its shadow fail with the same error.
func TestShadowsFailWithTheScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	call := g.callWithShadow(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looserLimit(g), Cost: 1})
	g.awaitWaiters(2)
	g.client.pass(2)
	g.client.releases <- func(context.Context) error { return errors.New("the connection broke") }
	g.countGranted(calls)
	call.wait(g)
	var failure *penstock.StoreError
	hasFailed := errors.As(call.err, &failure) && failure.MayBeCharged
	if !hasFailed || call.shadow.Err == nil {
		t.Errorf("the enforced batch: %v; the shadow: %v; want the script's error twice", call.err, call.shadow.Err)
	}
}

// If a caller leaves before its script is sent, its shadow leaves too.
func TestShadowsLeaveWithTheirCaller(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	call := g.callWithShadow(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looserLimit(g), Cost: 1})
	g.awaitWaiters(2)
	call.cancel()
	call.wait(g)
	g.awaitWaiters(0)
	g.client.pass(2)
	g.countGranted(calls)
	if !errors.Is(call.err, context.Canceled) || call.shadow.Err == nil || g.client.scripts.Load() != 2 {
		t.Errorf("the enforced batch: %v; the shadow: %v; %d scripts; want context.Canceled, an error and 2 scripts", call.err, call.shadow.Err, g.client.scripts.Load())
	}
}

// A script is canceled when all its callers have left, although their shadows are in it.
func TestScriptsWithShadowsAreCanceled(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	others := g.holdTwo()
	call := g.callWithShadow(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looserLimit(g), Cost: 1})
	g.awaitWaiters(2)
	g.client.pass(2)
	ended := make(chan struct{})
	g.client.releases <- func(ctx context.Context) error {
		defer close(ended)
		call.cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	<-ended
	call.wait(g)
	g.countGranted(others)
	if !errors.Is(call.err, context.Canceled) || call.shadow.Err == nil {
		t.Errorf("the enforced batch: %v; the shadow: %v; want context.Canceled and an error", call.err, call.shadow.Err)
	}
}

// A shadow that one script cannot decide together with its batch is left.
func TestShadowsThatDoNotFitAreLeft(t *testing.T) {
	server := redistest.Shared(t)
	cluster := redistest.SharedCluster(t)
	limit := penstock.PerHour(30)
	window, log := limit.With(penstock.SlidingWindow), limit.With(penstock.SlidingLog)
	enforced := penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: 1}
	clusterURL := "redis+cluster://" + strings.Join(cluster.Addrs(), ",")
	for name, test := range map[string]struct {
		url           string
		isUncoalesced bool
		shadow        penstock.Charge
		isLeft        bool
	}{
		"another key":            {url: server.URL(), shadow: penstock.Charge{Key: "l", Plan: limit.MustCompile(), Cost: 1}},
		"another algorithm":      {url: server.URL(), shadow: penstock.Charge{Key: "k", Plan: window.MustCompile(), Cost: 1}, isLeft: true},
		"a collection":           {url: server.URL(), shadow: penstock.Charge{Key: "k", Plan: log.MustCompile(), Cost: 1}, isLeft: true},
		"an invalid charge":      {url: server.URL(), shadow: penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: -1}, isLeft: true},
		"no coalescing":          {url: server.URL(), isUncoalesced: true, shadow: enforced, isLeft: true},
		"one slot of a Cluster":  {url: clusterURL, shadow: enforced},
		"two slots of a Cluster": {url: clusterURL, shadow: penstock.Charge{Key: "l", Plan: limit.MustCompile(), Cost: 1}, isLeft: true},
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore(t, dial(test.url)(t), redisstore.Options{Prefix: newPrefix()})
			if test.isUncoalesced {
				redisstore.DisableCoalescing(store)
			}
			shadow := &batches.Batch{Charges: []penstock.Charge{test.shadow}}
			list := withShadow([]penstock.Charge{enforced}, shadow)
			batches.Of(store)(t.Context(), list)
			if b := list[0]; b.Err != nil || !b.Decision.Allowed {
				t.Errorf("the enforced batch: %+v, %v; want a grant", b.Decision, b.Err)
			}
			if isLeft := shadow.Err == batches.ErrUndecided; isLeft != test.isLeft || !isLeft && (shadow.Err != nil || !shadow.Decision.Allowed) {
				t.Errorf("the shadow: %+v, %v; want it left: %t, or a grant", shadow.Decision, shadow.Err, test.isLeft)
			}
			for i := range 10 { // these calls use the memory of the ones before
				d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: log.MustCompile(), Cost: 1}})
				if err != nil || d.Remaining() != int64(29-i) {
					t.Errorf("call %d of a collection, without a shadow: %+v, %v; want a grant with %d left", i, d, err, 29-i)
				}
			}
		})
	}
}
