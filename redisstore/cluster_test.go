package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

// A shardedClient treats one server as a Cluster, counts the scripts that are sent, and can call a
// function before each of them.
type shardedClient struct {
	Client
	sent   atomic.Int64
	mu     sync.Mutex
	before func(n int64) // called before script n, counted from 1
}

func (*shardedClient) Sharded(context.Context) (bool, error) { return true, nil }

func (c *shardedClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	c.mu.Lock()
	n := c.sent.Add(1)
	if c.before != nil {
		c.before(n)
	}
	c.mu.Unlock()
	return c.Client.EvalSha(ctx, digest, keys, args)
}

func dialURL(t testing.TB, url string) Client {
	t.Helper()
	client, err := Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// storeOn returns a store that uses a client, and is closed after the test. Several stores can use
// one client, because closing a store does not close the client.
func storeOn(t testing.TB, client Client, o Options) *Store {
	t.Helper()
	store, err := New(keptOpenClient{client}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// A keptOpenClient stays open when a store that uses it is closed.
type keptOpenClient struct{ Client }

func (keptOpenClient) Close() error { return nil }

// If there are no other callers, redisstore and memstore give the same answer to a batch over
// several slots, in every field. The batch also leaves the same state. The batches are random, and
// limits and clocks are chosen to be difficult, as in TestTwins.
func TestBatchesOverSlotsAreAnsweredAsInMemory(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	seed := effort.Seed()
	cluster := redistest.SharedCluster(t)
	for name, client := range map[string]Client{
		"a Cluster by one of its nodes":   dialURL(t, "redis://"+cluster.Addrs()[0]),
		"one server treated as a Cluster": &shardedClient{Client: dialURL(t, redistest.Shared(t).URL())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var counts multiSlotCounts
			for trace := range effort.Of(2, 800) {
				for _, subject := range twinSubjects() {
					rng := rand.New(rand.NewPCG(seed, uint64(trace)))
					if err := runMultiSlot(client, subject, rng, &counts); err != nil {
						t.Fatalf("PENSTOCK_SEED=%d (%s, trace %d): %v", seed, subject.name, trace, err)
					}
				}
			}
			t.Logf("counted: %d batches, %d of several keys, %d of them denied", counts.decided, counts.multiSlot, counts.denied)
		})
	}
}

// multiSlotCounts count batches: all batches, those of several keys, and the denied ones of several
// keys.
type multiSlotCounts struct{ decided, multiSlot, denied int }

// runMultiSlot makes the calls of one trace to both stores, and compares their answers.
func runMultiSlot(client Client, subject twinSubject, rng *rand.Rand, counts *multiSlotCounts) error {
	clock := time.UnixMicro(1_700_000_000_000_000 + rng.Int64N(200_000_000_000_000)) // from 2023 to 2030
	now := func() time.Time { return clock }
	redis, err := New(keptOpenClient{client}, Options{Now: now, Prefix: fmt.Sprintf("s%x%s", rng.Uint64(), subject.name)})
	if err != nil {
		return err
	}
	defer redis.Close()
	memory := memstore.New(memstore.Options{Now: now, Linger: 1e6 * time.Hour})
	limits := make([]*penstock.Plan, 1+rng.IntN(4))
	for i := range limits {
		limits[i] = hostileLimit(rng, subject, i)
	}
	last := penstock.Single(penstock.Status{})
	for range 60 {
		if rng.IntN(4) == 0 {
			if err := runDry(redis, memory, rng, limits, &last); err != nil {
				return err
			}
		}
		clock = hostileStep(rng, clock, limits[rng.IntN(len(limits))], &last)
		// Refunds have no receipts, because a Cluster also knows when it made the charges of other
		// batches.
		batch := hostileBatch(rng, limits, time.Now(), &last, nil)
		for range rng.IntN(3) { // so that more batches have several keys
			more := append(batch, hostileBatch(rng, limits, time.Now(), &last, nil)...)
			if err := penstock.Check(more); err == nil {
				batch = more
			}
		}
		got, err := redis.Decide(context.Background(), batch)
		if err != nil {
			return fmt.Errorf("redis: %w:\n%v", err, describe(batch))
		}
		want, err := memory.Decide(context.Background(), batch)
		if err != nil {
			return err
		}
		for n := range batch {
			if got.Allowed != want.Allowed || got.Status(n) != want.Status(n) {
				return fmt.Errorf("at %d µs, charge %d:\n%v\nredis  %v %+v\nmemory %v %+v", clock.UnixMicro(), n, describe(batch),
					got.Allowed, got.Status(n), want.Allowed, want.Status(n))
			}
		}
		last = want
		counts.decided++
		if hasSeveralKeys(batch) {
			counts.multiSlot++
			if !want.Allowed {
				counts.denied++
			}
		}
	}
	return nil
}

// runDry makes dry runs of several batches together, and compares their answers with those of
// memstore. memstore gets each batch with one more charge, which is denied. So it charges nothing
// either, unless a limit counts denied requests. Half of the dry runs count for such limits. For
// the others, memstore gets limits that do not count.
func runDry(redis *Store, memory *memstore.Store, rng *rand.Rand, limits []*penstock.Plan, last *penstock.Decision) error {
	var batches [][]penstock.Charge
	for range 1 + rng.IntN(20) {
		batch := hostileBatch(rng, limits, time.Now(), last, nil)
		for i := range batch {
			batch[i].Key = "a"
		}
		if err := penstock.Check(batch); err != nil {
			batch = batch[:1] // the same limit twice
		}
		batches = append(batches, batch)
		for range rng.IntN(3) { // callers often make equal batches
			batches = append(batches, batch)
		}
	}
	isCounted := rng.IntN(2) == 0
	got, order, err := redis.decideTogether(context.Background(), batches, func(c *penstock.Charge) penstock.Mode {
		if isCounted && c.CountsDenial() {
			return dryRun + counted
		}
		return dryRun
	})
	if err != nil {
		return err
	}
	veto := penstock.Charge{Key: "veto", Plan: penstock.PerHour(1).WithName("veto").MustCompile(), Cost: 2}
	for _, i := range order {
		batch := append(slices.Clone(batches[i]), veto)
		for n := range batch {
			if limit := batch[n].Plan.Limit(); !isCounted && limit.ShouldCountDenied {
				limit.ShouldCountDenied = false
				batch[n].Plan = limit.MustCompile()
			}
		}
		want, err := memory.Decide(context.Background(), batch)
		if err != nil {
			return err
		}
		for n := range batches[i] {
			if got[i].Status(n) != want.Status(n) {
				return fmt.Errorf("dry run %d of %d, charge %d:\n%v\nredis  %+v\nmemory %+v", i, len(batches), n, describe(batches[i]),
					got[i].Status(n), want.Status(n))
			}
		}
	}
	return nil
}

// If several keys of a batch can deny it, a grant takes two scripts for each key: a dry run, and
// the charges. Any other batch takes one script for each key. The scripts of one round are sent
// together, so each round takes one round trip.
func TestBatchesOverSlotsTakeFewTrips(t *testing.T) {
	t.Parallel()
	client := &shardedClient{Client: dialURL(t, redistest.Shared(t).URL())}
	store := storeOn(t, client, Options{Prefix: fmt.Sprintf("t%x", rand.Uint64())})
	some, usedUp := penstock.PerHour(10).WithName("some").MustCompile(), penstock.PerHour(1).WithName("none").MustCompile()
	if err := store.Load(t.Context(), some, usedUp); err != nil { // so that no script is sent twice
		t.Fatal(err)
	}
	charge := func(key string, limit *penstock.Plan, mode penstock.Mode, cost int64) penstock.Charge {
		return penstock.Charge{Key: key, Plan: limit, Mode: mode, Cost: cost}
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := store.Decide(t.Context(), []penstock.Charge{charge(key, some, penstock.Spend, 1), charge(key, usedUp, penstock.Spend, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		batch     []penstock.Charge
		isAllowed bool
		scripts   int64
	}{
		"granted":                                  {batch: []penstock.Charge{charge("a", some, penstock.Spend, 1), charge("b", some, penstock.Draw, 1), charge("c", some, penstock.Spend, 1)}, isAllowed: true, scripts: 6},
		"denied by the first":                      {batch: []penstock.Charge{charge("a", usedUp, penstock.Spend, 1), charge("b", some, penstock.Spend, 1), charge("c", some, penstock.Spend, 1)}, isAllowed: false, scripts: 3},
		"denied by the last":                       {batch: []penstock.Charge{charge("a", some, penstock.Spend, 1), charge("b", some, penstock.Spend, 1), charge("c", usedUp, penstock.Spend, 1)}, isAllowed: false, scripts: 3},
		"peeks":                                    {batch: []penstock.Charge{charge("a", some, penstock.Peek, 1), charge("b", some, penstock.Peek, 1)}, isAllowed: true, scripts: 2},
		"denied peeks":                             {batch: []penstock.Charge{charge("a", some, penstock.Peek, 1), charge("b", usedUp, penstock.Peek, 1)}, isAllowed: false, scripts: 2},
		"modes that cannot be denied":              {batch: []penstock.Charge{charge("a", some, penstock.Refund, 1), charge("b", some, penstock.Refund, 1), charge("c", some, penstock.Force, 1)}, isAllowed: true, scripts: 3},
		"a Force after a Spend":                    {batch: []penstock.Charge{charge("a", some, penstock.Spend, 1), charge("b", some, penstock.Force, 1)}, isAllowed: true, scripts: 2},
		"a Force after a denied Spend":             {batch: []penstock.Charge{charge("a", usedUp, penstock.Spend, 1), charge("b", some, penstock.Force, 1)}, isAllowed: false, scripts: 2},
		"a Force after several Spends":             {batch: []penstock.Charge{charge("a", some, penstock.Spend, 1), charge("b", some, penstock.Spend, 1), charge("c", some, penstock.Force, 1)}, isAllowed: true, scripts: 6},
		"a Force after several Spends, one denied": {batch: []penstock.Charge{charge("a", some, penstock.Spend, 1), charge("b", usedUp, penstock.Spend, 1), charge("c", some, penstock.Force, 1)}, isAllowed: false, scripts: 3},
	} {
		before := client.sent.Load()
		d, err := store.Decide(t.Context(), c.batch)
		if err != nil || d.Allowed != c.isAllowed {
			t.Fatalf("%s: the decision is %v, %v; want allowed %t and no error", name, d, err, c.isAllowed)
		}
		if got := client.sent.Load() - before; got != c.scripts {
			t.Errorf("%s: the batch took %d scripts; want %d", name, got, c.scripts)
		}
	}
}

// Another caller charges a key between the dry run and the charges. Then this key denies, and
// the other keys are refunded, whatever their algorithm.
func TestBatchIsRefundedAfterAConcurrentCharge(t *testing.T) {
	t.Parallel()
	plainClient := dialURL(t, redistest.Shared(t).URL())
	hour := time.Hour
	for _, refunded := range []penstock.Limit{
		penstock.PerHour(10), penstock.PerHour(10).WithBurst(10).With(penstock.LeakyBucket), penstock.PerHour(10).With(penstock.FixedWindow),
		penstock.PerHour(10).With(penstock.SlidingWindow), penstock.PerHour(10).With(penstock.SubWindow(6)), penstock.PerHour(10).With(penstock.SlidingLog),
		penstock.InFlight(10, hour),
	} {
		for _, mode := range []penstock.Mode{penstock.Spend, penstock.Draw} {
			name := fmt.Sprint(mode, " of ", refunded)
			clock := time.Now()
			options := Options{Prefix: fmt.Sprintf("o%x", rand.Uint64()), Now: func() time.Time { return clock }}
			client := &shardedClient{Client: plainClient}
			store, other := storeOn(t, client, options), storeOn(t, plainClient, options)
			scarce := penstock.PerHour(1).WithName("scarce").With(penstock.FixedWindow).MustCompile()
			if err := store.Load(t.Context(), refunded.MustCompile(), scarce); err != nil { // so that no script is sent twice
				t.Fatal(err)
			}
			peek := func(limit *penstock.Plan, key string) penstock.Status {
				d, err := other.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: limit, Mode: penstock.Peek, Cost: 1, Patience: hour, Holder: "me"}})
				if err != nil {
					t.Fatal(err)
				}
				return d.Status(0)
			}
			mine := penstock.Charge{Key: "a", Plan: refunded.MustCompile(), Mode: mode, Cost: 3, Patience: hour}
			if refunded.Algorithm != nil && refunded.Algorithm.NeedsHolder() {
				mine.Holder = "me"
			}
			before := peek(refunded.MustCompile(), "a")
			client.before = func(n int64) {
				if n == 3 { // the first script that charges: the first two are the dry runs
					if _, err := other.Decide(t.Context(), []penstock.Charge{{Key: "b", Plan: scarce, Cost: 1}}); err != nil {
						t.Errorf("%s: the charge of the other caller: %v; want no error", name, err)
					}
				}
			}
			d, err := store.Decide(t.Context(), []penstock.Charge{mine, {Key: "b", Plan: scarce, Cost: 1}})
			if err != nil || d.Allowed {
				t.Fatalf("%s: %v, %v; want a denial", name, d, err)
			}
			untilWindowEnds := time.Duration(hour.Microseconds()-clock.UnixMicro()%hour.Microseconds()) * time.Microsecond
			isCharged := d.Status(0).Granted != 0 || d.Status(0).Remaining != before.Remaining
			if d.RetryAfter() != untilWindowEnds || d.Status(0).RetryAfter != 0 || isCharged {
				t.Errorf("%s: the answer is %+v and %+v; want nothing charged, and a retry after %v", name, d.Status(0), d.Status(1), untilWindowEnds)
			}
			if after := peek(refunded.MustCompile(), "a"); after != before {
				t.Errorf("%s: after the denial %+v; want %+v, as before", name, after, before)
			}
		}
	}
}

// Another caller charges a key between the dry run and the charges. Then limits that count denied
// requests count this one, whether their key denied it or granted it and was refunded.
func TestBatchDeniedByAConcurrentChargeIsCounted(t *testing.T) {
	t.Parallel()
	plainClient := dialURL(t, redistest.Shared(t).URL())
	clock := time.Now()
	options := Options{Prefix: fmt.Sprintf("c%x", rand.Uint64()), Now: func() time.Time { return clock }}
	client := &shardedClient{Client: plainClient}
	store, other := storeOn(t, client, options), storeOn(t, plainClient, options)
	limit := penstock.PerHour(10)
	limit.ShouldCountDenied = true
	ample := limit.MustCompile()
	limit.Name, limit.Count = "scarce", 1
	scarce := limit.MustCompile()
	if err := store.Load(t.Context(), ample, scarce); err != nil { // so that no script is sent twice
		t.Fatal(err)
	}
	client.before = func(n int64) {
		if n == 3 { // the first script that charges: the first two are the dry runs
			if _, err := other.Decide(t.Context(), []penstock.Charge{{Key: "b", Plan: scarce, Cost: 1}}); err != nil {
				t.Errorf("the charge of the other caller: %v; want no error", err)
			}
		}
	}
	d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "a", Plan: ample, Cost: 3}, {Key: "b", Plan: scarce, Cost: 1}})
	if err != nil || d.Allowed {
		t.Fatalf("%v, %v; want a denial", d, err)
	}
	if s := d.Status(0); s.Granted != 0 || s.RetryAfter != 0 || s.Remaining != 7 {
		t.Errorf("the status of the key that was refunded is %+v; want 7 units left", s)
	}
	if s := d.Status(1); s.RetryAfter != 2*time.Hour {
		t.Errorf("the status of the key that denied is %+v; want RetryAfter 2h, as one unit is used and one is counted", s)
	}
	after, err := other.Decide(t.Context(), []penstock.Charge{{Key: "a", Plan: ample, Mode: penstock.Peek}, {Key: "b", Plan: scarce, Mode: penstock.Peek, Cost: 1}})
	if err != nil || after.Status(0).Remaining != 7 || after.Status(1).RetryAfter != 2*time.Hour {
		t.Errorf("afterwards, the statuses are %+v and %+v, %v; want those of the denial", after.Status(0), after.Status(1), err)
	}
	if missing, _, _ := store.Scripts(); missing != 0 {
		t.Errorf("after Load, %d scripts were missing; want none", missing)
	}
}

// If another key denies, a renewal with fewer slots changes nothing: the hold keeps its slots and
// its time.
func TestRenewalInADeniedBatchChangesNothing(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	client := &shardedClient{Client: dialURL(t, redistest.Shared(t).URL())}
	store := storeOn(t, client, Options{Prefix: fmt.Sprintf("d%x", rand.Uint64()), Now: func() time.Time { return clock }})
	slots, scarce := penstock.InFlight(5, time.Hour).MustCompile(), penstock.PerHour(1).WithName("scarce").MustCompile()
	decide := func(charges ...penstock.Charge) penstock.Decision {
		d, err := store.Decide(t.Context(), charges)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	decide(penstock.Charge{Key: "a", Plan: slots, Cost: 4, Holder: "me"})
	decide(penstock.Charge{Key: "b", Plan: scarce, Cost: 1}) // its only unit
	clock = clock.Add(time.Minute)
	for _, batch := range [][]penstock.Charge{
		{{Key: "a", Plan: slots, Cost: 2, Holder: "me"}, {Key: "b", Plan: scarce, Cost: 1}},
		{{Key: "b", Plan: scarce, Cost: 1}, {Key: "a", Plan: slots, Cost: 2, Holder: "me"}},
	} {
		if d := decide(batch...); d.Allowed {
			t.Fatal("the batch was granted; want it denied")
		}
		d := decide(penstock.Charge{Key: "a", Plan: slots, Mode: penstock.Peek, Cost: 2, Holder: "other"})
		if s := d.Status(0); s.Remaining != 1 || s.RetryAfter != 59*time.Minute {
			t.Errorf("after the denied renewal: %+v; want 1 of 5 slots left, and RetryAfter 59m0s", s)
		}
	}
}

// If several keys deny a batch, the decision has the longest RetryAfter. Never is longer than any
// duration.
func TestDeniedBatchOverSlotsHasTheLongestRetryAfter(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	client := &shardedClient{Client: dialURL(t, redistest.Shared(t).URL())}
	store := storeOn(t, client, Options{Prefix: fmt.Sprintf("d%x", rand.Uint64()), Now: func() time.Time { return clock }})
	second, hour := penstock.PerSecond(1), penstock.PerHour(1)
	for _, limit := range []penstock.Limit{second, hour} {
		for _, key := range []string{"a", "b"} {
			if _, err := store.Decide(t.Context(), []penstock.Charge{{Key: key, Plan: limit.MustCompile(), Cost: 1}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	perSecond := penstock.Charge{Key: "a", Plan: second.MustCompile(), Cost: 1}
	hourPlan := hour.MustCompile()
	for _, c := range []struct {
		perHour penstock.Charge
		want    time.Duration
	}{
		{perHour: penstock.Charge{Key: "b", Plan: hourPlan, Cost: 1}, want: time.Hour},
		{perHour: penstock.Charge{Key: "b", Plan: hourPlan, Cost: 2}, want: penstock.Never},
		{perHour: penstock.Charge{Key: "b", Plan: hourPlan, Cost: algorithm.Max / 2, Mode: penstock.Draw}, want: time.Hour},
		{perHour: penstock.Charge{Key: "b", Plan: hourPlan, Cost: 1, Mode: penstock.Peek}, want: time.Hour},
	} {
		for _, batch := range [][]penstock.Charge{{perSecond, c.perHour}, {c.perHour, perSecond}} {
			d, err := store.Decide(t.Context(), batch)
			if err != nil || d.RetryAfter() != c.want {
				t.Errorf("%v: the decision is %v, %v; want RetryAfter %v", describe(batch), d, err, c.want)
			}
		}
	}
}
