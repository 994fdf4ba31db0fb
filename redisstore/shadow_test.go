package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/piggyback"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// A trying batch is an enforced one with its shadow.
type trying struct {
	*asked
	batch piggyback.Batch
	alone atomic.Int64 // calls of its own that the shadow was left to
}

// try asks for a charge, with another that is tried.
func (g *coalescing) try(enforced, tried penstock.Charge) *trying {
	t := &trying{batch: piggyback.Batch{Charges: []penstock.Charge{tried}}}
	t.batch.DecideAlone = func() { t.alone.Add(1) }
	charges := []penstock.Charge{enforced}
	ctx, cancel := context.WithCancel(context.Background())
	t.asked = g.askIn(context.WithValue(ctx, piggyback.Key{}, &piggyback.Batches{Enforced: charges, Shadows: []*piggyback.Batch{&t.batch}}), cancel, charges...)
	return t
}

// looser is a limit of the algorithm of g.limit, for shadows.
func looser(g *coalescing) *penstock.Plan {
	l := g.limit.Limit()
	l.Name, l.Count, l.Burst = "looser", 50, 50
	return l.MustCompile()
}

func (t *trying) wait(g *coalescing) {
	g.Helper()
	<-t.done
	if !t.batch.Take() {
		return
	}
	g.Error("nobody took the shadow")
}

func TestShadowsGoInTheScriptOfTheEnforcedBatch(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	allowed, tried := 0, 0
	for range 60 {
		a := g.try(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looser(g), Cost: 1})
		g.client.pass(1)
		a.wait(g)
		if a.err != nil || a.batch.Err != nil || a.alone.Load() != 0 {
			t.Fatalf("%v, %v, left alone %d times", a.err, a.batch.Err, a.alone.Load())
		}
		if a.decision.Allowed {
			allowed++
		}
		if a.batch.Decision.Allowed {
			tried++
		}
	}
	if scripts := g.client.scripts.Load(); scripts != 60 || allowed != 30 || tried != 50 {
		t.Errorf("%d scripts allowed %d, and the shadow %d; want 60, 30 and 50", scripts, allowed, tried)
	}
}

// As many scripts decide 64 callers with shadows as without.
func TestShadowsOfCallersThatWaitNeedNoScript(t *testing.T) {
	server := redistest.Shared(t)
	for _, shadows := range []bool{false, true} {
		g := newCoalescing(t, dial(server.URL())(t))
		calls := g.hold()
		var all []*trying
		for range 62 {
			charge := penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}
			if shadows {
				a := g.try(charge, penstock.Charge{Key: "k", Plan: looser(g), Cost: 1})
				calls, all = append(calls, a.asked), append(all, a)
			} else {
				calls = append(calls, g.ask("k", 1))
			}
		}
		waiting := 62
		if shadows {
			waiting *= 2
		}
		g.awaitWaiting(waiting)
		g.client.pass(3)
		if granted := g.granted(calls); granted != 32 || g.client.scripts.Load() != 3 {
			t.Errorf("with shadows %v: %d granted in %d scripts; want 32 in 3", shadows, granted, g.client.scripts.Load())
		}
		tried := 0
		for _, a := range all {
			if a.batch.Err != nil || a.alone.Load() != 0 {
				t.Errorf("the shadow: %v, left alone %d times", a.batch.Err, a.alone.Load())
			}
			if a.batch.Decision.Allowed {
				tried++
			}
		}
		if shadows && tried != 50 {
			t.Errorf("the shadows allowed %d; want 50", tried)
		}
	}
}

// Where each caller has a key of its own, scripts fill up; yet each has a batch and its shadow.
func TestShadowsOfManyKeysAreLeftToNobody(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := append(g.holdThree(), g.ask("odd", 1)) // so that pairs do not fill a script to the brim
	var all []*trying
	for i := range 62 {
		key := fmt.Sprint("key", i)
		a := g.try(penstock.Charge{Key: key, Plan: g.limit, Cost: 1}, penstock.Charge{Key: key, Plan: looser(g), Cost: 1})
		calls, all = append(calls, a.asked), append(all, a)
	}
	g.awaitWaiting(125)
	g.client.pass(3 + 2)
	if granted := g.granted(calls); granted != len(calls) || g.client.scripts.Load() != 5 {
		t.Errorf("%d of %d granted in %d scripts; want all in 5", granted, len(calls), g.client.scripts.Load())
	}
	for i, a := range all {
		if a.batch.Err != nil || a.alone.Load() != 0 || !a.batch.Decision.Allowed || a.batch.Decision.Remaining() != 49 {
			t.Errorf("shadow %d: %+v, %v, left alone %d times", i, a.batch.Decision, a.batch.Err, a.alone.Load())
		}
	}
}

// Both batches are answered as each would be alone, whatever the other is answered.
func TestShadowsAndEnforcedBatchesDoNotKnowOfEachOther(t *testing.T) {
	server := redistest.Shared(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for _, algorithm := range []func(penstock.Limit) penstock.Limit{
		func(l penstock.Limit) penstock.Limit { return l },
		func(l penstock.Limit) penstock.Limit { l.Algorithm = penstock.FixedWindow; return l },
		func(l penstock.Limit) penstock.Limit { l.Algorithm = penstock.SlidingWindow; return l },
	} {
		now := time.UnixMicro(1_700_000_000_000_000)
		clock := func() time.Time { return now }
		store := over(t, dial(server.URL())(t), redisstore.Options{Prefix: aPrefix(), Now: clock})
		enforced, tried := memstore.New(memstore.Options{Now: clock}), memstore.New(memstore.Options{Now: clock})
		for step := range 300 {
			charge := func(name string, count int64) []penstock.Charge {
				l := penstock.PerMinute(count)
				l.Name, l.Group = name, "g"
				return []penstock.Charge{{Key: fmt.Sprint(random.IntN(2)), Plan: algorithm(l).MustCompile(), Cost: random.Int64N(8)}}
			}
			a, b := charge("limit", 20), charge("candidate", 5+random.Int64N(40))
			batch := &piggyback.Batch{Charges: b, DecideAlone: func() { t.Error("the shadow was left alone") }}
			ctx := context.WithValue(t.Context(), piggyback.Key{}, &piggyback.Batches{Enforced: a, Shadows: []*piggyback.Batch{batch}})
			got, err := store.Decide(ctx, a)
			if err != nil || batch.Err != nil {
				t.Fatal(err, batch.Err)
			}
			want, _ := enforced.Decide(t.Context(), a)
			wantTried, _ := tried.Decide(t.Context(), b)
			if got.Status(0) != want.Status(0) || got.Allowed != want.Allowed || batch.Decision.Status(0) != wantTried.Status(0) || batch.Decision.Allowed != wantTried.Allowed {
				t.Fatalf("seed %d, step %d: %+v with %+v\ngot  %+v\nwant %+v\ntried %+v\nwant  %+v", seed, step, a, b, got, want, batch.Decision, wantTried)
			}
			now = now.Add(time.Duration(random.Int64N(3_000_000)) * time.Microsecond)
		}
	}
}

// What stands under a shadow's key is not the trouble of the enforced batch, and what stands under
// that one's key not the shadow's.
func TestPoisonedShadowsLeaveTheEnforcedBatchAlone(t *testing.T) {
	server := redistest.Shared(t)
	for _, queued := range []bool{false, true} {
		g := newCoalescing(t, dial(server.URL())(t))
		limit := looser(g).Limit()
		limit.Group = "tried"
		bad := penstock.Charge{Key: "poisoned", Plan: limit.MustCompile(), Cost: 1}
		key, err := redisstore.KeyOf(bad, redisstore.Options{Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Do("LPUSH", key, "x"); err != nil {
			t.Fatal(err)
		}
		var calls []*asked
		if queued {
			calls = g.hold()
		}
		good := penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}
		a := g.try(good, bad)
		if queued {
			g.awaitWaiting(2)
		}
		g.client.pass(1 + len(calls))
		a.wait(g)
		g.granted(calls)
		var failure *penstock.StoreError
		if a.err != nil || !a.decision.Allowed || !errors.As(a.batch.Err, &failure) || failure.Reason != penstock.ReasonCorrupt {
			t.Errorf("queued %v: %+v, %v; the shadow: %v", queued, a.decision, a.err, a.batch.Err)
		}
		b := g.try(bad, good)
		g.client.pass(1)
		b.wait(g)
		if !errors.As(b.err, &failure) || failure.Reason != penstock.ReasonCorrupt || b.batch.Err == nil {
			t.Errorf("queued %v: %v; the shadow: %v", queued, b.err, b.batch.Err)
		}
	}
}

// If the script fails, the enforced batch and its shadow fail with the same error.
func TestShadowsFailWithTheScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	a := g.try(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looser(g), Cost: 1})
	g.awaitWaiting(2)
	g.client.pass(2)
	g.client.held <- func(context.Context) error { return errors.New("the connection broke") }
	g.granted(calls)
	a.wait(g)
	var failure *penstock.StoreError
	if !errors.As(a.err, &failure) || !failure.MayBeCharged || a.batch.Err == nil || a.alone.Load() != 0 {
		t.Errorf("%v; the shadow: %v, left alone %d times", a.err, a.batch.Err, a.alone.Load())
	}
}

// A caller that goes away before its script is sent takes its shadow along.
func TestShadowsLeaveWithTheirCaller(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	a := g.try(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looser(g), Cost: 1})
	g.awaitWaiting(2)
	a.cancel()
	a.wait(g)
	g.awaitWaiting(0)
	g.client.pass(2)
	g.granted(calls)
	if !errors.Is(a.err, context.Canceled) || a.batch.Err == nil || g.client.scripts.Load() != 2 {
		t.Errorf("%v; the shadow: %v; %d scripts", a.err, a.batch.Err, g.client.scripts.Load())
	}
}

// A script that all its callers have left is given up, although their shadows were in it.
func TestScriptsWithShadowsAreGivenUp(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	others := g.hold()
	a := g.try(penstock.Charge{Key: "k", Plan: g.limit, Cost: 1}, penstock.Charge{Key: "k", Plan: looser(g), Cost: 1})
	g.awaitWaiting(2)
	g.client.pass(2)
	ended := make(chan struct{})
	g.client.held <- func(ctx context.Context) error {
		defer close(ended)
		a.cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	<-ended
	a.wait(g)
	g.granted(others)
	if !errors.Is(a.err, context.Canceled) || a.batch.Err == nil {
		t.Errorf("%v; the shadow: %v", a.err, a.batch.Err)
	}
}

// What the script cannot decide is left to a call of its own, at once; and what is not the enforced
// batch brings no shadow.
func TestShadowsThatDoNotFitAreLeftAlone(t *testing.T) {
	server := redistest.Shared(t)
	cluster := redistest.SharedCluster(t)
	limit := penstock.PerHour(30)
	other, many := limit, limit
	other.Algorithm, many.Algorithm = penstock.SlidingWindow, penstock.SlidingLog
	one := penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: 1}
	single := "redis+cluster://" + strings.Join(cluster.Addrs(), ",")
	for name, test := range map[string]struct {
		url   string
		apart bool
		tried penstock.Charge
		alone int64
	}{
		"another key":            {url: server.URL(), tried: penstock.Charge{Key: "l", Plan: limit.MustCompile(), Cost: 1}},
		"another algorithm":      {url: server.URL(), tried: penstock.Charge{Key: "k", Plan: other.MustCompile(), Cost: 1}, alone: 1},
		"a collection":           {url: server.URL(), tried: penstock.Charge{Key: "k", Plan: many.MustCompile(), Cost: 1}, alone: 1},
		"an invalid charge":      {url: server.URL(), tried: penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: -1}, alone: 1},
		"batches apart":          {url: server.URL(), apart: true, tried: one, alone: 1},
		"one slot of a Cluster":  {url: single, tried: one},
		"two slots of a Cluster": {url: single, tried: penstock.Charge{Key: "l", Plan: limit.MustCompile(), Cost: 1}, alone: 1},
	} {
		t.Run(name, func(t *testing.T) {
			store := over(t, dial(test.url)(t), redisstore.Options{Prefix: aPrefix()})
			if test.apart {
				redisstore.DisableCoalescing(store)
			}
			alone := int64(0)
			batch := &piggyback.Batch{Charges: []penstock.Charge{test.tried}, DecideAlone: func() { alone++ }}
			charges := []penstock.Charge{one}
			ctx := context.WithValue(t.Context(), piggyback.Key{}, &piggyback.Batches{Enforced: charges, Shadows: []*piggyback.Batch{batch}})
			if _, err := store.Decide(ctx, []penstock.Charge{one}); err != nil || alone != 0 || batch.Decision.Allowed {
				t.Errorf("another batch: %v; the shadow: %+v, left alone %d times", err, batch.Decision, alone)
			}
			d, err := store.Decide(ctx, charges)
			if err != nil || !d.Allowed || alone != test.alone || batch.Err != nil || batch.Decision.Allowed != (test.alone == 0) {
				t.Errorf("%+v, %v; the shadow: %+v, %v, left alone %d times; want %d", d, err, batch.Decision, batch.Err, alone, test.alone)
			}
		})
	}
}
