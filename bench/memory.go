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
	memoryRounds = 60
	memoryOps    = 50_000 // in a window
	manyKeys     = 1_000_000
)

// A memory is a limiter in this process.
type memory struct {
	name  string
	allow func(ctx context.Context, key string)
	close func()
}

// Both have limits that leave room, and a state that lasts.
func penstockMemory(count int64) (*memory, error) {
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "search", penstock.PerDay(count))
	if err != nil {
		return nil, err
	}
	return &memory{"penstock memstore", func(ctx context.Context, key string) {
		if d, err := limiter.Allow(ctx, key); err != nil || !d.Allowed {
			panic("the limit has room")
		}
	}, func() {}}, nil
}

func goLimiterMemory(count int64) (*memory, error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(count), Interval: 24 * time.Hour})
	if err != nil {
		return nil, err
	}
	return &memory{"go-limiter memorystore", func(ctx context.Context, key string) {
		if _, _, _, ok, err := store.Take(ctx, key); err != nil || !ok {
			panic("the limit has room")
		}
	}, func() { _ = store.Close(context.Background()) }}, nil
}

// time is how many ns a decision takes each of so many threads.
func (m *memory) time(threads int, names []string) float64 {
	var wait sync.WaitGroup
	begin := time.Now()
	for range threads {
		wait.Go(func() {
			at := rand.IntN(len(names))
			for range memoryOps {
				m.allow(context.Background(), names[at])
				if at++; at == len(names) {
					at = 0
				}
			}
		})
	}
	wait.Wait()
	return float64(time.Since(begin).Nanoseconds()) / memoryOps
}

func memorySection(r *report) error {
	names := make([]string, manyKeys)
	for i := range names {
		names[i] = key(i)[:6] + ":" + strconv.Itoa(1_000_000+i)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })

	r.title("Memory: decisions in this process (median of %d windows, taken in pairs)", memoryRounds)
	r.row("", "penstock ns", "go-limiter ns", "ratio")
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
		own, peer, err := memoryPair(c.threads, c.names)
		if err != nil {
			return err
		}
		ratio := median(ratios(own, peer))
		r.row(c.name, number(median(own)), number(median(peer)), number(ratio))
		if c.threads == 1 && len(c.names) == 1 {
			r.atMost("memory: ns per decision / go-limiter, hot key", ratio, 1)
		}
	}
	return memoryFootprint(r, names)
}

// memoryPair times both side by side.
func memoryPair(threads int, names []string) (own, peer []float64, err error) {
	count := int64(10 * memoryRounds * memoryOps / len(names))
	a, err := penstockMemory(count)
	if err != nil {
		return nil, nil, err
	}
	defer a.close()
	b, err := goLimiterMemory(count)
	if err != nil {
		return nil, nil, err
	}
	defer b.close()
	for _, name := range names {
		a.allow(context.Background(), name)
		b.allow(context.Background(), name)
	}
	for range memoryRounds {
		own = append(own, a.time(threads, names))
		peer = append(peer, b.time(threads, names))
	}
	return own, peer, nil
}

// memoryFootprint counts allocations, and the heap that a million keys take besides their own names.
func memoryFootprint(r *report, names []string) error {
	r.title("Memory: footprint")
	r.row("", "allocations", "bytes per key")
	for i, open := range []func(int64) (*memory, error){penstockMemory, goLimiterMemory} {
		before, _ := heap()
		m, err := open(1000)
		if err != nil {
			return err
		}
		for _, name := range names {
			m.allow(context.Background(), name)
		}
		after, mallocs := heap()
		for _, name := range names[:memoryOps] {
			m.allow(context.Background(), name)
		}
		_, total := heap()
		bytes, allocs := float64(after-before)/manyKeys, float64(total-mallocs)/memoryOps
		m.close()
		r.row(m.name, number(allocs), number(bytes))
		if i == 0 {
			r.atMost("memory: allocations per decision", float64(int(allocs*100))/100, 0)
			r.atMost("memory: bytes per key, of 1,000,000", bytes, 100)
		}
	}
	return nil
}

func heap() (bytes, mallocs uint64) {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc, s.Mallocs
}
