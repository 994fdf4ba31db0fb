package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// If a lease cannot serve a call, it first returns its units to the store. The caller waits for the
// return until its deadline at most.
func TestReturningALeaseKeepsTheCallersDeadline(t *testing.T) {
	t.Parallel()
	for _, mode := range []penstock.Mode{penstock.Spend, penstock.Refund, penstock.Reset} {
		synctest.Test(t, func(t *testing.T) {
			var refunds atomic.Int64
			memory := memstore.New(memstore.Options{})
			slow := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if charges[0].Mode == penstock.Refund {
					refunds.Add(1)
					time.Sleep(50 * time.Millisecond)
				}
				return memory.Decide(ctx, charges)
			})
			l := newLease(t, slow, guard.LeaseSetup{Limits: leaseUpTo(100)})
			limit := compiled(t, penstock.PerDay(1000).With(penstock.FixedWindow))
			for range 500 {
				decide(t, l, one(limit, "k")...)
				time.Sleep(time.Millisecond)
			}
			if l.Stats().Live == 0 {
				t.Fatal("the lease holds 0 units; want at least 1")
			}
			charge := penstock.Charge{Key: "k", Plan: limit, Cost: 1000, Mode: mode}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := l.Decide(ctx, []penstock.Charge{charge})
			if took := time.Since(start); took > 10*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) || refunds.Load() == 0 {
				t.Errorf("mode %v: Decide returned after %v and %d refunds, with error %v; want context.DeadlineExceeded after 10ms, and at least 1 refund", mode, took, refunds.Load(), err)
			}
			time.Sleep(time.Second)
			if s := l.Stats(); s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live || s.Returned == 0 {
				t.Errorf("mode %v: the stats are %+v; want some units returned, and Drawn = Spent+Returned+Expired+Lost+Live", mode, s)
			}
		})
	}
}
