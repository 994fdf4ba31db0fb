package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/storetest"
)

func TestDenyCacheObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.NewDenyCache(memstore.New(memstore.Options{}), guard.DenySetup{})
	})
}

// A countingStore counts its calls. Each call first runs onCall, if it is set. An error of onCall
// ends the call.
type countingStore struct {
	penstock.Store
	calls  atomic.Int64
	onCall func(context.Context, []penstock.Charge) error
}

func (c *countingStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	c.calls.Add(1)
	if c.onCall != nil {
		if err := c.onCall(ctx, charges); err != nil {
			return penstock.Decision{}, err
		}
	}
	return c.Store.Decide(ctx, charges)
}

func newCountingStore() *countingStore {
	return &countingStore{Store: memstore.New(memstore.Options{})}
}

// decide fails the test if there is no decision.
func decide(t testing.TB, s penstock.Store, charges ...penstock.Charge) penstock.Decision {
	t.Helper()
	d, err := s.Decide(t.Context(), charges)
	if err != nil {
		t.Fatalf("%v: the error is %v; want a decision", charges, err)
	}
	return d
}

// checkDecision checks whether a decision is allowed, and its source.
func checkDecision(t testing.TB, d penstock.Decision, allowed bool, source penstock.Source) {
	t.Helper()
	if d.Allowed != allowed || d.Source != source {
		t.Fatalf("allowed %v by %v; want %v by %v: %v", d.Allowed, d.Source, allowed, source, d)
	}
}

const (
	wantAllowed, wantDenied = true, false
	fromStore               = penstock.FromStore
	fromCache               = penstock.FromDenyCache
)

func spend(key string, limit *penstock.Plan, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Plan: limit, Cost: cost}
}

// teachSmallestCost makes a cache expect that no request of a limit needs fewer units than cost, by
// 64 requests with other keys.
func teachSmallestCost(t testing.TB, cache penstock.Store, limit *penstock.Plan, cost int64) {
	t.Helper()
	for i := range 64 {
		decide(t, cache, spend(fmt.Sprint("learn ", i), limit, cost))
	}
}

func refund(key string, limit *penstock.Plan, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Plan: limit, Cost: cost, Mode: penstock.Refund}
}

func TestDenialIsRememberedUntilItsRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(store, guard.DenySetup{})
		limit := penstock.PerSecond(10).MustCompile()
		checkDecision(t, decide(t, cache, spend("k", limit, 10)), wantAllowed, fromStore)
		first := decide(t, cache, spend("k", limit, 1))
		checkDecision(t, first, wantDenied, fromStore)
		time.Sleep(60 * time.Millisecond)
		later := decide(t, cache, spend("k", limit, 1))
		checkDecision(t, later, wantDenied, fromCache)
		if want := 40 * time.Millisecond; first.RetryAfter() != 100*time.Millisecond || later.RetryAfter() != want {
			t.Fatalf("RetryAfter is %v, and %v after 60ms, want 100ms and %v", first.RetryAfter(), later.RetryAfter(), want)
		}
		if got, want := later.Status(0).ResetAfter, first.Status(0).ResetAfter-60*time.Millisecond; got != want {
			t.Fatalf("ResetAfter is %v, want %v", got, want)
		}
		// The cached denial ends before the RetryAfter, by 0.1 % of it and 2 µs. Wait until 1 µs before
		// the denial ends.
		time.Sleep(39*time.Millisecond + 897*time.Microsecond)
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromCache)
		time.Sleep(time.Microsecond)
		callsBefore := store.calls.Load()
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
		time.Sleep(102 * time.Microsecond) // until the RetryAfter of the first denial
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantAllowed, fromStore)
		if got := store.calls.Load() - callsBefore; got != 2 {
			t.Fatalf("after the cached denial ended, two spends called the store %d times; want 2", got)
		}
	})
}

func TestDenialsOlderThanMaxAgeAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		settingsOf := func(l *penstock.Plan) guard.Settings {
			return guard.Settings{DenyCacheTTL: map[string]time.Duration{"long": 5 * time.Second, "never": -1}[l.Name()]}
		}
		cache := guard.NewDenyCache(store, guard.DenySetup{MaxAge: 2 * time.Second, Limits: settingsOf})
		for name, age := range map[string]time.Duration{"usual": 2 * time.Second, "long": 5 * time.Second, "never": 0} {
			for _, cost := range []int64{1, 99} { // the limit is 3, so a cost of 99 never fits
				key := fmt.Sprint(cost)
				limit := penstock.PerDay(3).WithName(name).MustCompile()
				decide(t, cache, spend(key, limit, 3))
				checkDecision(t, decide(t, cache, spend(key, limit, cost)), wantDenied, fromStore)
				if age > 0 {
					time.Sleep(age - time.Nanosecond)
					checkDecision(t, decide(t, cache, spend(key, limit, cost)), wantDenied, fromCache)
					time.Sleep(time.Nanosecond)
				}
				checkDecision(t, decide(t, cache, spend(key, limit, cost)), wantDenied, fromStore)
			}
		}
	})
}

// A denial by the cache has the numbers that the store would return.
func TestDenialAnswersWhatItIsExactFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(store, guard.DenySetup{MaxAge: time.Hour})
		limit := penstock.PerDay(10).MustCompile()
		teachSmallestCost(t, cache, limit, 5)
		for i, step := range []struct {
			mode     penstock.Mode
			cost     int64
			patience time.Duration
			allowed  bool
			source   penstock.Source
		}{
			{mode: penstock.Spend, cost: 8, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 5, allowed: wantDenied, source: fromStore},
			{mode: penstock.Spend, cost: 5, allowed: wantDenied, source: fromCache},
			{mode: penstock.Spend, cost: 10, allowed: wantDenied, source: fromCache},
			{mode: penstock.Peek, cost: 7, allowed: wantDenied, source: fromCache},
			{mode: penstock.Peek, cost: 3, allowed: wantDenied, source: fromCache},
			{mode: penstock.Peek, cost: 2, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 11, allowed: wantDenied, source: fromCache}, // above the limit, so RetryAfter is Never
			{mode: penstock.Spend, cost: 4, allowed: wantDenied, source: fromStore},  // smaller than any cost until now
			{mode: penstock.Spend, cost: 5, allowed: wantDenied, source: fromCache},
			{mode: penstock.Draw, cost: 5, allowed: wantAllowed, source: fromStore}, // takes the last 2 units
			{mode: penstock.Spend, cost: 0, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 2, allowed: wantDenied, source: fromStore},
			{mode: penstock.Spend, cost: 2, allowed: wantDenied, source: fromCache},
			{mode: penstock.Draw, cost: 2, allowed: wantDenied, source: fromCache},
			{mode: penstock.Draw, cost: 0, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromCache},
			{mode: penstock.Peek, cost: 0, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 1, patience: time.Second, allowed: wantDenied, source: fromStore},
			{mode: penstock.Spend, cost: 1, patience: time.Second, allowed: wantDenied, source: fromCache},
			{mode: penstock.Spend, cost: 1, patience: time.Minute, allowed: wantDenied, source: fromStore}, // more patient than any until now
			{mode: penstock.Spend, cost: 3, patience: time.Second, allowed: wantDenied, source: fromCache},
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromStore}, // patient spends may take units a minute earlier
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromCache},
			{mode: penstock.Spend, cost: 1, patience: 4 * time.Hour, allowed: wantAllowed, source: fromStore}, // granted after a wait
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromStore},
			{mode: penstock.Force, cost: 1, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromStore},
			{mode: penstock.Spend, cost: 1, allowed: wantDenied, source: fromCache},
			{mode: penstock.Reset, cost: 0, allowed: wantAllowed, source: fromStore},
			{mode: penstock.Spend, cost: 1, allowed: wantAllowed, source: fromStore},
		} {
			c := penstock.Charge{Key: "k", Plan: limit, Mode: step.mode, Cost: step.cost, Patience: step.patience}
			want := decide(t, store, asPeek(c))
			d := decide(t, cache, c)
			if d.Allowed != step.allowed || d.Source != step.source {
				t.Fatalf("step %d: %v by %v; want %+v", i, d, d.Source, step)
			}
			if !d.Allowed && d.Status(0) != want.Status(0) {
				t.Fatalf("step %d: %+v by %v; want %+v, as from the store", i, d.Status(0), d.Source, want.Status(0))
			}
			time.Sleep(time.Second)
		}
	})
}

// Leases draw any number of units, so smaller spends than those of the requests may come. A split
// limit has several counters, so its numbers say nothing about other costs.
func TestDenialsOfLeasedAndSplitLimitsAnswerLess(t *testing.T) {
	for _, row := range []struct {
		settings     guard.Settings
		equal, other penstock.Source // who answers the same cost again, and another one
	}{
		{settings: guard.Settings{}, equal: fromCache, other: fromCache},
		{settings: guard.Settings{Lease: 10}, equal: fromStore, other: fromStore},
		{settings: guard.Settings{SplitInto: 2}, equal: fromCache, other: fromStore},
	} {
		synctest.Test(t, func(t *testing.T) {
			cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{Limits: func(*penstock.Plan) guard.Settings { return row.settings }})
			limit := penstock.PerDay(10).MustCompile()
			teachSmallestCost(t, cache, limit, 5)
			checkDecision(t, decide(t, cache, spend("k", limit, 8)), wantAllowed, fromStore)
			checkDecision(t, decide(t, cache, spend("k", limit, 5)), wantDenied, fromStore)
			checkDecision(t, decide(t, cache, spend("k", limit, 5)), wantDenied, row.equal)
			checkDecision(t, decide(t, cache, spend("k", limit, 6)), wantDenied, row.other)
		})
	}
}

func TestDenialsOfPatientChargesHaveTheirOwnEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{})
		limit := penstock.PerSecond(10).MustCompile()
		decide(t, cache, spend("k", limit, 10))
		patient := spend("k", limit, 1)
		patient.Patience = 50 * time.Millisecond
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
		d := decide(t, cache, patient)
		checkDecision(t, d, wantDenied, fromStore)
		if d.RetryAfter() != 50*time.Millisecond {
			t.Fatalf("a spend with a patience of 50ms has RetryAfter %v; want 50ms", d.RetryAfter())
		}
		time.Sleep(49 * time.Millisecond)
		checkDecision(t, decide(t, cache, patient), wantDenied, fromCache)
		time.Sleep(11 * time.Millisecond)
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore) // a patient spend might have taken the next unit
		checkDecision(t, decide(t, cache, patient), wantAllowed, fromStore)
	})
}

func TestWindowsIgnorePatience(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(1).With(penstock.AnchoredWindow).MustCompile()
	patient := spend("k", limit, 1)
	patient.Patience = time.Minute
	decide(t, cache, spend("k", limit, 1))
	checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
	checkDecision(t, decide(t, cache, patient), wantDenied, fromCache)
}

func TestCanceledCallerGetsItsErrorDespiteACachedDenial(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(1).MustCompile()
	for range 2 {
		decide(t, cache, spend("k", limit, 1))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := cache.Decide(ctx, []penstock.Charge{spend("k", limit, 1)}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a canceled caller gets %v, error %v; want context.Canceled", d, err)
	}
}

func TestDeniedDrawDoesNotDenyPatientSpends(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{})
	limit := penstock.PerMinute(10).MustCompile()
	decide(t, cache, spend("k", limit, 10))
	draw := penstock.Charge{Key: "k", Plan: limit, Cost: 1, Mode: penstock.Draw, Patience: 30 * time.Second}
	checkDecision(t, decide(t, cache, draw), wantDenied, fromStore)
	patient := spend("k", limit, 1)
	patient.Patience = 20 * time.Second
	checkDecision(t, decide(t, cache, patient), wantAllowed, fromStore)
}

func TestCostAboveTheLimitHasNoRetryAfter(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(10).MustCompile()
	decide(t, cache, spend("k", limit, 10))
	checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
	for key, source := range map[string]penstock.Source{"k": fromCache, "new": fromStore} { // "new" has units that others may take
		for cost := int64(11); cost < 14; cost++ {
			d := decide(t, cache, spend(key, limit, cost))
			checkDecision(t, d, wantDenied, source)
			if d.RetryAfter() != penstock.Never {
				t.Fatalf("a cost of %d with a limit of 10 gets %v; want Never", cost, d)
			}
		}
	}
}

func TestRefundAndResetForgetDenials(t *testing.T) {
	t.Parallel()
	for _, mode := range []penstock.Mode{penstock.Refund, penstock.Reset} {
		cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
		limit, other := penstock.PerDay(10).MustCompile(), penstock.PerHour(10).MustCompile()
		decide(t, cache, spend("k", limit, 10), spend("k", other, 1))
		for range 2 {
			checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
			checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromCache)
			checkDecision(t, decide(t, cache, spend("k", limit, 1), spend("k", other, 1)), wantDenied, fromStore)
			checkDecision(t, decide(t, cache, spend("k", limit, 1), spend("k", other, 1)), wantDenied, fromCache)
			decide(t, cache, penstock.Charge{Key: "k", Plan: limit, Cost: 2, Mode: mode})
			checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantAllowed, fromStore)
			checkDecision(t, decide(t, cache, spend("k", limit, 1), spend("k", other, 1)), wantAllowed, fromStore)
			if mode == penstock.Reset {
				decide(t, cache, spend("k", limit, 8)) // with the two spends above, all 10 units are used again
			}
		}
	}
}

func TestRefundOfUnknownOutcomeForgetsDenials(t *testing.T) {
	t.Parallel()
	store := newCountingStore()
	cache := guard.NewDenyCache(store, guard.DenySetup{})
	limit := penstock.PerDay(10).MustCompile()
	decide(t, cache, spend("k", limit, 10))
	decide(t, cache, spend("k", limit, 1))
	lost := fmt.Errorf("%w: the reply was lost", penstock.ErrUnavailable)
	store.onCall = func(ctx context.Context, charges []penstock.Charge) error {
		if charges[0].Mode != penstock.Refund {
			return nil
		}
		_, _ = store.Store.Decide(ctx, charges)
		return lost
	}
	if _, err := cache.Decide(t.Context(), []penstock.Charge{refund("k", limit, 1)}); !errors.Is(err, penstock.ErrUnavailable) {
		t.Fatalf("the refund returned %v; want an error that wraps ErrUnavailable", err)
	}
	checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantAllowed, fromStore)
}

// A denial that was in flight during a refund is not cached.
func TestDenialThatARefundOvertookIsNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(slowAnswers{store}, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		decide(t, cache, spend("k", limit, 10))
		done := make(chan penstock.Decision)
		go func() { done <- decide(t, cache, spend("k", limit, 1)) }()
		time.Sleep(time.Millisecond) // the store has denied, and its answer is in flight
		decide(t, store, refund("k", limit, 1))
		// Only a refund through the cache makes the cache forget denials, even if its cost is 0.
		if _, err := cache.Decide(t.Context(), []penstock.Charge{refund("k", limit, 0)}); err != nil {
			t.Fatal(err)
		}
		checkDecision(t, <-done, wantDenied, fromStore)
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantAllowed, fromStore)
	})
}

// slowAnswers delays each answer by 10 ms, except answers to a Refund.
type slowAnswers struct{ penstock.Store }

func (s slowAnswers) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	d, err := s.Store.Decide(ctx, charges)
	if charges[0].Mode != penstock.Refund {
		time.Sleep(10 * time.Millisecond)
	}
	return d, err
}

func TestDenialCountsFromItsCallAndRetryAfterFromItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := penstock.PerSecond(10).MustCompile()
		cache := guard.NewDenyCache(slowAnswers{newCountingStore()}, guard.DenySetup{})
		decide(t, cache, spend("k", limit, 10))
		time.Sleep(40 * time.Millisecond) // with the 10 ms of the answer, 50 ms of 100 ms are over
		if d := decide(t, cache, spend("k", limit, 1)); d.RetryAfter() != 50*time.Millisecond {
			t.Fatalf("RetryAfter is %v; want 50ms", d.RetryAfter())
		}
		time.Sleep(35 * time.Millisecond) // 45 ms after the call of the store
		d := decide(t, cache, spend("k", limit, 1))
		checkDecision(t, d, wantDenied, fromCache)
		if want := 15 * time.Millisecond; d.RetryAfter() != want {
			t.Fatalf("RetryAfter is %v; want %v, because it was 50ms when the answer arrived 35ms before", d.RetryAfter(), want)
		}
		time.Sleep(5 * time.Millisecond) // until 50 ms after the call, when the cached denial has ended
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantAllowed, fromStore)
	})
}

func TestAnotherPlanIsAnotherEntry(t *testing.T) {
	t.Parallel()
	// In this zone it is noon, so the day does not end during the test.
	sinceMidnightUTC := time.Since(time.Now().UTC().Truncate(24 * time.Hour))
	zone := time.FixedZone("noon", int((12*time.Hour - sinceMidnightUTC).Seconds()))
	calendar := penstock.CalendarWindow(algorithm.Day, zone)
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
	for i, pair := range [][2]penstock.Limit{
		{penstock.PerDay(10), penstock.PerDay(20)},
		{penstock.PerDay(10).WithBurst(5), penstock.PerDay(10).WithBurst(20)},
		{penstock.PerDay(10).With(penstock.AnchoredWindow), penstock.PerDay(20).With(penstock.AnchoredWindow)},
		{penstock.PerDay(10).With(penstock.SubWindow(3)), penstock.PerDay(20).With(penstock.SubWindow(3))},
		{penstock.PerDay(10).With(calendar), penstock.PerDay(20).With(calendar)},
	} {
		key := fmt.Sprint(i)
		decide(t, cache, spend(key, pair[0].MustCompile(), 5))
		decide(t, cache, penstock.Charge{Key: key, Plan: pair[0].MustCompile(), Cost: 5, Mode: penstock.Force})
		checkDecision(t, decide(t, cache, spend(key, pair[0].MustCompile(), 1)), wantDenied, fromStore)
		checkDecision(t, decide(t, cache, spend(key, pair[0].MustCompile(), 1)), wantDenied, fromCache)
		copied, err := pair[0].Compile() // another Plan with the same numbers
		if err != nil {
			t.Fatal(err)
		}
		checkDecision(t, decide(t, cache, spend(key, copied, 1)), wantDenied, fromCache)
		checkDecision(t, decide(t, cache, spend(key, pair[1].MustCompile(), 1)), wantAllowed, fromStore)
		checkDecision(t, decide(t, cache, spend(key, copied, 1)), wantDenied, fromStore) // the grant has changed what remains of the counter
	}
}

func TestDenialsOfSlotsAreNotCached(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: time.Hour})
	slots, rate := penstock.InFlight(1, time.Minute).MustCompile(), penstock.PerDay(1).MustCompile()
	hold := func(holder string) penstock.Charge {
		return penstock.Charge{Key: "k", Plan: slots, Cost: 1, Holder: holder}
	}
	checkDecision(t, decide(t, cache, hold("a")), wantAllowed, fromStore)
	for range 3 {
		checkDecision(t, decide(t, cache, hold("b")), wantDenied, fromStore)
		checkDecision(t, decide(t, cache, hold("b"), spend("k", rate, 1)), wantDenied, fromStore)
	}
	decide(t, cache, spend("k", rate, 1))
	checkDecision(t, decide(t, cache, hold("b"), spend("k", rate, 1)), wantDenied, fromStore) // both deny
	checkDecision(t, decide(t, cache, hold("b"), spend("k", rate, 1)), wantDenied, fromStore)
	decide(t, cache, penstock.Charge{Key: "k", Plan: slots, Cost: 1, Mode: penstock.Refund, Holder: "a"})
	checkDecision(t, decide(t, cache, hold("b"), spend("k", rate, 1)), wantDenied, fromStore) // only the rate denies, so this denial is cached
	// The denial of the rate stays cached when slots are taken and returned.
	for _, mode := range []penstock.Mode{penstock.Spend, penstock.Refund} {
		decide(t, cache, penstock.Charge{Key: "k", Plan: slots, Cost: 1, Mode: mode, Holder: "e"})
	}
	d := decide(t, cache, hold("c"), spend("k", rate, 1))
	checkDecision(t, d, wantDenied, fromCache)
	if d.Len() != 2 || d.Status(0).RetryAfter != 0 || d.Status(0).Remaining != 1 || d.Status(1).RetryAfter == 0 {
		t.Fatalf("the status of the slots is %+v, that of the rate %+v; want 1 slot left, and a denial by the rate only", d.Status(0), d.Status(1))
	}
}

func TestBatchIsDeniedFromTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{})
		second, day := penstock.PerSecond(10).MustCompile(), penstock.PerDay(10).MustCompile()
		batch := func(secondCost, dayCost int64) []penstock.Charge {
			return []penstock.Charge{spend("k", second, secondCost), spend("k", day, dayCost)}
		}
		decide(t, cache, batch(10, 4)...)
		first := decide(t, cache, batch(1, 2)...)
		checkDecision(t, first, wantDenied, fromStore)
		time.Sleep(20 * time.Millisecond)
		d := decide(t, cache, batch(1, 2)...)
		checkDecision(t, d, wantDenied, fromCache)
		if d.Len() != 2 || d.Status(0).RetryAfter != 80*time.Millisecond || d.Status(1).RetryAfter != 0 || d.Status(1).Remaining != 6 ||
			d.Status(1).ResetAfter != first.Status(1).ResetAfter-20*time.Millisecond {
			t.Fatalf("the statuses are %+v and %+v; want RetryAfter 80ms for the first, and no RetryAfter and 6 left for the second, whose ResetAfter is 20ms less than at first", d.Status(0), d.Status(1))
		}
		checkDecision(t, decide(t, cache, batch(3, 1)...), wantDenied, fromCache)
		checkDecision(t, decide(t, cache, spend("k", day, 2), spend("k", second, 1)), wantDenied, fromStore) // another order
		checkDecision(t, decide(t, cache, spend("k", second, 1), spend("other", day, 2)), wantDenied, fromStore)
		checkDecision(t, decide(t, cache, spend("k", second, 1)), wantDenied, fromStore) // another batch
		checkDecision(t, decide(t, cache, batch(1, 7)...), wantDenied, fromStore)        // the limit per day denies a cost of 7 too
		d = decide(t, cache, batch(1, 7)...)
		checkDecision(t, d, wantDenied, fromStore) // others may have taken some of the 6 units of the day
		if d.Status(0).RetryAfter == 0 || d.Status(1).RetryAfter == 0 {
			t.Fatalf("the statuses are %+v and %+v; want a RetryAfter in both", d.Status(0), d.Status(1))
		}
		time.Sleep(80 * time.Millisecond)
		checkDecision(t, decide(t, cache, batch(1, 2)...), wantAllowed, fromStore)
	})
}

func TestDenialsOfFallbacksAreNotCached(t *testing.T) {
	t.Parallel()
	for source := penstock.FromStore; source <= penstock.FromClosed; source++ {
		store := newCountingStore()
		cache := guard.NewDenyCache(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			d, err := store.Decide(ctx, charges)
			d.Source = source
			return d, err
		}), guard.DenySetup{MaxAge: time.Hour})
		for range 3 {
			decide(t, cache, spend("k", penstock.PerDay(1).MustCompile(), 1))
		}
		want := int64(3)
		if source == penstock.FromStore {
			want = 2
		}
		if got := store.calls.Load(); got != want {
			t.Errorf("denials from %v: the store was called %d times, want %d", source, got, want)
		}
	}
}

func TestErrorsAreNotCached(t *testing.T) {
	t.Parallel()
	store := newCountingStore()
	cache := guard.NewDenyCache(store, guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(1).MustCompile()
	decide(t, cache, spend("k", limit, 1))
	store.onCall = func(context.Context, []penstock.Charge) error { return penstock.ErrUnavailable }
	for range 2 {
		if _, err := cache.Decide(t.Context(), []penstock.Charge{spend("k", limit, 1)}); !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("without a cached denial, the error is %v; want one that wraps ErrUnavailable", err)
		}
	}
	store.onCall = nil
	checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore)
	store.onCall = func(context.Context, []penstock.Charge) error { return penstock.ErrUnavailable }
	checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromCache) // a cached denial needs no store
}

func TestDenialThatEndsBeforeItArrivesIsNotCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := guard.NewDenyCache(slowAnswers{newCountingStore()}, guard.DenySetup{})
		limit := penstock.PerSecond(50).MustCompile()
		decide(t, cache, spend("k", limit, 50))
		checkDecision(t, decide(t, cache, spend("k", limit, 1)), wantDenied, fromStore) // with a RetryAfter of 10 ms, as long as the answer takes
		if s := cache.Stats(); s.Remembered != 0 || s.Entries != 0 {
			t.Fatalf("after a denial that ends as it arrives, the stats of the cache are %+v; want 0 denials remembered, and 0 entries", s)
		}
	})
}

func TestLongBatchesAndWrongAnswersAreNotCached(t *testing.T) {
	t.Parallel()
	denied := penstock.Single(penstock.Status{RetryAfter: time.Hour})
	wrong := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return denied, nil })
	for n, store := range map[int]penstock.Store{ // by the number of charges
		2: wrong,              // returns one status for two charges
		9: newCountingStore(), // denials of up to 8 charges are cached
	} {
		cache := guard.NewDenyCache(store, guard.DenySetup{})
		var charges []penstock.Charge
		for i := range n {
			charges = append(charges, spend(fmt.Sprint(i), penstock.PerDay(1).MustCompile(), 1))
		}
		for range 3 {
			decide(t, cache, charges...)
		}
		if s := cache.Stats(); s.Remembered != 0 {
			t.Errorf("after batches of %d charges, the stats are %+v; want 0 denials remembered", n, s)
		}
	}
}

// gatedStore is a store that answers only while its channel opened is closed.
type gatedStore struct {
	*countingStore
	opened chan struct{}
}

func newGatedStore() *gatedStore {
	g := &gatedStore{countingStore: newCountingStore(), opened: make(chan struct{})}
	close(g.opened)
	g.onCall = func(context.Context, []penstock.Charge) error { <-g.opened; return nil }
	return g
}

// callTogether makes n concurrent calls, and does not let the store answer them. If the charge had
// a cached denial, the denial must have ended. The test fails unless exactly one call reaches the
// store.
func callTogether(t *testing.T, g *gatedStore, cache penstock.Store, n int, charge penstock.Charge) <-chan penstock.Decision {
	g.opened = make(chan struct{})
	g.calls.Store(0)
	decisions := make(chan penstock.Decision, n)
	for range n {
		go func() { decisions <- decide(t, cache, charge) }()
	}
	synctest.Wait()
	if got := g.calls.Load(); got != 1 {
		t.Fatalf("after a denial has ended, %d of %d concurrent callers called the store; want 1", got, n)
	}
	return decisions
}

func TestOneCallAfterADenialAnswersAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 100
		g := newGatedStore()
		cache := guard.NewDenyCache(g, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		decide(t, cache, spend("k", limit, 10))
		decide(t, cache, spend("k", limit, 1))
		time.Sleep(time.Second)
		decisions := callTogether(t, g, cache, callers, spend("k", limit, 1))
		close(g.opened)
		shared := 0
		for range callers {
			d := <-decisions
			if d.Allowed {
				t.Fatalf("a caller gets %v from %v; want denied", d, d.Source)
			}
			if d.Source == fromCache {
				shared++
			}
		}
		if got := g.calls.Load(); got != 1 || shared != callers-1 || cache.Stats().Waited != callers-1 {
			t.Fatalf("the store was called %d times, %d callers shared its answer, %d waited; want 1, %[4]d and %[4]d", got, shared, cache.Stats().Waited, callers-1)
		}
	})
}

func TestAfterAGrantWaitingCallersGetTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers, units = 100, 7
		g := newGatedStore()
		cache := guard.NewDenyCache(g, guard.DenySetup{})
		limit := penstock.PerSecond(units).With(penstock.FixedWindow).MustCompile()
		decide(t, cache, spend("k", limit, units))
		decide(t, cache, spend("k", limit, 1))
		time.Sleep(time.Second)
		decisions := callTogether(t, g, cache, callers, spend("k", limit, 1))
		close(g.opened)
		allowed := 0
		for range callers {
			if d := <-decisions; d.Allowed {
				allowed++
			}
		}
		if allowed != units {
			t.Fatalf("%d requests were allowed; want %d", allowed, units)
		}
	})
}

func TestSmallerCostDoesNotWaitForALargerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGatedStore()
		cache := guard.NewDenyCache(g, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		teachSmallestCost(t, cache, limit, 5)
		decide(t, cache, spend("k", limit, 7))
		decide(t, cache, spend("k", limit, 5))
		time.Sleep(time.Second)
		decisions := callTogether(t, g, cache, 3, spend("k", limit, 5))
		smaller := make(chan penstock.Decision)
		go func() { smaller <- decide(t, cache, spend("k", limit, 3)) }()
		synctest.Wait()
		if got := g.calls.Load(); got != 2 {
			t.Fatalf("the store was called %d times; want 2: for the cost of 5, and for that of 3", got)
		}
		close(g.opened)
		checkDecision(t, <-smaller, wantAllowed, fromStore)
		for range 3 {
			<-decisions
		}
	})
}

func TestWaitingCallerLeavesWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGatedStore()
		cache := guard.NewDenyCache(g, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		decide(t, cache, spend("k", limit, 10))
		decide(t, cache, spend("k", limit, 1))
		time.Sleep(time.Second)
		decisions := callTogether(t, g, cache, 1, spend("k", limit, 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cache.Decide(ctx, []penstock.Charge{spend("k", limit, 1)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the waiting caller gets %v; want context.DeadlineExceeded", err)
		}
		close(g.opened)
		checkDecision(t, <-decisions, wantDenied, fromStore)
	})
}

func TestWaitingCallerIsNotDeniedForALargerCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGatedStore()
		cache := guard.NewDenyCache(g, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		teachSmallestCost(t, cache, limit, 5)
		decide(t, cache, spend("k", limit, 7))
		decide(t, cache, spend("k", limit, 5))
		time.Sleep(time.Second)
		decide(t, g, refund("k", limit, 3)) // by another instance: 6 are left
		larger := callTogether(t, g, cache, 1, spend("k", limit, 9))
		smaller := make(chan penstock.Decision)
		go func() { smaller <- decide(t, cache, spend("k", limit, 5)) }()
		synctest.Wait()
		if cache.Stats().Waited != 1 {
			t.Fatalf("%d callers have waited for the answer to another; want 1", cache.Stats().Waited)
		}
		close(g.opened)
		checkDecision(t, <-larger, wantDenied, fromStore)
		checkDecision(t, <-smaller, wantAllowed, fromStore)
	})
}

func TestPanicOfTheSharedCallReleasesWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(store, guard.DenySetup{})
		limit := penstock.PerDay(10).MustCompile()
		decide(t, cache, spend("k", limit, 10))
		decide(t, cache, spend("k", limit, 1))
		time.Sleep(time.Second)
		release := make(chan struct{})
		store.onCall = func(context.Context, []penstock.Charge) error {
			if store.calls.Load() == 3 { // the first call after the denial has ended
				<-release
				panic("broken")
			}
			return nil
		}
		go func() {
			defer func() { _ = recover() }()
			decide(t, cache, spend("k", limit, 1))
		}()
		synctest.Wait()
		waiting := make(chan penstock.Decision)
		go func() { waiting <- decide(t, cache, spend("k", limit, 1)) }()
		synctest.Wait()
		close(release)
		checkDecision(t, <-waiting, wantDenied, fromStore)
	})
}

// A grant that empties a bucket also shows when the next tokens come.
func TestGrantPredictsTheNextDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(store, guard.DenySetup{Grants: true})
		limit := compiled(t, penstock.PerSecond(10))
		teachSmallestCost(t, cache, limit, 7)
		store.calls.Store(0)
		checkDecision(t, decide(t, cache, spend("k", limit, 7)), wantAllowed, fromStore)
		d := decide(t, cache, spend("k", limit, 8)) // 3 are left; the denial of 7 that follows answers 8 too
		checkDecision(t, d, wantDenied, fromCache)
		if s := d.Status(0); s != (penstock.Status{Remaining: 3, RetryAfter: 500 * time.Millisecond, ResetAfter: 700 * time.Millisecond}) {
			t.Errorf("after 7 of 10 were taken, a spend of 8 gets %+v; want 3 left, a RetryAfter of 500ms and a ResetAfter of 700ms", s)
		}
		checkDecision(t, decide(t, cache, spend("k", limit, 3)), wantAllowed, fromStore) // less than 7, so the store decides
		d = decide(t, cache, spend("k", limit, 3))
		checkDecision(t, d, wantDenied, fromCache)
		if d.RetryAfter() != 300*time.Millisecond {
			t.Errorf("after all were taken, a spend of 3 has RetryAfter %v; want 300ms, in which 3 are refilled", d.RetryAfter())
		}
		time.Sleep(300*time.Millisecond + time.Microsecond)
		checkDecision(t, decide(t, cache, spend("k", limit, 3)), wantAllowed, fromStore)
		checkDecision(t, decide(t, cache, refund("k", limit, 3)), wantAllowed, fromStore)
		checkDecision(t, decide(t, cache, spend("k", limit, 3)), wantAllowed, fromStore)
		if n := store.calls.Load(); n != 5 {
			t.Errorf("the store was called %d times; want 5, once for each decision that is not from the cache", n)
		}
	})
}

// Tiers share a counter, but a cost that the smaller tier denies may fit the larger one.
func TestDenialOfOneTierDeniesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCountingStore()
		cache := guard.NewDenyCache(store, guard.DenySetup{Grants: true})
		small, large := compiled(t, penstock.PerHour(10).WithBurst(2)), compiled(t, penstock.PerHour(10).WithBurst(9))
		checkDecision(t, decide(t, cache, spend("k", small, 1)), wantAllowed, fromStore)
		checkDecision(t, decide(t, cache, spend("k", small, 1)), wantAllowed, fromStore)
		checkDecision(t, decide(t, cache, spend("k", small, 1)), wantDenied, fromCache)
		for range 7 { // of the larger burst of 9, the two spends above have left 7
			checkDecision(t, decide(t, cache, spend("k", large, 1)), wantAllowed, fromStore)
			checkDecision(t, decide(t, cache, spend("k", small, 1)), wantDenied, fromStore) // the grant has changed the RetryAfter
			checkDecision(t, decide(t, cache, spend("k", small, 1)), wantDenied, fromCache)
		}
		checkDecision(t, decide(t, cache, spend("k", large, 1)), wantDenied, fromStore)
		checkDecision(t, decide(t, cache, spend("k", large, 1)), wantDenied, fromCache)
	})
}

func TestGrantsThatPredictNoDenial(t *testing.T) {
	settings := func(s guard.Settings) func(*penstock.Plan) guard.Settings {
		return func(*penstock.Plan) guard.Settings { return s }
	}
	bucket, window := compiled(t, penstock.PerHour(10)), compiled(t, penstock.Limit{Name: "w", Algorithm: penstock.FixedWindow, Count: 10, Period: time.Hour})
	patient := spend("k", bucket, 10)
	patient.Patience = time.Minute
	for _, c := range []struct {
		name    string
		options guard.DenySetup
		charges []penstock.Charge
	}{
		{name: "without Grants", options: guard.DenySetup{}, charges: []penstock.Charge{spend("k", bucket, 10)}},
		{name: "of a split limit", options: guard.DenySetup{Grants: true, Limits: settings(guard.Settings{SplitInto: 2})}, charges: []penstock.Charge{spend("k", bucket, 10)}},
		{name: "of a limit without a deny cache", options: guard.DenySetup{Grants: true, Limits: settings(guard.Settings{DenyCacheTTL: -1})}, charges: []penstock.Charge{spend("k", bucket, 10)}},
		{name: "of a window", options: guard.DenySetup{Grants: true}, charges: []penstock.Charge{spend("k", window, 10)}},
		{name: "with patience", options: guard.DenySetup{Grants: true}, charges: []penstock.Charge{patient}},
		{name: "of a batch", options: guard.DenySetup{Grants: true}, charges: []penstock.Charge{spend("k", bucket, 10), spend("k", window, 10)}},
		{name: "with as much left as was taken", options: guard.DenySetup{Grants: true}, charges: []penstock.Charge{spend("k", bucket, 5)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newCountingStore()
				cache := guard.NewDenyCache(store, c.options)
				checkDecision(t, decide(t, cache, c.charges...), wantAllowed, fromStore)
				for i := range c.charges {
					c.charges[i].Cost, c.charges[i].Patience = 10, 0
				}
				checkDecision(t, decide(t, cache, c.charges...), wantDenied, fromStore)
			})
		})
	}
}

// One key is far over its limit, on a store that takes 1 ms to reply. For each unit that is
// refilled, the store is called several times. The first caller calls it, then the callers that
// waited for the first reply, and the callers that come before these have their replies.
func TestKeyOverItsLimitCostsTheStoreLittle(t *testing.T) {
	effort.SkipUnderRace(t)
	const arrivals = 10 // requests during the 1 ms of a reply
	checkKeyOverItsLimit(t, denyCache(guard.DenySetup{}), 10, 2*(arrivals+1))
}

// If grants predict denials, only the first caller calls the store.
func TestKeyOverItsLimitCostsTheStoreItsGrants(t *testing.T) {
	effort.SkipUnderRace(t)
	checkKeyOverItsLimit(t, denyCache(guard.DenySetup{Grants: true}), 100, 1)
}

// A lease adds no calls: it draws nothing for a key that is used up.
func TestLeasedKeyOverItsLimitCostsTheStoreItsGrants(t *testing.T) {
	effort.SkipUnderRace(t)
	checkKeyOverItsLimit(t, func(t *testing.T, store penstock.Store) penstock.Store {
		l := newLease(t, store, guard.LeaseSetup{Limits: leaseUpTo(50)})
		return guard.NewDenyCache(l, guard.DenySetup{Grants: true, Limits: leaseUpTo(50)})
	}, 100, 1)
}

func denyCache(o guard.DenySetup) func(*testing.T, penstock.Store) penstock.Store {
	return func(_ *testing.T, store penstock.Store) penstock.Store { return guard.NewDenyCache(store, o) }
}

// checkKeyOverItsLimit sends 10,000 requests a second for one key, whose limit is perSecond units a
// second. The function wrap puts a deny cache around the store. The store may be called
// callsPerUnit times for each unit that returns to the bucket.
func checkKeyOverItsLimit(t *testing.T, wrap func(*testing.T, penstock.Store) penstock.Store, perSecond, callsPerUnit int64) {
	synctest.Test(t, func(t *testing.T) {
		const requests, seconds = 100_000, 10
		store := newCountingStore()
		store.onCall = func(context.Context, []penstock.Charge) error { time.Sleep(time.Millisecond); return nil }
		cache := wrap(t, store)
		limit := compiled(t, penstock.PerSecond(perSecond))
		var allowed atomic.Int64
		for range requests {
			time.Sleep(seconds * time.Second / requests)
			go func() {
				if d := decide(t, cache, spend("k", limit, 1)); d.Allowed {
					allowed.Add(1)
				}
			}()
		}
		time.Sleep(time.Second)
		least, most := perSecond*seconds, perSecond*(seconds+1)
		if n := allowed.Load(); n < least || n > most {
			t.Errorf("%d of %d requests were allowed; want %d to %d", n, requests, least, most)
		}
		if mostCalls := most*callsPerUnit + perSecond; store.calls.Load() > mostCalls {
			t.Errorf("the store was called %d times for %d requests; want at most %d", store.calls.Load(), requests, mostCalls)
		}
		t.Logf("counted: %d requests for a key over its limit (%d allowed, the store was called %d times)",
			requests, allowed.Load(), store.calls.Load())
	})
}

func TestDenyCacheTTLMayBeUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, maxAge := range []time.Duration{penstock.Never, penstock.Never - 1} {
			cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxAge: maxAge})
			limit := penstock.PerDay(1)
			key := fmt.Sprint(maxAge)
			decide(t, cache, spend(key, limit.MustCompile(), 1))
			checkDecision(t, decide(t, cache, spend(key, limit.MustCompile(), 1)), wantDenied, fromStore)
			time.Sleep(23 * time.Hour)
			checkDecision(t, decide(t, cache, spend(key, limit.MustCompile(), 1)), wantDenied, fromCache)
			other := limit.WithName("other").MustCompile()
			teachSmallestCost(t, cache, other, 2) // so nothing is ever granted
			checkDecision(t, decide(t, cache, spend("never", other, 2)), wantDenied, fromStore)
			time.Sleep(200 * 24 * time.Hour)
			checkDecision(t, decide(t, cache, spend("never", other, 2)), wantDenied, fromCache)
			checkDecision(t, decide(t, cache, spend("late", other, 2)), wantDenied, fromStore)
			checkDecision(t, decide(t, cache, spend("late", other, 2)), wantDenied, fromCache)
		}
	})
}

// A caller that has refunded units can spend them immediately, although other callers' denials are
// cached.
func TestOwnRefundIsSpendableAmongManyCallers(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{MaxEntries: 64})
	limit := penstock.PerDay(10).MustCompile()
	var rounds, cachedDenials atomic.Int64
	var owners, others sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		key := fmt.Sprint(i)
		decide(t, cache, spend(key, limit, 10))
		for range 2 { // other callers are always denied: they spend 2, and at most 1 is left
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if d := decide(t, cache, spend(key, limit, 2)); d.Source == fromCache {
							cachedDenials.Add(1)
						}
						decide(t, cache, penstock.Charge{Key: key, Plan: limit, Cost: 1, Mode: penstock.Peek})
					}
				}
			})
		}
		owners.Go(func() {
			for range effort.Of(150, 2000) {
				if d := decide(t, cache, spend(key, limit, 1)); d.Allowed {
					t.Errorf("all units of key %s are used, and a spend gets %v; want denied", key, d)
				}
				decide(t, cache, refund(key, limit, 1))
				if d := decide(t, cache, spend(key, limit, 1)); !d.Allowed {
					t.Errorf("key %s: after a refund of the caller, its spend is denied by %v; want allowed", key, d.Source)
				}
				rounds.Add(1)
			}
		})
	}
	owners.Wait()
	close(stop)
	others.Wait()
	t.Logf("counted: %d refunds spent immediately by the caller that made them (%d cached denials)",
		rounds.Load(), cachedDenials.Load())
}

func TestMemoryIsBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	keys, entries := int64(effort.Of(100_000, 1_000_000)), int64(4096)
	denied := penstock.Single(penstock.Status{RetryAfter: time.Hour})
	store := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return denied, nil })
	cache := guard.NewDenyCache(store, guard.DenySetup{MaxEntries: int(entries), MaxAge: time.Hour})
	limit, err := penstock.PerDay(10).Compile()
	if err != nil {
		t.Fatal(err)
	}
	charges := []penstock.Charge{spend("", limit, 1)}
	most := int64(0)
	for i := range keys {
		charges[0].Key = strconv.FormatInt(i, 10)
		if _, err := cache.Decide(t.Context(), charges); err != nil {
			t.Fatal(err)
		}
		most = max(most, cache.Stats().Entries)
	}
	s := cache.Stats()
	if most > entries || s.Entries != entries || s.Remembered != keys || s.Evicted != keys-entries {
		t.Fatalf("the cache had up to %d entries, and its stats are %+v; want up to %d entries, all %d keys remembered, and %d evicted", most, s, entries, keys, keys-entries)
	}
	t.Logf("counted: %d denied keys in a cache of %d", keys, most)
}

func TestCacheOfDenialsHas65536EntriesByDefault(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const keys, entries = 300_000, 65_536 // enough keys to fill every place
	denied := penstock.Single(penstock.Status{RetryAfter: time.Hour})
	store := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return denied, nil })
	cache := guard.NewDenyCache(store, guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(10).MustCompile()
	for i := range keys {
		decide(t, cache, spend(strconv.Itoa(i), limit, 1))
	}
	if got := cache.Stats().Entries; got != entries {
		t.Errorf("after denials of %d keys, the cache has %d entries; want %d", keys, got, entries)
	}
}

func TestKeysAreNeverConfused(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	store := newCountingStore()
	cache := guard.NewDenyCache(store, guard.DenySetup{MaxAge: time.Hour})
	limit := penstock.PerDay(1)
	other := limit.WithName("other")
	grouped := limit
	grouped.Group = "group"
	long := strings.Repeat("x", penstock.MaxKey-1)
	keys := []string{"", "\x00", "\x00\x00", "a", "b", "ab", "ba", "a\nday", "a:day", "{a}", "day", long, long + "x", long + "y", "y" + long}
	for i := range 3000 {
		keys = append(keys, fmt.Sprint(i))
	}
	for _, key := range keys {
		for _, limit := range []penstock.Limit{limit, other, grouped} {
			checkDecision(t, decide(t, cache, spend(key, limit.MustCompile(), 1)), wantAllowed, fromStore)
			checkDecision(t, decide(t, cache, spend(key, limit.MustCompile(), 1)), wantDenied, fromStore)
			checkDecision(t, decide(t, cache, spend(key, limit.MustCompile(), 1)), wantDenied, fromCache)
		}
	}
	// The same counters in other pairs or orders are different batches.
	batches := 0
	for i := range 60 {
		for j := range 60 {
			if i == j {
				continue
			}
			for _, second := range []penstock.Limit{limit, other} {
				batch := []penstock.Charge{spend(keys[i], limit.MustCompile(), 1), spend(keys[j], second.MustCompile(), 1)}
				checkDecision(t, decide(t, cache, batch...), wantDenied, fromStore)
				checkDecision(t, decide(t, cache, batch...), wantDenied, fromCache)
				batches++
			}
		}
	}
	t.Logf("counted: %d keys and batches distinguished", 3*len(keys)+batches)
}

func TestInvalidChargesAreErrorsDespiteACachedDenial(t *testing.T) {
	t.Parallel()
	cache := guard.NewDenyCache(newCountingStore(), guard.DenySetup{})
	limit := penstock.PerDay(10).MustCompile()
	decide(t, cache, spend("k", limit, 10))
	decide(t, cache, spend("k", limit, 1))
	impatient := spend("k", limit, 1)
	impatient.Patience = -1
	for _, batch := range [][]penstock.Charge{
		{spend("k", limit, -1)},
		{spend("k", limit, penstock.MaxCost+1)},
		{spend("k", limit, 1), spend("k", limit, 1)},
		{impatient},
		{},
	} {
		if d, err := cache.Decide(t.Context(), batch); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the batch %+v gets %v, error %v; want an error that wraps ErrInvalid", batch, d, err)
		}
	}
}
