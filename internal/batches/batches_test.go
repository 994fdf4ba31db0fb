package batches_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisguard"
	"github.com/penstock/penstock/redisstore"
)

var plan = penstock.PerDay(1000).MustCompile()

func spend(key string) []penstock.Charge {
	return []penstock.Charge{{Key: key, Plan: plan, Cost: 1}}
}

// Each exported store decides lists, also if guards are around it.
func TestStoresOfThisModuleDecideLists(t *testing.T) {
	memory := memstore.New(memstore.Options{})
	guarded, err := guard.Standard(memory, guard.Options{Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer guarded.Close()
	redis, err := redisstore.Open("redis://127.0.0.1:1", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	redisGuarded, err := redisguard.Open("redis://127.0.0.1:1", redisguard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer redisGuarded.Close()
	for _, store := range []penstock.Store{memory, guarded, redis, redisGuarded, guard.Deny(guard.DenyOptions{})(memory), batches.Of(memory)} {
		if batches.Find(store) == nil {
			t.Errorf("%T has only Decide; want that it decides lists", store)
		}
	}
}

// A countingStore is a decorator of a user, which embeds the store that it decorates.
type countingStore struct {
	*memstore.Store
	calls int
}

func (s *countingStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.calls++
	return s.Store.Decide(ctx, charges)
}

// The Decide of a user's store is called, also if the store embeds one that decides lists.
func TestDecideOfAUsersStoreIsCalled(t *testing.T) {
	store := &countingStore{Store: memstore.New(memstore.Options{})}
	if batches.Find(store) != nil {
		t.Error("the store decides lists without its own Decide; want that it has only Decide")
	}
	guarded := guard.Observe(func(guard.Event) {})(store)
	for range 3 {
		if d, err := guarded.Decide(t.Context(), spend("k")); err != nil || !d.Allowed {
			t.Errorf("%+v, %v; want a grant", d, err)
		}
	}
	if store.calls != 3 {
		t.Errorf("3 decisions made %d calls of the user's Decide; want 3", store.calls)
	}
}

// A list for a store that has only Decide becomes concurrent calls. If some of them panic, only
// their batches get an error.
func TestListForAStoreWithOnlyDecide(t *testing.T) {
	var begun sync.WaitGroup
	begun.Add(5)
	decide := batches.Of(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		begun.Done()
		begun.Wait() // until all calls have begun
		if charges[0].Key == "0" || charges[0].Key == "3" {
			panic("for the test")
		}
		return penstock.Single(penstock.Status{Remaining: 7}), nil
	}))
	list := listOf(5)
	decide(t.Context(), list)
	for i, b := range list {
		isPanic := i == 0 || i == 3
		if isPanic != errors.Is(b.Err, penstock.ErrUnavailable) || !isPanic && (b.Err != nil || b.Decision.Remaining() != 7) {
			t.Errorf("batch %d: %+v, %v; want an error if it panics, or else 7 units left", i, b.Decision, b.Err)
		}
	}
}

func listOf(n int) (list []*batches.Batch) {
	for i := range n {
		list = append(list, &batches.Batch{Charges: spend(fmt.Sprint(i))})
	}
	return list
}

// Every batch of a list is decided once, alone or together with the others, in the order of the
// list. All subsets of a list are tried.
func TestBatchesAreDecidedApartOrTogether(t *testing.T) {
	const n = 5
	for subset := range 1 << n {
		var mu sync.Mutex
		var alone, together []string
		record := func(to *[]string) batches.Func {
			return func(_ context.Context, list []*batches.Batch) {
				mu.Lock()
				defer mu.Unlock()
				var keys []string
				for _, b := range list {
					keys = append(keys, b.Charges[0].Key)
				}
				*to = append(*to, strings.Join(keys, " "))
			}
		}
		list := listOf(n)
		isDecidedAlone := func(b *batches.Batch) bool { return subset>>slices.Index(list, b)&1 == 1 }
		batches.Alone(isDecidedAlone, record(&alone), record(&together))(t.Context(), list)
		var wantAlone, wantTogether []string
		for i := range n {
			if subset>>i&1 == 1 {
				wantAlone = append(wantAlone, fmt.Sprint(i))
			} else {
				wantTogether = append(wantTogether, fmt.Sprint(i))
			}
		}
		slices.Sort(alone)
		if !slices.Equal(alone, wantAlone) || strings.Join(together, "|") != strings.Join(wantTogether, " ") {
			t.Errorf("subset %b: %q are decided alone, and %q together; want %q and %q", subset, alone, together, wantAlone, wantTogether)
		}
	}
}

// A panic in a Func that gets a list of one reaches the caller, as that of a store does.
func TestPanicInAListOfOneReachesTheCaller(t *testing.T) {
	decide := batches.Of(penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { panic("for the test") }))
	defer func() {
		if value := recover(); value != "for the test" {
			t.Errorf("the panic is %v; want that of the store", value)
		}
	}()
	_, _ = decide.Decide(t.Context(), spend("k"))
}

func TestDecideAllocatesNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	ctx, charges := context.Background(), spend("k")
	guarded := guard.Observe(func(guard.Event) {})(guard.Deny(guard.DenyOptions{})(memstore.New(memstore.Options{})))
	if n := testing.AllocsPerRun(1000, func() { guarded.Decide(ctx, charges) }); n >= 1 {
		t.Errorf("a decision through two guards makes %.2f allocations; want none", n)
	}
}
