package main

import (
	"fmt"
	"math/rand"
	"runtime"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

const leaseSize = 100 // largest number of units in a lease

// leastWithLeases is the goal for many keys: the smallest ratio of decisions per second with leases
// to decisions per second without. It is below 1, because two measurements of the same load may
// differ by this much.
const leastWithLeases = 0.85

// A guardedStore is a store with guards, which is compared with a bare store.
type guardedStore struct {
	name string
	wrap wrapFunc

	// least is a goal: the smallest ratio of this store's rate to that of the bare store; 0: none.
	least float64
}

// A wrapFunc adds guards to a store. excess is how many requests of a key beyond the limit the
// guards may allow, in any time.
type wrapFunc func(bare *redisstore.Store, limit *penstock.Plan) (guarded penstock.Store, excess int64, end func())

// open returns a caller that uses the guarded store.
func (g guardedStore) open(server *redistest.Server, prefix string, limit *penstock.Plan) (*caller, error) {
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
	return guard.Deny(guard.DenyOptions{})(store), 0, func() {}
}

func wrapLease(store *redisstore.Store, limit *penstock.Plan) (penstock.Store, int64, func()) {
	g := newStandard(store, guard.Options{Timeout: longTimeout, Limits: settingsWithLease, DenyCacheTTL: -1})
	return g, leaseExcess(limit), g.Close
}

// leaseExcess returns how many units beyond the limit one instance with leases may admit.
func leaseExcess(limit *penstock.Plan) int64 {
	for _, b := range (guard.Options{Limits: settingsWithLease, Instances: 1}).Bounds(limit) {
		if b.When == "leased" {
			return b.MaxExcess
		}
	}
	return 0
}

func settingsWithLease(*penstock.Plan) guard.Settings { return guard.Settings{Lease: leaseSize} }

// longTimeout is a deadline that even a busy machine meets. With a shorter one, the benchmark would
// measure decisions of the fallback, which are fast.
var longTimeout = guard.TimeoutOptions{After: time.Second}

// wrapStandard adds guard.Standard with its defaults, except for the deadline. The defaults have no
// leases.
func wrapStandard(store *redisstore.Store, _ *penstock.Plan) (penstock.Store, int64, func()) {
	g := newStandard(store, guard.Options{Timeout: longTimeout})
	return g, 0, g.Close
}

// wrapLeasing adds guard.Standard with a lease for the limit.
func wrapLeasing(store *redisstore.Store, limit *penstock.Plan) (penstock.Store, int64, func()) {
	g := newStandard(store, guard.Options{Timeout: longTimeout, Limits: settingsWithLease})
	return g, leaseExcess(limit), g.Close
}

func newStandard(store *redisstore.Store, o guard.Options) *guard.Guarded {
	o.Server = store
	g, err := guard.Standard(store, o)
	if err != nil {
		panic(err)
	}
	return g
}

// zipf returns a list of random names with a Zipf distribution: the k-th name occurs in proportion
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
	hundred, million := penstock.PerSecond(100).MustCompile(), penstock.PerHour(3_600_000_000).MustCompile() // units per second
	r.beginTable("Guards: decisions through guards, compared with the bare store without coalescing (%d windows, one core for the client)", clientRounds)
	r.addRow(loadColumns...)
	for _, load := range []struct {
		name   string
		names  []string
		limit  *penstock.Plan
		window time.Duration
		guards []guardedStore
	}{
		{
			name: "over 100/s", names: names[:1], limit: hundred, window: clientWindow,
			guards: []guardedStore{{name: "deny", wrap: wrapDeny, least: 15}},
		},
		{
			name: "hot", names: names[:1], limit: million, window: clientWindow,
			guards: []guardedStore{{name: "lease of 100", wrap: wrapLease, least: 8}},
		},
		{
			name: "hot, 100k/s", names: names[:1], limit: penstock.PerSecond(100_000).MustCompile(), window: clientWindow,
			guards: []guardedStore{{name: "lease of 100", wrap: wrapLease}},
		},
		// Buckets are full when a window begins, unlike in continuous traffic. In a window of a second
		// they are partly used for most of the time.
		{
			name: "Zipf(1.1), 100/s", names: zipf(names), limit: hundred, window: time.Second,
			guards: []guardedStore{
				{name: "standard", wrap: wrapStandard, least: 2}, {name: "standard, leases", wrap: wrapLeasing},
			},
		},
	} {
		for _, goroutines := range []int{64, 512} {
			separate, coalesced, err := storePair(server, load.limit)
			if err != nil {
				return err
			}
			var guarded []*caller
			for i, g := range load.guards {
				c, err := g.open(server, fmt.Sprint("guarded", i), load.limit)
				if err != nil {
					return err
				}
				guarded = append(guarded, c)
			}
			all := append([]*caller{separate, coalesced}, guarded...)
			if err := takeTurns(all, goroutines, load.names, load.window); err != nil {
				return err
			}
			reportLoad(r, load.name, goroutines, all)
			for i, g := range load.guards {
				c := guarded[i]
				prefix := fmt.Sprintf("guards: %s, %s, %d callers: ", g.name, load.name, goroutines)
				if g.least > 0 {
					r.atLeast(prefix+"decisions / bare", median(ratios(c.rates, separate.rates)), g.least)
				}
				r.atMost(prefix+"over-admission", float64(slices.Max(c.over)), float64(c.excess))
			}
			// There is no goal for 64 callers, because other load of the machine affects their results
			// more.
			if len(guarded) == 2 && goroutines >= 512 {
				without, with := guarded[0], guarded[1] // leases
				ratio := median(ratios(with.rates, without.rates))
				r.atLeast(fmt.Sprintf("guards: %s, %d callers: decisions with leases / without", load.name, goroutines), ratio, leastWithLeases)
			}
			for _, c := range all {
				c.close()
			}
		}
	}
	return measureUtilization(r, server)
}
