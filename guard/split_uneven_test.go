package guard_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// A limit of 10 a minute in four shards has bursts of 3, 3, 2 and 2. Each shard gets a unit in 24
// s. A cost that no shard has is spread over all shards, and the first ones take the remainder: 5
// units are 2, 1, 1 and 1. So all shards have their parts as soon as the first shard has its own.
func TestCostBeyondAShardIsTakenFromAllInWholeUnits(t *testing.T) {
	for cost, wait := range map[int64]time.Duration{4: 24 * time.Second, 5: 48 * time.Second, 8: 48 * time.Second, 9: 72 * time.Second, 10: 72 * time.Second} {
		store := split(4)(newClock().memory())
		charge := spend("k", compiled(t, penstock.PerMinute(10)), 1)
		for range 10 {
			if d := decide(t, store, charge); !d.Allowed {
				t.Fatalf("%+v; want each of 10 units granted", d.Status(0))
			}
		}
		charge.Cost = cost
		if d := decide(t, store, charge); d.Allowed || d.RetryAfter() != wait || d.Status(0).Remaining != 0 {
			t.Errorf("%d units: %+v; want a denial for %v", cost, d.Status(0), wait)
		}
		charge.Patience = wait - time.Microsecond
		if d := decide(t, store, charge); d.Allowed {
			t.Errorf("%d units with a patience 1 µs below %v: %+v; want denied", cost, wait, d.Status(0))
		}
		charge.Patience = wait
		if d := decide(t, store, charge); !d.Allowed || d.Wait() != wait || d.Status(0).Granted != cost {
			t.Errorf("%d units with patience: %+v; want a wait of %v", cost, d.Status(0), wait)
		}
	}
}
