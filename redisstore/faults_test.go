package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestClosedStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, isUsed := range []bool{false, true} {
		store, err := redisstore.Open(s.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if isUsed {
			remaining(t, store, "k", slowRefill("d", 10))
		}
		if err := store.Close(); err != nil {
			t.Errorf("Close: %v; want no error", err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("a second Close: %v; want no error", err)
		}
		if _, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)}); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("Decide of a closed store: %v; want an ErrUnavailable", err)
		}
	}
}

// A partlyDownClient is a Client of one server that acts as several servers, one for each key. Some
// of them cannot be reached after a number of calls.
type partlyDownClient struct {
	redisstore.Client
	down func(key string, call int) bool // whether this call of the key fails; calls are counted from 1

	mu    sync.Mutex
	calls map[string]int // by key
}

func (p *partlyDownClient) Sharded(context.Context) (bool, error) { return true, nil }

func (p *partlyDownClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	if p.isDown(keys[0]) {
		return "", errors.New("down")
	}
	return p.Client.EvalSha(ctx, digest, keys, args)
}

// isDown counts a call of the key, and returns true if the call fails.
func (p *partlyDownClient) isDown(key string) bool {
	_, key, _ = strings.Cut(key, "{")
	key, _, _ = strings.Cut(key, "}")
	key = strings.Clone(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = make(map[string]int)
	}
	p.calls[key]++
	return p.down(key, p.calls[key])
}

func TestFailureOnOneServerRefundsTheOthers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limit := slowRefill("d", 10)
	for _, row := range []struct {
		name  string
		batch []penstock.Charge
		up    map[string]int // how many calls the server of a key answers before it fails; absent: all
		left  [3]int64       // units of a, b and c after the batch; each begins with 4
	}{
		{name: "dry runs", batch: []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}, up: map[string]int{"b": 0}, left: [3]int64{4, 4, 4}},
		{name: "spends", batch: []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}, up: map[string]int{"b": 1}, left: [3]int64{4, 4, 4}},
		{name: "spends in the other order", batch: []penstock.Charge{spend("b", limit, 1), spend("a", limit, 3)}, up: map[string]int{"b": 1}, left: [3]int64{4, 4, 4}},
		{name: "refunds", batch: []penstock.Charge{
			{Key: "a", Plan: limit, Mode: penstock.Refund, Cost: 2}, {Key: "b", Plan: limit, Mode: penstock.Refund, Cost: 2},
		}, up: map[string]int{"b": 0}, left: [3]int64{6, 4, 4}},
		{name: "a spend and refunds", batch: []penstock.Charge{
			spend("c", limit, 3), {Key: "a", Plan: limit, Mode: penstock.Refund, Cost: 2}, {Key: "b", Plan: limit, Mode: penstock.Refund, Cost: 2},
		}, up: map[string]int{"b": 0}, left: [3]int64{6, 4, 4}},
		{name: "spends, one of which cannot be refunded", batch: []penstock.Charge{
			spend("a", limit, 3), spend("b", limit, 1), {Key: "c", Plan: limit, Mode: penstock.Force, Cost: 1},
		}, up: map[string]int{"b": 2, "c": 1}, left: [3]int64{4, 3, 4}},
		{name: "forces", batch: []penstock.Charge{
			{Key: "a", Plan: limit, Mode: penstock.Force, Cost: 9}, {Key: "b", Plan: limit, Mode: penstock.Force, Cost: 1},
		}, up: map[string]int{"b": 0}, left: [3]int64{4, 4, 4}},
	} {
		t.Run(row.name, func(t *testing.T) {
			prefix, client := newPrefix(), dial(server.URL())(t)
			direct := newStore(t, client, redisstore.Options{Prefix: prefix})
			for _, key := range []string{"a", "b", "c"} {
				if _, err := direct.Decide(t.Context(), []penstock.Charge{spend(key, limit, 6)}); err != nil {
					t.Fatal(err)
				}
			}
			store := newStore(t, &partlyDownClient{Client: client, down: func(key string, call int) bool {
				answered, hasBound := row.up[key]
				return hasBound && call > answered
			}}, redisstore.Options{Prefix: prefix})
			if d, err := store.Decide(t.Context(), row.batch); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("a batch of which one server fails: allowed %t, %v; want an ErrUnavailable", d.Allowed, err)
			}
			for i, key := range []string{"a", "b", "c"} {
				if left := remaining(t, direct, key, limit); left != row.left[i] {
					t.Errorf("%d units are left under %q; want %d", left, key, row.left[i])
				}
			}
		})
	}
}

func TestCanceledCallerLeavesNoPartialBatch(t *testing.T) {
	t.Parallel()
	client := dial(redistest.Shared(t).URL())(t)
	limit := slowRefill("d", 10)
	ctx, cancel := context.WithCancelCause(t.Context())
	store := newStore(t, &partlyDownClient{Client: client, down: func(key string, call int) bool {
		if key == "b" && call == 2 { // the first call is a dry run, and the second charges
			cancel(errors.New("gone"))
		}
		return false
	}}, redisstore.Options{Prefix: newPrefix()})
	switch d, err := store.Decide(ctx, []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}); {
	case err == nil && d.Allowed: // the replies came before the cancellation
		if a, b := remaining(t, store, "a", limit), remaining(t, store, "b", limit); a != 7 || b != 9 {
			t.Errorf("a batch that was granted left %d units under \"a\" and %d under \"b\"; want 7 and 9", a, b)
		}
	case errors.Is(err, context.Canceled):
		eventually.True(t, "the units are refunded", func() bool {
			return remaining(t, store, "a", limit) == 10 && remaining(t, store, "b", limit) == 10
		})
	default:
		t.Errorf("a caller that was canceled during the call: allowed %t, %v; want its context's error", d.Allowed, err)
	}
}

// A stuckClient acts as one server for each key, like a partlyDownClient. If the key begins with b,
// the server answers the dry run, and then fails. Other servers answer the dry run and the charge,
// and then hang until released is closed: so the refund of the charge hangs.
type stuckClient struct {
	redisstore.Client
	released     chan struct{}
	hanging, max atomic.Int64     // calls that hang now; the most that have hung at the same time
	calls        partlyDownClient // decides which calls fail or hang
}

func newStuckClient(client redisstore.Client) *stuckClient {
	return &stuckClient{Client: client, released: make(chan struct{}), calls: partlyDownClient{
		down: func(key string, call int) bool { return call > 2 || key[0] == 'b' && call > 1 },
	}}
}

func (s *stuckClient) Sharded(context.Context) (bool, error) { return true, nil }

func (s *stuckClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	if s.calls.isDown(keys[0]) {
		if strings.Contains(keys[0], "{b") {
			return "", errors.New("down")
		}
		s.max.Store(max(s.max.Load(), s.hanging.Add(1)))
		defer s.hanging.Add(-1)
		select {
		case <-s.released:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return s.Client.EvalSha(ctx, digest, keys, args)
}

// Decide returns when its context ends, even if the batch is not refunded yet. The refund happens
// when the server works again.
func TestBatchEndsWithItsContextWhileItsRefundHangs(t *testing.T) {
	t.Parallel()
	client := dial(redistest.Start(t).URL())(t)
	limit := slowRefill("d", 10)
	if _, err := newStore(t, client, redisstore.Options{}).Decide(t.Context(), []penstock.Charge{spend("warm", limit, 1)}); err != nil {
		t.Fatal(err)
	}
	// Several tries are needed on a busy machine: a refund that is not released within a second is
	// given up.
	for try := range 20 {
		prefix := newPrefix()
		stuck := newStuckClient(client)
		store := newStore(t, stuck, redisstore.Options{Prefix: prefix})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := store.Decide(ctx, []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)})
			ended <- err
		}()
		eventually.True(t, "the refund hangs", func() bool { return stuck.hanging.Load() == 1 || len(ended) == 1 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("try %d: %v; want context.Canceled only", try, err)
		}
		hanging := stuck.hanging.Load()
		close(stuck.released)
		if hanging == 1 {
			eventually.True(t, "the units are refunded", func() bool {
				return remaining(t, newStore(t, client, redisstore.Options{Prefix: prefix}), "a", limit) == 10
			})
			return
		}
	}
	t.Error("in each of 20 tries the refund had ended when Decide returned; want one try in which it still hung")
}

// When Decide returns early, the refunds of its batch continue. The number of such batches is
// bounded. Close ends them, and it is then unknown whether they were refunded.
func TestRefundsAfterDecideReturnedAreBounded(t *testing.T) {
	t.Parallel()
	limit := slowRefill("d", 10)
	stuck := newStuckClient(dial(redistest.Start(t).URL())(t))
	if _, err := newStore(t, stuck.Client, redisstore.Options{}).Decide(t.Context(), []penstock.Charge{spend("warm", limit, 1)}); err != nil {
		t.Fatal(err)
	}
	store := newStore(t, stuck, redisstore.Options{})
	const calls = redisstore.MaxOutliving + 100
	var all sync.WaitGroup
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(500*time.Millisecond))
	defer cancel()
	for i := range calls {
		all.Go(func() {
			_, err := store.Decide(ctx, []penstock.Charge{spend(fmt.Sprint("k", i), limit, 3), spend(fmt.Sprint("b", i), limit, 1)})
			if e, ok := errors.AsType[*penstock.StoreError](err); !ok || !e.MayBeCharged && e.Reason != penstock.ReasonLate { // on a slow machine, a batch may not have been sent in time
				t.Errorf("a batch whose refund hangs: %v; want an error with MayBeCharged", err)
			}
		})
	}
	all.Wait()
	eventually.True(t, "the batches above MaxOutliving end", func() bool { return redisstore.Outliving(store) <= redisstore.MaxOutliving })
	if err := store.Close(); err != nil || stuck.hanging.Load() != 0 {
		t.Errorf("Close returned %v, and %d refunds still run; want no error and none", err, stuck.hanging.Load())
	}
	t.Logf("counted: %d batches whose refunds hang (%d at the same time)", calls, stuck.max.Load())
}

// A hungServer is a Cluster whose scripts never end.
type hungServer struct{ redisstore.Client }

func (hungServer) Close() error                          { return nil }
func (hungServer) Sharded(context.Context) (bool, error) { return true, nil }
func (hungServer) EvalSha(ctx context.Context, _ string, _, _ []string) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// When callers leave, MaxOutliving of their batches continue for a second. The others end at once.
func TestBatchesAboveMaxOutlivingEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := slowRefill("d", 10)
		store := newStore(t, hungServer{}, redisstore.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range redisstore.MaxOutliving + 100 {
			forced := penstock.Charge{Plan: limit, Mode: penstock.Force, Cost: 1}
			a, b := forced, forced
			a.Key, b.Key = fmt.Sprint("a", i), fmt.Sprint("b", i)
			go store.Decide(ctx, []penstock.Charge{a, b})
		}
		synctest.Wait()
		cancel()
		for _, row := range []struct {
			pause time.Duration
			want  int64
		}{{0, redisstore.MaxOutliving}, {time.Second - 1, redisstore.MaxOutliving}, {1, 0}} {
			time.Sleep(row.pause)
			synctest.Wait()
			if n := redisstore.Outliving(store); n != row.want {
				t.Errorf("%v later, %d batches are in flight; want %d", row.pause, n, row.want)
			}
		}
	})
}

// neededFor returns how long the state under a key of a user is still needed.
func neededFor(t *testing.T, store *redisstore.Store, key string, user int, limits []*penstock.Plan) (needed time.Duration) {
	t.Helper()
	for _, l := range limits {
		// A collection has a key of its own. The other limits of a group share one.
		isShared := strings.HasSuffix(key, "}"+l.Group()) && !l.Algorithm().IsCollection()
		isOwn := strings.Contains(key, "}"+l.Group()+":"+l.Name()+":")
		if !isShared && !isOwn {
			continue
		}
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: fmt.Sprint("u", user), Plan: l, Mode: penstock.Peek}})
		if err != nil {
			t.Fatal(err)
		}
		needed = max(needed, d.Status(0).ResetAfter)
	}
	return needed
}

// Every key has a TTL. The TTL is at least the time for which the key's state is needed, and has an
// upper bound. The charges are random, and the server's clock counts.
func TestEveryKeyExpires(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	seed := effort.Seed()
	rng := rand.New(rand.NewPCG(seed, 0))
	var limits []*penstock.Plan
	for i, a := range []*algorithm.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow,
		penstock.SlidingLog, penstock.Concurrency, penstock.SubWindow(5), penstock.CalendarWindow(algorithm.Month, time.UTC),
	} {
		for j, period := range []time.Duration{3 * time.Millisecond, 80 * time.Millisecond, time.Minute, 30 * 24 * time.Hour} {
			limits = append(limits, penstock.Limit{
				Name: fmt.Sprint("l", i, "-", j), Group: fmt.Sprint("g", rng.IntN(2)), Algorithm: a, Count: 1 + rng.Int64N(8),
				Period: period, Burst: rng.Int64N(9),
			}.MustCompile())
		}
	}
	const users = 8
	// The latest time at which a user's keys may expire. An answer allows a TTL of twice its
	// ResetAfter.
	var latestExpiry [users]time.Time
	for range effort.Of(1500, 20_000) {
		user := rng.IntN(users)
		var batch []penstock.Charge
		for _, i := range rng.Perm(len(limits))[:1+rng.IntN(3)] {
			batch = append(batch, penstock.Charge{
				Key: fmt.Sprint("u", user), Plan: limits[i], Cost: rng.Int64N(5), Mode: penstock.Mode(rng.IntN(6)),
				Patience: time.Duration(rng.IntN(2)) * time.Millisecond, Holder: fmt.Sprint("h", rng.IntN(4)),
			})
		}
		d, err := store.Decide(t.Context(), batch)
		if err != nil {
			t.Fatalf("seed %d: %+v: %v; want a decision", seed, batch, err)
		}
		for i := range d.Len() {
			if end := time.Now().Add(2 * d.Status(i).ResetAfter); end.After(latestExpiry[user]) {
				latestExpiry[user] = end
			}
		}
		if rng.IntN(100) == 0 {
			time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
		}
	}
	keys := must(t, s, "KEYS", "*").([]any)
	for _, k := range keys {
		key := k.(string)
		user := int(key[strings.Index(key, "{u")+2] - '0') // such as 3 in ps1{u3}g0
		calledAt := time.Now()
		needed := neededFor(t, store, key, user, limits)
		ttl := time.Duration(must(t, s, "PTTL", key).(int64)) * time.Millisecond
		// A key outlives its state by algorithm.MaxStall (5 s). A slow test may add a second.
		most := time.Until(latestExpiry[user]) + 6*time.Second
		switch {
		case ttl == -2*time.Millisecond: // the reply -2: the key has just expired
		case ttl < 0:
			t.Errorf("seed %d: key %q never expires; want a TTL", seed, key)
		case ttl+time.Since(calledAt) < needed:
			t.Errorf("seed %d: key %q expires in %v; want at least %v, for which its state is needed", seed, key, ttl, needed)
		case ttl > most:
			t.Errorf("seed %d: key %q expires in %v; want at most %v", seed, key, ttl, most)
		}
	}
	t.Logf("seed %d: %d keys", seed, len(keys))
}
