package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
	"github.com/sethvargo/go-limiter/memorystore"
)

const (
	memoryRounds = 60     // windows of each limiter
	memoryOps    = 50_000 // decisions of a thread in a window
	manyKeys     = 1_000_000
)

// A memory is a limiter with its counters in this process.
type memory struct {
	name      string
	newCaller func() func(ctx context.Context, key string) // returns a function for one goroutine
	close     func()
}

// penstockMemory calls the store directly, without a Limiter, like Take of go-limiter. All limits
// here grant every request, and their state does not expire during a run.
func penstockMemory(count int64) (*memory, error) {
	store := memstore.New(memstore.Options{})
	limit, err := penstock.PerDay(count).Compile()
	if err != nil {
		return nil, err
	}
	return &memory{"penstock memstore", func() func(context.Context, string) {
		charges := []penstock.Charge{{Plan: limit, Cost: 1}}
		return func(ctx context.Context, key string) {
			charges[0].Key = key
			if d, err := store.Decide(ctx, charges); err != nil || !d.Allowed {
				panic("a limit with room denied a request")
			}
		}
	}, func() {}}, nil
}

// limiterMemory calls the store through a Limiter.
func limiterMemory(count int64) (*memory, error) {
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "search", penstock.PerDay(count))
	if err != nil {
		return nil, err
	}
	allow := func(ctx context.Context, key string) {
		if d, err := limiter.Allow(ctx, key); err != nil || !d.Allowed {
			panic("a limit with room denied a request")
		}
	}
	return &memory{"penstock limiter", func() func(context.Context, string) { return allow }, func() {}}, nil
}

func goLimiterMemory(count int64) (*memory, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(count), Interval: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	take := func(ctx context.Context, key string) {
		if _, _, _, ok, err := store.Take(ctx, key); err != nil || !ok {
			panic("a limit with room denied a request")
		}
	}
	return &memory{"go-limiter memorystore", func() func(context.Context, string) { return take }, func() { _ = store.Close(context.Background()) }}, nil
}

// measure returns how many ns a decision takes while several threads make decisions.
func (m *memory) measure(threads int, names []string) float64 {
	var wait sync.WaitGroup
	begin := time.Now()
	for range threads {
		wait.Go(func() {
			allow := m.newCaller()
			i := rand.IntN(len(names))
			for range memoryOps {
				allow(context.Background(), names[i])
				if i++; i == len(names) {
					i = 0
				}
			}
		})
	}
	wait.Wait()
	return float64(time.Since(begin).Nanoseconds()) / memoryOps
}

func memstoreSection(r *report) error {
	names := make([]string, manyKeys)
	for i := range names {
		names[i] = "client:" + strconv.Itoa(1_000_000+i)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })

	r.title("Memstore: decisions in this process (median of %d windows, taken in pairs)", memoryRounds)
	r.row("", "store ns", "limiter ns", "go-limiter ns", "store / go-limiter", "limiter / go-limiter")
	for _, c := range []struct {
		name    string
		threads int
		names   []string
	}{
		{"hot key, 1 thread", 1, names[:1]},
		{"hot key, 2 threads", 2, names[:1]},
		{"1,000,000 keys, 1 thread", 1, names},
		{"1,000,000 keys, 2 threads", 2, names},
	} {
		store, limiter, peer, err := memoryRows(c.threads, c.names)
		if err != nil {
			return err
		}
		ratio := median(ratios(limiter, peer))
		r.row(c.name, number(median(store)), number(median(limiter)), number(median(peer)), number(median(ratios(store, peer))), number(ratio))
		if c.threads == 1 && len(c.names) == 1 {
			r.atMost("memstore: ns per Allow / Take of go-limiter, hot key", ratio, 1)
		}
	}
	return memoryFootprint(r, names)
}

// memoryRows measures all three limiters in turn.
func memoryRows(threads int, names []string) (store, limiter, peer []float64, err error) {
	count := int64(10 * memoryRounds * memoryOps / len(names)) // more than all decisions on a key
	var times [3][]float64
	var memories [3]*memory
	for i, open := range []func(int64) (*memory, error){penstockMemory, limiterMemory, goLimiterMemory} {
		if memories[i], err = open(count); err != nil {
			return nil, nil, nil, err
		}
		defer memories[i].close()
		allow := memories[i].newCaller()
		for _, name := range names {
			allow(context.Background(), name)
		}
	}
	for range memoryRounds {
		for i, m := range memories {
			times[i] = append(times[i], m.measure(threads, names))
		}
	}
	return times[0], times[1], times[2], nil
}

// memoryFootprint counts allocations, and the heap of a million keys without their names.
func memoryFootprint(r *report, names []string) error {
	r.title("Memstore: footprint")
	r.row("", "allocations", "bytes per key")
	for i, open := range []func(int64) (*memory, error){limiterMemory, goLimiterMemory} {
		before, _ := heap()
		m, err := open(1000)
		if err != nil {
			return err
		}
		allow := m.newCaller()
		for _, name := range names {
			allow(context.Background(), name)
		}
		after, mallocs := heap()
		for _, name := range names[:memoryOps] {
			allow(context.Background(), name)
		}
		_, total := heap()
		bytes, allocs := float64(after-before)/manyKeys, float64(total-mallocs)/memoryOps
		m.close()
		r.row(m.name, number(allocs), number(bytes))
		if i == 0 {
			r.atMost("memstore: allocations per decision", float64(int(allocs*100))/100, 0)
			r.atMost("memstore: bytes per key, of 1,000,000", bytes, 100)
		}
	}
	return nil
}

// heap returns the bytes of live objects, and the number of allocations so far.
func heap() (bytes, mallocs uint64) {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one does not free objects in a sync.Pool
	runtime.ReadMemStats(&s)
	return s.HeapAlloc, s.Mallocs
}
