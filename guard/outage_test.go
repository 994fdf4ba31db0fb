package guard_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A real server is stopped once and killed once. Every call gets a decision, and the open breaker
// saves callers the wait. When the server is back, it is used again.
func TestEveryCallIsDecidedWhileRedisIsStoppedAndKilled(t *testing.T) {
	t.Parallel()
	for _, outage := range []struct {
		name       string
		begin, end func(*redistest.Server)
	}{
		{name: "stopped", begin: (*redistest.Server).Pause, end: (*redistest.Server).Resume},
		{name: "killed", begin: (*redistest.Server).Kill, end: func(s *redistest.Server) {
			if err := s.Restart(); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(outage.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			redis, err := redisstore.Open(server.URL(), redisstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { redis.Close() })
			var changes []string // one caller, so no lock
			store := penstock.Wrap(redis, guard.Fallback(guard.FallbackOptions{}),
				guard.Breaker(guard.BreakerOptions{
					Node: redis.Node, MaxPause: 400 * time.Millisecond,
					Changed: func(_ string, from, to guard.State) { changes = append(changes, to.String()) },
				}),
				guard.Timeout(guard.TimeoutOptions{After: 250 * time.Millisecond}))
			limit := compiled(t, penstock.Limit{Name: "l", Count: 1_000_000_000, Period: time.Second}) // more than the test spends
			answered := map[penstock.Source]int{}
			call := func() penstock.Source {
				d := decide(t, store, one(limit, "k")...)
				if !d.Allowed {
					t.Fatalf("a Spend is %v by %v; want a grant", d, d.Source)
				}
				answered[d.Source]++
				return d.Source
			}
			until := func(source penstock.Source, state string) {
				t.Helper()
				eventually.NoError(t, func() error {
					if got := call(); got != source || len(changes) == 0 || changes[len(changes)-1] != state {
						return fmt.Errorf("a decision was made by %v, and the breaker's changes are to %v; want %v, and at last %s", got, changes, source, state)
					}
					return nil
				})
			}
			for range 100 {
				call()
			}
			outage.begin(server)
			until(penstock.FromFallback, "open")
			for range 10_000 {
				call()
			}
			outage.end(server)
			until(penstock.FromStore, "closed")
			if changes[0] != "open" || !slices.Contains(changes, "half_open") {
				t.Errorf("the breaker's changes are to %v; want first to open, and later to half_open", changes)
			}
			t.Logf("counted: %d calls answered in an outage (%d by the server before and after it; the breaker changed to %v)",
				answered[penstock.FromFallback], answered[penstock.FromStore], changes)
		})
	}
}
