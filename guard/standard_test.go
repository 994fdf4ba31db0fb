package guard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

func TestStandardObeysTheLaw(t *testing.T) {
	storetest.Run(t, func(*testing.T) penstock.Store {
		noTimeout := guard.TimeoutOptions{After: -1}
		return standard(t, memstore.New(memstore.Options{}), guard.Options{Timeout: noTimeout})
	})
}

// A random sequence of charges gets the same decisions with all guards as without them.
func TestStandardDecidesAsTheStoreDoes(t *testing.T) {
	effort.SkipUnderRace(t)
	decided := 0
	for i := range uint64(seeds(200)) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			bare := memstore.New(memstore.Options{})
			// Only this caller refunds, so a denial may be cached until its RetryAfter.
			guarded := standard(t, memstore.New(memstore.Options{}), guard.Options{DenyCacheTTL: time.Hour})
			limits := []penstock.Limit{
				compiled(t, penstock.PerSecond(1+rng.Int64N(10)).WithBurst(1+rng.Int64N(20))).Limit(),
				compiled(t, penstock.PerMinute(1+rng.Int64N(30)).With(penstock.SlidingLog)).Limit(),
				compiled(t, penstock.PerMinute(1+rng.Int64N(30)).With(penstock.FixedWindow).WithName("fixed")).Limit(),
			}
			for step := range 300 {
				time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
				c := penstock.Charge{Key: fmt.Sprint(rng.IntN(3)), Plan: limits[rng.IntN(len(limits))].MustCompile(), Cost: rng.Int64N(5)}
				if rng.IntN(6) == 0 {
					c.Mode = []penstock.Mode{penstock.Peek, penstock.Refund, penstock.Reset, penstock.Force, penstock.Draw}[rng.IntN(5)]
				}
				want, errBare := bare.Decide(t.Context(), []penstock.Charge{c})
				got, errGuarded := guarded.Decide(t.Context(), []penstock.Charge{c})
				if errBare != nil || errGuarded != nil || got.Allowed != want.Allowed || got.Status(0).Granted != want.Status(0).Granted {
					t.Fatalf("seed %d, step %d: mode %v of limit %v: with all guards %v, error %v; want %v, error %v, as without guards", seed, step, c.Mode, c.Plan, got, errGuarded, want, errBare)
				}
				decided++
			}
		})
	}
	t.Logf("counted: %d decisions through all guards as without them", decided)
}

// A limit that may be leased is leased. Close returns the units that were drawn and not spent, so
// the store has counted exactly the units that were granted.
func TestStandardLeasesLimitsWithALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		limit := compiled(t, penstock.PerHour(100_000).With(penstock.FixedWindow))
		g := standard(t, store, guard.Options{Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: 100} }})
		leased, granted := 0, int64(0)
		for range 20_000 {
			d, err := g.Decide(t.Context(), []penstock.Charge{{Key: "hot", Plan: limit, Cost: 1}})
			if err != nil || !d.Allowed {
				t.Fatalf("the decision of a spend is %v, error %v; want it allowed", d, err)
			}
			granted++
			if d.Source == penstock.FromLease {
				leased++
			}
			time.Sleep(time.Millisecond)
		}
		g.Close()
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "hot", Plan: limit, Mode: penstock.Peek}})
		if used := 100_000 - d.Remaining(); err != nil || used != granted || leased < 15_000 {
			t.Errorf("%d units were granted, %d of them by leases, and %d are used in the store, error %v; want as many used as granted, and at least 15,000 by leases", granted, leased, used, err)
		}
	})
}

// Redis is paused and killed in turn. Every call gets a decision, and after each outage Redis
// decides again.
func TestStandardGoesThroughAnOutage(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var slowest atomic.Int64
	g := standard(t, store, guard.Options{
		Timeout: guard.TimeoutOptions{After: 50 * time.Millisecond},
		Observe: func(e guard.Event) { slowest.Store(max(slowest.Load(), int64(e.Latency))) },
	})
	defer g.Close()
	limit := compiled(t, penstock.PerSecond(1000))
	var calls atomic.Int64
	call := func() (penstock.Source, error) {
		d, err := g.Decide(context.Background(), []penstock.Charge{{Key: fmt.Sprint(calls.Add(1) % 100), Plan: limit, Cost: 1}})
		return d.Source, err
	}
	// callUntil makes 32 concurrent calls, and repeats them until source decides the first and the
	// last of them.
	callUntil := func(phase string, source penstock.Source) {
		t.Helper()
		eventually.NoError(t, func() error {
			var got [32]penstock.Source
			var all sync.WaitGroup
			for i := range got {
				all.Go(func() {
					var err error
					if got[i], err = call(); err != nil {
						t.Errorf("%s: the error of a call is %v; want a decision", phase, err)
					}
				})
			}
			all.Wait()
			if first, last := got[0], got[len(got)-1]; first != source || last != source {
				return fmt.Errorf("%s: the first call is decided by %v and the last by %v; want both by %v", phase, first, last, source)
			}
			return nil
		})
	}
	callUntil("at first", penstock.FromStore)
	for range 2 {
		server.Pause()
		callUntil("while Redis hangs", penstock.FromFallback)
		server.Resume()
		callUntil("when it runs again", penstock.FromStore)
		server.Kill()
		callUntil("while Redis is gone", penstock.FromFallback)
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		callUntil("when it is back", penstock.FromStore)
	}
	t.Logf("counted: %d calls answered through outages (the slowest took %v)", calls.Load(), time.Duration(slowest.Load()))
}

// Callers get answers from Fallback. OnStoreError still reports each batch that the store did not
// decide.
func TestOnStoreErrorReportsBatchesThatTheStoreDidNotDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		var observed, storeErrors []string // the sources and reasons of the events
		g := standard(t, store, guard.Options{
			Breaker: guard.BreakerOptions{Failures: 3},
			Observe: func(e guard.Event) { observed = append(observed, strings.TrimSpace(e.Source.String()+" "+e.Reason)) },
			OnStoreError: func(e guard.Event) {
				if e.Plan == nil || e.Plan.Name() != "hour" || e.Charges != 1 {
					t.Errorf("the event has %d charges of limit %v; want 1 of limit \"hour\"", e.Charges, e.Plan)
				}
				storeErrors = append(storeErrors, e.Reason)
			},
		})
		defer g.Close()
		limit := compiled(t, penstock.PerHour(1000))
		call := func(ctx context.Context) { g.Decide(ctx, one(limit, "k")) }
		call(t.Context())
		store.setFault(failWith(penstock.NewStoreError(penstock.ReasonBusy, errDown)))
		call(t.Context())
		store.setFault(hang)
		call(t.Context())
		canceled, cancel := context.WithCancel(t.Context())
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			cancel()
			return hang(ctx, charges)
		})
		call(canceled)
		store.setFault(failWith(errDown))
		call(t.Context())
		call(t.Context())
		if want := []string{"busy", "timeout", "canceled", "unknown", "breaker_open"}; !slices.Equal(storeErrors, want) {
			t.Errorf("OnStoreError got the reasons %q; want %q", storeErrors, want)
		}
		if want := []string{"store", "fallback", "fallback", "store canceled", "fallback", "fallback"}; !slices.Equal(observed, want) {
			t.Errorf("Observe got the sources and reasons %q; want %q", observed, want)
		}
		t.Logf("counted: %d calls without an answer of the store, each reported", len(storeErrors))
	})
}

func TestStandardReportsTheStateOfItsGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &nodesStore{Store: memstore.New(memstore.Options{})}
		g := standard(t, store, guard.Options{Server: store, Limits: settings(map[string]guard.Settings{"day": {Lease: 100}})})
		hour, day := compiled(t, penstock.PerHour(1)), compiled(t, penstock.PerDay(100_000))
		for range 3 {
			g.Decide(t.Context(), one(hour, "denied"))
		}
		for range 100 { // the node of this key does not answer
			g.Decide(t.Context(), one(hour, "dead"))
		}
		for range 2000 {
			g.Decide(t.Context(), one(day, "leased"))
			time.Sleep(time.Millisecond)
		}
		s := g.Stats()
		if s.DenyCacheEntries != 1 {
			t.Errorf("the deny cache has %d entries; want 1", s.DenyCacheEntries)
		}
		accounted := s.Lease.Spent + s.Lease.Live + s.Lease.Returned + s.Lease.Expired
		if s.Lease.Drawn < 1000 || s.Lease.Drawn != accounted {
			t.Errorf("the stats of leases are %+v; want at least 1000 units drawn that are all spent, live, returned or expired", s.Lease)
		}
		want := map[string]guard.State{"": guard.StateClosed, "denied": guard.StateClosed, "leased": guard.StateClosed, "dead": guard.StateOpen}
		if !maps.Equal(s.Breakers, want) {
			t.Errorf("the breakers are %v; want %v", s.Breakers, want)
		}
		seen := map[guard.State]bool{} // the states of the dead node's breaker during a second
		for range 1000 {
			seen[g.Stats().Breakers["dead"]] = true
			time.Sleep(time.Millisecond)
		}
		if !seen[guard.StateOpen] || seen[guard.StateClosed] {
			t.Errorf("the breaker of the dead node had the states %v; want open, and never closed", seen)
		}
		g.Close()
		if s := g.Stats().Lease; s.Live != 0 || s.Returned == 0 {
			t.Errorf("after Close, the stats of leases are %+v; want 0 live units, and some returned", s)
		}
	})
}

func TestStandardWithoutCacheAndLeasesHasStats(t *testing.T) {
	g := standard(t, memstore.New(memstore.Options{}), guard.Options{DenyCacheTTL: -1, Instances: 3})
	defer g.Close()
	if s := g.Stats(); s.DenyCacheEntries != 0 || len(s.Breakers) != 1 || g.Instances() != 3 {
		t.Errorf("the stats are %+v, with %d instances; want 0 cached denials, 1 breaker and 3 instances", s, g.Instances())
	}
}

// The breaker closes within a second after the store's return, for each length of the outage, and
// both for a store that failed and for a store that hung.
func TestStoreIsUsedAgainWithinASecond(t *testing.T) {
	effort.SkipUnderRace(t)
	slowest, outages := time.Duration(0), 0
	for i := range uint64(seeds(60)) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			store := newFaulty()
			g := standard(t, store, guard.Options{})
			defer g.Close()
			limit := compiled(t, penstock.PerHour(1_000_000))
			var all sync.WaitGroup
			call := func() {
				all.Go(func() {
					if _, err := g.Decide(t.Context(), one(limit, "k")); err != nil {
						t.Errorf("seed %d: the error of a call is %v; want a decision", seed, err)
					}
				})
			}
			for range 3 {
				store.setFault([]fault{hang, failWith(errDown)}[rng.IntN(2)])
				for end := time.Now().Add(time.Duration(rng.Int64N(int64(20 * time.Second)))); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					call()
				}
				store.setFault(nil)
				back := time.Now()
				for ; g.Stats().Breakers[""] != guard.StateClosed; time.Sleep(5 * time.Millisecond) {
					call()
				}
				took := time.Since(back)
				if slowest = max(slowest, took); took > time.Second {
					t.Errorf("seed %d: the breaker closed %v after the store's return; want at most 1s", seed, took)
				}
				outages++
			}
			all.Wait()
		})
	}
	t.Logf("counted: %d outages after which the store was used again (after at most %v)", outages, slowest)
}

func TestStandardHasABreakerForEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that a slow machine does not see more probes
		store := &nodesStore{Store: memstore.New(memstore.Options{})}
		g := standard(t, store, guard.Options{Server: store})
		defer g.Close()
		limit := compiled(t, penstock.PerHour(1_000_000))
		call := func(key string) penstock.Source {
			d, err := g.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: limit, Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			return d.Source
		}
		for range 20 {
			if source := call("dead"); source != penstock.FromFallback {
				t.Errorf("the key of a dead node was decided by %v; want by the fallback", source)
			}
		}
		callsBefore := store.calls.Load()
		for range 20 {
			if source := call("alive"); source != penstock.FromStore {
				t.Errorf("the key of a live node was decided by %v; want by the store", source)
			}
			call("dead")
		}
		if n := store.calls.Load() - callsBefore; n > 25 {
			t.Errorf("the store was called %d times for 40 decisions; want at most 25, since the breaker of the dead node is open", n)
		}
		eventually.True(t, "Instances returns 7, as Heartbeat does", func() bool { return g.Instances() == 7 })
	})
}

// A nodesStore has a node for each key. The node of the key "dead" is dead.
type nodesStore struct {
	penstock.Store
	calls atomic.Int64
}

func (s *nodesStore) Node(charges []penstock.Charge) string { return charges[0].Key }

func (s *nodesStore) Heartbeat(context.Context, string, time.Duration) (int, error) { return 7, nil }

func (s *nodesStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.calls.Add(1)
	if charges[0].Key == "dead" {
		return penstock.Decision{}, errors.Join(penstock.ErrUnavailable, errors.New("dead"))
	}
	return s.Store.Decide(ctx, charges)
}

func TestStandardNeedsAServerOrACountOfInstances(t *testing.T) {
	store := memstore.New(memstore.Options{})
	if _, err := guard.Standard(store, guard.Options{}); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Instances") {
		t.Errorf("with neither Server nor Instances, the error is %v; want an ErrInvalid that names Instances", err)
	}
	for _, o := range []guard.Options{{Instances: 1}, {Server: &nodesStore{Store: store}}} {
		g, err := guard.Standard(store, o)
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
	}
}
