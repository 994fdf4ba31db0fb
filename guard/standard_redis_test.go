package guard_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// withLongTimeout adds a server and a timeout that suits a busy machine to options.
func withLongTimeout(server guard.Server, o guard.Options) guard.Options {
	o.Server = server
	o.Timeout.After = 10 * time.Second
	return o
}

func TestStandardAroundRedisObeysTheLaw(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	for name, o := range map[string]guard.Options{
		"not leased":            {Observe: func(guard.Event) {}},
		"leased":                {Limits: leaseUpTo(100), Instances: 2},
		"leased, no deny cache": {Limits: leaseUpTo(100), DenyCacheTTL: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, err := redisstore.Open(server.URL(), redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { redis.Close() })
			g := standard(t, redis, withLongTimeout(redis, o))
			t.Cleanup(g.Close)
			storetest.Run(t, func(*testing.T) penstock.Store { return g })
		})
	}
}

// Guards send other batches to the store than they receive, such as draws of leases and charges to
// shards. Load also loads the scripts of these batches.
func TestLoadedLimitsNeedNoOtherScriptBehindGuards(t *testing.T) {
	t.Parallel()
	redis, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	g := standard(t, redis, withLongTimeout(redis, guard.Options{Limits: settings(map[string]guard.Settings{"leased": {Lease: 10}, "split": {SplitInto: 4}})}))
	t.Cleanup(g.Close)
	var limits []*penstock.Plan
	for _, limit := range []penstock.Limit{
		penstock.PerDay(1000).WithName("leased"), penstock.PerDay(1000).WithName("split").With(penstock.FixedWindow),
		penstock.PerDay(1000).With(penstock.SlidingWindow),
	} {
		limit.Group = "g"
		limits = append(limits, limit.MustCompile())
	}
	if err := redis.Load(t.Context(), limits...); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		for _, batch := range [][]*penstock.Plan{limits, limits[i%3 : i%3+1], limits[:2], limits[1:]} {
			var charges []penstock.Charge
			for _, limit := range batch {
				charges = append(charges, penstock.Charge{Key: fmt.Sprint("k", i%2), Plan: limit, Cost: 1})
			}
			if _, err := g.Decide(t.Context(), charges); err != nil {
				t.Fatal(err)
			}
		}
	}
	if missing, _, evals := redis.Scripts(); missing != 0 || evals != 0 {
		t.Errorf("after Load, %d scripts were missing, and %d were sent by EVAL; want 0 and 0", missing, evals)
	}
}

// A caller makes random batches of few limits under few keys.
type caller struct {
	*rand.Rand
	limits []*penstock.Plan
}

// allAlgorithms has an algorithm of each kind.
var allAlgorithms = []*algorithm.Algorithm{
	penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SlidingLog,
	penstock.SubWindow(5), penstock.CalendarWindow(algorithm.Day, time.UTC), penstock.Concurrency,
}

// newCaller returns a caller with three random limits, each with one of the periods.
func newCaller(t *testing.T, seed uint64, periods ...time.Duration) *caller {
	c := &caller{Rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range 3 {
		limit := penstock.Limit{Name: fmt.Sprint("l", i), Algorithm: allAlgorithms[c.IntN(len(allAlgorithms))], Count: 1 + c.Int64N(12),
			Period: periods[c.IntN(len(periods))]}
		if c.IntN(2) == 0 {
			limit.Group = "g"
		}
		if limit.Algorithm.CanBook() || limit.Algorithm.NeedsHolder() {
			limit.Burst = 1 + c.Int64N(15)
		}
		c.limits = append(c.limits, compiled(t, limit))
	}
	return c
}

// batch returns a random batch of charges of different limits under one key.
func (c *caller) batch() (batch []penstock.Charge) {
	key := fmt.Sprint("k", c.IntN(2))
	size := 1 + c.IntN(3)*c.IntN(2) // in two of three cases 1, else 2 or 3
	for _, i := range c.Perm(len(c.limits))[:size] {
		charge := penstock.Charge{Key: key, Plan: c.limits[i], Cost: c.Int64N(5)}
		if c.IntN(4) == 0 {
			charge.Mode = penstock.Mode(c.IntN(int(penstock.Reset) + 1)) // any mode
		}
		if charge.Mode == penstock.Reset && c.IntN(3) > 0 {
			charge.Mode = penstock.Refund
		}
		if charge.Plan.Algorithm().NeedsHolder() || c.IntN(4) == 0 {
			charge.Holder = fmt.Sprint("h", c.IntN(3))
		}
		if c.IntN(4) == 0 {
			charge.Patience = min(time.Duration(c.IntN(500))*time.Millisecond, charge.Plan.MaxPatience())
		}
		batch = append(batch, charge)
	}
	return batch
}

// compareDecisions compares two decisions: in every field, or only in what was allowed if a deny
// cache made the first.
func compareDecisions(got, want penstock.Decision) error {
	for i := range want.Len() {
		g, w := got.Status(i), want.Status(i)
		if got.Allowed != want.Allowed || g.Granted != w.Granted || got.Source == penstock.FromStore && g != w {
			return fmt.Errorf("charge %d: allowed %v, %+v, by %v; want allowed %v, %+v, as by memory", i, got.Allowed, g, got.Source, want.Allowed, w)
		}
	}
	return nil
}

// The clock of Redis stops, jumps and steps back. Redis behind all guards makes the same decisions,
// in every field, as a store in memory without guards.
func TestTracesThroughGuardsOnRedisAreThoseOfTheMemory(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	var clock atomic.Int64
	now := func() time.Time { return time.UnixMicro(clock.Load()) }
	redis, err := redisstore.Open(server.URL(), redisstore.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	// A deny cache uses the real clock, and would not notice these jumps.
	g := standard(t, redis, withLongTimeout(redis, guard.Options{DenyCacheTTL: -1, Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{} }}))
	t.Cleanup(g.Close)
	decided := 0
	for i := range uint64(seeds(100)) {
		seed := effort.Seed() + i
		c := newCaller(t, seed, 7*time.Millisecond, time.Second, time.Minute, 10*time.Hour)
		clock.Store(1_700_000_000_000_000 + c.Int64N(1e15)) // in µs: a time from 2023 to 2055
		// The memory keeps its state, because Redis expires keys by the real clock.
		memory := memstore.New(memstore.Options{Now: now, Linger: 1e6 * time.Hour})
		for step := range 100 {
			switch c.IntN(10) {
			case 0, 1, 2: // up to three periods later
				clock.Add(c.Int64N(3 * c.limits[c.IntN(3)].Limit().Period.Microseconds()))
			case 3, 4: // up to 2 ms later
				clock.Add(c.Int64N(2000))
			case 5: // up to 3 s earlier
				clock.Add(-c.Int64N(3_000_000))
			}
			batch := c.batch()
			for i := range batch {
				batch[i].Key += fmt.Sprint("-", seed)
			}
			got, errGuards := g.Decide(t.Context(), batch)
			want, errMemory := memory.Decide(t.Context(), batch)
			if errGuards != nil || errMemory != nil {
				t.Fatalf("through guards: %v; by memory: %v; want no errors", errGuards, errMemory)
			}
			if got.Source != penstock.FromStore {
				t.Fatalf("seed %d, step %d, %+v: decided by %v; want by the store", seed, step, batch, got.Source)
			}
			if err := compareDecisions(got, want); err != nil {
				t.Fatalf("seed %d, step %d, %+v: %v", seed, step, batch, err)
			}
			decided++
		}
	}
	t.Logf("counted: %d decisions through all guards on Redis as by memory without guards", decided)
}

// The guards on Redis run in real time, with the deny cache. When the cache denies, a store in
// memory decides at the same moment and denies too.
func TestDenialsThroughGuardsOnRedisAreThoseOfTheMemory(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Start(t)
	var decided, cached atomic.Int64
	t.Run("traces", func(t *testing.T) {
		for trace := range uint64(8) {
			t.Run(fmt.Sprint(trace), func(t *testing.T) {
				t.Parallel()
				var lastRead time.Time // the time of the last decision of Redis
				redis, err := redisstore.Open(server.URL(), redisstore.Options{Now: func() time.Time { lastRead = time.Now(); return lastRead }})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { redis.Close() })
				g := standard(t, redis, withLongTimeout(redis, guard.Options{DenyCacheTTL: time.Hour}))
				t.Cleanup(g.Close)
				var at time.Time // the time of the next decision of memory
				memory := memstore.New(memstore.Options{Now: func() time.Time { return at }, Linger: time.Hour})
				for i := range uint64(seeds(4)) {
					seed := effort.Seed() + 1000*trace + i
					c := newCaller(t, seed, 7*time.Millisecond, 40*time.Millisecond, 200*time.Millisecond, time.Hour)
					for step := range 150 {
						time.Sleep(time.Duration(c.Int64N(int64(2 * time.Millisecond))))
						batch := c.batch()
						for i := range batch {
							batch[i].Key += fmt.Sprint("-", seed)
						}
						at = time.Now()
						got, errGuards := g.Decide(t.Context(), batch)
						if got.Source == penstock.FromStore {
							at = lastRead
						} else {
							cached.Add(1)
						}
						want, errMemory := memory.Decide(t.Context(), batch)
						if errGuards != nil || errMemory != nil {
							t.Fatalf("through guards: %v; by memory: %v; want no errors", errGuards, errMemory)
						}
						if err := compareDecisions(got, want); err != nil {
							t.Fatalf("seed %d, step %d, %+v: %v", seed, step, batch, err)
						}
						decided.Add(1)
					}
				}
			})
		}
	})
	t.Logf("counted: %d decisions through all guards on Redis as by memory without guards (%d by the deny cache)", decided.Load(), cached.Load())
	if cached.Load() == 0 {
		t.Error("the deny cache has denied 0 batches; want at least 1")
	}
}

// If all connections are cut, the calls in flight fail. The next calls use new connections, so the
// breaker stays closed.
func TestCutConnectionsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	redis, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	var changes, failures atomic.Int64
	o := withLongTimeout(redis, guard.Options{OnStoreError: func(guard.Event) { failures.Add(1) }})
	o.Breaker.Changed = func(string, guard.State, guard.State) { changes.Add(1) }
	g := standard(t, redis, o)
	t.Cleanup(g.Close)
	plan := compiled(t, penstock.PerHour(1_000_000_000))
	var byStore atomic.Int64
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 64 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if d, err := g.Decide(t.Context(), one(plan, fmt.Sprint(i))); err == nil && d.Source == penstock.FromStore {
					byStore.Add(1)
				}
			}
		})
	}
	cuts := 0
	// Three of four cuts come while no call is in flight. So a hundred of them in a row have a chance
	// below 10^-12.
	for ; cuts < effort.Of(3, 8) || failures.Load() == 0 && cuts < 100; cuts++ {
		before, decisions := byStore.Load(), int64(effort.Of(500, 10_000))
		eventually.True(t, "the store decides", func() bool { return byStore.Load() > before+decisions })
		if _, err := server.Do("CLIENT", "KILL", "TYPE", "normal"); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	callers.Wait()
	if n := changes.Load(); n > 0 {
		t.Errorf("the breaker has changed its state %d times; want that it stays closed", n)
	}
	if failures.Load() == 0 {
		t.Error("no call was lost; want some in flight when the connections were cut")
	}
	t.Logf("counted: %d calls lost by %d cuts of all connections, and %d decisions by the store", failures.Load(), cuts, byStore.Load())
}
