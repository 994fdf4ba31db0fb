package guard_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/turns"
	"github.com/penstock/penstock/memstore"
)

// withoutRetryAfter replaces the RetryAfter of denials by Never, which turns.Test does not
// check. The wrapper is for guards that promise no exact RetryAfter.
func withoutRetryAfter(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if err != nil || d.Allowed {
			return d, err
		}
		s := d.Status(0)
		s.RetryAfter = penstock.Never
		return penstock.Single(s), nil
	})
}

// Several limits may use one counter in turn, as tiers do. Through each guard, they admit at most
// the bound of the largest limit and the units that the guard adds.
func TestLimitsInTurnKeepTheBoundOfEachGuard(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	type chain struct {
		name  string
		wrap  func(store *faulty) (guarded penstock.Store, end func())
		slack func(*penstock.Plan) int64 // the units that the guards add to the limit's bound; nil: 0
	}
	decorated := func(d penstock.Decorator) func(*faulty) (penstock.Store, func()) {
		return func(store *faulty) (penstock.Store, func()) { return d(store), func() {} }
	}
	leased := func(o guard.LeaseSetup) func(*faulty) (penstock.Store, func()) {
		return func(store *faulty) (penstock.Store, func()) {
			l := guard.NewLease(store, o)
			return withoutRetryAfter(l), func() { _ = l.Close(context.Background()) }
		}
	}
	standard := func(s guard.Settings) func(*faulty) (penstock.Store, func()) {
		return func(store *faulty) (penstock.Store, func()) {
			g := standard(t, store, guard.Options{Limits: func(*penstock.Plan) guard.Settings { return s }})
			return withoutRetryAfter(g), g.Close
		}
	}
	lease := guard.LeaseSetup{Limits: leaseUpTo(100)}
	outageExcess := func(limit *penstock.Plan) (over int64) {
		for _, b := range (guard.Options{}).Bounds(limit) {
			if b.When == "store fails" || b.When == "store returns" {
				over += b.MaxExcess
			}
		}
		return over
	}
	chains := []chain{
		{name: "deny", wrap: func(store *faulty) (penstock.Store, func()) {
			return withoutRetryAfter(guard.NewDenyCache(store, guard.DenySetup{Grants: true})), func() {}
		}},
		{name: "fallback of a store that answers", wrap: decorated(guard.Fallback(guard.FallbackOptions{}))},
		{name: "fallback of a store that does not answer", wrap: func(store *faulty) (penstock.Store, func()) {
			store.setFault(failWith(errDown))
			return guard.Fallback(guard.FallbackOptions{})(store), func() {}
		}},
		{name: "fallback of a store that fails once", slack: outageExcess, wrap: func(store *faulty) (penstock.Store, func()) {
			g := guard.Fallback(guard.FallbackOptions{})(store)
			decisions := 0
			return withoutRetryAfter(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				switch decisions++; decisions {
				case 100: // the outage begins
					store.setFault(failWith(errDown))
				case 200: // the outage ends
					store.setFault(nil)
				}
				return g.Decide(ctx, charges)
			})), func() {}
		}},
		{name: "split", wrap: func(store *faulty) (penstock.Store, func()) { return withoutRetryAfter(splitInto(3)(store)), func() {} }},
		{name: "lease", wrap: leased(lease), slack: lease.Excess},
		{name: "standard", wrap: standard(guard.Settings{})},
		{name: "standard with shards", wrap: standard(guard.Settings{SplitInto: 3})},
		{name: "standard with a lease", wrap: standard(guard.Settings{Lease: 100}), slack: lease.Excess},
		{name: "standard with shards and a lease", wrap: standard(guard.Settings{Lease: 100, SplitInto: 3}), slack: lease.Excess},
	}
	seeds := effort.Of(1, 8)
	for _, c := range chains {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			for _, limits := range turns.SomeLimits() {
				for seed := range uint64(seeds) {
					synctest.Test(t, func(t *testing.T) {
						test := turns.Test{Limits: limits, Now: time.Now, Advance: time.Sleep, Key: "k"}
						for _, limit := range limits {
							if c.slack != nil {
								test.Slack = max(test.Slack, c.slack(limit))
							}
						}
						var end func()
						test.Store, end = c.wrap(newFaulty())
						defer end()
						const steps = 300
						if err := test.Run(t.Context(), rand.New(rand.NewPCG(seed, 26)), steps); err != nil {
							t.Errorf("seed %d, the limits %v: %v", seed, limits, err)
						}
						runs++
					})
				}
			}
			t.Logf("counted: %d trials of limits in turn through guards", runs)
		})
	}
}

// Several instances lease busy tiers under one key. In every interval they admit at most one block
// for each instance beyond the largest tier. If all tiers are windows of one length, they admit no
// more than the largest tier.
func TestBusyLeasesOfLimitsInTurnKeepTheirBound(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	limit := func(count int64, period time.Duration) penstock.Limit {
		return penstock.Limit{Name: "tier", Count: count, Period: period}
	}
	for _, row := range []struct {
		name   string
		limits []penstock.Limit
	}{
		{"bursts", []penstock.Limit{penstock.PerSecond(300).WithBurst(600), penstock.PerSecond(300).WithBurst(40)}},
		{"rates", []penstock.Limit{penstock.PerSecond(500), penstock.PerSecond(50), penstock.PerMinute(600).WithBurst(80)}},
		{"fixed", []penstock.Limit{limit(400, time.Second).With(penstock.FixedWindow), limit(100, time.Second).With(penstock.FixedWindow)}},
		{"fixed, two lengths", []penstock.Limit{limit(400, time.Second).With(penstock.FixedWindow), limit(1000, 5*time.Second).With(penstock.FixedWindow)}},
		{"sliding", []penstock.Limit{limit(400, time.Second).With(penstock.SlidingWindow), limit(100, time.Second).With(penstock.SlidingWindow)}},
		{"sub", []penstock.Limit{limit(400, time.Second).With(penstock.SubWindow(2)), limit(100, time.Second).With(penstock.SubWindow(2))}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			const instances = 4
			var limits []*penstock.Plan
			for _, limit := range row.limits {
				limits = append(limits, compiled(t, limit.WithName("tier")))
			}
			for seed := range uint64(effort.Of(1, 8)) {
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 11))
					store := memstore.New(memstore.Options{})
					o := guard.LeaseSetup{Limits: leaseUpTo(100), Instances: func() int { return instances }}
					var leases []*guard.Lease
					for range instances {
						l := guard.NewLease(store, o)
						defer l.Close(context.Background())
						leases = append(leases, l)
					}
					slack, lengths := int64(0), map[time.Duration]bool{}
					for _, l := range limits {
						lengths[l.Limit().Period] = true
						slack = max(slack, o.Excess(l))
					}
					if limits[0].Algorithm().Name() == penstock.FixedWindow.Name() && len(lengths) > 1 {
						slack = instances * 25 // a block is a quarter of the Count of 400, divided by the instances
					}
					bound := turns.Bound(limits)
					var at []time.Time // when each unit was admitted
					leased := 0
					for range 2000 {
						time.Sleep(time.Duration(rng.ExpFloat64() * float64(time.Millisecond)))
						if rng.IntN(300) == 0 {
							time.Sleep(time.Duration(rng.IntN(900)) * time.Millisecond)
						}
						l := limits[rng.IntN(len(limits))]
						d, err := leases[rng.IntN(instances)].Decide(t.Context(), one(l, "k"))
						if err != nil {
							t.Fatal(err)
						}
						if d.Source == penstock.FromLease {
							leased++
						}
						if d.Allowed {
							at = append(at, time.Now())
						}
					}
					for i := range at {
						for j := range i + 1 {
							units, interval := int64(i-j+1), at[i].Sub(at[j])
							if units > bound(interval)+slack {
								t.Fatalf("seed %d: %d units were admitted within %v; want at most %d, and %d more for leases", seed, units, interval, bound(interval), slack)
							}
						}
					}
					if leased < 100 {
						t.Errorf("seed %d: %d of %d units were leased; want at least 100", seed, leased, len(at))
					}
				})
			}
		})
	}
}
