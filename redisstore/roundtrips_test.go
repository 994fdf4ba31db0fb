package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A distantClient delays each script until its round trip ends. The test ends the round trips of
// all scripts in flight at the same time.
type distantClient struct {
	redisstore.Client

	mu      sync.Mutex
	trips   int           // round trips that have ended
	trip    chan struct{} // closed when the round trip of the scripts in flight ends
	scripts int           // how many are in flight
	keys    int           // of these scripts
	isNear  bool          // scripts are not delayed
}

func (c *distantClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	c.mu.Lock()
	c.scripts++
	c.keys += len(keys)
	trip := c.trip
	if c.isNear {
		trip = nil
	}
	c.mu.Unlock()
	if trip != nil {
		<-trip
	}
	return c.Client.EvalSha(ctx, digest, keys, args)
}

// endTrip ends the round trips of all scripts in flight.
func (c *distantClient) endTrip() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.trip)
	c.trips, c.trip, c.scripts, c.keys = c.trips+1, make(chan struct{}), 0, 0
}

func (c *distantClient) tripsUntilNow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trips
}

// hasAll reports whether the batches of all callers are in scripts in flight, or queued. The
// batches have different keys.
func (c *distantClient) hasAll(callers int, store *redisstore.Store) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	inFlight, _ := store.ScriptsInFlight() // it also counts scripts that have ended, until the store notices that
	return inFlight == c.scripts && c.keys+redisstore.Waiting(store) == callers
}

// comeNear ends all delays.
func (c *distantClient) comeNear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isNear = true
	close(c.trip)
}

// Each caller calls again as soon as it has an answer. Before each round trip ends, the test waits
// until each caller's batch is in a script in flight, or queued.
func TestDecisionTakesAtMostTwoRoundTrips(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	several := []*penstock.Plan{
		penstock.PerDay(9).MustCompile(), penstock.PerDay(9).With(penstock.FixedWindow).MustCompile(), penstock.PerDay(9).With(penstock.AnchoredWindow).MustCompile(),
		penstock.PerDay(9).With(penstock.SlidingWindow).MustCompile(), penstock.PerDay(9).With(penstock.SubWindow(10)).MustCompile(),
		penstock.PerDay(9).With(penstock.LeakyBucket).WithBurst(9).MustCompile(),
	}
	for _, row := range []struct {
		callers int
		limits  []*penstock.Plan
	}{
		{callers: 64, limits: several},
		{callers: 600, limits: several[:1]},
		{callers: 600, limits: several},
	} {
		client := &distantClient{Client: dial(server.URL())(t), trip: make(chan struct{})}
		store := newStore(t, client, redisstore.Options{Prefix: newPrefix()})
		if err := store.Load(t.Context(), row.limits...); err != nil {
			t.Fatal(err)
		}
		const tripsOfRun = 8
		var most atomic.Int64
		var callers sync.WaitGroup
		for i := range row.callers {
			callers.Go(func() {
				for {
					before := client.tripsUntilNow()
					if before >= tripsOfRun {
						return
					}
					if _, err := store.Decide(context.Background(), []penstock.Charge{{Key: fmt.Sprint(i), Plan: row.limits[i%len(row.limits)], Cost: 1}}); err != nil {
						t.Errorf("a call: %v; want a decision", err)
						return
					}
					for took := int64(client.tripsUntilNow() - before); ; {
						if old := most.Load(); took <= old || most.CompareAndSwap(old, took) {
							break
						}
					}
				}
			})
		}
		for range tripsOfRun {
			eventually.True(t, "each batch is in flight or queued", func() bool { return client.hasAll(row.callers, store) })
			client.endTrip()
		}
		client.comeNear()
		callers.Wait()
		if n := most.Load(); n > 2 {
			t.Errorf("with %d callers of %d limits, a decision took %d round trips; want at most 2", row.callers, len(row.limits), n)
		}
	}
}
