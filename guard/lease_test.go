package guard_test

import (
	"context"
	"fmt"
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

// leasing leases every limit up to so many units.
func leasing(units int64) func(*penstock.Limit) guard.Settings {
	return func(*penstock.Limit) guard.Settings { return guard.Settings{Lease: units} }
}

func newLease(t testing.TB, store penstock.Store, o guard.LeaseOptions) *guard.Lease {
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
		return newLease(t, memstore.New(memstore.Options{}), guard.LeaseOptions{Limits: leasing(100)})
	})
}

func TestLeaseAroundRedisObeysTheLaw(t *testing.T) {
	t.Parallel()
	redis, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	storetest.Run(t, func(t *testing.T) penstock.Store {
		return newLease(t, redis, guard.LeaseOptions{Limits: leasing(100)})
	})
}

// busy asks for one unit each pause, so often, and counts who answered.
func busy(t testing.TB, store penstock.Store, charges []penstock.Charge, n int, pause time.Duration) (leased, allowed int) {
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

func TestBusyKeyIsAnsweredHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseOptions{Limits: leasing(1000)})
		limit := ready(t, penstock.PerSecond(10_000))
		busy(t, l, one(limit, "k"), 1000, time.Millisecond)
		store.asked.Store(0)
		leased, allowed := busy(t, l, one(limit, "k"), 10_000, time.Millisecond)
		if asked := store.asked.Load(); leased != 10_000 || allowed != 10_000 || asked > 50 {
			t.Errorf("%d of 10,000 leased, %d allowed, the store was asked %d times; want all, all, and at most 50", leased, allowed, asked)
		}
	})
}

func TestKeyOfLowRateCostsNoDraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		l := newLease(t, store, guard.LeaseOptions{Limits: leasing(1000)})
		leased, _ := busy(t, l, one(ready(t, penstock.PerSecond(10_000)), "k"), 100, 400*time.Millisecond)
		if leased > 0 || store.asked.Load() != 100 || l.Stats().Draws != 0 {
			t.Errorf("%d leased, the store was asked %d times; want none and 100", leased, store.asked.Load())
		}
	})
}

func BenchmarkLease(b *testing.B) {
	for _, exact := range []bool{false, true} {
		b.Run(fmt.Sprintf("exact=%v", exact), func(b *testing.B) {
			l := newLease(b, memstore.New(memstore.Options{}), guard.LeaseOptions{Limits: leasing(1 << 40), Exact: exact})
			limit := ready(b, penstock.PerSecond(100_000_000_000))
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
		})
	}
}
