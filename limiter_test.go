package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

// The time of a manualClock changes only when the test calls pass.
type manualClock struct{ now time.Time }

func newManualClock() *manualClock { return &manualClock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *manualClock) Now() time.Time { return c.now }

func (c *manualClock) pass(d time.Duration) { c.now = c.now.Add(d) }

func (c *manualClock) store() *memstore.Store { return memstore.New(memstore.Options{Now: c.Now}) }

func newLimiter(t *testing.T, store penstock.Store, name string, limits ...penstock.Limit) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(store, name, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// wantAllowed returns a function that fails the test unless a decision is allowed and has remaining
// units left. The results of a method can be passed to this function directly.
func wantAllowed(t *testing.T, remaining int64) func(penstock.Decision, error) {
	t.Helper()
	return func(d penstock.Decision, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed || d.Remaining() != remaining || d.RetryAfter() != 0 {
			t.Fatalf("the decision is allowed %v, %d left, retry after %v; want allowed, %d left",
				d.Allowed, d.Remaining(), d.RetryAfter(), remaining)
		}
	}
}

const noneLeft = 0 // units that remain

// wantDenied is like wantAllowed for a decision that is denied.
func wantDenied(t *testing.T, remaining int64, retryAfter time.Duration) func(penstock.Decision, error) {
	t.Helper()
	return func(d penstock.Decision, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed || d.Remaining() != remaining || d.RetryAfter() != retryAfter {
			t.Fatalf("the decision is allowed %v, %d left, retry after %v; want denied, %d left, retry after %v",
				d.Allowed, d.Remaining(), d.RetryAfter(), remaining, retryAfter)
		}
	}
}

// wantDeniedError fails the test unless err is a DeniedError with this RetryAfter.
func wantDeniedError(t *testing.T, err error, retryAfter time.Duration) {
	t.Helper()
	var denied *penstock.DeniedError
	if !errors.As(err, &denied) {
		t.Fatalf("the error is %v; want a DeniedError", err)
	}
	if got := denied.Decision.RetryAfter(); denied.Decision.Allowed || got != retryAfter {
		t.Fatalf("the DeniedError has Allowed %v, RetryAfter %v; want false, %v", denied.Decision.Allowed, got, retryAfter)
	}
}

// wantError fails the test unless err wraps another error and its text contains all words.
func wantError(t *testing.T, err, wraps error, words ...string) {
	t.Helper()
	if !errors.Is(err, wraps) {
		t.Fatalf("the error is %v; want an error that wraps %v", err, wraps)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("the error is %q; want it to contain %q", err, word)
		}
	}
}

func TestAllowSpendsUntilNothingIsLeft(t *testing.T) {
	ctx, clock := t.Context(), newManualClock()
	l := newLimiter(t, clock.store(), "search", penstock.PerSecond(10).WithBurst(3))
	for left := int64(2); left >= 0; left-- {
		wantAllowed(t, left)(l.Allow(ctx, "alice"))
	}
	wantDenied(t, noneLeft, 100*time.Millisecond)(l.Allow(ctx, "alice"))
	wantAllowed(t, 2)(l.Allow(ctx, "bob"))
	clock.pass(100*time.Millisecond - time.Microsecond)
	wantDenied(t, noneLeft, time.Microsecond)(l.Allow(ctx, "alice"))
	clock.pass(time.Microsecond)
	wantAllowed(t, 0)(l.Allow(ctx, "alice"))
}

func TestAllowNOfMoreThanTheBurstIsNeverAllowed(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerSecond(10))
	wantDenied(t, 10, penstock.Never)(l.AllowN(ctx, "alice", 11))
	wantAllowed(t, 0)(l.AllowN(ctx, "alice", 10))
	wantAllowed(t, 0)(l.AllowN(ctx, "alice", 0))
	_, err := l.AllowN(ctx, "alice", -1)
	wantError(t, err, penstock.ErrInvalid, `limit "second"`, "-1", "Refund")
}

func TestPeekSpendsNothing(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(1))
	for range 3 {
		wantAllowed(t, 1)(l.Peek(ctx, "alice"))
	}
	wantAllowed(t, 0)(l.Allow(ctx, "alice"))
	for range 3 {
		wantDenied(t, noneLeft, time.Minute)(l.Peek(ctx, "alice"))
	}
}

func TestRefundReturnsAtMostWhatIsUsed(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(10))
	wantAllowed(t, 4)(l.AllowN(ctx, "alice", 6))
	d, err := l.Refund(ctx, "alice", 2)
	wantAllowed(t, 6)(d, err)
	if d.Status(0).Granted != 2 {
		t.Errorf("a refund of 2 has Granted %d; want 2", d.Status(0).Granted)
	}
	wantAllowed(t, 10)(l.Refund(ctx, "alice", 100))
	wantAllowed(t, 10)(l.Refund(ctx, "alice", 100))
}

func TestResetForgetsOneKey(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(2), penstock.PerDay(5).With(penstock.FixedWindow))
	for _, key := range []string{"alice", "bob"} {
		wantAllowed(t, 0)(l.AllowN(ctx, key, 2))
	}
	wantAllowed(t, 2)(l.Reset(ctx, "alice"))
	wantAllowed(t, 1)(l.Allow(ctx, "alice"))
	wantDenied(t, noneLeft, 30*time.Second)(l.Allow(ctx, "bob"))
}

func TestDeniedBatchSpendsNothing(t *testing.T) {
	ctx, clock := t.Context(), newManualClock()
	l := newLimiter(t, clock.store(), "search", penstock.PerSecond(10), penstock.PerDay(3).With(penstock.FixedWindow))
	for range 3 {
		if d, err := l.Allow(ctx, "alice"); err != nil || !d.Allowed {
			t.Fatalf("Allow returned %v, error %v; want allowed, and no error", d, err)
		}
	}
	d, err := l.Allow(ctx, "alice")
	wantDenied(t, noneLeft, 24*time.Hour)(d, err)
	if d.Len() != 2 || d.Strictest() != 1 {
		t.Errorf("the decision has %d statuses, and status %d is the strictest; want 2 statuses, and status 1", d.Len(), d.Strictest())
	}
	if s := d.Status(0); s.Remaining != 7 || s.Granted != 0 || s.RetryAfter != 0 {
		t.Errorf("the limit that did not deny has the status %+v; want Remaining 7, Granted 0 and RetryAfter 0", s)
	}
}

func TestLimitersOfOneNameShareCounters(t *testing.T) {
	ctx, store := t.Context(), newManualClock().store()
	search := newLimiter(t, store, "search", penstock.PerMinute(2))
	otherSearch := newLimiter(t, store, "search", penstock.PerMinute(2))
	login := newLimiter(t, store, "login", penstock.PerMinute(2))
	wantAllowed(t, 1)(search.Allow(ctx, "alice"))
	wantAllowed(t, 0)(otherSearch.Allow(ctx, "alice"))
	wantDenied(t, noneLeft, 30*time.Second)(search.Allow(ctx, "alice"))
	wantAllowed(t, 1)(login.Allow(ctx, "alice"))
}

func TestLimiterKeepsTheOrderOfItsLimits(t *testing.T) {
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerDay(100), penstock.PerSecond(10))
	plans := l.Plans()
	if len(plans) != 2 || plans[0].Name() != "day" || plans[1].Name() != "second" {
		t.Fatalf("the plans are %v; want those of the limits \"day\" and \"second\"", plans)
	}
	if plans[0].Group() != "search" || plans[0].Algorithm() != penstock.TokenBucket {
		t.Errorf("the first plan has group %q, algorithm %q; want \"search\", \"tokenbucket\"", plans[0].Group(), plans[0].Algorithm().Name())
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(2))
	if _, err := l.Allow(ctx, "alice"); !errors.Is(err, context.Canceled) {
		t.Errorf("Allow with a canceled context returned %v; want context.Canceled", err)
	}
	wantAllowed(t, 2)(l.Peek(t.Context(), "alice"))
}

func TestErrorsOfNewLimiterNameTheMistake(t *testing.T) {
	store := newManualClock().store()
	rows := []struct {
		store  penstock.Store
		name   string
		limits []penstock.Limit
		words  []string
	}{
		{nil, "search", []penstock.Limit{penstock.PerSecond(1)}, []string{`"search"`, "nil", "memstore.New"}},
		{store, "", []penstock.Limit{penstock.PerSecond(1)}, []string{"name", "0 characters"}},
		{store, "Search", []penstock.Limit{penstock.PerSecond(1)}, []string{"'S'", "position 1", "a-z"}},
		{store, "search", nil, []string{"no limits"}},
		{store, "search", []penstock.Limit{penstock.PerSecond(0), penstock.PerDay(-1)}, []string{`"second"`, "count is 0", `"day"`, "count is -1"}},
		{store, "search", []penstock.Limit{penstock.PerSecond(1), penstock.PerSecond(2)}, []string{`"second"`, "one limit", "rename"}},
	}
	for _, row := range rows {
		_, err := penstock.NewLimiter(row.store, row.name, row.limits...)
		wantError(t, err, penstock.ErrInvalid, row.words...)
	}
}

func TestErrorsOfLimitsNameTheMistake(t *testing.T) {
	valid := penstock.PerSecond(10)
	rows := []struct {
		limit penstock.Limit
		words []string
	}{
		{penstock.Limit{Count: 3, Period: 15 * time.Minute}, []string{"has no name", "set Name, or use Per, PerMinute, ParseRate or WithName"}},
		{valid.WithName(strings.Repeat("a", 65)), []string{"65 characters", "1 to 64"}},
		{valid.WithName("per second"), []string{"' '", "position 4"}},
		{valid.WithName("{x}"), []string{"'{'", "position 1"}},
		{valid.WithName("a:b"), []string{"':'", "position 2"}},
		{penstock.Limit{Name: "a", Group: "B", Count: 1, Period: time.Second}, []string{"group", "'B'"}},
		{penstock.Limit{Name: "a", Group: "a\nb", Count: 1, Period: time.Second}, []string{"group", `'\n'`}},
		{penstock.Limit{Name: "a", Group: strings.Repeat("g", 65), Count: 1, Period: time.Second}, []string{"group", "65 characters"}},
		{penstock.Limit{Name: "a", Count: 1}, []string{"period", "1µs"}},
		{penstock.Limit{Name: "a", Count: 1, Period: -time.Second}, []string{"period"}},
		{penstock.Per(1, -time.Minute), []string{"period must be at least 1µs"}},
		{penstock.Limit{Name: "a", Count: 1, Period: 1500 * time.Nanosecond}, []string{"1.5µs", "whole number of microseconds"}},
		{penstock.Limit{Name: "a", Count: 1, Period: 9 * 365 * 24 * time.Hour}, []string{"period", "8 years"}},
		{penstock.PerSecond(0), []string{"count is 0", "at least 1"}},
		{penstock.PerSecond(math.MaxInt64), []string{"count is", "2^51"}},
		{valid.WithBurst(-1), []string{"burst is -1"}},
		{valid.WithBurst(math.MaxInt64), []string{"burst is", "2^51"}},
		{penstock.PerDay(1_234_567), []string{"burst 1234567 (the default is the count) is too large to count exactly", "the largest is 26062"}},
		{penstock.InFlight(5, time.Microsecond), []string{"1ms", "renewing"}},
		{valid.With(penstock.SubWindow(0)), []string{"0 parts", "1 to 60"}},
		{valid.With(penstock.SubWindow(61)), []string{"61 parts", "1 to 60"}},
		{valid.With(penstock.CalendarWindow(algorithm.Day, nil)), []string{"time zone", "time.UTC"}},
	}
	for _, row := range rows {
		wantError(t, row.limit.Validate(), penstock.ErrInvalid, append(row.words, "limit ")...)
	}
	if err := valid.Validate(); err != nil {
		t.Errorf("the error of %v is %v; want none", valid, err)
	}
}

func TestErrorsOfChargesNameTheMistake(t *testing.T) {
	plan := penstock.PerSecond(10).MustCompile()
	charge := penstock.Charge{Key: "alice", Plan: plan, Cost: 1}
	// with returns a batch of the charge and a changed copy of it.
	with := func(change func(*penstock.Charge)) []penstock.Charge {
		c := charge
		change(&c)
		return []penstock.Charge{charge, c}
	}
	rows := []struct {
		charges []penstock.Charge
		words   []string
	}{
		{nil, []string{"0 charges", "1 to 64"}},
		{make([]penstock.Charge, penstock.MaxCharges+1), []string{"65 charges", "1 to 64"}},
		{[]penstock.Charge{{Key: "alice", Cost: 1}}, []string{"charge 0", "no Plan", "Compile"}},
		{with(func(c *penstock.Charge) { c.Plan = nil }), []string{"charge 1", "no Plan", "Compile"}},
		{with(func(c *penstock.Charge) { c.Cost = -3 }), []string{"charge 1", "-3", "Refund"}},
		{with(func(c *penstock.Charge) { c.Cost = penstock.MaxCost + 1 }), []string{"charge 1", "largest"}},
		{with(func(c *penstock.Charge) { c.Mode = penstock.Reset + 1 }), []string{"charge 1", "mode is 6", "Reset"}},
		{with(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey+1) }), []string{"65537 bytes", "65536"}},
		{with(func(c *penstock.Charge) { c.Holder = strings.Repeat("h", penstock.MaxHolder+1) }), []string{"513 bytes", "512"}},
		{with(func(c *penstock.Charge) { c.Patience = -1 }), []string{"patience", "negative"}},
		{with(func(c *penstock.Charge) { c.Patience = 25 * time.Hour }), []string{"patience", "24h0m0s"}},
		{with(func(c *penstock.Charge) { c.Plan = penstock.InFlight(5, time.Second).MustCompile() }), []string{"in_flight", "Holder", "Acquire"}},
		{with(func(*penstock.Charge) {}), []string{"charges 0 and 1", `"second"`, "one key"}},
	}
	store := newManualClock().store()
	for _, row := range rows {
		_, err := store.Decide(t.Context(), row.charges)
		wantError(t, err, penstock.ErrInvalid, row.words...)
		if len(row.charges) != 2 || row.charges[1] == charge { // charge alone is valid
			continue
		}
		_, err = store.Decide(t.Context(), row.charges[1:]) // one charge is checked by other code
		wantError(t, err, penstock.ErrInvalid, "charge 0")
	}
	if n := store.Len(); n != 0 {
		t.Errorf("invalid batches made %d counters; want 0", n)
	}
}

func TestOneLimitMayBeChargedUnderSeveralKeys(t *testing.T) {
	store := newManualClock().store()
	charges := []penstock.Charge{
		{Key: "alice", Plan: penstock.PerMinute(2).MustCompile(), Cost: 2},
		{Key: "bob", Plan: penstock.PerMinute(2).MustCompile(), Cost: 1},
	}
	d, err := store.Decide(t.Context(), charges)
	wantAllowed(t, 0)(d, err)
	if d.Status(1).Remaining != 1 {
		t.Errorf("bob has %d left; want 1", d.Status(1).Remaining)
	}
	wantDenied(t, noneLeft, time.Minute)(store.Decide(t.Context(), charges))
}

func TestALimitOfAPlanCanBeChangedAndCompiledAnew(t *testing.T) {
	limit := penstock.PerSecond(10).MustCompile().Limit()
	for _, changed := range []penstock.Limit{limit.WithBurst(3), limit.WithName("other"), limit.With(penstock.SlidingLog)} {
		if plan := changed.MustCompile(); plan.Limit() != changed {
			t.Errorf("the plan of the limit %v has the limit %v; want the same limit", changed, plan)
		}
	}
}

func TestMustCompilePanicsOnAnInvalidLimit(t *testing.T) {
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the value of the panic is %v; want an error that wraps ErrInvalid", err)
		}
	}()
	penstock.PerSecond(0).MustCompile()
}

func TestLimitsAreWrittenAsText(t *testing.T) {
	rows := map[string]penstock.Limit{
		"second: 10 per 1s (token-bucket)":          penstock.PerSecond(10),
		"minute: 10 per 1m, burst 3 (token-bucket)": penstock.PerMinute(10).WithBurst(3),
		"hour: 10 per 1h (sliding-log)":             penstock.PerHour(10).With(penstock.SlidingLog),
		"every-20ms: 1 per 20ms (token-bucket)":     penstock.Every(20 * time.Millisecond),
		"in-flight: 5 per 30s, burst 5 (in_flight)": penstock.InFlight(5, 30*time.Second),
	}
	for text, limit := range rows {
		if limit.String() != text {
			t.Errorf("the text of the limit is %q; want %q", limit, text)
		}
	}
}

func TestStrictestHasTheLongestRetryAfterOrTheLeastRemaining(t *testing.T) {
	rows := []struct {
		statuses   []penstock.Status
		strictest  int // an index in statuses
		allowed    bool
		retryAfter time.Duration
	}{
		{
			statuses:  []penstock.Status{{Remaining: 5}, {Remaining: 3}, {Remaining: 4}},
			strictest: 1, allowed: true, retryAfter: 0,
		},
		{
			statuses:  []penstock.Status{{Remaining: 5, RetryAfter: 2}, {Remaining: 3}, {RetryAfter: 1}},
			strictest: 0, allowed: false, retryAfter: 2,
		},
		{
			statuses:  []penstock.Status{{RetryAfter: 2}, {Remaining: 9, RetryAfter: penstock.Never}, {RetryAfter: time.Hour}},
			strictest: 1, allowed: false, retryAfter: penstock.Never,
		},
		{
			statuses:  []penstock.Status{{Remaining: 9, RetryAfter: penstock.Never}, {RetryAfter: 2}},
			strictest: 0, allowed: false, retryAfter: penstock.Never,
		},
		{
			statuses:  []penstock.Status{{Remaining: 3}, {Remaining: 3}},
			strictest: 0, allowed: true, retryAfter: 0,
		},
	}
	for _, row := range rows {
		d := penstock.NewDecision(row.statuses)
		if d.Strictest() != row.strictest || d.Allowed != row.allowed || d.RetryAfter() != row.retryAfter {
			t.Errorf("the decision with the statuses %+v has Strictest %d, Allowed %v, RetryAfter %v; want %d, %v, %v", row.statuses,
				d.Strictest(), d.Allowed, d.RetryAfter(), row.strictest, row.allowed, row.retryAfter)
		}
	}
	d := penstock.NewDecision([]penstock.Status{{Wait: 1}, {Wait: 3}, {Wait: 2}})
	if d.Wait() != 3 {
		t.Errorf("Wait of a decision whose statuses have Wait 1, 3 and 2 ns is %d ns; want 3", d.Wait())
	}
}

func TestWrapPutsTheFirstDecoratorOutermost(t *testing.T) {
	var seen []string
	recordAs := func(name string) penstock.Decorator {
		return func(next penstock.Store) penstock.Store {
			return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				seen = append(seen, name)
				return next.Decide(ctx, charges)
			})
		}
	}
	l := newLimiter(t, penstock.Wrap(newManualClock().store(), recordAs("first"), recordAs("second")), "search", penstock.PerSecond(2))
	wantAllowed(t, 1)(l.Allow(t.Context(), "alice"))
	if got := strings.Join(seen, " "); got != "first second" {
		t.Errorf("a batch passed the decorators in the order %q; want \"first second\"", got)
	}
}

func TestDeniedErrorHasTheRetryAfter(t *testing.T) {
	rows := map[time.Duration]string{
		penstock.Never:          "penstock: denied forever: the cost is larger than the limit",
		1500 * time.Microsecond: "penstock: denied, retry after 1.5ms",
	}
	for retry, text := range rows {
		err := &penstock.DeniedError{Decision: penstock.Single(penstock.Status{RetryAfter: retry})}
		if err.Error() != text {
			t.Errorf("the text of the error is %q; want %q", err, text)
		}
	}
}

// In synctest.Test, time passes only while all goroutines sleep, so waits can be measured exactly.

func TestWaitReturnsAtTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(10).WithBurst(2))
		start := time.Now()
		for i, milliseconds := range []int{0, 0, 100, 200, 300} {
			turn := time.Duration(milliseconds) * time.Millisecond
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != turn {
				t.Errorf("Wait %d returned after %v; want %v", i, got, turn)
			}
		}
	})
}

func TestWaitersOfAQueueLeaveOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := penstock.PerSecond(4).With(penstock.LeakyBucket).WithBurst(4)
		l := newLimiter(t, memstore.New(memstore.Options{}), "mail", limit)
		start := time.Now()
		var turns sync.Map // the keys are the times from start to when a caller left the queue
		var waiters sync.WaitGroup
		for range 5 {
			waiters.Go(func() {
				if err := l.Wait(t.Context(), "relay"); err != nil {
					t.Error(err)
				}
				turns.Store(time.Since(start), true)
			})
		}
		synctest.Wait()
		wantDeniedError(t, l.Wait(t.Context(), "relay"), 250*time.Millisecond)
		waiters.Wait()
		for i := range 5 {
			at := time.Duration(i) * 250 * time.Millisecond
			if _, isTurn := turns.Load(at); !isTurn {
				t.Errorf("no caller left the queue at %v; want one every 250ms", at)
			}
		}
	})
}

func TestWaitRetriesOnWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerMinute(2).With(penstock.AnchoredWindow))
		start := time.Now()
		for range 3 {
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
		}
		if got := time.Since(start); got < time.Minute || got > time.Minute+101*time.Millisecond {
			t.Errorf("the third waiter was admitted after %v; want 1m0s and up to 101ms of jitter", got)
		}
	})
}

func TestWaitFailsAtOnceIfItCannotSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		for _, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.SlidingLog} {
			l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(1).With(a))
			start := time.Now()
			if err := l.Wait(ctx, "alice"); err != nil {
				t.Fatal(err)
			}
			var denied *penstock.DeniedError
			if err := l.Wait(ctx, "alice"); !errors.As(err, &denied) {
				t.Fatalf("%s: Wait returned %v; want a DeniedError", a.Name(), err)
			}
			wantDeniedError(t, l.WaitN(ctx, "alice", 2), penstock.Never)
			if time.Since(start) != 0 {
				t.Errorf("%s: the denied calls waited for %v; want 0", a.Name(), time.Since(start))
			}
			wantDenied(t, noneLeft, time.Second)(l.Peek(ctx, "alice"))
		}
	})
}

func TestCanceledWaitRefundsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(1))
		if err := l.Wait(t.Context(), "alice"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Wait(ctx, "alice") }()
		synctest.Wait()
		wantDenied(t, noneLeft, 2*time.Second)(l.Peek(t.Context(), "alice"))
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait returned %v; want context.Canceled", err)
		}
		wantDenied(t, noneLeft, time.Second)(l.Peek(t.Context(), "alice"))
	})
}

func TestDelayOfAReservationEndsAtItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(10))
		first, err := l.ReserveN(ctx, "alice", 10)
		if err != nil || first.Delay() != 0 {
			t.Fatalf("the reservation of the full burst is %+v, error %v; want no delay, and no error", first, err)
		}
		later, err := l.ReserveN(ctx, "alice", 5)
		if err != nil || later.Delay() != 500*time.Millisecond || later.Decision.Wait() != later.Delay() {
			t.Fatalf("the next reservation is %+v, error %v; want Delay and Wait to be 500ms, and no error", later, err)
		}
		time.Sleep(200 * time.Millisecond)
		if later.Delay() != 300*time.Millisecond {
			t.Errorf("after 200ms, the delay is %v; want 300ms", later.Delay())
		}
		time.Sleep(time.Second)
		if later.Delay() != 0 {
			t.Errorf("after its turn, the delay is %v; want 0", later.Delay())
		}
	})
}

func TestReserveStaysWithinTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(10))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for _, n := range []int64{10, 3} {
			if _, err := l.ReserveN(ctx, "alice", n); err != nil {
				t.Fatal(err)
			}
		}
		_, err := l.Reserve(ctx, "alice")
		wantDeniedError(t, err, 100*time.Millisecond)
	})
}

func TestSettleCorrectsTheCostOnce(t *testing.T) {
	rows := []struct {
		reserved, actual, left int64
	}{
		{reserved: 6, actual: 2, left: 8},
		{reserved: 6, actual: 6, left: 4},
		{reserved: 6, actual: 0, left: 10},
		{reserved: 6, actual: 9, left: 1},
		{reserved: 6, actual: 15, left: 0},
		{reserved: 0, actual: 3, left: 7},
	}
	for _, row := range rows {
		t.Run(fmt.Sprintf("reserved %d, actual %d", row.reserved, row.actual), func(t *testing.T) {
			ctx, clock := t.Context(), newManualClock()
			l := newLimiter(t, clock.store(), "search", penstock.PerSecond(10))
			r, err := l.ReserveN(ctx, "alice", row.reserved)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := r.Settle(ctx, row.actual); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Cancel(ctx); err != nil {
				t.Fatal(err)
			}
			d, err := l.AllowN(ctx, "alice", 0)
			wantAllowed(t, row.left)(d, err)
			if debt := row.actual - 10; debt > 0 {
				clock.pass(time.Duration(debt) * 100 * time.Millisecond)
				wantDenied(t, noneLeft, 100*time.Millisecond)(l.Peek(ctx, "alice"))
			}
			wantError(t, r.Settle(ctx, -1), penstock.ErrInvalid, "-1")
		})
	}
}

func TestCanceledReservationIsSpendableAgain(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(10), penstock.PerDay(100).With(penstock.SlidingWindow))
	r, err := l.ReserveN(ctx, "alice", 10)
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, noneLeft, 6*time.Second)(l.Allow(ctx, "alice"))
	if err := r.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, 0)(l.AllowN(ctx, "alice", 10))
}

func TestHoldsOccupySlotsUntilReleased(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "upload", penstock.InFlight(3, time.Minute))
	first, err := l.AcquireN(ctx, "alice", 2)
	if err != nil || first.Decision.Status(0).Remaining != 1 {
		t.Fatalf("the first hold is %+v, error %v; want 1 slot left, and no error", first, err)
	}
	if _, err := l.Acquire(ctx, "alice"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Acquire(ctx, "alice")
	wantDeniedError(t, err, time.Minute)
	_, err = l.AcquireN(ctx, "alice", 4)
	wantDeniedError(t, err, penstock.Never)
	for range 2 {
		if err := first.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	second, err := l.AcquireN(ctx, "alice", 2)
	if err != nil || second.Decision.Status(0).Remaining != 0 {
		t.Fatalf("the hold after a release is %+v, error %v; want no slot left, and no error", second, err)
	}
	wantError(t, first.Renew(ctx), penstock.ErrInvalid, "released")
}

func TestSecondReleaseDoesNotCallTheStore(t *testing.T) {
	store, calls := newManualClock().store(), 0
	counting := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		calls++
		return store.Decide(ctx, charges)
	})
	hold, err := newLimiter(t, counting, "upload", penstock.InFlight(3, time.Minute)).Acquire(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := hold.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 2 {
		t.Errorf("the store was called %d times; want 2: to acquire, and to release once", calls)
	}
}

func TestHoldEndsUnlessRenewed(t *testing.T) {
	ctx, clock := t.Context(), newManualClock()
	l := newLimiter(t, clock.store(), "upload", penstock.InFlight(1, time.Minute))
	first, err := l.Acquire(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	clock.pass(40 * time.Second)
	if err := first.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	clock.pass(40 * time.Second)
	_, err = l.Acquire(ctx, "alice")
	wantDeniedError(t, err, 20*time.Second)
	clock.pass(20 * time.Second)
	if err := first.Renew(ctx); err != nil {
		t.Fatalf("Renew of an expired hold returned %v; want no error, because the slot is free", err)
	}
	clock.pass(time.Minute)
	second, err := l.Acquire(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	wantDeniedError(t, first.Renew(ctx), time.Minute)
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := second.Renew(ctx); err != nil {
		t.Errorf("after another holder's release, Renew returned %v; want no error", err)
	}
}

func TestAcquireChargesTheOtherLimitsOnce(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "upload", penstock.InFlight(5, time.Minute), penstock.PerDay(3))
	for range 3 {
		hold, err := l.Acquire(ctx, "alice")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(hold.Renew(ctx), hold.Release(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.Acquire(ctx, "alice")
	wantDeniedError(t, err, 8*time.Hour)
	d, err := l.Peek(ctx, "alice")
	if err != nil || d.Status(0).Remaining != 5 {
		t.Errorf("Peek returned %d free slots, error %v; want 5 and no error, because the denied Acquire took none", d.Status(0).Remaining, err)
	}
}

func TestWrongMethodIsAnErrorThatNamesTheRightOne(t *testing.T) {
	ctx, store := t.Context(), newManualClock().store()
	uploads := newLimiter(t, store, "upload", penstock.InFlight(5, time.Minute))
	search := newLimiter(t, store, "search", penstock.PerSecond(1))
	_, err := uploads.Allow(ctx, "alice")
	wantError(t, err, penstock.ErrInvalid, "Acquire")
	_, err = uploads.Reserve(ctx, "alice")
	wantError(t, err, penstock.ErrInvalid, "Acquire")
	wantError(t, uploads.Wait(ctx, "alice"), penstock.ErrInvalid, "Acquire")
	_, err = search.Acquire(ctx, "alice")
	wantError(t, err, penstock.ErrInvalid, "InFlight")
	_, err = uploads.AcquireN(ctx, "alice", 0)
	wantError(t, err, penstock.ErrInvalid, "0 slots")
}

func TestUnavailableStoreIsAnErrUnavailable(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, fmt.Errorf("%w: no route", penstock.ErrUnavailable)
	})
	ctx := t.Context()
	search := newLimiter(t, broken, "search", penstock.PerSecond(1))
	uploads := newLimiter(t, broken, "upload", penstock.InFlight(5, time.Minute))
	_, allowErr := search.Allow(ctx, "alice")
	_, reserveErr := search.Reserve(ctx, "alice")
	waitErr := search.Wait(ctx, "alice")
	_, acquireErr := uploads.Acquire(ctx, "alice")
	for _, err := range []error{allowErr, reserveErr, waitErr, acquireErr} {
		wantError(t, err, penstock.ErrUnavailable, "no route")
	}
}

func TestFullStoreStillDecidesKnownKeys(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, memstore.New(memstore.Options{Now: newManualClock().Now, MaxCounters: 1}), "search", penstock.PerSecond(3))
	wantAllowed(t, 2)(l.Allow(ctx, "alice"))
	_, err := l.Allow(ctx, "bob")
	wantError(t, err, penstock.ErrUnavailable, "MaxCounters")
	wantAllowed(t, 1)(l.Allow(ctx, "alice"))
}

func TestConcurrentRequestsGetExactlyTheLimit(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newManualClock().store(), "search", penstock.PerMinute(100), penstock.PerDay(1000).With(penstock.SlidingLog))
	var workers sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for range 8 {
		workers.Go(func() {
			for range 50 {
				d, err := l.Allow(ctx, "alice")
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	if allowed != 100 {
		t.Errorf("%d of 400 requests were allowed; want 100", allowed)
	}
}

func TestAllowWithCompilesLimitsOnceAndBoundsTheirCache(t *testing.T) {
	compiled := 0
	step := func(s int64, p algorithm.Params, r algorithm.Request, _ int64) (algorithm.Outcome, int64) {
		return algorithm.Outcome{Granted: r.Cost, Remaining: p[0], Keep: algorithm.Unchanged}, s
	}
	counted := algorithm.Define("counted", "", step, func(l algorithm.Limit) (algorithm.Params, error) {
		compiled++
		return algorithm.Params{l.Count}, nil
	})
	l := newLimiter(t, newManualClock().store(), "api", penstock.PerSecond(1))
	call := func(n int64) {
		t.Helper()
		if d, err := l.AllowWith(t.Context(), "k", penstock.PerSecond(n).With(counted)); err != nil || d.Remaining() < 0 {
			t.Fatalf("AllowWith returned %v, error %v; want at least 0 left, and no error", d, err)
		}
	}
	for range 3 {
		for n := range int64(1000) {
			call(n + 1)
		}
	}
	if compiled != 1000 {
		t.Errorf("1000 limits were compiled %d times; want each once", compiled)
	}
	for n := range int64(5000) {
		call(n + 1)
	}
	if compiledLater := compiled - 1000; compiledLater < 4000 || compiledLater > 5000 {
		t.Errorf("5000 limits were compiled %d times; want 4000 to 5000, because up to 1000 of them are still cached", compiledLater)
	}
	if n := testing.AllocsPerRun(100, func() { call(5000) }); n != 0 {
		t.Errorf("AllowWith of a cached limit makes %v allocations; want 0", n)
	}
}

func TestAllowWithHasTheGroupOfItsLimiter(t *testing.T) {
	store := newManualClock().store()
	one, other := newLimiter(t, store, "one", penstock.PerSecond(1)), newLimiter(t, store, "other", penstock.PerSecond(1))
	for _, l := range []*penstock.Limiter{one, other} {
		if d, err := l.AllowWith(t.Context(), "k", penstock.PerDay(1)); err != nil || !d.Allowed {
			t.Errorf("AllowWith of a new limiter returned %v, error %v; want a grant, because each has its own counters", d, err)
		}
	}
	if d, err := other.AllowWith(t.Context(), "k", penstock.Limit{Name: "day", Group: "one", Count: 1, Period: 24 * time.Hour}); err != nil || d.Allowed {
		t.Errorf("AllowWith in the group of the other limiter returned %v, error %v; want a denial", d, err)
	}
}

func TestSurplusStaysChargedIfTheStoreFails(t *testing.T) {
	store := newManualClock().store()
	failsToRefund := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if charges[0].Mode == penstock.Refund {
			return penstock.Decision{}, penstock.ErrUnavailable
		}
		return store.Decide(ctx, charges)
	})
	l := newLimiter(t, failsToRefund, "api", penstock.PerDay(10), penstock.PerHour(5).With(penstock.FixedWindow))
	d, err := l.AllowAtMost(t.Context(), "k", 8)
	if err != nil || !d.Allowed || d.Granted() != 5 {
		t.Fatalf("AllowAtMost returned %v, error %v, granted %d; want 5 units granted, and no error", d, err, d.Granted())
	}
	if day := d.Status(0); day.Granted != 5 || day.Remaining != 2 {
		t.Errorf("the limit \"day\" has granted %d, and %d are left; want 5, and 2 left, because the surplus of 3 stays charged", day.Granted, day.Remaining)
	}
}

// An algorithm that books may have a first parameter that is not a rate.
func TestReserveWithAnAlgorithmWithoutARateDoesNotPanic(t *testing.T) {
	step := func(s int64, _ algorithm.Params, r algorithm.Request, _ int64) (algorithm.Outcome, int64) {
		return algorithm.Outcome{Granted: r.Cost, Keep: algorithm.Unchanged}, s
	}
	rateless := algorithm.Define("rateless", "", step, func(algorithm.Limit) (algorithm.Params, error) { return algorithm.Params{}, nil }, algorithm.CanBook())
	l := newLimiter(t, newManualClock().store(), "api", penstock.PerSecond(1).With(rateless))
	if _, err := l.Reserve(t.Context(), "k"); err != nil {
		t.Errorf("Reserve returned %v; want no error", err)
	}
}

func TestNamesOfUnknownValuesDoNotPanic(t *testing.T) {
	for _, text := range []string{penstock.Source(200).String(), penstock.Mode(200).String(), penstock.Reason(200).String(), algorithm.CalendarUnit(200).String()} {
		if text == "" {
			t.Error("an unknown value has an empty name; want any text")
		}
	}
	if err := penstock.PerDay(1).With(penstock.CalendarWindow(9, time.UTC)).Validate(); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("the error of a calendar window with an unknown unit is %v; want one that wraps ErrInvalid", err)
	}
}
