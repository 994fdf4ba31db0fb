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
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// A caller makes decisions with one library. Many goroutines call its allow at the same time.
type caller struct {
	name  string
	allow func(ctx context.Context, key string) (allowed bool, err error)
	bound func(d time.Duration) int64 // how many requests of a key the limit allows within d
	close func()

	excess int64 // how many requests of a key beyond bound the guards may allow, in any time

	// The results, with an item for each window.
	rates    []float64                                      // decisions per second
	allocs   []float64                                      // allocations per decision
	ticks    func(every time.Duration) (await, stop func()) // of paced windows; nil: startTicks
	late     []float64                                      // µs: the 99th percentile of how late the load was, in paced windows
	p50, p99 []float64                                      // µs per decision
	over     []int64                                        // requests that were allowed beyond the bounds of their keys
	allowed  []float64                                      // ratio of allowed requests to all requests

	withoutStore atomic.Int64 // requests that a fallback decided, because the store was too slow

	// The last window. The next one reuses the memory.
	latencies [][]int64      // ns of each decision, by goroutine
	admitted  []atomic.Int32 // how many requests were allowed, by index in names
}

// reset drops the results.
func (c *caller) reset() {
	c.rates, c.allocs, c.p50, c.p99, c.late, c.over, c.allowed = nil, nil, nil, nil, nil, nil, nil
}

// ampleLimit is a limit per day that allows all requests of a run.
const ampleLimit = 1_000_000

// openCallers returns callers of redis_rate, Penstock, and Penstock over go-redis, in this order.
func openCallers(server *redistest.Server) ([]*caller, error) {
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		return nil, err
	}
	own, err := storeCaller("penstock", store, penstock.PerDay(ampleLimit).MustCompile())
	if err != nil {
		return nil, err
	}
	own.close = func() { _ = store.Close() }

	client := pooled(server)
	if store, err = redisstore.New(goredis.New(client), redisstore.Options{Prefix: "gr"}); err != nil {
		return nil, err
	}
	adapted, err := storeCaller("penstock over go-redis", store, penstock.PerDay(ampleLimit).MustCompile())
	if err != nil {
		return nil, err
	}
	adapted.close = func() { _ = client.Close() }

	peer, err := redisRateCaller(pooled(server), redis_rate.Limit{Rate: ampleLimit, Burst: ampleLimit, Period: 24 * time.Hour})
	return []*caller{peer, own, adapted}, err
}

func redisRateCaller(client *redis.Client, limit redis_rate.Limit) (*caller, error) {
	limiter := redis_rate.NewLimiter(client)
	return &caller{
		name: "redis_rate v10",
		allow: func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Allow(ctx, key, limit)
			return err == nil && r.Allowed > 0, err
		},
		bound: bucketBound(int64(limit.Burst), int64(limit.Rate), limit.Period),
		close: func() { _ = client.Close() },
	}, nil
}

// storeCaller returns a caller that uses a limit in a store.
func storeCaller(name string, store penstock.Store, limit *penstock.Plan) (*caller, error) {
	limiter, err := penstock.NewLimiter(store, "search", limit.Limit())
	if err != nil {
		return nil, err
	}
	c := &caller{name: name, bound: bucketBound(limit.Limit().Count, limit.Limit().Count, limit.Limit().Period), close: func() {}}
	c.allow = func(ctx context.Context, key string) (bool, error) {
		d, err := limiter.Allow(ctx, key)
		if d.Source == penstock.FromFallback {
			c.withoutStore.Add(1)
		}
		return d.Allowed, err
	}
	return c, nil
}

// bucketBound returns a function that returns how many units a token bucket can allow within d.
func bucketBound(burst, count int64, period time.Duration) func(time.Duration) int64 {
	return func(d time.Duration) int64 { return burst + int64(float64(count)*d.Seconds()/period.Seconds()) }
}

// run makes decisions in several goroutines, as fast as possible, for about d. Together the
// goroutines use the names in turn. The measurement takes little time: a goroutine reads the clock
// once per decision, and writes to its own slice.
func (c *caller) run(goroutines int, d time.Duration, names []string) error {
	return c.runPaced(goroutines, 0, d, names)
}

// runPaced is run with an open load: a decision is due each time that pace has passed, and the
// goroutines take turns. The time of a decision counts from when it was due, so it includes the
// wait for a slow previous decision. A pace of 0 means that each goroutine decides as fast as it
// can.
func (c *caller) runPaced(goroutines int, pace, d time.Duration, names []string) error {
	var (
		wait   sync.WaitGroup
		stop   atomic.Bool
		failed atomic.Value
		before runtime.MemStats
		after  runtime.MemStats
	)
	for len(c.latencies) < goroutines {
		c.latencies = append(c.latencies, make([]int64, 0, 1<<20/goroutines)) // more decisions than a window has
	}
	if len(c.admitted) != len(names) {
		c.admitted = make([]atomic.Int32, len(names))
	}
	for i := range c.admitted {
		c.admitted[i].Store(0)
	}
	decisions := make([]int64, goroutines)
	runtime.GC() // otherwise this window would collect the garbage of other callers
	runtime.ReadMemStats(&before)
	begin := time.Now()
	var (
		turns []chan time.Duration
		late  *hdrhistogram.Histogram
	)
	if pace > 0 {
		turns, late = startPacer(c.ticks, begin, goroutines, pace, d)
	} else {
		time.AfterFunc(d, func() { stop.Store(true) })
	}
	for g := range goroutines {
		wait.Go(func() {
			n, latencies := int64(0), c.latencies[g][:0]
			sent := time.Since(begin)
			for i := g; ; i += goroutines {
				if turns == nil {
					if stop.Load() {
						break
					}
				} else if due, ok := <-turns[g]; ok {
					sent = due
				} else {
					break
				}
				allowed, err := c.allow(context.Background(), names[i%len(names)])
				if err != nil {
					failed.CompareAndSwap(nil, failure{err})
					return
				}
				n++
				if allowed {
					c.admitted[i%len(names)].Add(1)
				}
				answered := time.Since(begin)
				if (turns == nil || sent > paceWarmup) && len(latencies) < cap(latencies) {
					latencies = append(latencies, int64(answered-sent))
				}
				sent = answered // from here on, the next request counts
			}
			decisions[g], c.latencies[g] = n, latencies
		})
	}
	wait.Wait()
	elapsed := time.Since(begin)
	runtime.ReadMemStats(&after)
	if f := failed.Load(); f != nil {
		return fmt.Errorf("%s: %w", c.name, f.(failure).error)
	}
	all := int64(0)
	latencies := hdrhistogram.New(1, time.Minute.Nanoseconds(), 3) // from 1 ns to a minute, with 3 digits
	for g := range goroutines {
		all += decisions[g]
		for _, ns := range c.latencies[g] {
			_ = latencies.RecordValue(ns)
		}
	}
	c.rates = append(c.rates, float64(all)/elapsed.Seconds())
	c.p50 = append(c.p50, float64(latencies.ValueAtPercentile(50))/1000)
	c.p99 = append(c.p99, float64(latencies.ValueAtPercentile(99))/1000)
	if late != nil {
		c.late = append(c.late, float64(late.ValueAtPercentile(99))/1000)
	}
	c.allocs = append(c.allocs, float64(after.Mallocs-before.Mallocs)/float64(all))
	allowed, over := c.countAllowed(names, elapsed)
	c.allowed = append(c.allowed, float64(allowed)/float64(all))
	c.over = append(c.over, over)
	return nil
}

// startPacer returns a channel for each goroutine. It sends the times at which decisions are due,
// from begin on, one each time that pace has passed, to the channels in turn. Every 100 µs it sends
// those that have become due: a timer for each decision would cost more than the decision. It never
// waits for a receiver. After d it closes the channels. Then late has how late each time was sent,
// in ns.
func startPacer(ticks func(time.Duration) (await, stop func()), begin time.Time, goroutines int, pace, d time.Duration) (turns []chan time.Duration, late *hdrhistogram.Histogram) {
	late = hdrhistogram.New(1, time.Minute.Nanoseconds(), 3) // from 1 ns to a minute, with 3 digits
	turns = make([]chan time.Duration, goroutines)
	for g := range turns {
		turns[g] = make(chan time.Duration, int(d/pace)/goroutines+1) // room for all
	}
	if ticks == nil {
		ticks = startTicks
	}
	awaitTick, stopTicks := ticks(100 * time.Microsecond)
	go func() {
		for n := 0; ; awaitTick() {
			now := min(time.Since(begin), d-1)
			for ; time.Duration(n)*pace <= now; n++ {
				due := time.Duration(n) * pace
				_ = late.RecordValue(int64(now - due))
				turns[n%goroutines] <- due
			}
			if now == d-1 {
				break
			}
		}
		stopTicks()
		for _, turn := range turns {
			close(turn)
		}
	}()
	return turns, late
}

// countAllowed returns how many requests the last window allowed, and how many of these were beyond
// what the limits of their keys allow within d.
func (c *caller) countAllowed(names []string, d time.Duration) (allowed, over int64) {
	byKey := make(map[string]int64, len(names)) // a key may be in names several times
	for i := range c.admitted {
		if n := int64(c.admitted[i].Load()); n > 0 {
			byKey[names[i]] += n
			allowed += n
		}
	}
	bound := c.bound(d)
	for _, n := range byKey {
		over += max(n-bound, 0)
	}
	return allowed, over
}

// A failure wraps an error. An atomic.Value needs it: all its values must have one type.
type failure struct{ error }

const (
	clientRounds = 9 // windows of each caller
	clientWindow = 250 * time.Millisecond
)

// takeTurns measures callers in turn, window by window. So the load of other programs affects all
// callers in the same way.
func takeTurns(all []*caller, goroutines int, names []string, window time.Duration) error {
	for round := range clientRounds + 1 {
		for _, c := range all {
			if round <= 1 { // drop the results of another load, and those of round 0, which opens connections
				c.reset()
			}
			if err := c.run(goroutines, window, names); err != nil {
				return err
			}
		}
	}
	return nil
}

// coldNames returns all cold keys.
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
	all, err := openCallers(server)
	if err != nil {
		return err
	}
	for _, c := range all {
		defer c.close()
	}
	r.beginTable("Client: decisions on distinct keys through the library (80th percentile of %d windows; ratio: median of windows side by side)", clientRounds)
	r.addRow("goroutines", "", "decisions/s", "/ redis_rate", "allocations")
	for _, goroutines := range []int{1, 64, 512} {
		if err := takeTurns(all, goroutines, names, clientWindow); err != nil {
			return err
		}
		peer, own := all[0], all[1]
		for _, c := range all {
			ratio := median(ratios(c.rates, peer.rates))
			r.addRow(strconv.Itoa(goroutines), c.name, strconv.Itoa(int(percentile(c.rates, 80))), number(ratio), number(median(c.allocs)))
			if goroutines == 64 && c == own {
				r.atLeast("client: decisions per second / redis_rate, 64 goroutines", ratio, 5)
				r.atMost("client: allocations per decision, 64 goroutines", median(c.allocs), 2)
			}
		}
	}
	return nil
}

// ratios returns the ratio of each window of a to the same window of b.
func ratios(a, b []float64) []float64 {
	list := make([]float64, len(a))
	for i := range a {
		list[i] = a[i] / b[i]
	}
	return list
}

func median(list []float64) float64 { return percentile(list, 50) }

func percentile(list []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)*percent/100]
}
