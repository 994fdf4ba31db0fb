package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/go-redis/redis_rate/v10"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// A caller decides one request of a key; goroutines call it at once.
type caller struct {
	name  string
	allow func(ctx context.Context, key string) error
	close func()

	rates, allocs []float64 // of each window, per second and per decision
	p50, p99      []float64 // of each window, µs
	took          [][]int64 // ns of the last window's decisions, by goroutine; memory that is used again
}

func (c *caller) reset() { c.rates, c.allocs, c.p50, c.p99 = nil, nil, nil, nil }

// limitOf allows the client's whole run.
const limitOf = 1_000_000

func callers(server *redistest.Server) ([]*caller, error) {
	pool := func() *redis.Client {
		return redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket, PoolSize: 64})
	}
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		return nil, err
	}
	own, err := ofStore("penstock", store)
	if err != nil {
		return nil, err
	}
	own.close = func() { _ = store.Close() }

	client := pool()
	if store, err = redisstore.New(goredis.New(client), redisstore.Options{Prefix: "gr"}); err != nil {
		return nil, err
	}
	adapted, err := ofStore("penstock over go-redis", store)
	if err != nil {
		return nil, err
	}
	adapted.close = func() { _ = client.Close() }

	peer := pool()
	limiter := redis_rate.NewLimiter(peer)
	limit := redis_rate.Limit{Rate: limitOf, Burst: limitOf, Period: 24 * time.Hour}
	return []*caller{{
		name: "redis_rate v10",
		allow: func(ctx context.Context, key string) error {
			_, err := limiter.Allow(ctx, key, limit)
			return err
		},
		close: func() { _ = peer.Close() },
	}, own, adapted}, nil
}

func ofStore(name string, store penstock.Store) (*caller, error) {
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerDay(limitOf))
	if err != nil {
		return nil, err
	}
	return &caller{name: name, allow: func(ctx context.Context, key string) error {
		_, err := limiter.Allow(ctx, key)
		return err
	}}, nil
}

// run lets so many goroutines decide as fast as they can, for about d, on keys that all differ. Of what is measured, little is the measuring: a
// goroutine reads the clock once per decision, and notes in a slice of its own.
func (c *caller) run(goroutines int, d time.Duration, names []string) error {
	var (
		wait     sync.WaitGroup
		stop     atomic.Bool
		failed   atomic.Value
		from, to runtime.MemStats
	)
	for len(c.took) < goroutines {
		c.took = append(c.took, make([]int64, 0, 1<<20/goroutines))
	}
	ops := make([]int64, goroutines)
	runtime.GC() // what the others left
	runtime.ReadMemStats(&from)
	time.AfterFunc(d, func() { stop.Store(true) })
	begin := time.Now()
	for g := range goroutines {
		wait.Go(func() {
			n, took := int64(0), c.took[g][:0]
			asked := time.Since(begin)
			for i := g; !stop.Load(); i += goroutines {
				if err := c.allow(context.Background(), names[i%len(names)]); err != nil {
					failed.CompareAndSwap(nil, failure{err})
					return
				}
				n++
				answered := time.Since(begin)
				if len(took) < cap(took) {
					took = append(took, int64(answered-asked))
				}
				asked = answered
			}
			ops[g], c.took[g] = n, took
		})
	}
	wait.Wait()
	took := time.Since(begin)
	runtime.ReadMemStats(&to)
	if f := failed.Load(); f != nil {
		return fmt.Errorf("%s: %w", c.name, f.(failure).error)
	}
	all := int64(0)
	h := hdrhistogram.New(1, 60_000_000, 3) // µs
	for g := range goroutines {
		all += ops[g]
		for _, ns := range c.took[g] {
			_ = h.RecordValue(ns / 1000)
		}
	}
	c.rates = append(c.rates, float64(all)/took.Seconds())
	c.p50 = append(c.p50, float64(h.ValueAtPercentile(50)))
	c.p99 = append(c.p99, float64(h.ValueAtPercentile(99)))
	c.allocs = append(c.allocs, float64(to.Mallocs-from.Mallocs)/float64(all))
	return nil
}

// A failure is an error of any type in an atomic.Value.
type failure struct{ error }

const (
	clientRounds = 9
	clientWindow = 250 * time.Millisecond
)

// takeTurns measures callers side by side, window by window, so that what disturbs one disturbs all.
func takeTurns(all []*caller, goroutines int, names []string) error {
	for round := range clientRounds + 1 {
		for _, c := range all {
			if round <= 1 { // the first connects
				c.reset()
			}
			if err := c.run(goroutines, clientWindow, names); err != nil {
				return err
			}
		}
	}
	return nil
}

// coldNames are the keys that the callers' decisions are spread over.
func coldNames() []string {
	names := make([]string, coldKeys)
	for i := range names {
		names[i] = key(i)
	}
	return names
}

func clientSection(r *report) error {
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	names := coldNames()
	all, err := callers(server)
	if err != nil {
		return err
	}
	for _, c := range all {
		defer c.close()
	}
	r.title("Client: decisions on distinct keys through the library (80th percentile of %d windows; ratio: median of windows side by side)", clientRounds)
	r.row("goroutines", "", "decisions/s", "/ redis_rate", "allocations")
	for _, goroutines := range []int{1, 64, 512} {
		if err := takeTurns(all, goroutines, names); err != nil {
			return err
		}
		peer := all[0]
		for i, c := range all {
			ratio := median(ratios(c.rates, peer.rates))
			rates := slices.Sorted(slices.Values(c.rates))
			r.row(strconv.Itoa(goroutines), c.name, strconv.Itoa(int(rates[len(rates)*4/5])), number(ratio), number(median(c.allocs)))
			if goroutines == 64 && i == 1 {
				r.atLeast("client: decisions per second / redis_rate, 64 goroutines", ratio, 1.7)
				r.atMost("client: allocations per decision, 64 goroutines", median(c.allocs), 2)
			}
		}
	}
	return nil
}

func ratios(a, b []float64) []float64 {
	list := make([]float64, len(a))
	for i := range a {
		list[i] = a[i] / b[i]
	}
	return list
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
