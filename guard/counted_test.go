package guard_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// The guards neither answer for a limit that counts denied requests, nor divide it: the answers are
// those of the store without guards, although all limits have leases, splits and cached denials.
func TestGuardsLeaveLimitsThatCountDenialsToTheStore(t *testing.T) {
	seed := effort.Seed()
	random := rand.New(rand.NewPCG(seed, 0))
	for range effort.Of(8, 1000) {
		synctest.Test(t, func(t *testing.T) {
			algorithms := []*algorithm.Algorithm{
				penstock.TokenBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SubWindow(4), penstock.SlidingLog,
			}
			limit := penstock.Limit{
				Name: "counting", Algorithm: algorithms[random.IntN(len(algorithms))], Count: 8 + random.Int64N(100), Period: time.Second,
				ShouldCountDenied: true,
			}
			counting := limit.MustCompile()
			limit.Name, limit.Count, limit.ShouldCountDenied = "other", limit.Count/2, false
			other := limit.MustCompile()
			plain := memstore.New(memstore.Options{})
			stack, err := guard.Standard(memstore.New(memstore.Options{}), guard.Options{
				Instances: 1,
				Limits: func(plan *penstock.Plan) guard.Settings {
					if plan.Name() == "other" { // a split gives it other answers
						return guard.Settings{Lease: 50}
					}
					return guard.Settings{Lease: 50, SplitInto: 4}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer stack.Close()
			for step := range 300 {
				time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
				charges := []penstock.Charge{spend("k", counting, 1+random.Int64N(4))}
				if random.IntN(4) == 0 {
					charges = append(charges, spend("k", other, 1+random.Int64N(4)))
				}
				if random.IntN(8) == 0 {
					charges[0].Mode = penstock.Peek
				}
				got, want := decide(t, stack, charges...), decide(t, plain, charges...)
				for i := range charges {
					if got.Status(i) != want.Status(i) || got.Source != fromStore {
						t.Fatalf("PENSTOCK_SEED=%d, step %d, charge %d of %v: %+v by %v; without guards %+v", seed, step, i, charges, got.Status(i), got.Source, want.Status(i))
					}
				}
			}
		})
	}
}
