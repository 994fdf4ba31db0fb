package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// The time of a manualClock changes only when a test calls advance.
type manualClock struct{ now time.Time }

func newManualClock() *manualClock { return &manualClock{time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)} }

func (c *manualClock) Now() time.Time          { return c.now }
func (c *manualClock) advance(d time.Duration) { c.now = c.now.Add(d) }

func spend(key string, plan *penstock.Plan, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Plan: plan, Cost: cost}
}

func decide(t testing.TB, s *memstore.Store, charges ...penstock.Charge) penstock.Decision {
	t.Helper()
	d, err := s.Decide(context.Background(), charges)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// MaxCounters bounds the memory, so counters that take more of it count as several.
func TestLargeCountersCountAsSeveral(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit penstock.Limit
		fits  int // of 24
	}{
		"token bucket": {penstock.PerHour(9), 24},
		"sub-window":   {penstock.PerHour(9).With(penstock.SubWindow(2)), 4},
		"sliding log":  {penstock.PerHour(9).With(penstock.SlidingLog), 3},
		"slots":        {penstock.InFlight(9, time.Hour), 3},
	} {
		s := memstore.New(memstore.Options{Now: newManualClock().Now, MaxCounters: 24})
		plan := c.limit.MustCompile()
		fits := 0
		for i := range 30 {
			charge := spend(fmt.Sprint("k", i), plan, 1)
			charge.Holder = "holder"
			if d, err := s.Decide(t.Context(), []penstock.Charge{charge}); err == nil && d.Allowed {
				fits++
			}
		}
		if fits != c.fits || s.Len() != c.fits {
			t.Errorf("%s: %d counters fit, and the store has %d; want %d", name, fits, s.Len(), c.fits)
		}
		for i := range 30 {
			charge := spend(fmt.Sprint("k", i), plan, 0)
			charge.Mode = penstock.Reset
			decide(t, s, charge)
		}
		if d := decide(t, s, spend("new", penstock.PerHour(9).MustCompile(), 1)); !d.Allowed || s.Len() != 1 {
			t.Errorf("%s: after a reset of all counters, a new one is allowed %t, and the store has %d; want it allowed, and 1", name, d.Allowed, s.Len())
		}
	}
}

func TestFullStoreEvictsNoLiveCounter(t *testing.T) {
	t.Parallel()
	const maxCounters = 100
	plan, otherPlan := penstock.PerMinute(10).MustCompile(), penstock.PerHour(10).With(penstock.FixedWindow).MustCompile()
	for _, locks := range []int{1, 4, 256} {
		t.Run(fmt.Sprint(locks, " locks"), func(t *testing.T) {
			t.Parallel()
			clock := newManualClock()
			s := memstore.New(memstore.Options{Now: clock.Now, Locks: locks, MaxCounters: maxCounters})
			for i := range maxCounters {
				decide(t, s, spend(fmt.Sprint("k", i), plan, 3))
			}
			wantFull := func(what string, charges ...penstock.Charge) {
				t.Helper()
				if d, err := s.Decide(t.Context(), charges); !errors.Is(err, penstock.ErrUnavailable) || d.Allowed {
					t.Errorf("%s is allowed %t, error %v; want an error that wraps ErrUnavailable", what, d.Allowed, err)
				}
			}
			for i := range 50 {
				wantFull("a new key", spend(fmt.Sprint("new", i), plan, 1))
				wantFull("a new limit in a batch", spend("k1", plan, 1), spend("k1", otherPlan, 1))
				wantFull("a new key in a batch", spend(fmt.Sprint("new", i), plan, 1), spend("k2", plan, 1))
			}
			if s.Len() != maxCounters {
				t.Errorf("the store has %d counters; want %d", s.Len(), maxCounters)
			}
			for i := range maxCounters {
				if d := decide(t, s, spend(fmt.Sprint("k", i), plan, 1)); d.Status(0).Remaining != 6 {
					t.Errorf("the status of key k%d is %+v; want 6 left, because the counter is kept and rejected batches do not charge it", i, d.Status(0))
				}
			}
			// Charges that need no new counter are decided as usual.
			if d := decide(t, s, penstock.Charge{Key: "new", Plan: plan, Mode: penstock.Peek, Cost: 1}); d.Status(0).Remaining != 10 {
				t.Errorf("the status of a peek at a new key is %+v; want 10 left", d.Status(0))
			}
			if d := decide(t, s, spend("new", plan, 11)); d.Allowed {
				t.Error("a cost of 11 on a limit of 10 was allowed; want denied")
			}
			decide(t, s, penstock.Charge{Key: "k7", Plan: plan, Mode: penstock.Reset})
			decide(t, s, spend("new", plan, 1))
			wantFull("one key too many", spend("newer", plan, 1))
		})
	}
}

// Counters that are no longer needed make room for new keys, whichever lock they have.
func TestFullStoreHasRoomOnceCountersHaveRefilled(t *testing.T) {
	t.Parallel()
	const maxCounters = 64
	plan := penstock.PerMinute(10).MustCompile()
	for _, locks := range []int{1, 4, 256} {
		t.Run(fmt.Sprint(locks, " locks"), func(t *testing.T) {
			t.Parallel()
			clock := newManualClock()
			s := memstore.New(memstore.Options{Now: clock.Now, Locks: locks, MaxCounters: maxCounters})
			for round := range 5 {
				for i := range maxCounters {
					if _, err := s.Decide(t.Context(), []penstock.Charge{spend(fmt.Sprint(round, "-", i), plan, 10)}); err != nil {
						t.Fatalf("round %d, key %d of %d: Decide returned %v; want no error, because all earlier counters have refilled", round, i, maxCounters, err)
					}
				}
				clock.advance(time.Minute)
			}
		})
	}
}

// One counter of many is no longer needed. A new key gets its room, wherever the counter is.
func TestFullStoreFindsTheOnlyCounterThatHasRefilled(t *testing.T) {
	t.Parallel()
	const maxCounters = 100
	live, brief := penstock.PerDay(1).MustCompile(), penstock.PerSecond(1).MustCompile()
	for _, locks := range []int{1, 256} {
		for refilled := range maxCounters {
			clock := newManualClock()
			s := memstore.New(memstore.Options{Now: clock.Now, Locks: locks, MaxCounters: maxCounters})
			for i := range maxCounters {
				plan := live
				if i == refilled {
					plan = brief
				}
				decide(t, s, spend(fmt.Sprint("k", i), plan, 1))
			}
			clock.advance(time.Second)
			if _, err := s.Decide(t.Context(), []penstock.Charge{spend("new", live, 1)}); err != nil {
				t.Fatalf("%d locks: a new key returned %v; want no error, because counter %d of %d has refilled", locks, err, refilled, maxCounters)
			}
		}
	}
}

// A batch that needs two new counters is rejected if there is room for one, and leaves none.
func TestRejectedBatchLeavesNoCounter(t *testing.T) {
	t.Parallel()
	s := memstore.New(memstore.Options{Now: newManualClock().Now, MaxCounters: 2})
	plan := penstock.PerDay(10).MustCompile()
	decide(t, s, spend("k", plan, 1))
	if d, err := s.Decide(t.Context(), []penstock.Charge{spend("new", plan, 1), spend("newer", plan, 1)}); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("a batch with two new keys returned %v, error %v; want an error that wraps ErrUnavailable", d, err)
	}
	if s.Len() != 1 {
		t.Errorf("after the rejected batch, the store has %d counters; want 1", s.Len())
	}
	if d := decide(t, s, spend("new", plan, 1)); d.Status(0).Remaining != 9 {
		t.Errorf("after the rejected batch, the status of a new key is %+v; want 9 left", d.Status(0))
	}
}

// A full store denies as usual, and does not count denials that need a new counter.
func TestFullStoreDeniesWithoutCounting(t *testing.T) {
	t.Parallel()
	s := memstore.New(memstore.Options{Now: newManualClock().Now, MaxCounters: 1})
	full := penstock.PerDay(1).WithName("full").MustCompile()
	counting := penstock.PerDay(10)
	counting.ShouldCountDenied = true
	decide(t, s, spend("k", full, 1))
	d := decide(t, s, spend("new", counting.MustCompile(), 1), spend("k", full, 1))
	if d.Allowed || d.Status(0).Remaining != 10 || s.Len() != 1 {
		t.Errorf("allowed %v, the status of the new key is %+v, and the store has %d counters; want a denial, 10 left, and 1", d.Allowed, d.Status(0), s.Len())
	}
}

func TestIdleCountersAreSwept(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const keys = 100_000
	clock := newManualClock()
	s := memstore.New(memstore.Options{Now: clock.Now})
	plans := []*penstock.Plan{penstock.PerSecond(10).MustCompile(), penstock.PerSecond(10).With(penstock.SlidingLog).MustCompile()}
	for i := range keys {
		decide(t, s, spend(fmt.Sprint("k", i), plans[i%2], 1))
	}
	if s.Len() != keys {
		t.Errorf("the store has %d counters; want %d", s.Len(), keys)
	}
	clock.advance(time.Hour)
	for i := range keys { // requests of other keys, which add no counters
		decide(t, s, penstock.Charge{Key: fmt.Sprint("other", i), Plan: plans[i%2], Mode: penstock.Peek, Cost: 1})
	}
	if n := s.Len(); n < 0 || n > keys/1000 {
		t.Errorf("%d of %d counters are left after an hour with as many decisions; want 0 to %d", n, keys, keys/1000)
	}
}

// A batch sweeps too: the counters of old keys make room for those of new keys.
func TestBatchesSweepIdleCounters(t *testing.T) {
	const keys, most = 20_000, 2000
	clock := newManualClock()
	s := memstore.New(memstore.Options{Now: clock.Now, Locks: 1})
	first, second := penstock.PerSecond(10).MustCompile(), penstock.PerSecond(20).WithName("other").MustCompile()
	for i := range keys {
		key := fmt.Sprint("k", i)
		decide(t, s, spend(key, first, 1), spend(key, second, 1))
		clock.advance(time.Millisecond) // each counter is needed for at most 100 ms
		if n := s.Len(); n < 1 || n > most {
			t.Fatalf("the store has %d counters after %d keys; want 1 to %d", n, i+1, most)
		}
	}
}

// A passed deadline is an error of the store, as with a store on a network.
func TestPassedDeadlineIsAnErrUnavailable(t *testing.T) {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	s := memstore.New(memstore.Options{})
	_, err := s.Decide(ctx, []penstock.Charge{spend("k", penstock.PerSecond(1).MustCompile(), 1)})
	if e := penstock.AsStoreError(err); e == nil || e.Reason != penstock.ReasonLate || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline, the error is %v; want a StoreError with the reason late that wraps context.DeadlineExceeded", err)
	}
}

// State that is needed for only one more microsecond still counts.
func TestBatchesKeepStateForTheLastMicrosecond(t *testing.T) {
	clock := &manualClock{time.UnixMicro(1_700_000_000_000_000 - 1)}
	s := memstore.New(memstore.Options{Now: clock.Now})
	limit := penstock.PerSecond(1).With(penstock.FixedWindow) // its window ends in 1 µs
	first, second := limit.MustCompile(), limit.WithName("other").MustCompile()
	for call, want := range []bool{true, false} {
		if d := decide(t, s, spend("k", first, 1), spend("k", second, 1)); d.Allowed != want {
			t.Errorf("call %d of the window is allowed: %t; want %t", call+1, d.Allowed, want)
		}
	}
}

func TestClocksOutOfRangeAreErrors(t *testing.T) {
	for _, now := range []time.Time{time.Unix(-1, 0), time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)} {
		s := memstore.New(memstore.Options{Now: func() time.Time { return now }})
		if _, err := s.Decide(context.Background(), []penstock.Charge{spend("k", penstock.PerSecond(1).MustCompile(), 1)}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("at %v the error is %v; want ErrInvalid", now, err)
		}
	}
}

// Sweeping a counter must not change any decision. The test compares a store that sweeps with one
// that never does.
func TestSweepingChangesNoAnswer(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	compareStores(t, memstore.Options{Locks: 1}, memstore.Options{Locks: 1, Linger: 1000 * time.Hour}, time.Hour)
}

func TestNumberOfLocksChangesNoAnswer(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	compareStores(t, memstore.Options{Locks: 1}, memstore.Options{Locks: 256}, 10*time.Second)
}

// compareStores makes the same random calls to two stores. Between the calls, their clock advances
// by less than maxStep.
func compareStores(t *testing.T, first, second memstore.Options, maxStep time.Duration) {
	t.Helper()
	seed := effort.Seed()
	rng := rand.New(rand.NewPCG(seed, 0))
	clock := newManualClock()
	first.Now, second.Now = clock.Now, clock.Now
	firstStore, secondStore := memstore.New(first), memstore.New(second)
	var plans []*penstock.Plan
	for i, algorithm := range []*algorithm.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow,
		penstock.SlidingLog, penstock.Concurrency, penstock.SubWindow(5), penstock.CalendarWindow(algorithm.Day, time.UTC),
	} {
		plans = append(plans, penstock.Limit{
			Name: fmt.Sprint("l", i), Algorithm: algorithm, Count: 1 + rng.Int64N(9), Period: time.Duration(1+rng.IntN(100)) * time.Second, Burst: rng.Int64N(9),
		}.MustCompile())
	}
	const keys, maxCharges, modes = 4, 4, int(penstock.Reset) + 1
	for n := range 20_000 {
		var batch []penstock.Charge
		for _, i := range rng.Perm(len(plans) * keys)[:1+rng.IntN(maxCharges)] {
			batch = append(batch, penstock.Charge{
				Key: fmt.Sprint("k", i%keys), Plan: plans[i/keys], Cost: rng.Int64N(5), Mode: penstock.Mode(rng.IntN(modes)),
				Patience: time.Duration(rng.IntN(2)) * time.Second, Holder: fmt.Sprint("h", rng.IntN(3)),
			})
		}
		got, other := decide(t, firstStore, batch...), decide(t, secondStore, batch...)
		if got.Allowed != other.Allowed {
			t.Fatalf("seed %d, call %d: the batch %+v is allowed %t by one store, but %t by the other; want the same", seed, n, batch, got.Allowed, other.Allowed)
		}
		for i := range got.Len() {
			if got.Status(i) != other.Status(i) {
				t.Fatalf("seed %d, call %d: the status of the charge %+v is %+v in one store, but %+v in the other; want the same", seed, n, batch[i], got.Status(i), other.Status(i))
			}
		}
		if rng.IntN(3) == 0 {
			clock.advance(time.Duration(rng.Int64N(int64(maxStep))).Truncate(time.Microsecond))
		}
	}
}

func TestDecisionOfOneLimitAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(10), penstock.PerSecond(10).With(penstock.FixedWindow), penstock.PerSecond(10).With(penstock.SlidingWindow),
		penstock.PerSecond(10).With(penstock.SubWindow(6)), penstock.PerSecond(10).With(penstock.LeakyBucket),
	} {
		limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "test", limit)
		if err != nil {
			t.Fatal(err)
		}
		allowed := 0
		n := testing.AllocsPerRun(1000, func() {
			if d, err := limiter.Allow(context.Background(), "user:42"); err == nil && d.Allowed {
				allowed++
			}
		})
		if n != 0 {
			t.Errorf("a decision on %v makes %v allocations; want 0", limit, n)
		}
		if allowed == 0 {
			t.Errorf("0 requests of %v were allowed; want at least 1", limit)
		}
	}
}

// Goroutines charge and refund batches over shared keys in every order. Under the race detector,
// this test also shows that every access to a counter holds the counter's lock.
func TestConcurrentBatchesConserveUnits(t *testing.T) {
	t.Parallel()
	const keys, numLimits, goroutines, rounds = 6, 3, 32, 100
	plans := [numLimits]*penstock.Plan{
		penstock.PerDay(50).WithName("token").MustCompile(), penstock.PerDay(70).With(penstock.SlidingLog).WithName("log").MustCompile(),
		penstock.PerDay(60).With(penstock.SubWindow(3)).WithName("sub").MustCompile(),
	}
	clock := newManualClock()
	for _, locks := range []int{1, 2, 256} {
		s := memstore.New(memstore.Options{Now: clock.Now, Locks: locks})
		seed := effort.Seed()
		var used [keys * numLimits]atomic.Int64 // the units granted and not refunded, by key and limit
		var all sync.WaitGroup
		for goroutine := range goroutines {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(seed, uint64(goroutine)))
				for range rounds {
					counters := rng.Perm(keys * numLimits)[:1+rng.IntN(4)] // indices in used
					var batch []penstock.Charge
					for _, i := range counters {
						mode := []penstock.Mode{penstock.Spend, penstock.Spend, penstock.Refund, penstock.Peek}[rng.IntN(4)]
						batch = append(batch, penstock.Charge{Key: fmt.Sprint("k", i/numLimits), Plan: plans[i%numLimits], Cost: 1 + rng.Int64N(3), Mode: mode})
					}
					d, err := s.Decide(context.Background(), batch)
					if err != nil {
						t.Errorf("seed %d: Decide returned %v; want no error", seed, err)
						return
					}
					for n, i := range counters {
						granted := d.Status(n).Granted
						if batch[n].Mode == penstock.Refund {
							granted = -granted
						}
						used[i].Add(granted)
					}
				}
			})
		}
		all.Wait()
		for i := range used {
			plan := plans[i%numLimits]
			d := decide(t, s, penstock.Charge{Key: fmt.Sprint("k", i/numLimits), Plan: plan, Mode: penstock.Peek})
			if got := plan.Limit().Count - d.Status(0).Remaining; got != used[i].Load() {
				t.Errorf("seed %d, %d locks: %d units of %s are used, but %d were granted and not refunded; want the same", seed, locks, got, plan.Name(), used[i].Load())
			}
		}
	}
}

// In synctest.Test, time passes only while all goroutines sleep, so waits are exact.
func TestWaitersAreServedInOrder(t *testing.T) {
	t.Parallel()
	for _, limit := range []penstock.Limit{
		penstock.Every(10 * time.Minute), {Name: "queue", Algorithm: penstock.LeakyBucket, Count: 6, Period: time.Hour, Burst: 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "test", limit)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			var mu sync.Mutex
			var admitted []int // the waiters, in the order of their admission
			for i := range 5 {
				go func() {
					if err := limiter.Wait(t.Context(), "k"); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					admitted = append(admitted, i)
					if since := time.Since(start); since != time.Duration(i)*10*time.Minute {
						t.Errorf("%s: waiter %d was admitted after %v; want %v", limit.Name, i, since, time.Duration(i)*10*time.Minute)
					}
				}()
				synctest.Wait()
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(admitted, []int{0, 1, 2, 3, 4}) {
				t.Errorf("%s: the waiters were admitted in the order %v; want 0 to 4", limit.Name, admitted)
			}
		})
	}
}

func TestWaitOnAWindowRetriesWhenItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "test", penstock.PerMinute(2).With(penstock.FixedWindow))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now() // synctest starts its clock at a full minute
		for i := range 6 {
			if err := limiter.Wait(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			earliest := time.Duration(i/2) * time.Minute
			if since := time.Since(start); since < earliest || since > earliest+200*time.Millisecond {
				t.Errorf("wait %d ended after %v; want %v or up to 200ms more", i, since, earliest)
			}
		}
	})
}

// If a caller's context ends during its wait, the next caller gets its turn.
func TestNextCallerGetsTheTurnOfACanceledOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "test", penstock.Every(10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := limiter.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Minute, cancel)
		if err := limiter.Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled wait returned %v; want context.Canceled", err)
		}
		if err := limiter.Wait(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if since := time.Since(start); since != 10*time.Minute {
			t.Errorf("the next caller was admitted after %v; want 10m", since)
		}
	})
}
