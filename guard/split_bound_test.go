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
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/memstore"
)

// If all units are spent in one burst, exactly these are granted: no unit is denied while a shard
// has one. If a denial by the first shard were final, about √(N·S(1-1/S)/2π) of N units in S shards
// would be denied, because chance sends them to a shard that has used its part. Split makes a few
// more calls for each of them instead.
func TestSplitGrantsAllUnitsAndNoMore(t *testing.T) {
	effort.WithoutRace(t)
	t.Parallel()
	for _, row := range []struct{ units, shards, runs int }{{100, 4, 40}, {100, 16, 40}, {1000, 4, 40}, {1000, 16, 40}, {10_000, 16, 10}} {
		units, shards, runs := row.units, row.shards, row.runs
		moreCalls := 0
		deniedByFirst := 0.0 // mean number of units per run that the first shard would deny
		for range runs {
			calls, first := 0, map[string]int{}
			store := memstore.New(memstore.Options{})
			counting := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if calls++; calls == 1 {
					first[charges[0].Key]++
				}
				return store.Decide(ctx, charges)
			})
			limit := compiled(t, penstock.PerDay(int64(units)).With(penstock.FixedWindow))
			s := split(shards)(counting)
			for i := range units + 100 {
				calls = 0
				if d := decide(t, s, one(limit, "k")...); d.Allowed != (i < units) {
					t.Fatalf("%d units in %d shards, spend %d: %v; want a grant while units are left", units, shards, i, d)
				}
				if i < units {
					moreCalls += calls - 1
				}
				if i == units-1 {
					for _, n := range first {
						deniedByFirst += max(0, float64(n)-float64(units)/float64(shards)) / float64(runs)
					}
				}
			}
		}
		formula := math.Sqrt(float64(units) * float64(shards) * (1 - 1/float64(shards)) / (2 * math.Pi))
		t.Logf("%5d units in %2d shards: all granted, and no more; %.1f would be denied by the first shard (%.1f by the formula); %.3f more calls per unit", units, shards,
			deniedByFirst, formula, float64(moreCalls)/float64(runs*units))
		if deniedByFirst < formula/2 || deniedByFirst > 2*formula {
			t.Errorf("%.1f of %d units exceeded the parts of %d shards; want about %.1f: the shards are not chosen evenly", deniedByFirst, units, shards, formula)
		}
		t.Logf("counted: %d spends of split limits checked against their bound", runs*(units+100))
	}
}

// Under more load than fits, a split bucket admits at most its burst and the units that it refills.
// It admits at most one unit less for each shard, and one more.
func TestSplitBucketIsUsedToItsBound(t *testing.T) {
	effort.WithoutRace(t)
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
			if admitted > most || admitted < most-shards-1 {
				t.Errorf("%d shards: %d units in %d s; want %d, or %d less at most", shards, admitted, seconds, most, shards+1)
			}
			t.Logf("%2d shards: %d units in %d s; the bound is %d (%.1f %%)", shards, admitted, seconds, most, 100*float64(admitted)/float64(most))
		})
	}
}

// After a split limit was lowered, each shard grants what is left of its part of the new limit. So
// the shards grant more than an unsplit limit, by at most the parts of all shards but one. If N
// units of a new limit of N were used, S shards grant about √(N·S(1-1/S)/2π) units more. The units
// used before and those granted afterwards never exceed the old limit.
func TestLoweredSplitLimitGrantsWhatItsShardsHaveLeft(t *testing.T) {
	effort.WithoutRace(t)
	t.Parallel()
	const from, to, shards, runs = 150, 50, 8, 60
	for _, a := range []*algorithm.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.SlidingLog} {
		for _, used := range []int{20, 50, 120} {
			more := 0.0
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
					s := split(shards)(recording)
					old, lowered := compiled(t, penstock.PerDay(from).With(a)), compiled(t, penstock.PerDay(to).With(a))
					for range used {
						if !decide(t, s, one(old, "k")...).Allowed {
							t.Fatal("the old limit denied a unit; want all granted")
						}
					}
					want, unsplit := 0, max(to-used, 0) // what the shards, and an unsplit limit, have left
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
					if granted != want || granted-unsplit > to-to/shards || used+granted > from {
						t.Errorf("%v: %d of %d used, lowered to %d in %d shards: %d granted; want %d, as the shards have left; an unsplit limit has %d", a.Name(), used, from, to,
							shards, granted, want, unsplit)
					}
					more += float64(granted-unsplit) / runs
				})
			}
			t.Logf("%v: %d of %d used, lowered to %d in %d shards: %.1f units more than without", a.Name(), used, from, to, shards, more)
			formula := math.Sqrt(to * shards * (1 - 1.0/shards) / (2 * math.Pi))
			if used == to && (more < formula/2 || more > 2*formula) {
				t.Errorf("%v: %.1f units more than without Split; want about %.1f, by the formula", a.Name(), more, formula)
			}
		}
	}
}
