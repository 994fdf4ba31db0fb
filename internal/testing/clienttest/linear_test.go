package clienttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

// Without concurrency, the store in memory must decide as the model predicts.
func TestModelOfHistoriesIsRight(t *testing.T) {
	t.Parallel()
	now := time.Now()
	store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
	for seed := range uint64(200) {
		rng, h, state := rand.New(rand.NewPCG(seed, 0)), &history{start: time.Now()}, linearState{}
		for range 60 {
			batch := randomBatch(rng, rng.IntN(linearClients), linearKeys)
			if err := h.record(t.Context(), store, fmt.Sprint(seed, "-"), 0, batch); err != nil {
				t.Fatal(err)
			}
			answer, next := state.decide(batch)
			if got := h.ops[len(h.ops)-1].Output.(linearAnswer); !slices.Equal(got, answer) {
				t.Fatalf("seed %d: the batch %v in the state %+v gets %v; want %v, as the model predicts", seed, batch, state, got, answer)
			}
			state = next
		}
	}
}

// A racy store peeks first and spends afterwards, like limiters that read, compare and write in
// separate commands. The check must find such a store.
func TestLinearizabilityCheckCanFail(t *testing.T) {
	t.Parallel()
	store := OpenStore(t, redistest.Start(t).URL(), StandingClock())
	racy := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		peeks, spends := slices.Clone(charges), slices.Clone(charges)
		for i := range charges {
			peeks[i].Mode, spends[i].Mode = penstock.Peek, penstock.Force
		}
		if d, err := store.Decide(ctx, peeks); err != nil || !d.Allowed {
			return d, err
		}
		return store.Decide(ctx, spends)
	})
	spends := func(*rand.Rand, int, int) []linearCharge { return []linearCharge{{mode: penstock.Spend, cost: 1}} }
	const maxHistories = 100
	for i := range maxHistories {
		h, seed := makeHistory(t, []penstock.Store{racy}, linearCallsPerClient, 1, spends)
		if h.check(t, seed) == porcupine.Illegal {
			t.Logf("the racy store was detected in history %d", i+1)
			return
		}
	}
	t.Errorf("all %d histories of a racy store pass the check; want that one fails", maxHistories)
}
