package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// In a random list, each batch gets the decision that it would get alone. Batches are of any kind,
// some of them invalid.
func TestListsAreDecidedAsTheirBatches(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rng := rand.New(rand.NewPCG(effort.Seed(), 1))
	store, err := redisstore.Open(server.URL(), redisstore.Options{Prefix: fmt.Sprint("lists", rng.Uint32())})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	model := memstore.New(memstore.Options{})
	plans := []*penstock.Plan{ // no limit gets units back during the test
		penstock.PerDay(20).WithName("fixed").With(penstock.FixedWindow).MustCompile(),
		penstock.PerDay(25).WithName("log").With(penstock.SlidingLog).MustCompile(),
		penstock.Limit{Name: "bucket", Count: 1, Period: 24 * time.Hour, Burst: 30}.MustCompile(),
	}
	decided := 0
	for range effort.Of(15, 2000) {
		var list []*batches.Batch
		for key := range 1 + rng.IntN(100) {
			b := &batches.Batch{}
			for i := range plans {
				if rng.IntN(2) == 0 {
					continue
				}
				mode := penstock.Spend
				if rng.IntN(8) == 0 {
					mode = []penstock.Mode{penstock.Peek, penstock.Force, penstock.Refund, penstock.Reset, penstock.Draw}[rng.IntN(5)]
				}
				b.Charges = append(b.Charges, penstock.Charge{Key: fmt.Sprint(key), Plan: plans[i], Cost: rng.Int64N(4), Mode: mode})
			}
			list = append(list, b) // some have no charge, which is an error
		}
		batches.Of(store)(t.Context(), list)
		for _, b := range list {
			want, err := model.Decide(t.Context(), b.Charges)
			if (err == nil) != (b.Err == nil) || errors.Is(err, penstock.ErrInvalid) != errors.Is(b.Err, penstock.ErrInvalid) {
				t.Fatalf("seed %d: the charges %v got the error %v; want %v, as alone", effort.Seed(), b.Charges, b.Err, err)
			}
			for i := range b.Charges {
				got, want := b.Decision.Status(i), want.Status(i)
				if got.Granted != want.Granted || got.Remaining != want.Remaining || (got.RetryAfter > 0) != (want.RetryAfter > 0) {
					t.Fatalf("seed %d: charge %d of %+v got %+v; want %+v, as alone", effort.Seed(), i, b.Charges, got, want)
				}
			}
			decided++
		}
	}
	t.Logf("counted: %d decisions of lists", decided)
}

// A list whose context has ended is not sent. If the context ends later, the list has no decisions.
func TestListsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	plan := penstock.PerDay(5).MustCompile()
	list := func() (calls []*batches.Batch) {
		for i := range 10 {
			calls = append(calls, &batches.Batch{Charges: []penstock.Charge{{Key: fmt.Sprint(i), Plan: plan, Cost: 1}}})
		}
		return calls
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	calls := list()
	batches.Of(store)(ended, calls)
	for _, c := range calls {
		if e := penstock.AsStoreError(c.Err); c.Err == nil || e != nil && e.MayBeCharged {
			t.Errorf("after the context has ended: %v; want the context's error", c.Err)
		}
	}
	if err := store.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	calls = list()
	batches.Of(store)(late, calls)
	server.Resume()
	for _, c := range calls {
		if c.Err == nil {
			t.Errorf("while the server is stopped: %v; want an error", c.Decision)
		}
	}
	calls = list()
	batches.Of(store)(t.Context(), calls)
	for _, c := range calls {
		if c.Err != nil || !c.Decision.Allowed {
			t.Errorf("after the server continues: %v, %v; want a grant", c.Decision, c.Err)
		}
	}
}
