package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// coalescingSection compares a store that coalesces calls with one that sends each call separately,
// with one core for the client.
func coalescingSection(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	r.beginTable("Coalescing: decisions in shared scripts, compared with a script for each (%d windows, one core for the client)", clientRounds)
	r.addRow(loadColumns...)
	for _, load := range []struct {
		name      string
		names     []string
		limit     *penstock.Plan
		leastRate float64 // goal: smallest ratio to the rate of separate scripts; 0: no goals
		mostP99   float64 // goal: largest ratio to the p99 of separate scripts
	}{
		{name: "distinct", names: names, limit: penstock.PerDay(ampleLimit).MustCompile(), leastRate: 2.4, mostP99: 0.5},
		// All requests are allowed. A unit refills in a whole number of µs, so the script decides many
		// calls in one step.
		{name: "hot", names: names[:1], limit: penstock.PerHour(3_600_000_000).MustCompile(), leastRate: 5, mostP99: 1},
		// A unit refills in a fraction of a µs, so the script decides each call separately.
		{name: "hot, uneven", names: names[:1], limit: penstock.PerHour(7_000_000_000).MustCompile()},
		// Nearly all requests are denied.
		{name: "hot, over", names: names[:1], limit: penstock.PerSecond(1000).MustCompile()},
	} {
		for _, goroutines := range []int{64, 512} {
			separate, coalesced, err := storePair(server, load.limit)
			if err != nil {
				return err
			}
			all := []*caller{separate, coalesced}
			if err := takeTurns(all, goroutines, load.names, clientWindow); err != nil {
				return err
			}
			reportLoad(r, load.name, goroutines, all)
			prefix := fmt.Sprintf("coalescing: %s, %d callers: ", load.name, goroutines)
			if load.leastRate > 0 {
				r.atLeast(prefix+"decisions / separate", median(ratios(coalesced.rates, separate.rates)), load.leastRate)
				r.atMost(prefix+"p99 / separate", median(ratios(coalesced.p99, separate.p99)), load.mostP99)
			}
			r.atMost(prefix+"over-admission", float64(slices.Max(coalesced.over)), 0)
			for _, c := range all {
				c.close()
			}
		}
	}
	return nil
}

// storePair returns a caller of a store that sends each batch in a separate script, and a caller of
// the default store, which coalesces. The stores share no counters.
func storePair(server *redistest.Server, limit *penstock.Plan) (separate, coalesced *caller, err error) {
	if separate, err = separateCaller(server, limit); err != nil {
		return nil, nil, err
	}
	coalesced, err = redisCaller("coalesced", server, redisstore.Options{Prefix: "coalesced"}, limit)
	return separate, coalesced, err
}

// separateCaller returns a caller with a store for each goroutine, over one client. So no two
// goroutines share a script.
func separateCaller(server *redistest.Server, limit *penstock.Plan) (*caller, error) {
	client, err := redisstore.Dial(server.URL())
	if err != nil {
		return nil, err
	}
	idle := make(chan *redisstore.Store, 512) // the largest number of goroutines
	for range cap(idle) {
		store, err := redisstore.New(client, redisstore.Options{Prefix: "separate"})
		if err != nil {
			return nil, err
		}
		idle <- store
	}
	each := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		store := <-idle
		defer func() { idle <- store }()
		return store.Decide(ctx, charges)
	})
	c, err := storeCaller("separate", each, limit)
	if err != nil {
		return nil, err
	}
	c.close = func() { _ = client.Close() }
	return c, nil
}

func redisCaller(name string, server *redistest.Server, o redisstore.Options, limit *penstock.Plan) (*caller, error) {
	store, err := redisstore.Open(server.URL(), o)
	if err != nil {
		return nil, err
	}
	c, err := storeCaller(name, store, limit)
	if err != nil {
		return nil, err
	}
	c.close = func() { _ = store.Close() }
	return c, nil
}

var loadColumns = []string{"keys", "callers", "", "decisions/s", "/ first", "p50 µs", "p99 µs", "allocations", "allowed %", "over-admitted", "fallback"}

// reportLoad prints the results of callers under a load, and their ratio to those of the first
// caller.
func reportLoad(r *report, name string, goroutines int, all []*caller) {
	for _, c := range all {
		r.addRow(name, strconv.Itoa(goroutines), c.name, strconv.Itoa(int(percentile(c.rates, 80))), number(median(ratios(c.rates, all[0].rates))),
			number(median(c.p50)), number(median(c.p99)), number(median(c.allocs)), number(100*median(c.allowed)),
			strconv.FormatInt(slices.Max(c.over), 10), strconv.FormatInt(c.withoutStore.Load(), 10))
	}
}
