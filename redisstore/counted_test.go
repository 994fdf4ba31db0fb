package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

// Redisstore and memstore count the same denials of a small limit while units of a larger one are
// still used, in windows of another length.
func TestTwinsCountDenialsAfterAChange(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	client := dialURL(t, redistest.Shared(t).URL())
	seed := effort.Seed()
	for i, a := range []*algorithm.Algorithm{
		algorithm.TokenBucket, algorithm.FixedWindow, algorithm.AnchoredWindow, algorithm.SlidingWindow, algorithm.SubWindow(7), algorithm.SlidingLog,
	} {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		clock := time.UnixMicro(1_700_000_000_000_000 + rng.Int64N(1e12))
		now := func() time.Time { return clock }
		redis := storeOn(t, client, Options{Now: now, Prefix: fmt.Sprintf("c%x", rng.Uint64())})
		memory := memstore.New(memstore.Options{Now: now})
		limit := penstock.Limit{Name: "l", Algorithm: a, Count: 40, Period: 10 * time.Second, ShouldCountDenied: true}
		large := limit.MustCompile()
		limit.Count, limit.Period = 10, time.Second
		small := limit.MustCompile()
		for step := range effort.Of(600, 200_000) {
			charge := penstock.Charge{Key: fmt.Sprint(step / 100), Plan: small, Cost: 1 + rng.Int64N(3)}
			if step%100 < 10 {
				charge.Plan = large
			}
			clock = clock.Add(time.Duration(rng.IntN(200_000)) * time.Microsecond)
			got, err := redis.Decide(context.Background(), []penstock.Charge{charge})
			want, wantErr := memory.Decide(context.Background(), []penstock.Charge{charge})
			if err != nil || wantErr != nil || got.Status(0) != want.Status(0) {
				t.Fatalf("PENSTOCK_SEED=%d, %s, step %d: redis %+v, %v; memory %+v, %v", seed, a.Title(), step, got.Status(0), err, want.Status(0), wantErr)
			}
		}
	}
}
