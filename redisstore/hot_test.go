package redisstore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

func BenchmarkHot(b *testing.B) {
	server, err := redistest.Launch()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	store, _ := redisstore.Open(server.URL(), redisstore.Options{})
	defer store.Close()
	l, _ := penstock.NewLimiter(store, "x", penstock.PerDay(1_000_000))
	b.ResetTimer()
	var wg sync.WaitGroup
	const n = 512
	for range n {
		wg.Go(func() {
			for range b.N / n {
				l.Allow(context.Background(), "k")
			}
		})
	}
	wg.Wait()
}
