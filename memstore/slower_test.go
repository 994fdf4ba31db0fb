package memstore_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// If a limit in use is made slower, its state is kept for as long as the slower limit needs it.
func TestStateOutlivesALimitMadeSlower(t *testing.T) {
	t.Parallel()
	for _, limit := range []penstock.Limit{penstock.PerSecond(10), penstock.PerSecond(10).With(penstock.SlidingLog)} {
		clock := newManualClock()
		s := memstore.New(memstore.Options{Now: clock.Now, Locks: 1})
		for range 10 {
			decide(t, s, spend("k", limit.MustCompile(), 1))
		}
		slower := limit
		slower.Period = time.Hour
		first := decide(t, s, spend("k", slower.MustCompile(), 1))
		grantedAt := clock.now.Add(first.RetryAfter())
		for clock.now.Before(grantedAt.Add(-time.Second)) {
			clock.advance(time.Second)
			for i := range 3 { // these calls make the store remove state that is no longer needed
				decide(t, s, spend(string(rune('a'+i)), limit.MustCompile(), 1))
			}
			if d := decide(t, s, spend("k", slower.MustCompile(), 1)); d.Allowed || clock.now.Add(d.RetryAfter()) != grantedAt {
				t.Fatalf("a charge of %v, with a period of an hour, is %v at %v; want denied until %v, as at the first denial", limit, d, clock.now, grantedAt)
			}
		}
	}
}
