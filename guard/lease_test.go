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
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// leaseUpTo leases up to this many units of every limit.
func leaseUpTo(units int64) func(*penstock.Plan) guard.Settings {
	return func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: units} }
}

// newLease returns a Lease that is closed when the test ends.
func newLease(t testing.TB, store penstock.Store, o guard.LeaseSetup) *guard.Lease {
	l := guard.NewLease(store, o)
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestLeaseObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) penstock.Store {
		return newLease(t, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(100)})
	})
}

// longLife is a Life that is long enough for draws on a busy machine.
const longLife = 30 * time.Second

// spendRepeatedly decides the charges n times, with a pause after each decision. It counts the
// decisions of leases and the allowed ones.
func spendRepeatedly(t testing.TB, store penstock.Store, charges []penstock.Charge, n int, pause time.Duration) (leased, allowed int) {
	t.Helper()
	for range n {
		d, err := store.Decide(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
		if d.Source == penstock.FromLease {
			leased++
		}
		time.Sleep(pause)
	}
	return leased, allowed
}

func TestBusyKeyIsAnsweredByTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := compiled(t, penstock.PerSecond(10_000))
		spendRepeatedly(t, l, one(limit, "k"), 1000, time.Millisecond)
		store.calls.Store(0)
		leased, allowed := spendRepeatedly(t, l, one(limit, "k"), 10_000, time.Millisecond)
		if calls := store.calls.Load(); leased != 10_000 || allowed != 10_000 || calls > 50 {
			t.Errorf("of 10,000 requests, %d were leased and %d allowed, and the store was called %d times; want all leased and allowed, and at most 50 calls", leased, allowed, calls)
		}
	})
}

// The next block is drawn in advance, even if a block lasts for only 20 ms.
func TestCallersOfABusyKeyDoNotWaitForDraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		store.onCall = func(context.Context, []penstock.Charge) error { time.Sleep(time.Millisecond); return nil }
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(20)})
		limit := compiled(t, penstock.PerSecond(10_000))
		spendRepeatedly(t, l, one(limit, "k"), 1000, time.Millisecond)
		start, draws := time.Now(), l.Stats().Draws
		leased, _ := spendRepeatedly(t, l, one(limit, "k"), 1000, time.Millisecond)
		if took := time.Since(start); leased != 1000 || took != time.Second || l.Stats().Draws-draws < 1000/20 {
			t.Errorf("of 1000 requests in %v, %d were leased, with %d draws; want all in 1s, so that none waits, with a draw for each 20 or fewer", took, leased, l.Stats().Draws-draws)
		}
	})
}

// Most keys occur once. Such keys must not fill the table.
func TestKeysThatComeOnceAreNotTracked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := compiled(t, penstock.PerSecond(10_000))
		const keys = 20_000
		const maxMistaken = keys / 1000 // keys that are tracked because their hash is similar to another key's
		for i := range keys {
			decide(t, l, one(limit, fmt.Sprint("once", i))...)
		}
		if n := l.Stats().Keys; n > maxMistaken {
			t.Errorf("%d of %d keys that came once are tracked; want at most %d", n, keys, maxMistaken)
		}
		for range 20 {
			decide(t, l, one(limit, "often")...)
		}
		for range 4 {
			time.Sleep(3 * time.Second)
			for range 5 {
				decide(t, l, one(limit, "seldom")...)
			}
		}
		if n := l.Stats().Keys; n < 1 || n > maxMistaken+1 {
			t.Errorf("%d keys are tracked; want 1, the one that came often, and at most %d more", n, maxMistaken)
		}
	})
}

func TestKeyOfLowRateCostsNoDraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		leased, _ := spendRepeatedly(t, l, one(compiled(t, penstock.PerSecond(10_000)), "k"), 100, 400*time.Millisecond)
		if draws := l.Stats().Draws; leased > 0 || store.calls.Load() != 100 || draws != 0 {
			t.Errorf("of 100 requests %d were leased, with %d draws, and the store was called %d times; want 0, 0 and 100", leased, draws, store.calls.Load())
		}
	})
}

const year = 365 * 24 * time.Hour

// yearly returns a limit of n units that do not return during a test.
func yearly(t testing.TB, name string, n int64) *penstock.Plan {
	return compiled(t, penstock.Limit{Name: name, Group: "g", Algorithm: penstock.AnchoredWindow, Count: n, Period: year})
}

// remaining returns how many units a store has left of a limit.
func remaining(t testing.TB, store penstock.Store, limit *penstock.Plan, key string) int64 {
	t.Helper()
	d, err := store.Decide(context.Background(), []penstock.Charge{{Key: key, Plan: limit, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Status(0).Remaining
}

func TestRemainingIncludesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := yearly(t, "a", 100_000)
		for i := range int64(5000) {
			d := decide(t, l, one(limit, "k")...)
			if s := d.Status(0); s.Granted != 1 || s.Remaining != limit.Limit().Count-i-1 || s.RetryAfter != 0 ||
				s.ResetAfter <= year-time.Minute || s.ResetAfter > year {
				t.Fatalf("decision %d, by %v: %+v; want 1 granted, %d left, no RetryAfter, and a ResetAfter of about a year", i, d.Source, s, limit.Limit().Count-i-1)
			}
			time.Sleep(time.Millisecond)
		}
		if l.Stats().Spent < 4000 {
			t.Errorf("the stats are %+v; want at least 4000 units spent from the lease", l.Stats())
		}
	})
}

func TestUnusedUnitsAreReturned(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *guard.Lease){
		"when the key is idle": func(*testing.T, *guard.Lease) { time.Sleep(501 * time.Millisecond); synctest.Wait() },
		"by Close": func(t *testing.T, l *guard.Lease) {
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(memstore.Options{})
				l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
				limit := yearly(t, "a", 100_000)
				spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
				if live := l.Stats().Live; live == 0 || remaining(t, store, limit, "k") != 98_000-live {
					t.Fatalf("%d units are live, and %d are left in the store; want some live, and 98,000 in total", live, remaining(t, store, limit, "k"))
				}
				end(t, l)
				if s := l.Stats(); s.Live != 0 || s.Returned == 0 || remaining(t, store, limit, "k") != 98_000 {
					t.Errorf("%d units are left in the store, and the stats are %+v; want 98,000 left, some returned, and 0 live", remaining(t, store, limit, "k"), s)
				}
			})
		})
	}
}

func TestRefundAndResetReturnTheLeaseFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := yearly(t, "a", 100_000)
		c := one(limit, "k")
		c[0].Mode, c[0].Cost = penstock.Refund, 5
		spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
		if d := decide(t, l, c...); d.Status(0).Granted != 5 || d.Remaining() != 98_005 || l.Stats().Live != 0 {
			t.Errorf("after a refund: %v, with the stats %+v; want 5 granted, 98,005 left and 0 live", d, l.Stats())
		}
		spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
		c[0].Mode = penstock.Reset
		if d := decide(t, l, c...); d.Remaining() != 100_000 || l.Stats().Live != 0 {
			t.Errorf("after a reset: %v, with the stats %+v; want 100,000 left and 0 live", d, l.Stats())
		}
		time.Sleep(2 * time.Second)
		if n := remaining(t, store, limit, "k"); n != 100_000 {
			t.Errorf("2 s after the reset, %d units are left; want 100,000", n)
		}
	})
}

// A draw takes 10 ms. All callers that come during the draw wait for it, and one of ten is
// canceled.
func TestOneDrawServesAllWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := yearly(t, "a", 100_000)
		spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
		time.Sleep(501 * time.Millisecond) // the lease is returned
		synctest.Wait()
		store.calls.Store(0)
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(10 * time.Millisecond)
			return store.store.Decide(ctx, charges)
		})
		var all sync.WaitGroup
		canceled, cancel := context.WithCancel(t.Context())
		for i := range 50 {
			all.Go(func() {
				if i%10 == 0 {
					if d, err := l.Decide(canceled, one(limit, "k")); err != context.Canceled {
						t.Errorf("caller %d, which is canceled: %v, error %v; want context.Canceled", i, d, err)
					}
					return
				}
				if d, err := l.Decide(t.Context(), one(limit, "k")); err != nil || d.Source != penstock.FromLease {
					t.Errorf("caller %d: %v by %v, error %v; want a decision by the lease", i, d, d.Source, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if calls := store.calls.Load(); calls != 1 {
			t.Errorf("the store was called %d times; want once", calls)
		}
	})
}

func TestErrorOfADrawIsReturnedToItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := yearly(t, "a", 100_000)
		spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
		for _, fault := range []fault{failWith(errDown), hang} {
			time.Sleep(501 * time.Millisecond) // the lease is returned
			synctest.Wait()
			store.setFault(fault)
			if d, err := l.Decide(t.Context(), one(limit, "k")); !errors.Is(err, penstock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a caller that waits for the draw gets %v, error %v; want an ErrUnavailable that is not the caller's DeadlineExceeded", d, err)
			}
			store.setFault(nil)
			spendRepeatedly(t, l, one(limit, "k"), 2000, time.Millisecond)
		}
		if leased, _ := spendRepeatedly(t, l, one(limit, "k"), 100, time.Millisecond); leased != 100 {
			t.Errorf("%d of 100 requests are leased after the store is back; want all", leased)
		}
	})
}

func TestAnswerThatCameTooLateIsNotSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := yearly(t, "a", 100_000)
		late := func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			d, err := store.store.Decide(ctx, charges)
			if charges[0].Mode == penstock.Draw {
				time.Sleep(1001 * time.Millisecond)
			}
			return d, err
		}
		store.setFault(late)
		// The only units that are spent are those for callers that wait when a draw is sent.
		if leased, _ := spendRepeatedly(t, l, one(limit, "k"), 3000, time.Millisecond); int64(leased) != l.Stats().Draws {
			t.Errorf("%d units were spent from leases, in %d draws; want one for each draw, since the blocks are older than their Life", leased, l.Stats().Draws)
		}
		time.Sleep(2 * time.Second)
		if s := l.Stats(); s.Drawn == 0 || remaining(t, store.store, limit, "k") != 97_000 {
			t.Errorf("%d units are left in the store, and the stats are %+v; want 97,000 left, and some drawn", remaining(t, store.store, limit, "k"), s)
		}
	})
}

func TestLimitsOfABatchAreDrawnEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		few, many := yearly(t, "few", 2000), yearly(t, "many", 100_000)
		batch := []penstock.Charge{{Key: "k", Plan: few, Cost: 1}, {Key: "k", Plan: many, Cost: 1}}
		leased, allowed := spendRepeatedly(t, l, batch, 3000, time.Millisecond)
		if allowed != 2000 || leased < 1500 {
			t.Errorf("%d batches were allowed, and %d leased; want 2000 allowed, and at least 1500 leased", allowed, leased)
		}
		if a, b := remaining(t, store, few, "k"), remaining(t, store, many, "k"); a != 0 || b != 98_000 {
			t.Errorf("%d units of limit few and %d of limit many are left; want 0 and 98,000: %+v", a, b, l.Stats())
		}
	})
}

// While a fallback answers, a draw would only use up the share of the fallback.
func TestOutageCostsALeaseOneDrawAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		batch := one(yearly(t, "a", 100_000), "k")
		if leased, _ := spendRepeatedly(t, l, batch, 3000, time.Millisecond); leased == 0 {
			t.Fatal("0 units are leased before the outage; want at least 1")
		}
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			d, err := store.store.Decide(ctx, charges)
			d.Source = penstock.FromFallback
			return d, err
		})
		before := l.Stats()
		leased, allowed := spendRepeatedly(t, l, batch, 5000, time.Millisecond)
		after := l.Stats()
		if remaining := int(before.Live); leased > remaining || allowed != 5000 || after.Draws-before.Draws > 1 {
			t.Errorf("%d of %d held units were spent, and %d requests allowed; want at most the held units, 5000 allowed, and at most 1 draw; the stats were %+v before and are %+v", leased, remaining, allowed, before, after)
		}
		store.setFault(nil)
		time.Sleep(2 * time.Second)
		if leased, _ := spendRepeatedly(t, l, batch, 3000, time.Millisecond); leased == 0 {
			t.Error("0 units are leased after the outage; want at least 1")
		}
	})
}

func TestKeysBeyondMaxKeysAreNotLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLease(t, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(1000), MaxKeys: 10})
		limit := yearly(t, "a", 100_000)
		for i := range 20_000 {
			if d := decide(t, l, one(limit, fmt.Sprint("k", i%100))...); !d.Allowed {
				t.Fatalf("request %d is %v; want allowed", i, d)
			}
			time.Sleep(100 * time.Microsecond)
		}
		if s := l.Stats(); s.Keys != 10 || s.Spent == 0 {
			t.Errorf("the stats are %+v; want 10 keys, and some units spent", s)
		}
		spentBefore := l.Stats().Spent
		time.Sleep(3 * time.Second) // now the keys are idle, so that others take their places
		for i := range 20_000 {
			decide(t, l, one(limit, fmt.Sprint("new", i%100))...)
			time.Sleep(100 * time.Microsecond)
		}
		if s := l.Stats(); s.Keys > 10 || s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Spent == spentBefore {
			t.Errorf("after requests of other keys, the stats are %+v; want at most 10 keys, Drawn = Spent+Returned+Expired+Lost+Live, and more spent than the %d before", s, spentBefore)
		}
	})
}

// The store refills the units that an instance holds. To return them later would refund units that
// other callers have spent.
func TestRefilledUnitsAreNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000)})
		limit := compiled(t, penstock.PerSecond(4000))
		spendRepeatedly(t, l, one(limit, "k"), 1000, time.Millisecond)
		for l.Stats().Live < 400 {
			spendRepeatedly(t, l, one(limit, "k"), 1, time.Millisecond)
		}
		time.Sleep(400 * time.Millisecond)
		if n := remaining(t, store, limit, "k"); n != 4000 {
			t.Fatalf("%d units are left in the store; want 4000, a full bucket", n)
		}
		decide(t, store, penstock.Charge{Key: "k", Plan: limit, Cost: 4000})
		time.Sleep(200 * time.Millisecond)
		if s, n := l.Stats(), remaining(t, store, limit, "k"); n > 800 || s.Live != 0 || s.Expired < 400 {
			t.Errorf("200 ms after the bucket was emptied, it has %d units; want at most the 800 that were refilled, and 0 live and at least 400 expired: %+v", n, s)
		}
	})
}

func TestLimitIsLeasedInOneCombinationAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := guard.LeaseSetup{Limits: leaseUpTo(100)}
		l := newLease(t, memstore.New(memstore.Options{}), o)
		grouped := func(l penstock.Limit) *penstock.Plan { l.Group = "g"; return compiled(t, l) }
		second, minute := grouped(penstock.PerSecond(10_000)), grouped(penstock.PerMinute(100_000))
		leased := 0
		for range 3000 {
			alone, _ := spendRepeatedly(t, l, one(second, "k"), 1, time.Millisecond)
			both, _ := spendRepeatedly(t, l, []penstock.Charge{{Key: "k", Plan: second, Cost: 1}, {Key: "k", Plan: minute, Cost: 1}}, 1, time.Millisecond)
			leased += alone + both
			if live := l.Stats().Live; live > o.Excess(second) {
				t.Fatalf("%d units are live; want at most %d, the bound", live, o.Excess(second))
			}
		}
		if leased < 2000 {
			t.Errorf("%d of 6000 batches are leased; want at least 2000", leased)
		}
	})
}

func TestManySpendersOfALeaseGetTheLimitOnce(t *testing.T) {
	t.Parallel()
	redis, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	t.Run("memory", func(t *testing.T) { checkManySpenders(t, memstore.New(memstore.Options{})) })
	t.Run("redis", func(t *testing.T) { checkManySpenders(t, redis) })
}

// checkManySpenders spends a limit by concurrent callers of a Lease, until all are denied. All
// units of the limit must be allowed, left in the store, expired or lost.
func checkManySpenders(t *testing.T, store penstock.Store) {
	l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(1000), Life: longLife})
	limit := yearly(t, "a", int64(effort.Of(10_000, 300_000)))
	var allowed, leased atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for {
				d, err := l.Decide(t.Context(), one(limit, "k"))
				if err != nil {
					t.Error(err)
				}
				if err != nil || !d.Allowed {
					return
				}
				allowed.Add(1)
				if d.Source == penstock.FromLease {
					leased.Add(1)
				}
			}
		})
	}
	all.Wait()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, rest := l.Stats(), remaining(t, store, limit, "k")
	if allowed.Load()+rest+s.Expired+s.Lost != limit.Limit().Count || leased.Load() != s.Spent || s.Live != 0 {
		t.Errorf("%d units were allowed and %d are left, and the stats are %+v; want a total of %d with the expired and lost ones, %d spent from leases, and 0 live", allowed.Load(), rest, s, limit.Limit().Count, leased.Load())
	}
	t.Logf("%d of %d units were leased, and %d are left; %+v", leased.Load(), allowed.Load(), rest, s)
}

// Costs of any size, some larger than a block, are spent until nothing is left.
func TestSingleCallerGetsTheStoresDecisions(t *testing.T) {
	effort.SkipUnderRace(t)
	calls, leased := 0, 0
	for i := range uint64(effort.Of(5, 50)) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			l := newLease(t, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(2 + rng.Int64N(50))})
			bare := memstore.New(memstore.Options{})
			c := one(yearly(t, "a", 200+rng.Int64N(5000)), "k")
			for i := range 4000 {
				c[0].Cost = 1 + rng.Int64N(3)
				if rng.IntN(20) == 0 {
					c[0].Cost = rng.Int64N(80)
				}
				d, want := decide(t, l, c...), decide(t, bare, c...)
				if d.Allowed != want.Allowed || d.Status(0).Granted != want.Status(0).Granted {
					t.Fatalf("seed %d, call %d for %d units: %v by %v; want %v, as by the store alone; the stats are %+v", seed, i, c[0].Cost, d, d.Source, want, l.Stats())
				}
				if d.Source == penstock.FromLease {
					leased++
				}
				calls++
				time.Sleep(time.Millisecond)
			}
		})
	}
	t.Logf("counted: %d decisions as by the store alone (%d from leases)", calls, leased)
}

func BenchmarkLease(b *testing.B) {
	l := newLease(b, memstore.New(memstore.Options{}), guard.LeaseSetup{Limits: leaseUpTo(1 << 40)})
	limit := compiled(b, penstock.PerSecond(1_000_000).WithBurst(100_000_000_000)) // so large that the benchmark does not empty it
	c := one(limit, "user:42")
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		l.Decide(b.Context(), c)
	}
	b.ReportAllocs()
	leased := 0
	for b.Loop() {
		d, err := l.Decide(b.Context(), c)
		if err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		if d.Source == penstock.FromLease {
			leased++
		}
	}
	b.ReportMetric(100*float64(leased)/float64(b.N), "%leased")
}
