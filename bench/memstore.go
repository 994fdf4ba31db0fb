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

// A memoryLimiter is a limiter with its counters in this process.
type memoryLimiter struct {
	name      string
	newCaller func() func(ctx context.Context, key string) // returns a function for one goroutine
	close     func()
}

// penstockMemory calls the store directly, without a Limiter, as go-limiter's users call Take. Like
// the other limiters here, it allows every request, and its state does not expire during a run.
func penstockMemory(count int64) (*memoryLimiter, error) {
	store := memstore.New(memstore.Options{})
	limit, err := penstock.PerDay(count).Compile()
	if err != nil {
		return nil, err
	}
	newCaller := func() func(context.Context, string) {
		charges := []penstock.Charge{{Plan: limit, Cost: 1}}
		return func(ctx context.Context, key string) {
			charges[0].Key = key
			if d, err := store.Decide(ctx, charges); err != nil || !d.Allowed {
				panic("a limit with room denied a request")
			}
		}
	}
	return &memoryLimiter{name: "penstock memstore", newCaller: newCaller, close: func() {}}, nil
}

// limiterMemory calls the store through a Limiter.
func limiterMemory(count int64) (*memoryLimiter, error) {
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "search", penstock.PerDay(count))
	if err != nil {
		return nil, err
	}
	allow := func(ctx context.Context, key string) {
		if d, err := limiter.Allow(ctx, key); err != nil || !d.Allowed {
			panic("a limit with room denied a request")
		}
	}
	newCaller := func() func(context.Context, string) { return allow }
	return &memoryLimiter{name: "penstock limiter", newCaller: newCaller, close: func() {}}, nil
}

// goLimiterMemory calls the memory store of go-limiter.
func goLimiterMemory(count int64) (*memoryLimiter, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(count), Interval: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	take := func(ctx context.Context, key string) {
		if _, _, _, ok, err := store.Take(ctx, key); err != nil || !ok {
			panic("a limit with room denied a request")
		}
	}
	newCaller := func() func(context.Context, string) { return take }
	return &memoryLimiter{name: "go-limiter memorystore", newCaller: newCaller, close: func() { _ = store.Close(context.Background()) }}, nil
}

// measure returns how many ns a decision takes while each of several threads makes memoryOps
// decisions, on the names in turn.
func (m *memoryLimiter) measure(threads int, names []string) float64 {
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

	r.beginTable("Memstore: decisions in this process (median of %d windows; ratio: median of windows side by side)", memoryRounds)
	r.addRow("", "store ns", "limiter ns", "go-limiter ns", "store / go-limiter", "limiter / go-limiter")
	for _, c := range []struct {
		name    string
		threads int
		names   []string
	}{
		{name: "hot key, 1 thread", threads: 1, names: names[:1]},
		{name: "hot key, 2 threads", threads: 2, names: names[:1]},
		{name: "1,000,000 keys, 1 thread", threads: 1, names: names},
		{name: "1,000,000 keys, 2 threads", threads: 2, names: names},
	} {
		store, limiter, peer, err := memoryRows(c.threads, c.names)
		if err != nil {
			return err
		}
		ratio := median(ratios(limiter, peer))
		r.addRow(c.name, number(median(store)), number(median(limiter)), number(median(peer)), number(median(ratios(store, peer))), number(ratio))
		if c.threads == 1 && len(c.names) == 1 {
			r.atMost("memstore: ns per Allow / Take of go-limiter, hot key", ratio, 1)
		}
	}
	return memoryFootprint(r, names)
}

// memoryRows measures all three limiters in turn. It returns how many ns a decision takes in each
// window.
func memoryRows(threads int, names []string) (store, limiter, peer []float64, err error) {
	count := int64(10 * memoryRounds * memoryOps / len(names)) // more than all decisions on a key
	var times [3][]float64
	var limiters [3]*memoryLimiter
	for i, open := range []func(int64) (*memoryLimiter, error){penstockMemory, limiterMemory, goLimiterMemory} {
		if limiters[i], err = open(count); err != nil {
			return nil, nil, nil, err
		}
		defer limiters[i].close()
		allow := limiters[i].newCaller()
		for _, name := range names {
			allow(context.Background(), name)
		}
	}
	for range memoryRounds {
		for i, m := range limiters {
			times[i] = append(times[i], m.measure(threads, names))
		}
	}
	return times[0], times[1], times[2], nil
}

// memoryFootprint counts the allocations of a decision, and the bytes that manyKeys keys take in
// the heap, without their names.
func memoryFootprint(r *report, names []string) error {
	r.beginTable("Memstore: footprint")
	r.addRow("", "allocations", "bytes per key")
	for i, open := range []func(int64) (*memoryLimiter, error){limiterMemory, goLimiterMemory} {
		bytesBefore, _ := heap()
		m, err := open(1000)
		if err != nil {
			return err
		}
		allow := m.newCaller()
		for _, name := range names {
			allow(context.Background(), name)
		}
		bytesAfter, mallocsBefore := heap()
		for _, name := range names[:memoryOps] {
			allow(context.Background(), name)
		}
		_, mallocsAfter := heap()
		bytes, allocs := float64(bytesAfter-bytesBefore)/manyKeys, float64(mallocsAfter-mallocsBefore)/memoryOps
		m.close()
		r.addRow(m.name, number(allocs), number(bytes))
		if i == 0 {
			roundedDown := float64(int(allocs*100)) / 100 // other goroutines make a few allocations too
			r.atMost("memstore: allocations per decision", roundedDown, 0)
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
