package redisstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A place is one caller's in a queue, with when it asked and when it was answered, by a count of
// all that happened.
type place struct {
	asked, answered int64
	wait            time.Duration
}

// overtaken are two callers of which the second asked when the first had its answer, and yet goes
// first.
func overtaken(places []place) (first, second place, found bool) {
	for _, p := range places {
		for _, q := range places {
			if p.answered < q.asked && q.wait <= p.wait {
				return p, q, true
			}
		}
	}
	return first, second, false
}

func TestOvertakenFindsWhoGoesFirstAndAskedLater(t *testing.T) {
	for _, row := range []struct {
		places []place
		want   bool
	}{
		{[]place{{1, 2, 10}, {3, 4, 20}}, false},
		{[]place{{1, 2, 20}, {3, 4, 10}}, true},
		{[]place{{1, 3, 20}, {2, 4, 10}}, false}, // at the same time
	} {
		if _, _, found := overtaken(row.places); found != row.want {
			t.Errorf("%v: %v, want %v", row.places, found, row.want)
		}
	}
}

// Who asks when another has been given its place goes after it, also at another instance, and
// however many ask at once. (Time stands still here, so that a wait is a place.)
func TestWhoAsksAfterAnAnswerGoesAfterIt(t *testing.T) {
	t.Parallel()
	const callers, each = 48, 20
	server, prefix := redistest.Shared(t), aPrefix()
	now := time.Now()
	var stores []*redisstore.Store
	for range 2 {
		store, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: prefix, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		stores = append(stores, store)
	}
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(100).With(penstock.LeakyBucket).WithBurst(2 * callers * each),
		penstock.PerSecond(100).WithBurst(1),
	} {
		limit = limit.WithName("queue")
		var clock atomic.Int64
		var mu sync.Mutex
		var places []place
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := range each {
					c := penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: 1, Patience: time.Hour, Holder: fmt.Sprint(caller, "-", i)}
					p := place{asked: clock.Add(1)}
					d, err := stores[caller%2].Decide(t.Context(), []penstock.Charge{c})
					p.answered = clock.Add(1)
					if err != nil || !d.Allowed {
						t.Errorf("%v: %v, %v", limit, d, err)
						return
					}
					p.wait = d.Status(0).Wait
					mu.Lock()
					places = append(places, p)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if p, q, found := overtaken(places); found {
			t.Errorf("%v: %+v was answered before %+v asked, which goes first", limit, p, q)
		}
		t.Logf("counted: %d places in a queue", len(places))
	}
}
