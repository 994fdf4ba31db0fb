package redisstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A place is one caller's turn in a queue. calledAt and answeredAt are positions in a count of all
// events.
type place struct {
	calledAt, answeredAt int64
	wait                 time.Duration
}

// overtaken returns two callers: second called after first had its answer, but has the earlier
// turn.
func overtaken(places []place) (first, second place, found bool) {
	for _, p := range places {
		for _, q := range places {
			if p.answeredAt < q.calledAt && q.wait <= p.wait {
				return p, q, true
			}
		}
	}
	return first, second, false
}

func TestOvertakenFindsLaterCallersWithEarlierTurns(t *testing.T) {
	for _, row := range []struct {
		places []place // with calledAt, answeredAt and wait
		want   bool
	}{
		{[]place{{1, 2, 10}, {3, 4, 20}}, false},
		{[]place{{1, 2, 20}, {3, 4, 10}}, true},
		{[]place{{1, 3, 20}, {2, 4, 10}}, false}, // at the same time
	} {
		if _, _, found := overtaken(row.places); found != row.want {
			t.Errorf("in the places %v, an overtaken caller is found: %v; want %v", row.places, found, row.want)
		}
	}
}

// A call that begins when another caller already has its turn gets a later turn. The order also
// holds between instances, and with any number of concurrent callers. The clock does not run here,
// so the time that each caller must wait shows its place in the queue.
func TestTurnsAreInTheOrderOfCalls(t *testing.T) {
	t.Parallel()
	const callers, callsOfEach = 48, 20
	server, prefix := redistest.Shared(t), newPrefix()
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
		penstock.PerSecond(100).With(penstock.LeakyBucket).WithBurst(2 * callers * callsOfEach),
		penstock.PerSecond(100).WithBurst(1),
	} {
		limit = limit.WithName("queue")
		var events atomic.Int64 // a count of calls and answers
		var mu sync.Mutex
		var places []place
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := range callsOfEach {
					c := penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: 1, Patience: time.Hour, Holder: fmt.Sprint(caller, "-", i)}
					p := place{calledAt: events.Add(1)}
					d, err := stores[caller%2].Decide(t.Context(), []penstock.Charge{c})
					p.answeredAt = events.Add(1)
					if err != nil || !d.Allowed {
						t.Errorf("%v: %v, %v; want a grant", limit, d, err)
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
		if first, second, found := overtaken(places); found {
			t.Errorf("%v: %+v had its answer before %+v called, but has no earlier turn; want an earlier turn", limit, first, second)
		}
		t.Logf("counted: %d places in a queue", len(places))
	}
}
