package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// gatherSection compares a store that coalesces calls with one that sends each call separately,
// with one core for the client.
func gatherSection(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	r.title("Gathering: decisions of callers that go together, beside the same store with each apart (%d windows, one core for the client)", clientRounds)
	r.row(loadColumns...)
	for _, load := range []struct {
		name        string
		names       []string
		limit       *penstock.Plan
		least, p99s float64
	}{
		{"distinct", names, penstock.PerDay(limitOf).MustCompile(), 1.4, 1},
		{"hot", names[:1], penstock.PerHour(3_600_000_000).MustCompile(), 5, 1},         // all are allowed, their resets in equal steps
		{"hot, uneven", names[:1], penstock.PerHour(7_000_000_000).MustCompile(), 0, 0}, // resets in steps that differ: decided one by one
		{"hot, over", names[:1], penstock.PerSecond(1000).MustCompile(), 0, 0},          // nearly all are denied
	} {
		for _, goroutines := range []int{64, 512} {
			apart, together, err := bareStores(server, load.limit)
			if err != nil {
				return err
			}
			all := []*caller{apart, together}
			if err := takeTurns(all, goroutines, load.names, clientWindow); err != nil {
				return err
			}
			reportLoad(r, load.name, goroutines, all)
			what := fmt.Sprintf("gather: %s, %d callers: ", load.name, goroutines)
			if load.least > 0 {
				r.atLeast(what+"decisions / apart", median(ratios(together.rates, apart.rates)), load.least)
				r.atMost(what+"p99 / apart", median(ratios(together.p99, apart.p99)), load.p99s)
			}
			r.atMost(what+"over-admission", float64(slices.Max(together.over)), 0)
			for _, c := range all {
				c.close()
			}
		}
	}
	return nil
}

// bareStores returns a store that sends each batch in a script of its own, and the default one,
// which coalesces. They share no counters.
func bareStores(server *redistest.Server, limit *penstock.Plan) (apart, together *caller, err error) {
	if apart, err = uncoalesced(server, limit); err != nil {
		return nil, nil, err
	}
	together, err = ofOptions("together", server, redisstore.Options{Prefix: "together"}, limit)
	return apart, together, err
}

// uncoalesced has a store for each caller, over one client: none finds others to share a script
// with.
func uncoalesced(server *redistest.Server, limit *penstock.Plan) (*caller, error) {
	option, err := redisstore.ParseURL(server.URL())
	if err != nil {
		return nil, err
	}
	client := redisstore.Dial(option)
	idle := make(chan *redisstore.Store, 512)
	for range cap(idle) {
		store, err := redisstore.New(client, redisstore.Options{Prefix: "apart"})
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
	c, err := ofStore("apart", each, limit)
	if err != nil {
		return nil, err
	}
	c.close = func() { _ = client.Close() }
	return c, nil
}

func ofOptions(name string, server *redistest.Server, o redisstore.Options, limit *penstock.Plan) (*caller, error) {
	store, err := redisstore.Open(server.URL(), o)
	if err != nil {
		return nil, err
	}
	c, err := ofStore(name, store, limit)
	if err != nil {
		return nil, err
	}
	c.close = func() { _ = store.Close() }
	return c, nil
}

var loadColumns = []string{"keys", "callers", "", "decisions/s", "/ first", "p50 µs", "p99 µs", "allocations", "allowed %", "over-admitted", "fallback"}

// reportLoad prints what callers did under a load, the first being what the others are compared
// with.
func reportLoad(r *report, name string, goroutines int, all []*caller) {
	for _, c := range all {
		rates := slices.Sorted(slices.Values(c.rates))
		r.row(name, strconv.Itoa(goroutines), c.name, strconv.Itoa(int(rates[len(rates)*4/5])), number(median(ratios(c.rates, all[0].rates))),
			number(median(c.p50)), number(median(c.p99)), number(median(c.allocs)), number(100*median(c.allowed)),
			strconv.FormatInt(slices.Max(c.over), 10), strconv.FormatInt(c.aside.Load(), 10))
	}
}
