package redisstore_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/internal/testing/turns"
	"github.com/penstock/penstock/redisstore"
)

// Several limits of one algorithm use one counter in turn. Together they admit at most what the
// largest of them admits.
func TestLimitsInTurnStayWithinTheBound(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	server := redistest.Shared(t)
	for _, limits := range turns.SomeLimits() {
		t.Run(limits[0].String(), func(t *testing.T) {
			for n := range effort.Of(1, 60) {
				seed := effort.Seed() + uint64(n)
				now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
				clock := func() time.Time { return now }
				test := turns.Test{
					Store:  open(t, server.URL(), redisstore.Options{Now: clock, Prefix: newPrefix()}),
					Limits: limits, Now: clock, Advance: func(d time.Duration) { now = now.Add(d) },
				}
				if err := test.Run(t.Context(), rand.New(rand.NewPCG(seed, 1)), 200); err != nil {
					t.Fatalf("PENSTOCK_SEED=%d: %v; want no violation", seed, err)
				}
			}
		})
	}
}
