package main

import (
	"context"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

func BenchmarkMemory(b *testing.B) {
	for _, open := range []func(int64) (*memoryLimiter, error){penstockMemory, limiterMemory, goLimiterMemory} {
		m, err := open(1_000_000_000) // units per day: more than all decisions
		if err != nil {
			b.Fatal(err)
		}
		defer m.close()
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			allow := m.newCaller()
			for b.Loop() {
				allow(context.Background(), "client:0000001")
			}
		})
		b.Run(m.name+", parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				allow := m.newCaller()
				for pb.Next() {
					allow(context.Background(), "client:0000001")
				}
			})
		})
	}
}

func BenchmarkClient(b *testing.B) {
	all, err := openCallers(redistest.Start(b))
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, coldKeys)
	for i := range names {
		names[i] = key(i)
	}
	for _, c := range all {
		defer c.close()
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := c.allow(context.Background(), names[i%coldKeys]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+", parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32) // goroutines per core
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := c.allow(context.Background(), names[i%coldKeys]); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
