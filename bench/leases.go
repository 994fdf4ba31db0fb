package main

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

const (
	steadyCount = 300 // units per second of the limits whose utilization is measured
	steadyLease = 50  // units of a lease
	steadyTime  = 5 * time.Second
)

// A steadyLoad is random traffic with one key to several instances. Its rate is below the key's
// limit. The same requests also go to a store without guards.
type steadyLoad struct {
	limit     *penstock.Plan
	instances int // number of instances
	perSecond int // mean number of requests per second

	requested atomic.Int64
	alone     atomic.Int64 // admitted by the store without guards
	admitted  atomic.Int64 // admitted by the instances
	leased    atomic.Int64 // decided by the instances, from leases
}

// run sends requests for steadyTime, at random times. Each goes to the store alone, which has no
// guards, and to a random instance. run does not wait for one request before it sends the next.
func (s *steadyLoad) run(alone penstock.Store, instances []penstock.Store, seed int64) error {
	var requests sync.WaitGroup
	var failed atomic.Pointer[error]
	rng := rand.New(rand.NewSource(seed))
	charges := []penstock.Charge{{Key: fmt.Sprint("steady", seed), Plan: s.limit, Cost: 1}}
	decide := func(store penstock.Store, granted *atomic.Int64) {
		d, err := store.Decide(context.Background(), charges)
		if err != nil {
			failed.Store(&err)
		} else if d.Allowed {
			granted.Add(1)
		}
		if d.Source == penstock.FromLease {
			s.leased.Add(1)
		}
	}
	begin := time.Now()
	randomPause := func() time.Duration { // with an exponential distribution, as in random traffic
		seconds := rng.ExpFloat64() / float64(s.perSecond)
		return time.Duration(seconds * float64(time.Second))
	}
	for at := time.Duration(0); at < steadyTime; at += randomPause() {
		time.Sleep(time.Until(begin.Add(at)))
		s.requested.Add(1)
		requests.Go(func() { decide(alone, &s.alone) })
		store := instances[rng.Intn(len(instances))]
		requests.Go(func() { decide(store, &s.admitted) })
	}
	requests.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// A steadyLimit is a limit whose utilization is measured: how much of the traffic below the limit
// it admits.
type steadyLimit struct {
	name  string
	limit *penstock.Plan
}

func steadyLimits() []steadyLimit {
	limit := penstock.PerSecond(steadyCount).WithName("steady")
	return []steadyLimit{
		{"token bucket", limit.MustCompile()},
		{"fixed window", limit.With(penstock.FixedWindow).MustCompile()},
		{"sliding window", limit.With(penstock.SlidingWindow).MustCompile()},
		{"sub-window of 10 parts", limit.With(penstock.SubWindow(10)).MustCompile()},
	}
}

// measureUtilization measures how much of the traffic below a limit is admitted with leases,
// compared to a store without guards. Each load has its own key. The loads with the same rate run
// at the same time.
func measureUtilization(r *report, server *redistest.Server) error {
	alone, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: "alone"})
	if err != nil {
		return err
	}
	defer alone.Close()
	settings := func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: steadyLease} }
	fleets := map[int][]penstock.Store{} // the stores of n instances, by n
	for _, n := range []int{1, 4} {
		for range n {
			store, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: fmt.Sprint("fleet", n)})
			if err != nil {
				return err
			}
			defer store.Close()
			g := newStandard(store, guard.Options{Timeout: longTimeout, Limits: settings, Instances: n})
			defer g.Close()
			fleets[n] = append(fleets[n], g)
		}
	}
	kinds := steadyLimits()
	for _, kind := range kinds { // the first decisions open the connections
		charges := []penstock.Charge{{Key: "first", Plan: kind.limit, Cost: 1}}
		for _, store := range slices.Concat([]penstock.Store{alone}, fleets[1], fleets[4]) {
			if _, err := store.Decide(context.Background(), charges); err != nil {
				return err
			}
		}
	}
	loads, err := runSteadyLoads(kinds, alone, fleets)
	if err != nil {
		return err
	}
	reportUtilization(r, kinds, loads)
	return nil
}

// runSteadyLoads runs a load for each limit, each fleet and each of three rates. It runs the loads
// of one rate at the same time.
func runSteadyLoads(kinds []steadyLimit, alone penstock.Store, fleets map[int][]penstock.Store) (loads []*steadyLoad, err error) {
	for _, perSecond := range []int{150, 210, 240} { // 50, 70 and 80 % of steadyCount
		var simultaneous []*steadyLoad
		for _, kind := range kinds {
			for n := range fleets {
				simultaneous = append(simultaneous, &steadyLoad{limit: kind.limit, instances: n, perSecond: perSecond})
			}
		}
		errs := make(chan error, len(simultaneous))
		for _, s := range simultaneous {
			loads = append(loads, s)
			seed := int64(len(loads)) // also makes the key
			go func() { errs <- s.run(alone, fleets[s.instances], seed) }()
		}
		for range simultaneous {
			if err := <-errs; err != nil {
				return nil, err
			}
		}
	}
	return loads, nil
}

func reportUtilization(r *report, kinds []steadyLimit, loads []*steadyLoad) {
	r.beginTable("Leases of %d units for limits of %d/s, with traffic below the limit: requests that the instances admit, and that the store alone admits",
		steadyLease, steadyCount)
	r.addRow("algorithm", "instances", "offered/s", "requests", "store %", "leases %", "leased %", "leases / store")
	for _, kind := range kinds {
		worst := 1.0
		for _, s := range loads {
			if s.limit.Algorithm() != kind.limit.Algorithm() {
				continue
			}
			share := func(n int64) string { return number(100 * float64(n) / float64(s.requested.Load())) }
			ratio := float64(s.admitted.Load()) / float64(s.alone.Load())
			worst = min(worst, ratio)
			r.addRow(kind.name, strconv.Itoa(s.instances), strconv.Itoa(s.perSecond), strconv.FormatInt(s.requested.Load(), 10), share(s.alone.Load()),
				share(s.admitted.Load()), share(s.leased.Load()), number(ratio))
		}
		r.atLeast("guards: utilization of leases, "+kind.name+": admitted / by the store alone", worst, guard.LeaseUtilization)
	}
}
