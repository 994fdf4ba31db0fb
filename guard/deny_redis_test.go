package guard_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// The test uses two real clocks: that of the process and that of Redis. After each cached denial,
// the store decides the same charge, and must deny it too. The cache shortens a denial by 0.1 %.
// The result is judged only if the store answered within half of this time, and the clocks drifted
// by less than the other half.
func TestCachedDenialsOfRedisAreTrue(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	store, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	cache := guard.NewDenyCache(store, guard.DenySetup{})
	var judged, cachedDenials, calls atomic.Int64
	start := time.Now()
	// drift returns how far the wall clock is ahead of the monotonic clock. The store uses the wall
	// clock.
	drift := func() time.Duration {
		now := time.Now()
		return now.Round(0).Sub(start.Round(0)) - now.Sub(start)
	}
	var callers sync.WaitGroup
	for caller, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.SlidingLog, penstock.FixedWindow, penstock.SlidingWindow} {
		limit := compiled(t, penstock.Limit{Name: "few", Count: 1, Period: time.Second, Algorithm: a})
		callers.Go(func() {
			const keys = 16
			var cached [keys]struct{ retry, drift time.Duration } // of the store's last denial
			for i := range effort.Of(3000, 20_000) {
				key := i % keys
				charge := spend(fmt.Sprint(caller, "-", key), limit, 1)
				begin := time.Now()
				d := decide(t, cache, charge)
				if d.Source == fromStore {
					cached[key].retry, cached[key].drift = d.RetryAfter(), drift()
					calls.Add(1)
					continue
				}
				cachedDenials.Add(1)
				charge.Mode = penstock.Peek
				truth := decide(t, store, charge)
				took, drifted := time.Since(begin), (drift() - cached[key].drift).Abs()
				if half := cached[key].retry / 2000; took >= half || drifted >= half {
					continue
				}
				judged.Add(1)
				if truth.Allowed {
					t.Errorf("%v: the cache denied with a RetryAfter of %v, and %v later the store allowed; the clocks drifted by %v; want a denial by both",
						limit, cached[key].retry, took, drifted)
				}
			}
		})
	}
	callers.Wait()
	if judged.Load() == 0 {
		t.Error("0 denials were confirmed by the store in time; want at least 1")
	}
	t.Logf("counted: %d cached denials confirmed by Redis (of %d; the store was called %d times)", judged.Load(), cachedDenials.Load(), calls.Load())
}
