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

// A reservation is a charge of a trace that was not refunded yet.
type reservation struct {
	charge  penstock.Charge
	receipt int64
}

// Both twins return the same units of many open reservations, which end in any order. The level of
// a bucket rises and falls, so that its marks are added, merged, lowered and dropped.
func TestTwinsRefundExactly(t *testing.T) {
	effort.SkipUnderRace(t)
	client := dialURL(t, redistest.Shared(t).URL())
	for i, a := range []*algorithm.Algorithm{
		algorithm.TokenBucket, algorithm.FixedWindow, algorithm.AnchoredWindow, algorithm.SlidingWindow, algorithm.SubWindow(7), algorithm.SlidingLog,
	} {
		t.Run(a.Title(), func(t *testing.T) {
			t.Parallel()
			seed := effort.Seed()
			refunds := 0
			for trace := range uint64(effort.Of(20, 2000)) {
				n, err := runReservations(client, a, rand.New(rand.NewPCG(seed, uint64(i)<<32|trace)))
				if err != nil {
					t.Fatalf("PENSTOCK_SEED=%d go test -run 'TestTwinsRefundExactly/%s' (trace %d): %v", seed, a.Title(), trace, err)
				}
				refunds += n
			}
			t.Logf("counted: %d refunds with equal answers of both twins", refunds)
		})
	}
}

// runReservations makes a random trace of reservations, and returns how many refunds returned
// units.
func runReservations(client Client, a *algorithm.Algorithm, rng *rand.Rand) (refunds int, err error) {
	clock := time.UnixMicro(1_700_000_000_000_000 + rng.Int64N(1e12))
	now := func() time.Time { return clock }
	redis, err := New(keptOpenClient{client}, Options{Now: now, Prefix: fmt.Sprintf("r%x", rng.Uint64())})
	if err != nil {
		return 0, err
	}
	defer redis.Close()
	memory := memstore.New(memstore.Options{Now: now, Linger: time.Hour}) // Redis keeps states longer, and a slower limit still reads them
	limit := penstock.Limit{Name: "l", Algorithm: a, Count: pick(rng, 100, 997, 6000), Period: time.Duration(pick(rng, 1, 7, 60)) * time.Second}
	plans := []*penstock.Plan{limit.MustCompile()}
	if rng.IntN(3) == 0 { // the limit changes now and then
		limit.Count, limit.Period = limit.Count/2+1, limit.Period/2
		plans = append(plans, limit.MustCompile())
	}
	other := penstock.Limit{Name: "other", Group: "l", Algorithm: a, Count: 1_000_000, Period: time.Second}.MustCompile()
	var open []reservation
	least := limit.Count / pick(rng, 10, 40, 200) // units of the smallest reservation
	isCrowded := rng.IntN(3) == 0                 // many reservations are open before the first ends
	for step := range 150 {
		before := clock
		clock = clock.Add(time.Duration(pick(rng, 0, 0, 1, 1000, limit.Period.Microseconds()/limit.Count, limit.Period.Microseconds()/20, limit.Period.Microseconds()/4)) * time.Microsecond)
		if isCrowded && step < 80 {
			clock = before.Add(time.Duration(rng.IntN(3)) * time.Microsecond)
		}
		plan := plans[step/8%len(plans)]
		charge := penstock.Charge{Key: "k", Plan: plan, Cost: least + rng.Int64N(least+3), IsRefundable: rng.IntN(4) > 0}
		ended := -1 // the index of the reservation that ends
		switch kind := rng.IntN(20); {
		case kind < 2:
			charge.Mode = penstock.Draw
		case kind < 6:
			charge.Mode = penstock.Force
		case kind < 7:
			charge.Mode, charge.Cost = penstock.Refund, rng.Int64N(3)
		case isCrowded && step < 80:
			charge.Mode = penstock.Force
		case (kind < 13 || isCrowded) && len(open) > 0:
			ended = rng.IntN(len(open))
			charge = open[ended].charge
			charge.Mode, charge.Receipt = penstock.Refund, open[ended].receipt
			if !isCrowded {
				charge.Cost = 1 + rng.Int64N(charge.Cost)
			}
		default:
			charge.Patience = min(time.Duration(rng.IntN(2))*limit.Period, plan.MaxPatience())
		}
		batches := [][]penstock.Charge{{charge}}
		if rng.IntN(3) == 0 {
			batches[0] = append(batches[0], penstock.Charge{Key: "k", Plan: other, Cost: 1, IsRefundable: rng.IntN(2) == 0})
		}
		for ended < 0 && rng.IntN(3) == 0 { // several callers make equal charges
			batches = append(batches, batches[0])
		}
		got, order, err := redis.decideList(context.Background(), batches)
		if err != nil {
			return refunds, err
		}
		for _, i := range order {
			want, err := memory.Decide(context.Background(), batches[i])
			if err != nil {
				return refunds, err
			}
			for n := range batches[i] {
				if got[i].Status(n) != want.Status(n) {
					return refunds, fmt.Errorf("step %d, at %d µs, charge %d of\n%vredis  %+v\nmemory %+v", step, clock.UnixMicro(), n, describe(batches[i]), got[i].Status(n), want.Status(n))
				}
			}
			status := want.Status(0)
			if charge.Mode != penstock.Refund && status.Receipt != 0 {
				charge.Cost = status.Granted
				open = append(open, reservation{charge, status.Receipt})
			}
			if ended >= 0 && status.Granted > 0 {
				refunds++
			}
		}
		if ended >= 0 {
			open = append(open[:ended], open[ended+1:]...)
		}
	}
	return refunds, nil
}
