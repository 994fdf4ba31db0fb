package memstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/turns"
	"github.com/penstock/penstock/memstore"
)

// Limits take turns to use one counter. Together they admit what the largest of them admits.
func TestLimitsInTurnStayWithinTheBound(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for _, limits := range turns.SomeLimits() {
		t.Run(limits[0].String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(effort.Of(10, 400)) {
				clock := newManualClock()
				test := turns.Test{
					Store: memstore.New(memstore.Options{Now: clock.Now}), Limits: limits, Now: clock.Now, Advance: clock.advance,
				}
				const steps = 300
				if err := test.Run(t.Context(), rand.New(rand.NewPCG(seed, 1)), steps); err != nil {
					t.Fatalf("seed %d: Run returned %v; want no error", seed, err)
				}
			}
		})
	}
}

// One client sends as many requests as it can for 4 s. They are decided in turn by a tier with a
// burst of 600 and by one with a burst of 20. Both have a rate of 10/s.
func TestTiersInTurnAdmitWhatTheLargestAdmits(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	clock := newManualClock()
	s := memstore.New(memstore.Options{Now: clock.Now})
	premium, standard := penstock.PerSecond(10).WithBurst(600), penstock.PerSecond(10).WithBurst(20)
	admitted := 0
	for range 40_000 {
		for _, limit := range []penstock.Limit{premium, standard} {
			if d := decide(t, s, spend("k", limit.MustCompile(), 1)); d.Allowed {
				admitted++
			}
		}
		clock.advance(100 * time.Microsecond)
	}
	bound := 600 + 4*10 // the larger burst, and 4 s at 10/s
	if admitted > bound || admitted < bound-1 {
		t.Errorf("%d units were admitted in 4 s; want %d or %d", admitted, bound-1, bound)
	}
}
