package guard_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// splitInto returns a guard that splits every limit into n shards.
func splitInto(n int) penstock.Decorator {
	return guard.Split(func(*penstock.Plan) guard.Settings { return guard.Settings{SplitInto: n} })
}

func TestLimitsThatAreNotSplitObeyTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store { return splitInto(1)(memstore.New(memstore.Options{})) })
}

// withExactRemaining returns a store whose decisions have the Remaining of a Peek. A Spend of a
// split limit only estimates its Remaining.
func withExactRemaining(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if err != nil {
			return d, err
		}
		statuses := make([]penstock.Status, d.Len())
		for i := range statuses {
			peek := charges[i]
			peek.Mode, peek.Cost, peek.Patience = penstock.Peek, 0, 0
			sum, err := store.Decide(ctx, []penstock.Charge{peek})
			if err != nil {
				return d, err
			}
			statuses[i] = d.Status(i)
			statuses[i].Remaining = sum.Status(0).Remaining
			statuses[i].ResetAfter = max(sum.Status(0).ResetAfter, statuses[i].ResetAfter)
		}
		if len(statuses) == 1 {
			return penstock.Single(statuses[0]), nil
		}
		return penstock.NewDecision(statuses), nil
	})
}

// checkLawsExcept checks all laws of a store, except those with one of these parts in their names.
func checkLawsExcept(t *testing.T, store func() penstock.Store, except ...string) {
	var mu sync.Mutex
	found := make(map[string]bool)
	t.Cleanup(func() {
		if len(found) < len(except) {
			t.Errorf("the laws that match are %v; want one for each of %v", slices.Collect(maps.Keys(found)), except)
		}
	})
	storetest.Run(t, func(t *testing.T) penstock.Store {
		for _, law := range except {
			if strings.Contains(t.Name(), law) {
				mu.Lock()
				found[law] = true
				mu.Unlock()
				t.Skip("the documentation of Split excludes this law")
			}
		}
		return store()
	})
}

// brokenLaws are the laws that a split limit does not obey.
var brokenLaws = []string{
	"draw_takes", "AllowAtMost_charges", // Draw takes from one shard
	"patience_books",        // a shard refills only its part of the rate
	"force_is_never",        // a debt stays with its shard
	"a_changed_limit_keeps", // if a limit is lowered below what is used, some shards still have units
}

func TestSplitLimitsObeyTheLaw(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for _, n := range []int{2, 7, 32} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			except := brokenLaws
			if n > 2 {
				except = append([]string{"keys_are_independent"}, except...) // a batch of this law needs more than 64 shards
			}
			split := guard.Split(func(l *penstock.Plan) (s guard.Settings) {
				if l.Algorithm() != penstock.Concurrency {
					s.SplitInto = n
				}
				return s
			})
			checkLawsExcept(t, func() penstock.Store { return withExactRemaining(split(memstore.New(memstore.Options{}))) }, except...)
		})
	}
}

func TestSplitSlotsObeyTheLaw(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			split := guard.Split(func(l *penstock.Plan) (s guard.Settings) {
				if l.Algorithm() == penstock.Concurrency {
					s.SplitInto = n
				}
				return s
			})
			// The excepted laws have holds of more slots than a shard has, or holds that change their cost.
			except := append([]string{"peek_changes", "concurrent_charges", "a_hold_is_acquired", "a_charge_has", "keys_are_independent"}, brokenLaws...)
			checkLawsExcept(t, func() penstock.Store { return withExactRemaining(split(memstore.New(memstore.Options{}))) }, except...)
		})
	}
}

func TestSplitLimitsOnRedisObeyTheLaw(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	redis, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	checkLawsExcept(t, func() penstock.Store {
		return withExactRemaining(guard.Split(func(l *penstock.Plan) (s guard.Settings) {
			if l.Algorithm() != penstock.Concurrency {
				s.SplitInto = 2
			}
			return s
		})(redis))
	}, brokenLaws...)
}

func TestHotKeyOfAClusterIsSharedByItsServers(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	redis, err := redisstore.Open("redis+cluster://"+strings.Join(cluster.Addrs(), ","), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	var mu sync.Mutex
	decisions := map[string]int{} // by server
	store := splitInto(6)(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		mu.Lock()
		decisions[redis.Node(charges)]++
		mu.Unlock()
		return redis.Decide(ctx, charges)
	}))
	const units, spends = 1999, 2100 // more spends than units, so all units are granted
	limit := compiled(t, penstock.Limit{Name: "hot", Algorithm: penstock.SlidingLog, Count: units, Period: 365 * 24 * time.Hour})
	decide(t, store, penstock.Charge{Key: "k", Plan: limit, Mode: penstock.Reset})
	eventually.True(t, "the client knows the slots of the Cluster", func() bool { return redis.Node(one(limit, "k")) != "" })
	clear(decisions)
	var granted, calls atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for calls.Add(1) <= spends {
				d, err := store.Decide(t.Context(), one(limit, "k"))
				if err != nil {
					t.Error(err)
					return
				}
				granted.Add(d.Status(0).Granted)
			}
		})
	}
	all.Wait()
	if granted.Load() != units {
		t.Errorf("%d units were granted; want all %d", granted.Load(), units)
	}
	if len(decisions) < 2 {
		t.Errorf("the decisions by server are %v; want those of at least 2 servers", decisions)
	}
	t.Logf("counted: %d spends on one key, decided by %d servers", spends, len(decisions))
}

// A clock is a time in µs since 1970. It changes only when a test calls advance.
type clock struct{ atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.Store(time.Date(2026, 1, 7, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.Load()) }
func (c *clock) advance(d time.Duration) { c.Add(d.Microseconds()) }
func (c *clock) memory() *memstore.Store { return memstore.New(memstore.Options{Now: c.now}) }

func TestSplitLimitGrantsExactlyItsUnits(t *testing.T) {
	effort.SkipUnderRace(t)
	tried := 0
	for name, algorithm := range divisibleAlgorithms {
		if name == "leaky" {
			continue // leaky buckets are not split
		}
		for n := 1; n <= 33; n++ {
			for _, count := range []int64{1, 2, 7, 31, 33, 101} {
				store := splitInto(n)(newClock().memory())
				c := penstock.Charge{Key: "k", Cost: 1, Plan: compiled(t, penstock.Limit{Name: "x", Algorithm: algorithm, Count: count, Period: time.Hour})}
				granted := int64(0)
				for d := (penstock.Decision{Allowed: true}); d.Allowed; {
					c.Holder = fmt.Sprint(granted)
					d = decide(t, store, c)
					s := d.Status(0)
					granted += s.Granted
					if d.Allowed && (s.Granted != 1 || s.Remaining < 0 || s.Remaining > count-1) {
						t.Fatalf("%s: %d units in %d shards, grant %d: %+v; want 1 granted, and 0 to %d left", name, count, n, granted, s, count-1)
					}
					if !d.Allowed && s.Remaining != 0 {
						t.Fatalf("%s: %d units in %d shards, denied after %d: %+v; want 0 left", name, count, n, granted, s)
					}
				}
				if granted != count {
					t.Errorf("%s: %d units in %d shards: %d were granted before the first denial; want all", name, count, n, granted)
				}
				tried++
			}
		}
	}
	t.Logf("counted: %d limits, split and exhausted", tried)
}

func TestShardsKeepTheBoundOfTheirBucket(t *testing.T) {
	effort.SkipUnderRace(t)
	steps := 0
	rapid.Check(t, func(t *rapid.T) {
		count, burst := rapid.Int64Range(1, 300).Draw(t, "count"), rapid.Int64Range(1, 300).Draw(t, "burst")
		n := rapid.IntRange(1, 32).Draw(t, "shards")
		limit, err := penstock.Limit{Name: "x", Count: count, Burst: burst, Period: time.Second}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		clock := newClock()
		start, store, granted := clock.Load(), splitInto(n)(clock.memory()), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			clock.advance(time.Duration(rapid.IntRange(0, 200_000).Draw(t, "µs")) * time.Microsecond)
			for range rapid.IntRange(1, 40).Draw(t, "spends") {
				mode := rapid.SampledFrom([]penstock.Mode{penstock.Spend, penstock.Spend, penstock.Draw}).Draw(t, "mode")
				cost := rapid.Int64Range(1, burst+1).Draw(t, "cost")
				d, err := store.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: limit, Cost: cost, Mode: mode}})
				if err != nil {
					t.Fatal(err)
				}
				s := d.Status(0)
				granted += s.Granted
				if d.Allowed != (s.RetryAfter == 0) {
					t.Fatalf("%v of %d units: allowed %v, %+v; want a RetryAfter if it is denied, and only then", mode, cost, d.Allowed, s)
				}
				isTooLarge := mode == penstock.Spend && cost > burst
				if isNever := s.RetryAfter == penstock.Never; isNever != isTooLarge {
					t.Fatalf("%v of %d units with a burst of %d: %+v; want RetryAfter Never if a Spend exceeds the burst, and only then", mode, cost, burst, s)
				}
				steps++
			}
			if most := burst + count*(clock.Load()-start)/1_000_000; granted > most {
				t.Fatalf("%d units were granted by limit %v in %d shards after %d µs; want at most %d", granted, limit, n, clock.Load()-start, most)
			}
		}
	})
	t.Logf("counted: %d spends against the bound of their bucket", steps)
}

func TestShardsTogetherCountLikeTheLimit(t *testing.T) {
	effort.SkipUnderRace(t)
	steps := 0
	rapid.Check(t, func(t *rapid.T) {
		count, n := rapid.Int64Range(1, 100).Draw(t, "count"), rapid.IntRange(1, 32).Draw(t, "shards")
		limit, err := penstock.Limit{Name: "x", Count: count, Period: time.Hour, Algorithm: penstock.FixedWindow}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		store, used := splitInto(n)(newClock().memory()), int64(0)
		call := func(mode penstock.Mode, cost int64) penstock.Status {
			d, err := store.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: limit, Cost: cost, Mode: mode}})
			if err != nil {
				t.Fatal(err)
			}
			return d.Status(0)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			mode := penstock.Mode(rapid.IntRange(int(penstock.Spend), int(penstock.Reset)).Draw(t, "mode"))
			cost := rapid.Int64Range(0, count+1).Draw(t, "cost")
			if mode == penstock.Force {
				cost = min(cost, count-used) // a debt stays with its shard
			}
			s, want := call(mode, cost), int64(0)
			isAllowed := cost <= count-used
			switch mode {
			case penstock.Spend, penstock.Force:
				if isAllowed {
					want = cost
				}
				used += want
			case penstock.Draw:
				if want = s.Granted; want > min(cost, count-used) || want == 0 && cost > 0 && used < count {
					t.Fatalf("a draw of %d with %d of %d used: %+v; want at least one unit granted if any is left, and no more than are left", cost, used, count, s)
				}
				used += want
				isAllowed = want > 0 || cost == 0
			case penstock.Refund:
				want, isAllowed = min(cost, used), true
				used -= want
			case penstock.Reset:
				used, isAllowed = 0, true
			}
			if s.Granted != want || (s.RetryAfter == 0) != isAllowed {
				t.Fatalf("%v of %d units, with a limit of %d in %d shards: %+v; want %d granted, and no RetryAfter: %v", mode, cost, count, n, s, want, isAllowed)
			}
			if left := call(penstock.Peek, 0).Remaining; left != count-used {
				t.Fatalf("after %v of %d units, %d of %d units are left; want %d", mode, cost, left, count, count-used)
			}
			steps++
		}
	})
	t.Logf("counted: %d charges of all modes", steps)
}

// A firstKeyStore counts its calls. If a context has a *string under firstKey, the first call with
// this context stores its first key there.
type firstKeyStore struct {
	next  penstock.Store
	calls atomic.Int64
}

func (s *firstKeyStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.calls.Add(1)
	if first, ok := ctx.Value(firstKey{}).(*string); ok && *first == "" {
		*first = charges[0].Key
	}
	return s.next.Decide(ctx, charges)
}

type firstKey struct{}

func TestFurtherShardsPreventFalseDenialsInABurst(t *testing.T) {
	effort.SkipUnderRace(t)
	const callers = 8
	for _, row := range []struct{ units, shards int }{
		{units: 100, shards: 4}, {units: 100, shards: 16}, {units: 1000, shards: 16}, {units: 999, shards: 7},
	} {
		rounds := max(100, 50_000/row.units) // so many that 15 % of the mean are six standard deviations of it
		deniedByFirst, denied, calls := 0, 0, int64(0)
		for range rounds {
			store := &firstKeyStore{next: newClock().memory()}
			split := splitInto(row.shards)(store)
			charges := one(compiled(t, penstock.PerHour(int64(row.units))), "k")
			var mu sync.Mutex
			firstCalls := map[string]int{} // by the key of the shard
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := caller; i < row.units; i += callers {
						key := ""
						d, err := split.Decide(context.WithValue(context.Background(), firstKey{}, &key), charges)
						mu.Lock()
						firstCalls[key]++
						if err != nil || !d.Allowed {
							denied++
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			for key, spends := range firstCalls { // count the denials of a Split that calls only the first shard
				shard, err := strconv.Atoi(key[len(key)-len("00"):])
				if err != nil {
					t.Fatal(err)
				}
				part := row.units / row.shards
				if shard < row.units%row.shards {
					part++
				}
				deniedByFirst += max(spends-part, 0)
			}
			calls += store.calls.Load()
		}
		// The spends that begin at one shard have the standard deviation σ = √(n/s·(1-1/s)). On average,
		// σ/√(2π) of them exceed the units of the shard. The formula is the sum of all s shards.
		n, s := float64(row.units), float64(row.shards)
		formula := math.Sqrt(n * s * (1 - 1/s) / (2 * math.Pi))
		mean := float64(deniedByFirst) / float64(rounds)
		if denied != 0 {
			t.Errorf("bursts of %d units in %d shards: %d spends were denied; want 0", row.units, row.shards, denied)
		}
		if math.Abs(mean-formula) > 0.15*formula {
			t.Errorf("bursts of %d units in %d shards: the first shards deny %.1f per burst; want %.1f ± 15 %%, by the formula", row.units, row.shards, mean, formula)
		}
		if perDecision := float64(calls) / float64(rounds) / n; perDecision > 3 {
			t.Errorf("bursts of %d units in %d shards: %.2f calls per decision; want at most 3", row.units, row.shards, perDecision)
		} else {
			t.Logf("counted: %d spends in bursts (%d shards; %.1f denials prevented per burst, formula %.1f; %.2f calls per decision)",
				rounds*row.units, row.shards, mean, formula, perDecision)
		}
	}
}

func TestRetryAfterOfASplitLimitIsTheShortestOfItsShards(t *testing.T) {
	for _, cost := range []int64{1, 2, 5, 10} {
		clock := newClock()
		store := splitInto(4)(clock.memory())
		charge := penstock.Charge{Key: "k", Cost: 1, Plan: compiled(t, penstock.PerMinute(10))}
		for range 10 {
			decide(t, store, charge)
			clock.advance(time.Millisecond)
		}
		charge.Cost = cost
		d := decide(t, store, charge)
		peek := charge
		peek.Mode = penstock.Peek
		if p := decide(t, store, peek); d.Allowed || p.RetryAfter() != d.RetryAfter() {
			t.Fatalf("cost %d: %v; Peek: %v; want a denial with the same RetryAfter", cost, d, p)
		}
		// Several shards together may grant a larger cost earlier than RetryAfter.
		clock.advance(d.RetryAfter() - time.Microsecond)
		if early := decide(t, store, charge); cost == 1 && early.Allowed {
			t.Errorf("cost %d is granted 1 µs before its RetryAfter of %v; want denied", cost, d.RetryAfter())
		}
		clock.advance(time.Microsecond)
		if d := decide(t, store, charge); cost == 1 && !d.Allowed {
			t.Errorf("cost %d: %v after its RetryAfter; want a grant", cost, d)
		}
		if d.RetryAfter() > 72*time.Second { // until an empty shard of 3 units is full, at 2.5 units a minute
			t.Errorf("cost %d: RetryAfter is %v; want at most 72s", cost, d.RetryAfter())
		}
	}
}

func TestPatientSpendWaitsOnlyWhereNoShardHasRoom(t *testing.T) {
	clock := newClock()
	store := splitInto(4)(clock.memory())
	charge := penstock.Charge{Key: "k", Cost: 1, Plan: compiled(t, penstock.PerMinute(8)), Patience: time.Hour}
	for i := range 8 {
		if d := decide(t, store, charge); !d.Allowed || d.Wait() != 0 {
			t.Fatalf("unit %d: %v, wait %v; want a grant without a wait", i, d, d.Wait())
		}
	}
	last := time.Duration(0)
	for i := range 8 {
		d := decide(t, store, charge)
		// Each of the 4 shards gets a unit every 30 s.
		if want := time.Duration(i/4+1) * 30 * time.Second; !d.Allowed || d.Wait() != want {
			t.Fatalf("booking %d: %v, wait %v; want a grant after %v", i, d, d.Wait(), want)
		}
		last = d.Wait()
	}
	charge.Patience = last
	if d := decide(t, store, charge); d.Allowed {
		t.Fatalf("a booking with the Patience %v of the last one: %v, wait %v; want a denial", last, d, d.Wait())
	}
}

func TestHoldsAreRenewedAndReleasedAtTheirShard(t *testing.T) {
	const slots = 30
	for n := 1; n <= 32; n += 3 {
		store := splitInto(n)(newClock().memory())
		limit := compiled(t, penstock.InFlight(slots, time.Minute))
		call := func(holder int, mode penstock.Mode) penstock.Decision {
			return decide(t, store, penstock.Charge{Key: "k", Plan: limit, Cost: 1, Mode: mode, Holder: fmt.Sprint("holder-", holder)})
		}
		for i := range slots {
			if d := call(i, penstock.Spend); !d.Allowed || d.Status(0).Granted != 1 {
				t.Fatalf("%d shards, hold %d: %v; want a grant", n, i, d)
			}
			if d := call(i/2, penstock.Spend); !d.Allowed || d.Status(0).Granted != 0 {
				t.Fatalf("%d shards, %d slots lent: the renewal of hold %d gets %+v; want it allowed, and 0 granted", n, i+1, i/2, d.Status(0))
			}
		}
		if d := call(slots, penstock.Spend); d.Allowed {
			t.Fatalf("%d shards: a hold beyond the %d slots was allowed; want denied", n, slots)
		}
		for i := range slots {
			first, second := call(i, penstock.Refund), call(i, penstock.Refund)
			if first.Status(0).Granted != 1 || second.Status(0).Granted != 0 {
				t.Fatalf("%d shards: the first release of hold %d gets %+v, the second %+v; want 1 and 0 granted", n, i, first.Status(0), second.Status(0))
			}
		}
		free := call(0, penstock.Peek)
		if left := free.Remaining(); left != slots {
			t.Fatalf("%d shards: %d slots are left after all releases; want %d", n, left, slots)
		}
	}
}

// All instances must look for a hold at the same shard first, even if their versions differ. So the
// hash of holders must not change.
func TestFirstShardOfAHoldIsThatOfTheHashOfItsHolder(t *testing.T) {
	limit := compiled(t, penstock.InFlight(100, time.Minute))
	for _, holder := range []string{"a", "b", "ab", "ba", "holder-1", "holder-2", "Holder-1"} {
		store := &firstKeyStore{next: newClock().memory()}
		key := ""
		_, err := splitInto(10)(store).Decide(context.WithValue(t.Context(), firstKey{}, &key), []penstock.Charge{{Key: "k", Plan: limit, Cost: 1, Holder: holder}})
		hash := fnv.New32a()
		hash.Write([]byte(holder))
		if want := fmt.Sprintf("k~%02d", hash.Sum32()%10); err != nil || key != want {
			t.Errorf("the first shard of the holder %q has the key %q, error %v; want %q, by the FNV-1a hash", holder, key, err, want)
		}
	}
}

func TestBatchIsRetriedOnlyIfASplitLimitDeniesIt(t *testing.T) {
	for range 20 { // because shards are chosen at random
		store := &firstKeyStore{next: newClock().memory()}
		split := guard.Split(settings(map[string]guard.Settings{"hot": {SplitInto: 4}, "hot-2": {SplitInto: 3}}))(store)
		year := 365 * 24 * time.Hour
		hot := penstock.Charge{Key: "all", Cost: 1, Plan: compiled(t, penstock.Limit{Name: "hot", Count: 6, Period: year})}
		hot2 := penstock.Charge{Key: "all", Cost: 1, Plan: compiled(t, penstock.Limit{Name: "hot-2", Count: 8, Period: year})}
		user := penstock.Charge{Key: "user", Cost: 1, Plan: compiled(t, penstock.Limit{Name: "user", Count: 4, Period: year})}
		for range 4 {
			if d := decide(t, split, user, hot, hot2); !d.Allowed {
				t.Fatalf("a batch is %v; want each of the user's 4 batches granted", d)
			}
		}
		callsBefore := store.calls.Load()
		d := decide(t, split, hot, user, hot2)
		if d.Allowed || d.Strictest() != 1 || d.Status(0).RetryAfter != 0 || d.Status(0).Remaining < 2 {
			t.Fatalf("a fifth batch of the user: %v; limit hot %+v, limit user %+v; want a denial by limit user, and at least 2 left of limit hot", d, d.Status(0), d.Status(1))
		}
		if calls := store.calls.Load() - callsBefore; calls > 3 {
			t.Fatalf("the denial took %d calls; want at most 3", calls)
		}
		user.Key = "another"
		for range 2 { // limit hot has 6 units, of which the first user has spent 4
			if d := decide(t, split, hot, hot2, user); !d.Allowed {
				t.Fatalf("a batch is %v; want 2 batches of another user granted", d)
			}
		}
		d = decide(t, split, hot2, user, hot)
		if d.Allowed || d.Strictest() != 2 || d.Status(0).RetryAfter != 0 || d.Status(1).RetryAfter != 0 || d.Status(1).Remaining != 2 {
			t.Fatalf("a seventh batch: %v; limit hot-2 %+v, limit user %+v, limit hot %+v; want a denial by limit hot only, and 2 left of limit user", d, d.Status(0), d.Status(1), d.Status(2))
		}
		hot2.Mode, user.Mode, hot.Mode = penstock.Peek, penstock.Peek, penstock.Peek
		d = decide(t, split, user, hot2, hot)
		for i, want := range []int64{2, 2, 0} {
			if left := d.Status(i).Remaining; left != want || d.Allowed {
				t.Errorf("charge %d of a batch that peeks at the limits user, hot-2 and hot: %d left, %v; want %d left, and the batch denied", i, left, d, want)
			}
		}
		user.Mode, hot2.Mode = penstock.Spend, penstock.Refund
		if d := decide(t, split, hot2, user, hot); d.Allowed || d.Status(0).Granted != 0 || d.Status(1).Granted != 0 || d.Status(1).Remaining != 2 {
			t.Errorf("a batch with a Peek that is denied: the Refund has %+v, the Spend %+v; want 0 granted for both, and 2 left for the Spend", d.Status(0), d.Status(1))
		}
		if d := decide(t, split, hot2, user); !d.Allowed || d.Status(0).Granted != 1 || d.Status(0).Remaining != 3 {
			t.Errorf("a Refund in a batch: %+v; want 1 granted and 3 left", d.Status(0))
		}
	}
}

func TestKeysOfShardsAreUnique(t *testing.T) {
	long := strings.Repeat("x", penstock.MaxKey)
	keys := []string{"", "k", "k~00", "k~01", "k~00~00", "k~", "~00", "~01", long, long[1:], long[2:], long[3:], long[4:], "y" + long[1:], long[1:] + "y"}
	counters := map[string]string{}
	key := ""
	memory := newClock().memory()
	split := splitInto(8)(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		for i := range charges {
			if other, ok := counters[charges[i].Key]; ok && other != key {
				t.Fatalf("%.20q (%d bytes) and %.20q (%d bytes) share a counter; want different ones", other, len(other), key, len(key))
			}
			counters[charges[i].Key] = key
		}
		return memory.Decide(ctx, charges)
	}))
	limit := compiled(t, penstock.PerHour(8))
	for _, key = range keys {
		for range 2 {
			decide(t, split, penstock.Charge{Key: key, Plan: limit, Cost: 8})
			decide(t, split, penstock.Charge{Key: key, Plan: limit, Mode: penstock.Peek})
		}
	}
	if want := 8 * len(keys); len(counters) != want {
		t.Errorf("%d keys in 8 shards have %d counters; want %d", len(keys), len(counters), want)
	}
	t.Logf("counted: %d counters of %d keys", len(counters), len(keys))
}

func TestShardWhoseBreakerIsOpenIsSkipped(t *testing.T) {
	memory := newClock().memory()
	var errOpen error = penstock.NewStoreError(penstock.ReasonBreakerOpen, nil)
	errOfShard := errOpen // the error of shard 2, one of four
	store := splitInto(4)(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if strings.HasSuffix(charges[0].Key, "~02") {
			return penstock.Decision{}, errOfShard
		}
		return memory.Decide(ctx, charges)
	}))
	charges := one(compiled(t, penstock.PerHour(40)), "k")
	for i := range 30 {
		if d := decide(t, store, charges...); !d.Allowed {
			t.Fatalf("unit %d: %v; want a grant", i, d)
		}
	}
	for range 10 {
		if d, err := store.Decide(t.Context(), charges); err != errOpen {
			t.Fatalf("a Spend gets %v, error %v; want the breaker's error, because its shard may have room", d, err)
		}
	}
	errOfShard = errDown // after this error, the unit may have been charged
	failed := 0
	for range 100 {
		store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: charges[0].Plan, Mode: penstock.Reset}})
		if _, err := store.Decide(t.Context(), charges); err == errDown {
			failed++
		}
	}
	if failed == 0 {
		t.Error("0 of 100 spends returned errDown; want some, because a spend with an unknown outcome must not be sent to another shard")
	}
}

// Before Split denies, it calls one shard after the other. If the deadline leaves time for only
// some of them, their denials are the answer. An error instead would let a Fallback admit units
// beyond those of the store.
func TestSplitDeniesByTheShardsThatItHadTimeToCall(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		takes    time.Duration // how long each call of a shard takes
		deadline time.Duration // of the decision; 0: none
		calls    int64         // expected; there are 8 shards
	}{
		{takes: 5 * time.Millisecond, calls: 8},
		{takes: 5 * time.Millisecond, deadline: 100 * time.Millisecond, calls: 8},
		{takes: 5 * time.Millisecond, deadline: 25 * time.Millisecond, calls: 3}, // 10 ms are left, and a fourth call may take as long
		{takes: 20 * time.Millisecond, deadline: 25 * time.Millisecond, calls: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newFaulty()
			splits := splitInto(8)(store)
			charges := one(compiled(t, penstock.PerHour(80)), "k")
			for range 80 {
				if d := decide(t, splits, charges...); !d.Allowed {
					t.Fatalf("a Spend is %v; want each of 80 units granted", d)
				}
			}
			store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				time.Sleep(row.takes)
				if err := ctx.Err(); err != nil {
					return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err)
				}
				return store.store.Decide(ctx, charges)
			})
			store.calls.Store(0)
			ctx := t.Context()
			if row.deadline > 0 {
				bounded, cancel := context.WithTimeout(ctx, row.deadline)
				defer cancel()
				ctx = bounded
			}
			d, err := splits.Decide(ctx, charges)
			if calls := store.calls.Load(); err != nil || d.Allowed || d.RetryAfter() <= 0 || d.Source != penstock.FromStore || calls != row.calls {
				t.Errorf("with calls of %v and a deadline of %v: %v by %v, RetryAfter %v, error %v, after %d calls; want a denial by the store with a RetryAfter, after %d calls",
					row.takes, row.deadline, d, d.Source, d.RetryAfter(), err, calls, row.calls)
			}
		})
	}
}

func TestBatchesThatSplitCannotDecideAreInvalid(t *testing.T) {
	store := splitInto(32)(newClock().memory())
	var batch []penstock.Charge
	for i := range 3 {
		batch = append(batch, penstock.Charge{Key: fmt.Sprint(i), Cost: 33, Plan: compiled(t, penstock.PerHour(64))})
	}
	if d, err := store.Decide(t.Context(), batch); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "Settings.SplitInto") {
		t.Fatalf("a batch that needs 96 shards: %v, error %v; want an ErrInvalid that names Settings.SplitInto", d, err)
	}
	if d := decide(t, store, batch[:2]...); !d.Allowed || d.Status(1).Remaining != 31 || d.Status(1).Granted != 33 {
		t.Fatalf("a batch that needs 64 shards: %+v; want 33 granted and 31 left", d.Status(1))
	}
	leaky := penstock.Limit{Name: "q", Algorithm: penstock.LeakyBucket, Count: 10, Burst: 9, Period: time.Hour}.MustCompile()
	sentKey := ""
	splitInto(8)(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		sentKey = charges[0].Key
		return penstock.Decision{}, nil
	})).Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: leaky, Cost: 1}})
	if sentKey != "k" {
		t.Errorf("a charge of a leaky bucket was sent with key %q; want \"k\", because leaky buckets are not split", sentKey)
	}
}

func BenchmarkSplit(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store := splitInto(n)(granting)
			charges := one(compiled(b, penstock.PerHour(1000)), "user:42")
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				store.Decide(ctx, charges)
			}
		})
	}
}
