package guard_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// The clocks are real and two here. A cached denial is asked for again at the store, and is judged
// if that was answered before half of the 0.1 % by which it was shortened had passed, and the
// clocks did not part by as much as the other half: then the store must deny.
func TestCachedDenialsOfRedisAreTrue(t *testing.T) {
	effort.WithoutRace(t)
	t.Parallel()
	store, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	cache := guard.NewDenyCache(store, guard.DenyOptions{})
	var judged, local, asked atomic.Int64
	start := time.Now()
	drift := func() time.Duration { // how far the wall clock, which is the store's, has gone ahead of the other
		now := time.Now()
		return now.Round(0).Sub(start.Round(0)) - now.Sub(start)
	}
	var callers sync.WaitGroup
	for who, a := range []penstock.Limit{
		{Algorithm: penstock.TokenBucket}, {Algorithm: penstock.SlidingLog},
		{Algorithm: penstock.FixedWindow}, {Algorithm: penstock.SlidingWindow},
	} {
		limit := made(t, penstock.Limit{Name: "few", Count: 1, Period: time.Second, Algorithm: a.Algorithm})
		callers.Go(func() {
			const keys = 16
			var heard [keys]struct{ retry, drift time.Duration } // when the store said last
			for i := range effort.Of(5000, 20_000) {
				key := i % keys
				charge := spend(fmt.Sprint(who, "-", key), limit, 1)
				begin := time.Now()
				d := decide(t, cache, charge)
				if d.Source == fromStore {
					heard[key].retry, heard[key].drift = d.RetryAfter(), drift()
					asked.Add(1)
					continue
				}
				local.Add(1)
				charge.Mode = penstock.Peek
				truth := decide(t, store, charge)
				took, parted := time.Since(begin), (drift() - heard[key].drift).Abs()
				if half := heard[key].retry / 2000; took >= half || parted >= half {
					continue
				}
				judged.Add(1)
				if truth.Allowed {
					t.Errorf("%v: denied by the cache, which had heard %v; %v later the store allows it; the clocks parted by %v",
						limit, heard[key].retry, took, parted)
				}
			}
		})
	}
	callers.Wait()
	if judged.Load() == 0 {
		t.Error("no denial was judged in time")
	}
	t.Logf("counted: %d cached denials confirmed by Redis (of %d; %d questions went to the store)", judged.Load(), local.Load(), asked.Load())
}
