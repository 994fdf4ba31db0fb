package guard_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// A limit of 10 a minute in four shards has bursts of 3, 3, 2 and 2. Each shard gets a unit every
// 24 s. If no single shard has a cost, it is divided among all shards. The first shards take the
// remainder: 5 units are 2, 1, 1 and 1. So the first shard is the last to have its part.
func TestCostBeyondAShardIsTakenFromAllInWholeUnits(t *testing.T) {
	waits := map[int64]time.Duration{ // by cost
		4:  24 * time.Second,
		5:  48 * time.Second,
		8:  48 * time.Second,
		9:  72 * time.Second,
		10: 72 * time.Second,
	}
	for cost, wait := range waits {
		store := splitInto(4)(newClock().memory())
		charge := spend("k", compiled(t, penstock.PerMinute(10)), 1)
		for range 10 {
			if d := decide(t, store, charge); !d.Allowed {
				t.Fatalf("the status of a unit is %+v; want each of 10 units granted", d.Status(0))
			}
		}
		charge.Cost = cost
		if d := decide(t, store, charge); d.Allowed || d.RetryAfter() != wait || d.Status(0).Remaining != 0 {
			t.Errorf("a Spend of %d units: %+v; want a denial with RetryAfter %v and 0 left", cost, d.Status(0), wait)
		}
		charge.Patience = wait - time.Microsecond
		if d := decide(t, store, charge); d.Allowed {
			t.Errorf("a Spend of %d units with a Patience 1 µs below %v: %+v; want a denial", cost, wait, d.Status(0))
		}
		charge.Patience = wait
		if d := decide(t, store, charge); !d.Allowed || d.Wait() != wait || d.Status(0).Granted != cost {
			t.Errorf("a Spend of %d units with a Patience of %v: %+v; want them granted with this wait", cost, wait, d.Status(0))
		}
	}
}
