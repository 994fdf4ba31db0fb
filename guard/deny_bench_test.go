package guard_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// BenchmarkDeny measures decisions through the cache, around stores that answer immediately. Beside
// them it measures the same decisions by memstore.
func BenchmarkDeny(b *testing.B) {
	granted := penstock.Single(penstock.Status{Granted: 1, Remaining: 9})
	grants := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return granted, nil })
	denied := penstock.Single(penstock.Status{RetryAfter: time.Hour})
	denies := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { return denied, nil })
	limit, other := compiled(b, penstock.PerDay(1)), compiled(b, penstock.PerHour(1))
	one := []penstock.Charge{{Key: "user-1234567", Plan: limit, Cost: 1}}
	two := []penstock.Charge{{Key: "user-1234567", Plan: limit, Cost: 1}, {Key: "user-1234567", Plan: other, Cost: 1}}
	full := guard.NewDenyCache(denies, guard.DenySetup{MaxAge: time.Hour})
	for i := range 65_536 {
		_, _ = full.Decide(b.Context(), []penstock.Charge{{Key: strconv.Itoa(i), Plan: limit, Cost: 1}})
	}
	memory := func() penstock.Store { return memstore.New(memstore.Options{}) }
	cached := func(next penstock.Store) penstock.Store {
		return guard.NewDenyCache(next, guard.DenySetup{MaxAge: time.Hour})
	}
	for _, c := range []struct {
		name    string
		store   penstock.Store
		charges []penstock.Charge
	}{
		{name: "granted/bare", store: grants, charges: one},
		{name: "granted/guarded", store: cached(grants), charges: one},
		{name: "granted/guarded-2-charges", store: cached(grants), charges: two},
		{name: "denied/guarded", store: cached(memory()), charges: one},
		{name: "denied/guarded-full", store: full, charges: one},
		{name: "denied/guarded-2-charges", store: cached(memory()), charges: two},
		{name: "denied/memstore", store: memory(), charges: one},
		{name: "denied/memstore-2-charges", store: memory(), charges: two},
	} {
		run := func(b *testing.B, next func() bool) {
			for next() {
				if _, err := c.store.Decide(context.Background(), c.charges); err != nil {
					b.Fatal(err)
				}
			}
		}
		for range 2 {
			_, _ = c.store.Decide(b.Context(), c.charges)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			run(b, b.Loop)
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) { run(b, pb.Next) })
		})
	}
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		cache := cached(denies)
		charge := []penstock.Charge{{Plan: limit, Cost: 1}}
		keys := make([]string, 1<<18)
		for i := range keys {
			keys[i] = strconv.Itoa(i)
		}
		for i := 0; b.Loop(); i++ {
			charge[0].Key = keys[i%len(keys)]
			_, _ = cache.Decide(b.Context(), charge)
		}
	})
}
