package guard_test

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// BenchmarkStandard measures one decision through all guards, each of another key. The store is in
// memory, so nearly all of the time is that of the guards.
func BenchmarkStandard(b *testing.B) {
	g, err := guard.Standard(memstore.New(memstore.Options{}), guard.Options{Instances: 1, Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{OnFailure: guard.FailOpen} }})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	plan := penstock.PerHour(1_000_000).MustCompile()
	charges := make([][]penstock.Charge, 1024)
	for i := range charges {
		charges[i] = []penstock.Charge{{Key: fmt.Sprint(i), Plan: plan, Cost: 1}}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := g.Decide(b.Context(), charges[i%len(charges)]); err != nil {
			b.Fatal(err)
		}
	}
}
