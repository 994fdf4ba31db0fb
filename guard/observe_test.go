package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/storetest"
)

func TestObservedStoreObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Observe(func(guard.Event) {})(memstore.New(memstore.Options{}))
	})
}

func TestEventHasTheCallersDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []guard.Event
		inner := newFaulty()
		store := guard.Observe(func(e guard.Event) { events = append(events, e) })(inner)
		wide, tight := compiled(t, penstock.PerHour(100)), compiled(t, penstock.PerDay(2))
		batch := []penstock.Charge{{Key: "hour", Plan: wide, Cost: 1}, {Key: "day", Plan: tight, Cost: 1}} // each key has the name of its limit
		for range 3 {
			decide(t, store, batch...)
		}
		inner.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(7 * time.Millisecond)
			d := penstock.Single(penstock.Status{})
			d.Source = penstock.FromLease
			return d, nil
		})
		decide(t, store, batch[:1]...)
		inner.setFault(failWith(errDown))
		for _, charges := range [][]penstock.Charge{batch, nil} {
			if _, err := store.Decide(t.Context(), charges); err != errDown {
				t.Fatalf("the error is %v; want errDown, the store's own", err)
			}
		}
		for i, want := range []struct {
			limit   string
			charges int
			allowed bool
			source  penstock.Source
			latency time.Duration
			err     error
			reason  string
		}{
			{limit: "day", charges: 2, allowed: true, source: penstock.FromStore},
			{limit: "day", charges: 2, allowed: true, source: penstock.FromStore},
			{limit: "day", charges: 2, allowed: false, source: penstock.FromStore},
			{limit: "hour", charges: 1, allowed: true, source: penstock.FromLease, latency: 7 * time.Millisecond},
			{limit: "hour", charges: 2, source: penstock.FromStore, err: errDown, reason: "unknown"},
			{limit: "", charges: 0, source: penstock.FromStore, err: errDown, reason: "unknown"},
		} {
			e, name := events[i], ""
			if e.Plan != nil {
				name = e.Plan.Name()
			}
			if name != want.limit || e.Key != want.limit || e.Charges != want.charges || e.Allowed != want.allowed || e.Source != want.source ||
				e.Latency != want.latency || e.Err != want.err || e.Reason != want.reason {
				t.Errorf("event %d: limit %q, %+v; want %+v", i, name, e, want)
			}
		}
	})
}

func TestErrorsHaveReasons(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	unavailable := func(cause error) error { return fmt.Errorf("%w: %w", penstock.ErrUnavailable, cause) }
	var got string
	inner := newFaulty()
	store := guard.Observe(func(e guard.Event) { got = e.Reason })(inner)
	rows := []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{ctx: t.Context(), err: penstock.ErrInvalid, want: "invalid"},
		{ctx: t.Context(), err: penstock.NewStoreError(penstock.ReasonShed, nil), want: "shed"},
		{ctx: t.Context(), err: penstock.NewStoreError(penstock.ReasonBreakerOpen, nil), want: "breaker_open"},
		{ctx: t.Context(), err: unavailable(context.DeadlineExceeded), want: "timeout"},
		{ctx: t.Context(), err: unavailable(os.ErrDeadlineExceeded), want: "timeout"},
		{ctx: t.Context(), err: context.DeadlineExceeded, want: "other"},
		{ctx: canceled, err: context.Canceled, want: "canceled"},
		{ctx: t.Context(), err: unavailable(context.Canceled), want: "unknown"}, // the store canceled the call; the caller did not
		{ctx: t.Context(), err: errors.New("?"), want: "other"},
		{ctx: t.Context(), err: fmt.Errorf("a decorator: %w", penstock.NewStoreError(penstock.ReasonBusy, errDown)), want: "busy"},
	}
	for _, row := range rows {
		inner.setFault(failWith(row.err))
		if store.Decide(row.ctx, one(penstock.PerHour(1).MustCompile(), "k")); got != row.want {
			t.Errorf("the Reason of %v is %q; want %q", row.err, got, row.want)
		}
	}
	t.Logf("counted: %d classes of errors", len(rows))
}

func TestObservingAllocatesNothing(t *testing.T) {
	store := guard.Observe(func(guard.Event) {})(granting)
	charges := one(compiled(t, penstock.PerHour(1)), "k")
	if n := testing.AllocsPerRun(100, func() { store.Decide(context.Background(), charges) }); n != 0 {
		t.Errorf("an observed decision takes %v allocations; want 0", n)
	}
}

func TestObserveWithoutAReportIsTheStoreItself(t *testing.T) {
	var store penstock.Store = memstore.New(memstore.Options{})
	if observed := guard.Observe(nil)(store); observed != store {
		t.Errorf("Observe(nil) returns %v; want the store itself", observed)
	}
}

// granting is a store that grants each charge immediately.
var granting = penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Single(penstock.Status{Granted: 1, Remaining: 1}), nil
})

func BenchmarkObserve(b *testing.B) {
	store := guard.Observe(func(guard.Event) {})(granting)
	charges := one(compiled(b, penstock.PerHour(1)), "k")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		store.Decide(ctx, charges)
	}
}
