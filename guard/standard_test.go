package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

func TestStandardObeysTheLaw(t *testing.T) {
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Standard(memstore.New(memstore.Options{}), guard.Options{Timeout: guard.TimeoutOptions{After: -1}})
	})
}

// Through all guards a trace has the decisions that the bare store gives it.
func TestStandardDecidesAsTheStoreDoes(t *testing.T) {
	decided := 0
	for seed := range seeds(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			bare := memstore.New(memstore.Options{})
			// Here only this caller refunds, so a denial may be remembered for as long as it holds.
			guarded := guard.Standard(memstore.New(memstore.Options{}), guard.Options{DenyFor: time.Hour})
			limits := []penstock.Limit{
				ready(t, penstock.PerSecond(1+rng.Int64N(10)).WithBurst(1+rng.Int64N(20))),
				ready(t, penstock.PerMinute(1+rng.Int64N(30)).With(penstock.SlidingLog)),
				ready(t, penstock.PerMinute(1+rng.Int64N(30)).With(penstock.FixedWindow).WithName("fixed")),
			}
			for step := range 300 {
				time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
				c := penstock.Charge{Key: fmt.Sprint(rng.IntN(3)), Limit: limits[rng.IntN(len(limits))], Cost: rng.Int64N(5)}
				if rng.IntN(6) == 0 {
					c.Mode = []penstock.Mode{penstock.Peek, penstock.Refund, penstock.Reset, penstock.Force, penstock.Draw}[rng.IntN(5)]
				}
				want, err := bare.Decide(t.Context(), []penstock.Charge{c})
				got, err2 := guarded.Decide(t.Context(), []penstock.Charge{c})
				if err != nil || err2 != nil || got.Allowed != want.Allowed || got.Status(0).Granted != want.Status(0).Granted {
					t.Fatalf("seed %d, step %d: %v of %v: %v %v; bare %v %v", seed, step, c.Mode, c.Limit, got, err2, want, err)
				}
				decided++
			}
		})
	}
	t.Logf("counted: %d decisions through all guards as without them", decided)
}

// A limit that may be leased is, and its units are given back at the end: the limit holds over all.
func TestStandardLeasesWhereThatIsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		limit := ready(t, penstock.PerHour(100_000).With(penstock.FixedWindow))
		g := guard.Standard(store, guard.Options{Limits: func(*penstock.Limit) guard.Settings { return guard.Settings{Lease: 100} }})
		leased, granted := 0, int64(0)
		for range 20_000 {
			d, err := g.Decide(t.Context(), []penstock.Charge{{Key: "hot", Limit: limit, Cost: 1}})
			if err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			granted++
			if d.Source == penstock.FromLease {
				leased++
			}
			time.Sleep(time.Millisecond)
		}
		g.Close()
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "hot", Limit: limit, Mode: penstock.Peek}})
		if used := 100_000 - d.Remaining(); err != nil || used != granted || leased < 15_000 {
			t.Errorf("%d were granted, %d by leases, and %d are used: %v", granted, leased, used, err)
		}
	})
}

// While Redis is killed, stopped and back again, every question is answered in time, and by Redis again within a second of its return.
func TestStandardGoesThroughAnOutage(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var slowest atomic.Int64
	g := guard.Standard(store, guard.Options{
		Timeout: guard.TimeoutOptions{After: 50 * time.Millisecond},
		Observe: func(e guard.Event) { slowest.Store(max(slowest.Load(), int64(e.Latency))) },
	})
	defer g.Close()
	limit := ready(t, penstock.PerSecond(1000))
	var asked atomic.Int64
	ask := func() (penstock.Source, error) {
		d, err := g.Decide(context.Background(), []penstock.Charge{{Key: fmt.Sprint(asked.Add(1) % 100), Limit: limit, Cost: 1}})
		return d.Source, err
	}
	until := func(what string, source penstock.Source) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; {
			var got [32]penstock.Source
			var all sync.WaitGroup
			for i := range got {
				all.Go(func() {
					var err error
					if got[i], err = ask(); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
			all.Wait()
			if got[0] == source && got[31] == source {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: still answered by %v", what, got[0])
			}
		}
	}
	until("at first", penstock.FromStore)
	for range 2 {
		server.Pause()
		until("while Redis hangs", penstock.FromFallback)
		server.Resume()
		until("when it goes on", penstock.FromStore)
		server.Kill()
		until("while Redis is gone", penstock.FromFallback)
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		until("when it is back", penstock.FromStore)
	}
	t.Logf("counted: %d questions answered through outages (the slowest took %v)", asked.Load(), time.Duration(slowest.Load()))
}

func TestStandardKeepsTheShardsOfTheStoreApart(t *testing.T) {
	store := &sharded{Store: memstore.New(memstore.Options{})}
	g := guard.Standard(store, guard.Options{})
	defer g.Close()
	limit := ready(t, penstock.PerHour(1_000_000))
	ask := func(key string) penstock.Source {
		d, err := g.Decide(t.Context(), []penstock.Charge{{Key: key, Limit: limit, Cost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return d.Source
	}
	for range 20 {
		if source := ask("dead"); source != penstock.FromFallback {
			t.Errorf("a dead shard's key was answered by %v", source)
		}
	}
	asked := store.asked.Load()
	for range 20 {
		if source := ask("alive"); source != penstock.FromStore {
			t.Errorf("a living shard's key was answered by %v", source)
		}
		ask("dead")
	}
	if n := store.asked.Load() - asked; n > 25 {
		t.Errorf("the store was asked %d times, as if the dead shard's breaker were closed", n)
	}
	for end := time.Now().Add(20 * time.Second); g.Instances() != 7; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there are %d instances; the store says 7", g.Instances())
		}
	}
}

// A sharded store has a shard that is dead, by the name of the key.
type sharded struct {
	penstock.Store
	asked atomic.Int64
}

func (s *sharded) Shard(charges []penstock.Charge) string { return charges[0].Key }

func (s *sharded) Live(context.Context, string, time.Duration) (int, error) { return 7, nil }

func (s *sharded) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.asked.Add(1)
	if charges[0].Key == "dead" {
		return penstock.Decision{}, errors.Join(penstock.ErrUnavailable, errors.New("dead"))
	}
	return s.Store.Decide(ctx, charges)
}
