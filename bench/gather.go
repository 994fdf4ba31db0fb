package main

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// gatherSection compares a store whose callers go together with one that sends each by itself, one core for the client.
func gatherSection(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	var all []*caller
	for _, apart := range []bool{true, false} {
		store, err := redisstore.Open(server.URL(), redisstore.Options{Apart: apart})
		if err != nil {
			return err
		}
		defer store.Close()
		name := map[bool]string{true: "apart", false: "together"}[apart]
		c, err := ofStore(name, store)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	r.title("Gathering: decisions of callers that go together, beside the same store with each apart (%d windows, one core for the client)", clientRounds)
	r.row("keys", "goroutines", "", "decisions/s", "/ apart", "p50 µs", "p99 µs", "allocations")
	for _, load := range []struct {
		name  string
		names []string
		least float64
	}{{"distinct", names, 1.4}, {"hot", names[:1], 5}} {
		for _, goroutines := range []int{64, 512} {
			if err := takeTurns(all, goroutines, load.names); err != nil {
				return err
			}
			for _, c := range all {
				ratio := median(ratios(c.rates, all[0].rates))
				rates := slices.Sorted(slices.Values(c.rates))
				r.row(load.name, strconv.Itoa(goroutines), c.name, strconv.Itoa(int(rates[len(rates)*4/5])), number(ratio),
					number(median(c.p50)), number(median(c.p99)), number(median(c.allocs)))
			}
			r.atLeast(fmt.Sprintf("gather: %s keys, %d callers: decisions / apart", load.name, goroutines), median(ratios(all[1].rates, all[0].rates)), load.least)
			r.atMost(fmt.Sprintf("gather: %s keys, %d callers: p99 / apart", load.name, goroutines), median(ratios(all[1].p99, all[0].p99)), 1)
		}
	}
	return nil
}
