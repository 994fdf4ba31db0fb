package guard_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A burst gets exactly the limit's units: no unit is denied while a shard has one. Chance sends
// some requests to a shard that has used its part. If the denial of this shard were final, about
// √(N·S(1-1/S)/2π) of N units in S shards would be denied. Split calls further shards instead.
//
// The formula: each of N requests goes to one of S shards by chance. So the number at one shard is
// nearly normal, with the mean N/S and the variance σ² = N/S·(1-1/S). The excess of a number is how
// far it is above the mean, and 0 if it is below. The mean excess of a normal number is σ/√(2π).
// All S shards together have S times this excess.
func TestSplitGrantsAllUnitsAndNoMore(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for _, row := range []struct{ units, shards, runs int }{
		{units: 100, shards: 4, runs: 40},
		{units: 100, shards: 16, runs: 40},
		{units: 1000, shards: 4, runs: 40},
		{units: 1000, shards: 16, runs: 40},
		{units: 10_000, shards: 16, runs: 10},
	} {
		units, shards, runs := row.units, row.shards, row.runs
		moreCalls := 0       // of granted spends, after their first calls
		deniedByFirst := 0.0 // mean number of units per run that the first shard would deny
		for range runs {
			calls := 0                     // of one spend
			firstCalls := map[string]int{} // of all spends, by the key of the shard
			store := memstore.New(memstore.Options{})
			counting := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if calls++; calls == 1 {
					firstCalls[charges[0].Key]++
				}
				return store.Decide(ctx, charges)
			})
			limit := compiled(t, penstock.PerDay(int64(units)).With(penstock.FixedWindow))
			s := splitInto(shards)(counting)
			for i := range units + 100 {
				calls = 0
				if d := decide(t, s, one(limit, "k")...); d.Allowed != (i < units) {
					t.Fatalf("%d units in %d shards, spend %d: %v; want a grant while units are left", units, shards, i, d)
				}
				if i < units {
					moreCalls += calls - 1
				}
				if i == units-1 {
					for _, spends := range firstCalls {
						deniedByFirst += max(0, float64(spends)-float64(units)/float64(shards)) / float64(runs)
					}
				}
			}
		}
		formula := math.Sqrt(float64(units) * float64(shards) * (1 - 1/float64(shards)) / (2 * math.Pi))
		t.Logf("%5d units in %2d shards: all granted, and no more; the first shards would deny %.1f (by the formula %.1f); %.3f further calls per unit", units, shards,
			deniedByFirst, formula, float64(moreCalls)/float64(runs*units))
		if deniedByFirst < formula/2 || deniedByFirst > 2*formula {
			t.Errorf("%.1f of %d units were sent first to one of %d shards that had used its part; want about %.1f: the shards are not chosen evenly", deniedByFirst, units, shards, formula)
		}
		t.Logf("counted: %d spends of split limits checked against their bound", runs*(units+100))
	}
}

// Under overload, a bucket split into S shards admits at most its burst and the units that return
// to it. That is its bound. Of the units in the bound, at most S+1 are not admitted.
func TestSplitBucketIsUsedToItsBound(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for _, shards := range []int{2, 4, 16, 32} {
		synctest.Test(t, func(t *testing.T) {
			const count, seconds = 100, 20
			settings := func(*penstock.Plan) guard.Settings { return guard.Settings{SplitInto: shards} }
			g := standard(t, memstore.New(memstore.Options{}), guard.Options{Limits: settings})
			limit := compiled(t, penstock.PerSecond(count))
			admitted, start := 0, time.Now()
			for time.Since(start) < seconds*time.Second {
				if decide(t, g, one(limit, "k")...).Allowed {
					admitted++
				}
				time.Sleep(time.Millisecond)
			}
			most := count + count*seconds
			if least := most - shards - 1; admitted > most || admitted < least {
				t.Errorf("%d shards admitted %d units in %d s; want %d to %d", shards, admitted, seconds, least, most)
			}
			t.Logf("%2d shards: %d units in %d s; the bound is %d (%.1f %%)", shards, admitted, seconds, most, 100*float64(admitted)/float64(most))
		})
	}
}

// When a split limit is lowered, each shard grants what is left of its part of the new limit. So
// the shards may grant more than an unsplit limit. The most is the whole new limit without the part
// of one shard: one shard had all requests, and the others still have their parts. If the new limit
// is N units and N are used, S shards grant on average about √(N·S(1-1/S)/2π) units more: see the
// formula of TestSplitGrantsAllUnitsAndNoMore. The units used before and those granted afterwards
// never exceed the old limit.
func TestLoweredSplitLimitGrantsWhatItsShardsHaveLeft(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const from, to, shards, runs = 150, 50, 8, 60
	for _, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.SlidingLog} {
		for _, used := range []int{20, 50, 120} {
			extra := 0.0 // mean number of units beyond those of an unsplit limit
			for range runs {
				synctest.Test(t, func(t *testing.T) {
					store := memstore.New(memstore.Options{})
					grantedBy := map[string]int{} // units, by the key of the shard
					recording := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
						d, err := store.Decide(ctx, charges)
						if err == nil && d.Allowed {
							grantedBy[charges[0].Key] += int(d.Status(0).Granted)
						}
						return d, err
					})
					s := splitInto(shards)(recording)
					old, lowered := compiled(t, penstock.PerDay(from).With(a)), compiled(t, penstock.PerDay(to).With(a))
					for range used {
						if !decide(t, s, one(old, "k")...).Allowed {
							t.Fatal("the old limit denied a unit; want all granted")
						}
					}
					want, unsplit := 0, max(to-used, 0) // the units left in the shards, and in an unsplit limit
					for i := range shards {
						part := to / shards
						if i < to%shards {
							part++
						}
						want += max(part-grantedBy[fmt.Sprintf("k~%02d", i)], 0)
					}
					granted := 0
					for range from {
						if decide(t, s, one(lowered, "k")...).Allowed {
							granted++
						}
					}
					if granted != want {
						t.Errorf("%v: %d of %d used, lowered to %d in %d shards: %d granted; want %d, as the shards have left", a.Name(), used, from, to, shards, granted, want)
					}
					if most := to - to/shards; granted-unsplit > most {
						t.Errorf("%v: %d of %d used, lowered to %d in %d shards: %d granted; want at most %d more than the %d of an unsplit limit", a.Name(), used, from, to,
							shards, granted, most, unsplit)
					}
					if used+granted > from {
						t.Errorf("%v: %d of %d used, lowered to %d in %d shards: %d granted; want at most %d used and granted", a.Name(), used, from, to, shards, granted, from)
					}
					extra += float64(granted-unsplit) / runs
				})
			}
			t.Logf("%v: %d of %d used, lowered to %d in %d shards: %.1f units more than without Split", a.Name(), used, from, to, shards, extra)
			formula := math.Sqrt(to * shards * (1 - 1.0/shards) / (2 * math.Pi))
			if used == to && (extra < formula/2 || extra > 2*formula) {
				t.Errorf("%v: %.1f units more than without Split; want half to twice the %.1f of the formula", a.Name(), extra, formula)
			}
		}
	}
}
