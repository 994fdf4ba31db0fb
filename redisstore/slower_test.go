package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// If a limit is made slower while it is in use, its state is kept for as long as the slower limit
// needs it. Even a denial must extend the TTL. Both statements hold for a single charge and for a
// batch.
func TestStateOutlivesALimitMadeSlower(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	other := penstock.PerHour(1).WithName("other")
	for _, limit := range []penstock.Limit{
		penstock.PerMinute(10).With(penstock.TokenBucket), penstock.PerMinute(10).With(penstock.SlidingLog),
	} {
		for _, isBatch := range []bool{false, true} {
			t.Run(fmt.Sprint(limit.Algorithm.Name(), " batch ", isBatch), func(t *testing.T) {
				prefix := newPrefix()
				s := open(t, server.URL(), redisstore.Options{Prefix: prefix})
				decide := func(limit *penstock.Plan) penstock.Decision {
					charges := []penstock.Charge{{Key: "k", Plan: limit, Cost: 1}}
					if isBatch {
						o := other
						o.Group = limit.Name()
						charges = append(charges, penstock.Charge{Key: "k", Plan: o.MustCompile(), Mode: penstock.Peek})
					}
					d, err := s.Decide(context.Background(), charges)
					if err != nil {
						t.Fatal(err)
					}
					return d
				}
				for range 10 {
					decide(limit.MustCompile())
				}
				slower := limit
				slower.Period = time.Hour
				if d := decide(slower.MustCompile()); d.Allowed {
					t.Fatalf("the slower limit granted more than 10: %+v; want a denial", d.Status(0))
				}
				keys := must(t, server, "KEYS", prefix+"*").([]any)
				if len(keys) != 1 {
					t.Fatalf("the keys are %v; want one", keys)
				}
				d := decide(slower.MustCompile())
				if ttl, usedFor := ttlOf(t, server, keys[0]), d.Status(0).ResetAfter; usedFor < time.Minute || ttl < usedFor {
					t.Errorf("the TTL is %v; want at least %v, for which the state is used", ttl, usedFor)
				}
			})
		}
	}
}

// A TTL is never shorter than the time for which the state is used. A TTL is at most twice the
// longest time for which the state was used so far, plus 5 s. This holds also after a Force and its
// Refund.
func TestTTLStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(10), penstock.PerMinute(10).With(penstock.FixedWindow), penstock.PerSecond(10).With(penstock.SlidingLog),
		penstock.PerMinute(10).With(penstock.SubWindow(6)),
	} {
		prefix := newPrefix()
		s := open(t, server.URL(), redisstore.Options{Prefix: prefix})
		var longest time.Duration
		for _, step := range []struct {
			mode penstock.Mode
			cost int64
		}{{penstock.Spend, 1}, {penstock.Force, 1000}, {penstock.Refund, 1000}, {penstock.Spend, 1}, {penstock.Spend, 20}} {
			d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit.MustCompile(), Mode: step.mode, Cost: step.cost}})
			if err != nil {
				t.Fatal(err)
			}
			usedFor := d.Status(0).ResetAfter
			longest = max(longest, usedFor)
			for _, key := range must(t, server, "KEYS", prefix+"*").([]any) {
				const rounding = 2 * time.Millisecond // TTLs are whole ms
				if ttl := ttlOf(t, server, key); ttl < usedFor || ttl > 2*longest+5*time.Second+rounding {
					t.Errorf("%v, after a %v of %d units: the TTL is %v; want at least %v, for which the state is used, and at most twice %v plus 5s", limit, step.mode, step.cost, ttl, usedFor, longest)
				}
			}
		}
	}
}

// A Refund never shortens a TTL: neither that of a set from which it removes the newest members,
// nor that of a set that it writes anew. This holds for a single charge and for a batch.
func TestARefundNeverShortensATTL(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	log, slots := penstock.PerMinute(10).With(penstock.SlidingLog).MustCompile(), penstock.InFlight(10, time.Minute).MustCompile()
	other := penstock.PerHour(1).WithName("other").MustCompile()
	for name, charges := range map[string][]penstock.Charge{ // a later charge, and then its refund
		"all units of the newest grant":   {{Plan: log, Cost: 2}, {Plan: log, Mode: penstock.Refund, Cost: 2}},
		"some units of all grants":        {{Plan: log, Cost: 2}, {Plan: log, Mode: penstock.Refund, Cost: 4}},
		"units of the grant of a receipt": {{Plan: log, Cost: 2, IsRefundable: true}, {Plan: log, Mode: penstock.Refund, Cost: 2}},
		"a hold":                          {{Plan: slots, Cost: 1, Holder: "b"}, {Plan: slots, Mode: penstock.Refund, Cost: 1, Holder: "b"}},
	} {
		for _, isBatch := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", batch ", isBatch), func(t *testing.T) {
				prefix, now := newPrefix(), time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
				s := open(t, server.URL(), redisstore.Options{Prefix: prefix, Now: func() time.Time { return now }})
				var receipt int64
				decide := func(c penstock.Charge) {
					c.Key, c.Receipt = "k", receipt
					batch := []penstock.Charge{c}
					if isBatch {
						batch = append(batch, penstock.Charge{Key: "k", Plan: other, Mode: penstock.Peek})
					}
					d, err := s.Decide(t.Context(), batch)
					if err != nil {
						t.Fatal(err)
					}
					if receipt = d.Status(0).Receipt; d.Status(0).Granted != c.Cost {
						t.Fatalf("%v of %d units: granted %d; want all", c.Mode, c.Cost, d.Status(0).Granted)
					}
				}
				expires := func() int64 {
					keys := must(t, server, "KEYS", prefix+"*").([]any)
					if len(keys) != 1 {
						t.Fatalf("the keys are %v; want one", keys)
					}
					return must(t, server, "PEXPIRETIME", keys[0].(string)).(int64)
				}
				decide(penstock.Charge{Plan: charges[0].Plan, Cost: 3, Holder: "a"})
				now = now.Add(50 * time.Second)
				decide(charges[0])
				before := expires()
				decide(charges[1])
				if after := expires(); after < before {
					t.Errorf("the Refund has made the TTL %d ms shorter; want it never shorter", before-after)
				}
			})
		}
	}
}

// ttlOf returns the TTL of a key.
func ttlOf(t *testing.T, s *redistest.Server, key any) time.Duration {
	t.Helper()
	return time.Duration(must(t, s, "PTTL", key.(string)).(int64)) * time.Millisecond
}
