package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A steadyLoad is random traffic with one key of a leased limit. The rate of the traffic is below
// the limit, and there are no faults.
type steadyLoad struct {
	limit     *penstock.Plan
	lease     int64 // guard.Settings.Lease
	shards    int   // guard.Settings.SplitInto
	instances int
	isSkewed  bool    // four of five requests go to one instance
	ratio     float64 // of the traffic to the rate that the limit admits in the long run
	maxCost   int64   // largest cost of a request
	requests  int
}

func (s *steadyLoad) String() string {
	return fmt.Sprintf("%v, lease %d, %d shards, %d instances (skewed %v), %.0f %% of the limit, costs up to %d",
		s.limit, s.lease, s.shards, s.instances, s.isSkewed, 100*s.ratio, s.maxCost)
}

// gap returns the mean time between two requested units, in ns.
func (s *steadyLoad) gap() float64 {
	gap := float64(s.limit.Limit().Period) / float64(s.limit.Limit().Count) / s.ratio
	if a := s.limit.Algorithm(); a.Name() == penstock.SubWindow(1).Name() {
		parts := float64(s.limit.Params(0)[2]) // number of sub-windows
		gap *= (parts + 1) / parts             // units become free one sub-window later
	}
	return gap
}

// A yield compares a fleet with a store without guards. All numbers are units.
type yield struct {
	requested int64
	alone     int64 // admitted by the store without guards
	admitted  int64 // admitted by the fleet
	leased    int64 // admitted by leases of the fleet
}

func (y *yield) add(other yield) {
	y.requested += other.requested
	y.alone += other.alone
	y.admitted += other.admitted
	y.leased += other.leased
}

// run sends the load in virtual time. Each instance has all guards and its own network latency.
func (s *steadyLoad) run(t *testing.T, seed uint64) (y yield) {
	rng := rand.New(rand.NewPCG(seed, 7))
	sc := &scenario{seed: seed, instances: s.instances, configured: s.instances, nodes: 1,
		oneWay:        logTime(rng, 100*time.Microsecond, 2*time.Millisecond),
		guardedLimits: []guardedLimit{{limit: s.limit, settings: guard.Settings{Lease: s.lease, SplitInto: s.shards}}}}
	h := newHistory(time.Duration(rng.Int64N(int64(time.Hour))))
	sim := &simulation{t: t, scenario: sc, history: h, server: newServer(1, h.clockAhead, h), rng: rng, limitsUsed: make(map[string]int)}
	for range s.instances {
		defer sim.join().store.Close()
	}
	alone := memstore.New(memstore.Options{})
	var mu sync.Mutex
	var requests sync.WaitGroup
	for range s.requests {
		cost := 1 + rng.Int64N(s.maxCost)
		time.Sleep(time.Duration(rng.ExpFloat64() * s.gap() * float64(cost)))
		i := rng.IntN(s.instances)
		if s.isSkewed && rng.IntN(5) > 0 {
			i = 0
		}
		charges := []penstock.Charge{{Key: "k", Plan: s.limit, Cost: cost}}
		d, err := alone.Decide(context.Background(), charges)
		if err != nil {
			t.Fatal(err)
		}
		y.requested += cost
		if d.Allowed {
			y.alone += cost
		}
		requests.Go(func() {
			d, err := sim.fleet[i].store.Decide(context.Background(), charges)
			if err != nil {
				t.Errorf("seed %d: a decision failed: %v; want no error", seed, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if d.Allowed {
				y.admitted += cost
			}
			if d.Source == penstock.FromLease {
				y.leased += cost
			}
		})
	}
	requests.Wait()
	return y
}

// randomLoad makes a random limit of an algorithm, and its traffic.
func randomLoad(seed uint64, a *algorithm.Algorithm) *steadyLoad {
	rng := rand.New(rand.NewPCG(seed, 8))
	s := &steadyLoad{instances: 1 + rng.IntN(8), isSkewed: rng.IntN(3) == 0, ratio: 0.5 + 0.45*rng.Float64(), maxCost: 1, requests: 3000}
	if rng.IntN(4) == 0 {
		s.maxCost = 3
	}
	limit := penstock.Limit{Name: "l", Algorithm: a, Count: int64(logUniform(rng, 100, 1500))}
	s.requests = max(s.requests, 5*int(limit.Count))
	limit.Period = logTime(rng, 300*time.Millisecond, 10*time.Second).Truncate(time.Millisecond)
	if a.Name() == penstock.TokenBucket.Name() {
		limit.Burst = int64(float64(limit.Count) * logUniform(rng, 0.1, 2))
	}
	s.limit = limit.MustCompile()
	s.lease = int64(logUniform(rng, 2, 300))
	if rng.IntN(3) == 0 {
		s.shards = 2 + rng.IntN(7)
		if limit.Burst > 0 && int64(s.shards) > limit.Burst/(4*s.maxCost) {
			s.shards = 0 // with fewer than 4 requests in the burst of a shard, Split itself denies more
		}
	}
	return s
}

var leasable = []*algorithm.Algorithm{
	penstock.TokenBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SubWindow(10),
	penstock.SubWindow(60),
}

// For traffic below a limit, a fleet with leases admits nearly as much as the store alone. No
// formula bounds how much a fleet loses, so the seeds of this test are known to pass.
func TestLeasesAdmitNearlyWhatTheStoreWould(t *testing.T) {
	t.Parallel()
	var loads []*steadyLoad
	for _, instances := range []int{1, 2, 4} {
		for _, perSecond := range []float64{150, 180, 210, 240} {
			// The period of the limit below has 10 sub-windows of 100 ms. Units become free one sub-window
			// later, so 300 units are admitted in 11 sub-windows.
			const longRun = 300 * 10.0 / 11 // units per second
			loads = append(loads, &steadyLoad{instances: instances, ratio: perSecond / longRun, maxCost: 1, requests: 3000, lease: 50,
				limit: penstock.Limit{Name: "l", Algorithm: penstock.SubWindow(10), Count: 300, Period: time.Second}.MustCompile()})
		}
	}
	each := effort.Of(2, 100) // random loads of each algorithm
	for _, a := range leasable {
		for range each {
			loads = append(loads, randomLoad(uint64(len(loads)), a))
		}
	}
	sums, worst := make([]yield, len(leasable)), make([]float64, len(leasable))
	for seed, s := range loads {
		var y yield
		synctest.Test(t, func(t *testing.T) { y = s.run(t, uint64(seed)) })
		if float64(y.admitted) < guard.LeaseUtilization*float64(y.alone) {
			t.Errorf("seed %d, %v: %d of %d units admitted; want at least %.0f %% of the %d that the store alone admits",
				seed, s, y.admitted, y.requested, 100*guard.LeaseUtilization, y.alone)
		}
		i := slices.Index(leasable, s.limit.Algorithm())
		if i < 0 {
			const subWindow10 = 5 // its index: SubWindow returns another pointer with each call
			i = subWindow10
		}
		sums[i].add(y)
		if lost := 1 - float64(y.admitted)/float64(y.alone); lost > worst[i] {
			worst[i] = lost
		}
	}
	var all yield
	for i, y := range sums {
		all.add(y)
		t.Logf("%s: %d units requested, %.2f %% of what the store alone admits, %.2f %% at worst, %.0f %% leased", leasable[i].Name(), y.requested,
			100*float64(y.admitted)/float64(y.alone), 100*(1-worst[i]), 100*float64(y.leased)/float64(y.admitted))
	}
	if all.leased*4 < all.admitted {
		t.Errorf("%d of %d units were leased; want at least a quarter", all.leased, all.admitted)
	}
	t.Logf("counted: %d loads of leased limits below their rate", len(loads))
}
