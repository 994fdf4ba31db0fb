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

// The time of a clock changes only when a test calls pass.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time { return c.now }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

func (c *clock) store() *memstore.Store { return memstore.New(memstore.Options{Now: c.Now}) }

func newLimiter(t *testing.T, store penstock.Store, name string, limits ...penstock.Limit) *penstock.Limiter {
	t.Helper()
	l, err := penstock.NewLimiter(store, name, limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// want returns a function that fails the test unless a decision is as expected. The results of a
// method can be passed to that function directly.
func want(t *testing.T, allowed bool, remaining int64, retry time.Duration) func(penstock.Decision, error) {
	t.Helper()
	return func(d penstock.Decision, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Status(d.Strictest()).Remaining; d.Allowed != allowed || got != remaining || d.RetryAfter() != retry {
			t.Fatalf("allowed %v, %d left, retry after %v; want %v, %d, %v", d.Allowed, got, d.RetryAfter(), allowed, remaining, retry)
		}
	}
}

func wantDenied(t *testing.T, err error, retry time.Duration) {
	t.Helper()
	var denied *penstock.DeniedError
	if !errors.As(err, &denied) {
		t.Fatalf("%v; want a DeniedError", err)
	}
	if got := denied.Decision.RetryAfter(); denied.Decision.Allowed || got != retry {
		t.Fatalf("denied with Allowed %v, retry after %v; want %v", denied.Decision.Allowed, got, retry)
	}
}

func wantError(t *testing.T, err, wraps error, words ...string) {
	t.Helper()
	if !errors.Is(err, wraps) {
		t.Fatalf("%v; want an error that wraps %v", err, wraps)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Fatalf("the error is %q; want it to contain %q", err, word)
		}
	}
}

func TestAllowSpendsUntilNothingIsLeft(t *testing.T) {
	ctx, now := t.Context(), newClock()
	l := newLimiter(t, now.store(), "search", penstock.PerSecond(10).WithBurst(3))
	for left := int64(2); left >= 0; left-- {
		want(t, true, left, 0)(l.Allow(ctx, "alice"))
	}
	want(t, false, 0, 100*time.Millisecond)(l.Allow(ctx, "alice"))
	want(t, true, 2, 0)(l.Allow(ctx, "bob"))
	now.pass(100*time.Millisecond - time.Microsecond)
	want(t, false, 0, time.Microsecond)(l.Allow(ctx, "alice"))
	now.pass(time.Microsecond)
	want(t, true, 0, 0)(l.Allow(ctx, "alice"))
}

func TestAllowNOfMoreThanTheBurstIsNeverAllowed(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerSecond(10))
	want(t, false, 10, penstock.Never)(l.AllowN(ctx, "alice", 11))
	want(t, true, 0, 0)(l.AllowN(ctx, "alice", 10))
	want(t, true, 0, 0)(l.AllowN(ctx, "alice", 0))
	_, err := l.AllowN(ctx, "alice", -1)
	wantError(t, err, penstock.ErrInvalid, `limit "second"`, "-1", "Refund")
}

func TestPeekSpendsNothing(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(1))
	for range 3 {
		want(t, true, 1, 0)(l.Peek(ctx, "alice"))
	}
	want(t, true, 0, 0)(l.Allow(ctx, "alice"))
	for range 3 {
		want(t, false, 0, time.Minute)(l.Peek(ctx, "alice"))
	}
}

func TestRefundReturnsAtMostWhatIsUsed(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(10))
	want(t, true, 4, 0)(l.AllowN(ctx, "alice", 6))
	d, err := l.Refund(ctx, "alice", 2)
	want(t, true, 6, 0)(d, err)
	if d.Status(0).Granted != 2 {
		t.Errorf("a refund of 2 has Granted %d; want 2", d.Status(0).Granted)
	}
	want(t, true, 10, 0)(l.Refund(ctx, "alice", 100))
	want(t, true, 10, 0)(l.Refund(ctx, "alice", 100))
}

func TestResetForgetsOneKey(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(2), penstock.PerDay(5).With(penstock.FixedWindow))
	for _, key := range []string{"alice", "bob"} {
		want(t, true, 0, 0)(l.AllowN(ctx, key, 2))
	}
	want(t, true, 2, 0)(l.Reset(ctx, "alice"))
	want(t, true, 1, 0)(l.Allow(ctx, "alice"))
	want(t, false, 0, 30*time.Second)(l.Allow(ctx, "bob"))
}

func TestDeniedBatchSpendsNothing(t *testing.T) {
	ctx, now := t.Context(), newClock()
	l := newLimiter(t, now.store(), "search", penstock.PerSecond(10), penstock.PerDay(3).With(penstock.FixedWindow))
	for range 3 {
		if d, err := l.Allow(ctx, "alice"); err != nil || !d.Allowed {
			t.Fatalf("Allow returned %v, %v; want allowed", d, err)
		}
	}
	d, err := l.Allow(ctx, "alice")
	want(t, false, 0, 24*time.Hour)(d, err)
	if d.Len() != 2 || d.Strictest() != 1 {
		t.Errorf("%d statuses, the strictest is %d; want 2 and 1", d.Len(), d.Strictest())
	}
	if s := d.Status(0); s.Remaining != 7 || s.Granted != 0 || s.RetryAfter != 0 {
		t.Errorf("the limit that did not deny has the status %+v; want 7 remaining, 0 granted", s)
	}
}

func TestLimitersOfOneNameShareCounters(t *testing.T) {
	ctx, store := t.Context(), newClock().store()
	search, again := newLimiter(t, store, "search", penstock.PerMinute(2)), newLimiter(t, store, "search", penstock.PerMinute(2))
	login := newLimiter(t, store, "login", penstock.PerMinute(2))
	want(t, true, 1, 0)(search.Allow(ctx, "alice"))
	want(t, true, 0, 0)(again.Allow(ctx, "alice"))
	want(t, false, 0, 30*time.Second)(search.Allow(ctx, "alice"))
	want(t, true, 1, 0)(login.Allow(ctx, "alice"))
}

func TestLimiterKeepsTheOrderOfItsLimits(t *testing.T) {
	l := newLimiter(t, newClock().store(), "search", penstock.PerDay(100), penstock.PerSecond(10))
	limits := l.Plans()
	if len(limits) != 2 || limits[0].Name() != "day" || limits[1].Name() != "second" {
		t.Fatalf("the limits are %v; want day, second", limits)
	}
	if limits[0].Group() != "search" || limits[0].Algorithm() != penstock.TokenBucket {
		t.Errorf("the first limit has group %q, algorithm %q; want search, tokenbucket", limits[0].Group(), limits[0].Algorithm().Name())
	}
}

func TestLimiterEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(2))
	if _, err := l.Allow(ctx, "alice"); !errors.Is(err, context.Canceled) {
		t.Errorf("Allow with a canceled context returned %v; want context.Canceled", err)
	}
	want(t, true, 2, 0)(l.Peek(t.Context(), "alice"))
}

func TestErrorsOfNewLimiterNameTheMistake(t *testing.T) {
	store := newClock().store()
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
	ok := penstock.PerSecond(10)
	rows := []struct {
		limit penstock.Limit
		words []string
	}{
		{penstock.Limit{}, []string{"name", "0 characters"}},
		{ok.WithName(strings.Repeat("a", 65)), []string{"65 characters", "1 to 64"}},
		{ok.WithName("per second"), []string{"' '", "position 4"}},
		{ok.WithName("{x}"), []string{"'{'", "position 1"}},
		{ok.WithName("a:b"), []string{"':'", "position 2"}},
		{penstock.Limit{Name: "a", Group: "B", Count: 1, Period: 1}, []string{"group", "'B'"}},
		{penstock.Limit{Name: "a", Group: "a\nb", Count: 1, Period: 1}, []string{"group", `'\n'`}},
		{penstock.Limit{Name: "a", Group: strings.Repeat("g", 65), Count: 1, Period: 1}, []string{"group", "65 characters"}},
		{penstock.Limit{Name: "a", Count: 1}, []string{"period", "1µs"}},
		{penstock.Limit{Name: "a", Count: 1, Period: -time.Second}, []string{"period"}},
		{penstock.Limit{Name: "a", Count: 1, Period: 1500}, []string{"1.5µs", "whole number of microseconds"}},
		{penstock.Limit{Name: "a", Count: 1, Period: 9 * 365 * 24 * time.Hour}, []string{"period", "8 years"}},
		{penstock.PerSecond(0), []string{"count is 0", "at least 1"}},
		{penstock.PerSecond(math.MaxInt64), []string{"count is", "2^51"}},
		{ok.WithBurst(-1), []string{"burst is -1"}},
		{ok.WithBurst(math.MaxInt64), []string{"burst is", "2^51"}},
		{penstock.PerDay(1_234_567), []string{"too large to count exactly", "the largest is"}},
		{penstock.InFlight(5, time.Microsecond), []string{"1ms", "renewing"}},
		{ok.With(penstock.SubWindow(0)), []string{"0 parts", "1 to 60"}},
		{ok.With(penstock.SubWindow(61)), []string{"61 parts", "1 to 60"}},
		{ok.With(penstock.CalendarWindow(algorithm.Day, nil)), []string{"time zone", "time.UTC"}},
	}
	for _, row := range rows {
		wantError(t, row.limit.Validate(), penstock.ErrInvalid, append(row.words, "limit ")...)
	}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfChargesNameTheMistake(t *testing.T) {
	limit := penstock.PerSecond(10).MustCompile()
	charge := penstock.Charge{Key: "alice", Plan: limit, Cost: 1}
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
		{make([]penstock.Charge, 65), []string{"65 charges", "1 to 64"}},
		{with(func(c *penstock.Charge) { c.Plan = nil }), []string{"charge 1", "no Plan", "Compile"}},
		{with(func(c *penstock.Charge) { c.Cost = -3 }), []string{"charge 1", "-3", "Refund"}},
		{with(func(c *penstock.Charge) { c.Cost = penstock.MaxCost + 1 }), []string{"charge 1", "largest"}},
		{with(func(c *penstock.Charge) { c.Mode = 6 }), []string{"charge 1", "mode is 6", "Reset"}},
		{with(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey+1) }), []string{"65537 bytes", "65536"}},
		{with(func(c *penstock.Charge) { c.Holder = strings.Repeat("h", 513) }), []string{"513 bytes", "512"}},
		{with(func(c *penstock.Charge) { c.Patience = -1 }), []string{"patience", "negative"}},
		{with(func(c *penstock.Charge) { c.Patience = 25 * time.Hour }), []string{"patience", "24h0m0s"}},
		{with(func(c *penstock.Charge) { c.Plan = penstock.InFlight(5, time.Second).MustCompile() }), []string{"in_flight", "Holder", "Acquire"}},
		{with(func(*penstock.Charge) {}), []string{"charges 0 and 1", `"second"`, "one key"}},
	}
	store := newClock().store()
	for _, row := range rows {
		_, err := store.Decide(t.Context(), row.charges)
		wantError(t, err, penstock.ErrInvalid, row.words...)
	}
	if n := store.Len(); n != 0 {
		t.Errorf("invalid batches made %d counters; want 0", n)
	}
}

func TestOneLimitMayBeChargedUnderSeveralKeys(t *testing.T) {
	store := newClock().store()
	charges := []penstock.Charge{
		{Key: "alice", Plan: penstock.PerMinute(2).MustCompile(), Cost: 2},
		{Key: "bob", Plan: penstock.PerMinute(2).MustCompile(), Cost: 1},
	}
	d, err := store.Decide(t.Context(), charges)
	want(t, true, 0, 0)(d, err)
	if d.Status(1).Remaining != 1 {
		t.Errorf("bob has %d left; want 1", d.Status(1).Remaining)
	}
	want(t, false, 0, time.Minute)(store.Decide(t.Context(), charges))
}

func TestALimitOfAPlanCanBeChangedAndCompiledAnew(t *testing.T) {
	limit := penstock.PerSecond(10).MustCompile().Limit()
	for _, changed := range []penstock.Limit{limit.WithBurst(3), limit.WithName("other"), limit.With(penstock.SlidingLog)} {
		if plan := changed.MustCompile(); plan.Limit() != changed {
			t.Errorf("the plan of %v has the limit %v; want the same limit", changed, plan)
		}
	}
}

func TestMustCompilePanicsOnAnInvalidLimit(t *testing.T) {
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the panic is %v; want an ErrInvalid", err)
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

func TestStrictestDeniesLongestOrHasLeast(t *testing.T) {
	rows := []struct {
		statuses  []penstock.Status
		strictest int
		allowed   bool
		retry     time.Duration
	}{
		{[]penstock.Status{{Remaining: 5}, {Remaining: 3}, {Remaining: 4}}, 1, true, 0},
		{[]penstock.Status{{Remaining: 5, RetryAfter: 2}, {Remaining: 3}, {RetryAfter: 1}}, 0, false, 2},
		{[]penstock.Status{{RetryAfter: 2}, {Remaining: 9, RetryAfter: penstock.Never}, {RetryAfter: time.Hour}}, 1, false, penstock.Never},
		{[]penstock.Status{{Remaining: 9, RetryAfter: penstock.Never}, {RetryAfter: 2}}, 0, false, penstock.Never},
		{[]penstock.Status{{Remaining: 3}, {Remaining: 3}}, 0, true, 0},
	}
	for _, row := range rows {
		d := penstock.NewDecision(row.statuses)
		if d.Strictest() != row.strictest || d.Allowed != row.allowed || d.RetryAfter() != row.retry {
			t.Errorf("%+v: strictest %d, allowed %v, retry after %v; want %d, %v, %v", row.statuses,
				d.Strictest(), d.Allowed, d.RetryAfter(), row.strictest, row.allowed, row.retry)
		}
	}
	d := penstock.NewDecision([]penstock.Status{{Wait: 1}, {Wait: 3}, {Wait: 2}})
	if d.Wait() != 3 {
		t.Errorf("Wait of statuses that wait 1, 3 and 2 ns is %d ns; want 3", d.Wait())
	}
}

func TestWrapPutsTheFirstDecoratorOutermost(t *testing.T) {
	var seen []string
	note := func(name string) penstock.Decorator {
		return func(next penstock.Store) penstock.Store {
			return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				seen = append(seen, name)
				return next.Decide(ctx, charges)
			})
		}
	}
	l := newLimiter(t, penstock.Wrap(newClock().store(), note("first"), note("second")), "search", penstock.PerSecond(2))
	want(t, true, 1, 0)(l.Allow(t.Context(), "alice"))
	if got := strings.Join(seen, " "); got != "first second" {
		t.Errorf("a batch passed the decorators in the order %q; want first, second", got)
	}
}

func TestDeniedErrorHasTheRetryAfter(t *testing.T) {
	rows := map[time.Duration]string{
		penstock.Never:          "penstock: denied for ever: the cost is larger than the limit",
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

func TestWaitersGoFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(10).WithBurst(2))
		start := time.Now()
		for i, milliseconds := range []time.Duration{0, 0, 100, 200, 300} {
			want := milliseconds * time.Millisecond
			if err := l.Wait(t.Context(), "alice"); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("waiter %d was admitted after %v; want %v", i, got, want)
			}
		}
	})
}

func TestWaitersOfAQueueLeaveOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := penstock.PerSecond(4).With(penstock.LeakyBucket).WithBurst(4)
		l := newLimiter(t, memstore.New(memstore.Options{}), "mail", limit)
		start := time.Now()
		var turns sync.Map // when callers left the queue
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
		wantDenied(t, l.Wait(t.Context(), "relay"), 250*time.Millisecond)
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
			wantDenied(t, l.WaitN(ctx, "alice", 2), penstock.Never)
			if time.Since(start) != 0 {
				t.Errorf("%s: the denied calls waited for %v; want 0", a.Name(), time.Since(start))
			}
			want(t, false, 0, time.Second)(l.Peek(ctx, "alice"))
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
		want(t, false, 0, 2*time.Second)(l.Peek(t.Context(), "alice"))
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait returned %v; want context.Canceled", err)
		}
		want(t, false, 0, time.Second)(l.Peek(t.Context(), "alice"))
	})
}

func TestDelayOfAReservationEndsAtItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := newLimiter(t, memstore.New(memstore.Options{}), "search", penstock.PerSecond(10))
		now, err := l.ReserveN(ctx, "alice", 10)
		if err != nil || now.Delay() != 0 {
			t.Fatalf("the reservation of the full burst is %+v, %v; want no delay", now, err)
		}
		later, err := l.ReserveN(ctx, "alice", 5)
		if err != nil || later.Delay() != 500*time.Millisecond || later.Decision.Wait() != later.Delay() {
			t.Fatalf("the next reservation is %+v, %v; want a delay of 500ms, equal to its Wait", later, err)
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
		wantDenied(t, err, 100*time.Millisecond)
	})
}

func TestSettleCorrectsTheCostOnce(t *testing.T) {
	rows := []struct {
		reserved, actual, left int64
	}{{6, 2, 8}, {6, 6, 4}, {6, 0, 10}, {6, 9, 1}, {6, 15, 0}, {0, 3, 7}}
	for _, row := range rows {
		t.Run(fmt.Sprintf("%d of %d", row.actual, row.reserved), func(t *testing.T) {
			ctx, now := t.Context(), newClock()
			l := newLimiter(t, now.store(), "search", penstock.PerSecond(10))
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
			want(t, true, row.left, 0)(d, err)
			if row.actual > 10 {
				now.pass(time.Duration(row.actual-10) * 100 * time.Millisecond)
				want(t, false, 0, 100*time.Millisecond)(l.Peek(ctx, "alice"))
			}
			wantError(t, r.Settle(ctx, -1), penstock.ErrInvalid, "-1")
		})
	}
}

func TestCancelledReservationIsSpendableAgain(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(10), penstock.PerDay(100).With(penstock.SlidingWindow))
	r, err := l.ReserveN(ctx, "alice", 10)
	if err != nil {
		t.Fatal(err)
	}
	want(t, false, 0, 6*time.Second)(l.Allow(ctx, "alice"))
	if err := r.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	want(t, true, 0, 0)(l.AllowN(ctx, "alice", 10))
}

func TestHoldsOccupySlotsUntilReleased(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "upload", penstock.InFlight(3, time.Minute))
	first, err := l.AcquireN(ctx, "alice", 2)
	if err != nil || first.Decision.Status(0).Remaining != 1 {
		t.Fatalf("the first hold is %+v, %v; want 1 slot left", first, err)
	}
	if _, err := l.Acquire(ctx, "alice"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Acquire(ctx, "alice")
	wantDenied(t, err, time.Minute)
	_, err = l.AcquireN(ctx, "alice", 4)
	wantDenied(t, err, penstock.Never)
	for range 2 {
		if err := first.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	second, err := l.AcquireN(ctx, "alice", 2)
	if err != nil || second.Decision.Status(0).Remaining != 0 {
		t.Fatalf("the hold after a release is %+v, %v; want no slot left", second, err)
	}
	wantError(t, first.Renew(ctx), penstock.ErrInvalid, "released")
}

func TestSecondReleaseDoesNotCallTheStore(t *testing.T) {
	store, calls := newClock().store(), 0
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
	ctx, now := t.Context(), newClock()
	l := newLimiter(t, now.store(), "upload", penstock.InFlight(1, time.Minute))
	first, err := l.Acquire(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	now.pass(40 * time.Second)
	if err := first.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	now.pass(40 * time.Second)
	_, err = l.Acquire(ctx, "alice")
	wantDenied(t, err, 20*time.Second)
	now.pass(20 * time.Second)
	if err := first.Renew(ctx); err != nil {
		t.Fatalf("Renew of an expired hold returned %v; want that it acquires the free slot", err)
	}
	now.pass(time.Minute)
	second, err := l.Acquire(ctx, "alice")
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, first.Renew(ctx), time.Minute)
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := second.Renew(ctx); err != nil {
		t.Errorf("after another holder's release, Renew returned %v; want no error", err)
	}
}

func TestAcquireChargesTheOtherLimitsOnce(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "upload", penstock.InFlight(5, time.Minute), penstock.PerDay(3))
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
	wantDenied(t, err, 8*time.Hour)
	d, err := l.Peek(ctx, "alice")
	if err != nil || d.Status(0).Remaining != 5 {
		t.Errorf("%d slots are free, %v; want 5: the denied Acquire took none", d.Status(0).Remaining, err)
	}
}

func TestWrongMethodIsAnErrorThatNamesTheRightOne(t *testing.T) {
	ctx, store := t.Context(), newClock().store()
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
	_, allow := search.Allow(ctx, "alice")
	_, reserve := search.Reserve(ctx, "alice")
	_, acquire := uploads.Acquire(ctx, "alice")
	for _, err := range []error{allow, reserve, search.Wait(ctx, "alice"), acquire} {
		wantError(t, err, penstock.ErrUnavailable, "no route")
	}
}

func TestFullStoreStillDecidesKnownKeys(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, memstore.New(memstore.Options{Now: newClock().Now, MaxCounters: 1}), "search", penstock.PerSecond(3))
	want(t, true, 2, 0)(l.Allow(ctx, "alice"))
	_, err := l.Allow(ctx, "bob")
	wantError(t, err, penstock.ErrUnavailable, "MaxCounters")
	want(t, true, 1, 0)(l.Allow(ctx, "alice"))
}

func TestConcurrentRequestsGetExactlyTheLimit(t *testing.T) {
	ctx := t.Context()
	l := newLimiter(t, newClock().store(), "search", penstock.PerMinute(100), penstock.PerDay(1000).With(penstock.SlidingLog))
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

func TestLimitsOfCallsAreCompiledOnceAndBounded(t *testing.T) {
	compiled := 0
	step := func(s int64, p algorithm.Params, r algorithm.Request, _ int64) (algorithm.Outcome, int64) {
		return algorithm.Outcome{Granted: r.Cost, Remaining: p[0], Keep: algorithm.Unchanged}, s
	}
	counted := algorithm.Define("counted", "", step, func(l algorithm.Limit) (algorithm.Params, error) {
		compiled++
		return algorithm.Params{l.Count}, nil
	})
	l := newLimiter(t, newClock().store(), "api", penstock.PerSecond(1))
	call := func(n int64) {
		t.Helper()
		if d, err := l.AllowWith(t.Context(), "k", penstock.PerSecond(n).With(counted)); err != nil || d.Remaining() < 0 {
			t.Fatalf("AllowWith returned %v, %v; want no error, and at least 0 left", d, err)
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
	if compiled > 6000 || compiled < 5000 {
		t.Errorf("5000 limits were compiled %d times; want 4000 to 5000: those of the first 1000 that are still cached are not compiled again", compiled-1000)
	}
	if n := testing.AllocsPerRun(100, func() { call(5000) }); n != 0 {
		t.Errorf("a call with a limit takes %v allocations; want 0", n)
	}
}

func TestSurplusStaysChargedIfTheStoreFails(t *testing.T) {
	store := newClock().store()
	fails := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if charges[0].Mode == penstock.Refund {
			return penstock.Decision{}, penstock.ErrUnavailable
		}
		return store.Decide(ctx, charges)
	})
	l := newLimiter(t, fails, "api", penstock.PerDay(10), penstock.PerHour(5).With(penstock.FixedWindow))
	d, err := l.AllowAtMost(t.Context(), "k", 8)
	if err != nil || !d.Allowed || d.Granted() != 5 || d.Status(0).Granted != 5 || d.Status(0).Remaining != 2 {
		t.Errorf("AllowAtMost returned %v, %v: granted %d, %d left of the first limit; want granted 5, and 2 left, because the surplus stays charged", d, err, d.Granted(), d.Status(0).Remaining)
	}
}

func TestNamesOfUnknownValuesDoNotPanic(t *testing.T) {
	for _, text := range []string{penstock.Source(200).String(), penstock.Mode(200).String(), penstock.Reason(200).String(), algorithm.CalendarUnit(200).String()} {
		if text == "" {
			t.Error("an unknown value has an empty name; want any text")
		}
	}
	if err := penstock.PerDay(1).With(penstock.CalendarWindow(9, time.UTC)).Validate(); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a calendar window of an unknown unit: %v; want an ErrInvalid", err)
	}
}
