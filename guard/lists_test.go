package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A listStore decides lists, and counts those of several batches, and their batches.
type listStore struct {
	penstock.Store
	lists, batches int
	fail           func(ctx context.Context) error // returns the error of each batch of such a list; nil: the Store decides
}

func (l *listStore) decide(ctx context.Context, list []*batches.Batch) {
	if len(list) > 1 {
		l.lists++
		l.batches += len(list)
		if l.fail != nil {
			batches.Fail(list, l.fail(ctx))
			return
		}
	}
	batches.Of(l.Store)(ctx, list)
}

// standardWithLists puts guard.Standard around a store of one instance. The store is not traced,
// so it gets lists.
func standardWithLists(t *testing.T, store *listStore, o guard.Options) *guard.Guarded {
	o.Instances = 1
	g, err := guard.Standard(batches.Func(store.decide), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func listOf(charges ...penstock.Charge) (list []*batches.Batch) {
	for _, c := range charges {
		list = append(list, &batches.Batch{Charges: []penstock.Charge{c}})
	}
	return list
}

// Each batch of a list gets the decision that it would get alone. The deny caches of both stores
// agree, except for the few denials that only one of them has forgotten.
func TestListsAreDecidedAsTheirBatches(t *testing.T) {
	decided, lists, forgotten := 0, 0, 0
	for i := range uint64(seeds(40)) {
		seed := effort.Seed() + i
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			options := guard.Options{DenyCacheTTL: time.Hour, Limits: func(p *penstock.Plan) (s guard.Settings) {
				if p.Name() == "split" {
					s.SplitInto = 2
				}
				return s
			}}
			list := &listStore{Store: memstore.New(memstore.Options{})}
			alone, together := standard(t, memstore.New(memstore.Options{}), options), standardWithLists(t, list, options)
			plans := []*penstock.Plan{
				compiled(t, penstock.PerSecond(1+rng.Int64N(10)).WithBurst(1+rng.Int64N(20))),
				compiled(t, penstock.PerMinute(1+rng.Int64N(30)).With(penstock.FixedWindow).WithName("fixed")),
				compiled(t, penstock.PerHour(2+2*rng.Int64N(30)).With(penstock.SlidingLog).WithName("split")),
			}
			for step := range 60 {
				time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
				var charges []penstock.Charge
				for key := range 1 + rng.IntN(12) { // each batch has its own key, so batches do not depend on each other
					c := penstock.Charge{Key: fmt.Sprint(key), Plan: plans[rng.IntN(len(plans))], Cost: 1}
					switch rng.IntN(12) {
					case 0:
						c.Mode = []penstock.Mode{penstock.Peek, penstock.Reset, penstock.Force}[rng.IntN(3)]
					case 1:
						c.Cost = -1
					}
					charges = append(charges, c)
				}
				calls := listOf(charges...)
				batches.Of(together)(t.Context(), calls)
				for i, call := range calls {
					want, err := alone.Decide(t.Context(), charges[i:i+1])
					got := call.Decision
					if errors.Is(err, penstock.ErrInvalid) != errors.Is(call.Err, penstock.ErrInvalid) || (err == nil) != (call.Err == nil) {
						t.Fatalf("seed %d, step %d: in a list, the error is %v; want %v, as alone", seed, step, call.Err, err)
					}
					// Only one of the two deny caches has forgotten the denial.
					isForgotten := !got.Allowed && !want.Allowed && (got.Source == penstock.FromStore) != (want.Source == penstock.FromStore)
					if isForgotten {
						forgotten++
					}
					isSplit := charges[i].Plan == plans[2] // its shards are chosen at random, so the sources may differ
					isOfSameSource := got.Source == want.Source || isForgotten || isSplit
					if err == nil && (got.Allowed != want.Allowed || got.Status(0).Granted != want.Status(0).Granted || !isOfSameSource) {
						t.Fatalf("seed %d, step %d: %v of limit %v: in a list %v by %v; want %v by %v, as alone", seed, step, charges[i].Mode, charges[i].Plan, got, got.Source, want, want.Source)
					}
					decided++
				}
			}
			lists += list.lists
		})
	}
	// One list in 12 has one call. That all have one has a chance below 12^-60.
	if lists == 0 {
		t.Error("the store decided 0 lists; want at least 1")
	}
	if forgotten > decided/100 { // a Reset also invalidates the denials of counters with the same set
		t.Errorf("of %d decisions, %d were denials that only one of the deny caches had forgotten; want at most 1 %%", decided, forgotten)
	}
	t.Logf("counted: %d decisions of lists", decided)
}

// The fallback decides each batch of a list that the store does not decide. If the list fails, that
// is one failure for the breaker. If it hangs, each batch is a timeout.
func TestListsGoThroughAnOutage(t *testing.T) {
	for name, row := range map[string]struct {
		fail  func(context.Context) error
		lists int // how many open the breaker
	}{
		"refused": {lists: 5, fail: func(context.Context) error {
			return penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("for the test"))
		}},
		"hangs": {lists: 1, fail: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &listStore{Store: memstore.New(memstore.Options{}), fail: row.fail}
			g := standardWithLists(t, store, guard.Options{})
			limit := compiled(t, penstock.PerHour(1))
			begin := time.Now()
			calls := listOf(penstock.Charge{Key: "a", Plan: limit, Cost: 1}, penstock.Charge{Key: "b", Plan: limit, Cost: 1},
				penstock.Charge{Key: "c", Plan: limit, Cost: 2}, penstock.Charge{Key: "d", Plan: limit, Cost: 1}, penstock.Charge{Key: "e", Plan: limit, Cost: 1})
			batches.Of(g)(t.Context(), calls)
			for i, c := range calls {
				if c.Err != nil || c.Decision.Source != penstock.FromFallback || c.Decision.Allowed != (i != 2) {
					t.Errorf("%s: call %d: %v by %v, error %v; want a decision by the fallback, denied only for cost 2", name, i, c.Decision, c.Decision.Source, c.Err)
				}
			}
			if took := time.Since(begin); took > 300*time.Millisecond {
				t.Errorf("%s: the list took %v; want at most 300ms", name, took)
			}
			for range row.lists - 1 {
				if state := g.Stats().Breakers[""]; state != guard.StateClosed {
					t.Errorf("%s: after %d failed lists the breaker is %v; want closed", name, store.lists, state)
				}
				batches.Of(g)(t.Context(), listOf(calls[0].Charges[0], calls[1].Charges[0]))
			}
			if state := g.Stats().Breakers[""]; state != guard.StateOpen {
				t.Errorf("%s: after %d failed lists the breaker is %v; want open", name, store.lists, state)
			}
			second := listOf(calls[0].Charges[0], calls[1].Charges[0])
			batches.Of(g)(t.Context(), second)
			for i, c := range second {
				if c.Err != nil || c.Decision.Source != penstock.FromFallback {
					t.Errorf("%s: call %d while the breaker is open: a decision by %v, error %v; want one by the fallback", name, i, c.Decision.Source, c.Err)
				}
			}
			if store.lists != row.lists {
				t.Errorf("%s: the store got %d lists; want %d, since the breaker was open for the last", name, store.lists, row.lists)
			}
		})
	}
}

func TestEachBatchOfAListGoesThroughTheBreakerOfItsNode(t *testing.T) {
	store := &listStore{Store: memstore.New(memstore.Options{})}
	breaker := guard.Breaker(guard.BreakerOptions{Node: func(charges []penstock.Charge) string { return charges[0].Key }})(batches.Func(store.decide))
	limit := compiled(t, penstock.PerHour(1))
	calls := listOf(penstock.Charge{Key: "a", Plan: limit, Cost: 1}, penstock.Charge{Key: "b", Plan: limit, Cost: 2})
	batches.Of(breaker)(t.Context(), calls)
	for i, isAllowed := range []bool{true, false} {
		if c := calls[i]; c.Err != nil || c.Decision.Len() != 1 || c.Decision.Allowed != isAllowed {
			t.Errorf("call %d: %v, error %v; want allowed: %v", i, c.Decision, c.Err, isAllowed)
		}
	}
	if store.lists != 0 {
		t.Errorf("the store got %d lists; want 0, because the batches are of different nodes", store.lists)
	}
}

// Of a list of more batches than may be in flight, only as many are sent.
func TestListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &listStore{Store: penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
			<-ctx.Done()
			return penstock.Decision{}, ctx.Err()
		})}
		g := standardWithLists(t, store, guard.Options{Timeout: guard.TimeoutOptions{InFlight: 3}, OnFailure: guard.FailClosed})
		limit := compiled(t, penstock.PerHour(1))
		denied := 0
		var charges []penstock.Charge
		for i := range 5 {
			charges = append(charges, penstock.Charge{Key: fmt.Sprint(i), Plan: limit, Cost: 1})
		}
		observed := guard.Observe(func(e guard.Event) {
			if e.Source == penstock.FromClosed {
				denied++
			}
		})(g)
		batches.Of(observed)(t.Context(), listOf(charges...))
		if denied != 5 || store.lists != 1 || store.batches != 3 {
			t.Errorf("%d of 5 batches were denied by the fallback, and the store got %d lists with %d batches; want 5, and 1 with 3", denied, store.lists, store.batches)
		}
	})
}

// A panic of a store becomes an error of each call.
func TestPanicOfAListIsContained(t *testing.T) {
	g := standardWithLists(t, &listStore{Store: memstore.New(memstore.Options{}), fail: func(context.Context) error { panic("for the test") }}, guard.Options{})
	limit := compiled(t, penstock.PerHour(1))
	for range 5 {
		calls := listOf(penstock.Charge{Key: "a", Plan: limit, Cost: 1}, penstock.Charge{Key: "b", Plan: limit, Cost: 1})
		batches.Try(t.Context(), batches.Of(g), calls)
		for _, c := range calls {
			if !errors.Is(c.Err, penstock.ErrUnavailable) {
				t.Errorf("after a panic, the error of a call is %v; want one that wraps ErrUnavailable", c.Err)
			}
		}
	}
	if state := g.Stats().Breakers[""]; state != guard.StateOpen {
		t.Errorf("after five panics the breaker is %v; want open", state)
	}
}

// Outside Standard, and without a deadline, the batches of a list are decided too.
func TestListsWithoutACommonDeadlineAreDecided(t *testing.T) {
	for _, after := range []time.Duration{0, -1} {
		store := guard.Timeout(guard.TimeoutOptions{After: after})(memstore.New(memstore.Options{}))
		limit := compiled(t, penstock.PerHour(1))
		calls := listOf(penstock.Charge{Key: "a", Plan: limit, Cost: 1}, penstock.Charge{Key: "a", Plan: limit, Cost: 2})
		batches.Of(store)(t.Context(), calls)
		for i, c := range calls {
			if c.Err != nil || c.Decision.Allowed != (i == 0) || c.Decision.Len() != 1 {
				t.Errorf("with After %v, call %d: %v, error %v; want a decision, denied only for cost 2", after, i, c.Decision, c.Err)
			}
		}
	}
}
