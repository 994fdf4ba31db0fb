package main

import (
	"context"
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

const leased = 100 // largest number of units in a lease

// leastWithLeases is the goal for many keys: the smallest ratio of decisions per second with leases
// to decisions per second without. It is below 1, because two measurements of the same load may
// differ by this much.
const leastWithLeases = 0.85

// A guardedStore is a store with guards, which is compared with a bare store.
type guardedStore struct {
	name  string
	wrap  func(*redisstore.Store, *penstock.Plan) (store penstock.Store, excess int64, end func()) // excess: see caller
	least float64                                                                                  // goal: smallest ratio of its rate to that of the bare store; 0: none
}

func (g guardedStore) caller(server *redistest.Server, prefix string, limit *penstock.Plan) (*caller, error) {
	inner, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	store, excess, end := g.wrap(inner, limit)
	c, err := storeCaller(g.name, store, limit)
	if err != nil {
		return nil, err
	}
	c.excess = excess
	c.close = func() {
		end()
		_ = inner.Close()
	}
	return c, nil
}

func wrapDeny(store *redisstore.Store, _ *penstock.Plan) (penstock.Store, int64, func()) {
	return guard.NewDenyCache(store, guard.DenyOptions{}), 0, func() {}
}

func wrapLease(store *redisstore.Store, limit *penstock.Plan) (penstock.Store, int64, func()) {
	o := guard.LeaseOptions{Limits: leases}
	l := guard.NewLease(store, o)
	return l, o.Excess(limit), func() { _ = l.Close(context.Background()) }
}

func leases(*penstock.Plan) guard.Settings { return guard.Settings{Lease: leased} }

// patient is a deadline that even a busy machine meets. With a shorter one, the benchmark would
// measure decisions of the fallback, which are fast.
var patient = guard.TimeoutOptions{After: time.Second}

// wrapStandard adds guard.Standard with its defaults, except for the deadline. It leases nothing.
func wrapStandard(store *redisstore.Store, _ *penstock.Plan) (penstock.Store, int64, func()) {
	g := standardWith(store, guard.Options{Timeout: patient})
	return g, 0, g.Close
}

// wrapLeasing adds guard.Standard with a lease for the limit.
func wrapLeasing(store *redisstore.Store, limit *penstock.Plan) (penstock.Store, int64, func()) {
	g := standardWith(store, guard.Options{Timeout: patient, Limits: leases})
	return g, guard.LeaseOptions{Limits: leases}.Excess(limit), g.Close
}

func standardWith(store *redisstore.Store, o guard.Options) *guard.Guarded {
	o.Server = store
	g, err := guard.Standard(store, o)
	if err != nil {
		panic(err)
	}
	return g
}

// zipf returns a list in which names have a Zipf distribution: the k-th name occurs in proportion
// to 1/k^1.1.
func zipf(names []string) []string {
	z := rand.NewZipf(rand.New(rand.NewSource(1)), 1.1, 1, uint64(len(names)-1))
	list := make([]string, 1<<17) // long enough that a repetition does not matter
	for i := range list {
		list[i] = names[z.Uint64()]
	}
	return list
}

// guardsSection compares stores with guards to a bare store, with one core for the client. The bare
// store does not coalesce; the stores with guards do, by default.
func guardsSection(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	hundred, plenty := penstock.PerSecond(100).MustCompile(), penstock.PerHour(3_600_000_000).MustCompile()
	r.title("Guards: decisions through guards, compared with the bare store without coalescing (%d windows, one core for the client)", clientRounds)
	r.row(loadColumns...)
	for _, load := range []struct {
		name   string
		names  []string
		limit  *penstock.Plan
		window time.Duration
		guards []guardedStore
	}{
		{"over 100/s", names[:1], hundred, clientWindow, []guardedStore{{name: "deny", wrap: wrapDeny, least: 15}}},
		{"hot", names[:1], plenty, clientWindow, []guardedStore{{name: "lease of 100", wrap: wrapLease, least: 8}}},
		{"hot, 100k/s", names[:1], penstock.PerSecond(100_000).MustCompile(), clientWindow, []guardedStore{{name: "lease of 100", wrap: wrapLease}}},
		// Buckets are full when a window begins, unlike in continuous traffic. In a window of a second
		// they are partly used for most of the time.
		{"Zipf(1.1), 100/s", zipf(names), hundred, time.Second, []guardedStore{
			{name: "standard", wrap: wrapStandard, least: 2}, {name: "standard, leases", wrap: wrapLeasing},
		}},
	} {
		for _, goroutines := range []int{64, 512} {
			separate, coalesced, err := storePair(server, load.limit)
			if err != nil {
				return err
			}
			all := []*caller{separate, coalesced}
			for i, g := range load.guards {
				c, err := g.caller(server, fmt.Sprint("guarded", i), load.limit)
				if err != nil {
					return err
				}
				all = append(all, c)
			}
			if err := takeTurns(all, goroutines, load.names, load.window); err != nil {
				return err
			}
			reportLoad(r, load.name, goroutines, all)
			for i, g := range load.guards {
				c := all[2+i]
				what := fmt.Sprintf("guards: %s, %s, %d callers: ", g.name, load.name, goroutines)
				if g.least > 0 {
					r.atLeast(what+"decisions / bare", median(ratios(c.rates, separate.rates)), g.least)
				}
				r.atMost(what+"over-admission", float64(slices.Max(c.over)), float64(c.excess))
			}
			// The last store has leases, and the store before it has none. Few callers have no goal
			// here, because other load of the machine affects their results more.
			if n := len(load.guards); n > 1 && goroutines >= 512 {
				ratio := median(ratios(all[1+n].rates, all[n].rates))
				r.atLeast(fmt.Sprintf("guards: %s, %d callers: decisions with leases / without", load.name, goroutines), ratio, leastWithLeases)
			}
			for _, c := range all {
				c.close()
			}
		}
	}
	return utilization(r, server)
}
