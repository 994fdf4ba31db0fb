package guard_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// A block is drawn from one shard, which refills only at its part of the rate.
func TestLeaseOfASplitLimitKeepsItsBound(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, shards := range []int{2, 4, 16} {
		for _, pause := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				const burst = 4000
				settings := func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: 400, SplitInto: shards} }
				store := guard.Split(settings)(memstore.New(memstore.Options{}))
				o := guard.LeaseSetup{Limits: settings}
				l := newLease(t, store, o)
				limit := compiled(t, penstock.PerSecond(burst))
				spendOne := func(s penstock.Store) (isAllowed bool) { return decide(t, s, one(limit, "k")...).Allowed }
				for range 800 {
					spendOne(l)
					time.Sleep(time.Millisecond)
				}
				time.Sleep(pause)
				admitted := int64(0)
				for spendOne(l) {
					admitted++
				}
				for spendOne(store) {
					admitted++
				}
				if admitted > burst+o.Excess(limit) {
					t.Errorf("%d shards, after a pause of %v: %d units were admitted in one burst; the bound is %d", shards, pause, admitted, burst+o.Excess(limit))
				}
				tried++
			})
		}
	}
	t.Logf("counted: %d bursts from leases of split limits", tried)
}

// A draw ends so early that the callers that wait for it still get an answer of the store. If they
// got none, a Fallback would admit units beyond those of the store.
func TestDrawEndsBeforeItsWaitingCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		splitAndLeased := func(*penstock.Plan) guard.Settings { return guard.Settings{SplitInto: 8, Lease: 100} }
		g := standard(t, store, guard.Options{Limits: splitAndLeased, DenyCacheTTL: -1, OnFailure: guard.FailLocal})
		defer g.Close()
		charges := one(compiled(t, penstock.PerHour(800)), "k")
		for range 1000 {
			decide(t, g, charges...)
			time.Sleep(time.Millisecond)
		}
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(5 * time.Millisecond)
			if err := ctx.Err(); err != nil {
				return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err)
			}
			return store.store.Decide(ctx, charges)
		})
		var all sync.WaitGroup
		var denials [sourceCount]atomic.Int64 // by source
		const requests = 500
		for range requests {
			all.Go(func() {
				if d, err := g.Decide(t.Context(), charges); err == nil && !d.Allowed {
					denials[d.Source].Add(1)
				}
			})
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		if denied := denials[penstock.FromStore].Load(); denied != requests || g.Draws() == 0 {
			t.Errorf("of %d requests, the store denied %d and the fallback %d, and leases sent %d draws; want all denied by the store, and some draws",
				requests, denied, denials[penstock.FromFallback].Load(), g.Draws())
		}
	})
}
