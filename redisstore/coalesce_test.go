package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A gatedClient holds scripts back until the test says how they go on.
type gatedClient struct {
	redisstore.Client
	scripts atomic.Int64
	held    chan func(context.Context) error // what to do with the next script: nil lets it pass

	mu      sync.Mutex
	unknown map[string]int // digest: how many calls the server did not know it for, which will be sent again
}

func (c *gatedClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	if !c.again(digest) {
		c.scripts.Add(1)
		select {
		case fate := <-c.held:
			if fate != nil {
				if err := fate(ctx); err != nil {
					return "", err
				}
			}
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	reply, err := c.Client.EvalSha(ctx, digest, keys, args)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.unknown == nil {
			c.unknown = make(map[string]int)
		}
		c.unknown[digest]++
	}
	return reply, err
}

// again tells whether a call has been held before.
func (c *gatedClient) again(digest string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown[digest] == 0 {
		return false
	}
	c.unknown[digest]--
	return true
}

// pass lets the next n scripts pass.
func (c *gatedClient) pass(n int) {
	for range n {
		c.held <- nil
	}
}

// passAll lets all scripts pass until the test ends.
func (g *coalescing) passAll() {
	for {
		select {
		case g.client.held <- nil:
		case <-g.Context().Done():
			return
		}
	}
}

type coalescing struct {
	*testing.T
	client *gatedClient
	store  *redisstore.Store
	limit  *penstock.Plan
	prefix string
}

func newCoalescing(t *testing.T, client redisstore.Client) *coalescing {
	g := &coalescing{T: t, client: &gatedClient{Client: client, held: make(chan func(context.Context) error)}, limit: penstock.PerHour(30).MustCompile(), prefix: aPrefix()}
	g.store = over(t, g.client, redisstore.Options{Prefix: g.prefix})
	return g
}

// An asked is a call in flight.
type asked struct {
	cancel   context.CancelFunc
	decision penstock.Decision
	err      error
	done     chan struct{}
}

func (g *coalescing) ask(key string, cost int64) *asked {
	ctx, cancel := context.WithCancel(context.Background())
	return g.askIn(ctx, cancel, penstock.Charge{Key: key, Plan: g.limit, Cost: cost})
}

func (g *coalescing) askIn(ctx context.Context, cancel context.CancelFunc, charges ...penstock.Charge) *asked {
	a := &asked{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.decision, a.err = g.store.Decide(ctx, charges)
	}()
	return a
}

func (g *coalescing) await(what string, ready func() bool) {
	g.Helper()
	for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			g.Fatalf("timed out waiting for %s", what)
		}
	}
}

// hold keeps two scripts in flight, so that all other callers wait.
func (g *coalescing) hold() []*asked {
	g.Helper()
	first := []*asked{g.ask("a", 1), g.ask("b", 1)}
	g.await("two scripts in flight", func() bool { return g.client.scripts.Load() == 2 })
	return first
}

// holdThree keeps three scripts in flight, so that all other callers wait, however many they are.
func (g *coalescing) holdThree() []*asked {
	g.Helper()
	calls := g.hold()
	for i := range 16 {
		calls = append(calls, g.ask(fmt.Sprint("many", i), 1))
	}
	g.await("three scripts in flight", func() bool { return g.client.scripts.Load() == 3 })
	return calls
}

// awaitWaiting returns when n callers wait.
func (g *coalescing) awaitWaiting(n int) {
	g.Helper()
	g.await(fmt.Sprint(n, " callers to wait"), func() bool { return redisstore.Waiting(g.store) == n })
}

func (g *coalescing) granted(calls []*asked) (granted int) {
	g.Helper()
	for _, a := range calls {
		<-a.done
		if a.err != nil {
			g.Errorf("failed: %v", a.err)
		} else if a.decision.Allowed {
			granted++
		}
	}
	return granted
}

func TestWaitersShareAScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	for i := range 60 {
		calls = append(calls, g.ask(fmt.Sprint("key", i%3), 1+int64(i/30))) // of each key 10 of 1 unit, and 10 of 2
	}
	g.awaitWaiting(60)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 62 || g.client.scripts.Load() != 3 {
		t.Errorf("%d of 62 were granted in %d scripts; want all in 3", granted, g.client.scripts.Load())
	}
	for _, key := range []string{"key0", "key1", "key2"} {
		a := g.ask(key, 1)
		g.client.pass(1)
		if granted := g.granted([]*asked{a}); granted != 0 {
			t.Errorf("%s: more was granted than its 30 units", key)
		}
	}
}

// Any number of equal batches share a script, and each caller has an answer of its own.
func TestEqualBatchesShareAScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	for range 200 {
		calls = append(calls, g.ask("k", 1))
	}
	g.awaitWaiting(200)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 2+30 || g.client.scripts.Load() != 3 {
		t.Errorf("%d of 202 were granted in %d scripts; want 32 in 3", granted, g.client.scripts.Load())
	}
	left := make(map[int64]int)
	for _, a := range calls[2:] {
		if a.decision.Allowed {
			left[a.decision.Remaining()]++
		} else if status := a.decision.Status(0); status.Remaining != 0 || status.RetryAfter <= 0 {
			t.Errorf("a denied one got %+v", status)
		}
	}
	for n := range int64(30) {
		if left[n] != 1 {
			t.Errorf("%d callers got the reply that %d units are left; want one", left[n], n)
		}
	}
}

// A caller that leaves before the script is sent is not charged, and the others are served.
func TestWaiterThatLeavesTheQueueIsNotCharged(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	var leave []*asked
	for range 10 {
		calls = append(calls, g.ask("k", 1))
		leave = append(leave, g.ask("k", 1))
	}
	g.awaitWaiting(20)
	for _, a := range leave {
		a.cancel()
		<-a.done
		if !errors.Is(a.err, context.Canceled) || errors.Is(a.err, penstock.ErrUnavailable) {
			t.Errorf("a caller that left got %v", a.err)
		}
	}
	g.awaitWaiting(10)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 12 {
		t.Errorf("%d of 12 were granted", granted)
	}
	a := g.ask("k", 20)
	g.client.pass(1)
	if g.granted([]*asked{a}) != 1 {
		t.Error("a caller that left was charged")
	}
}

// A caller that leaves while the script is in flight does not cancel it for the others.
func TestOneCallersCancellationHarmsNoOther(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.hold()
	leaves := g.ask("k", 1)
	for range 9 {
		calls = append(calls, g.ask("k", 1))
	}
	g.awaitWaiting(10)
	go g.client.pass(2)
	g.await("the third script", func() bool { return g.client.scripts.Load() == 3 })
	leaves.cancel()
	<-leaves.done
	if !errors.Is(leaves.err, context.Canceled) {
		t.Errorf("a caller that left got %v", leaves.err)
	}
	g.client.pass(1)
	if granted := g.granted(calls); granted != 11 {
		t.Errorf("%d of 11 were granted", granted)
	}
	a := g.ask("k", 20) // of 30: the ten were charged, him that left included
	g.client.pass(1)
	if g.granted([]*asked{a}) != 1 {
		t.Error("more than ten units were charged")
	}
}

// A script that fails fails its callers alone, and it is not sent again.
func TestAFailedScriptFailsItsCallersAlone(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	others := g.hold()
	var together []*asked
	for range 5 {
		together = append(together, g.ask("k", 1))
	}
	g.awaitWaiting(5)
	go g.client.pass(2)
	g.await("the third script", func() bool { return g.client.scripts.Load() == 3 })
	later := g.ask("k", 1)
	g.client.held <- func(context.Context) error { return errors.New("the connection broke") }
	for _, a := range together {
		<-a.done
		var failure *penstock.StoreError
		if !errors.As(a.err, &failure) || !failure.MayBeCharged {
			t.Errorf("a caller of the failed script got %v", a.err)
		}
	}
	g.client.pass(1)
	if granted := g.granted(append(others, later)); granted != 3 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 3 others were granted, in %d scripts; want 3 in 4", granted, g.client.scripts.Load())
	}
}

// A key with other data fails only the callers of that key.
func TestAPoisonedKeyFailsItsCallersAlone(t *testing.T) {
	server := redistest.Shared(t)
	for _, poison := range [][]string{{"LPUSH", "x"}, {"SET", "garbage"}, {"SET", "\x01\x02\x03\x04\x05\x06\x07"}, {"SET", strings.Repeat("\xff", 40)}} {
		g := newCoalescing(t, dial(server.URL())(t))
		key, err := redisstore.KeyOf(penstock.Charge{Key: "poisoned", Plan: g.limit}, redisstore.Options{Prefix: g.prefix})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Do(poison[0], key, poison[1]); err != nil {
			t.Fatal(err)
		}
		calls := g.hold()
		var fail []*asked
		for i := range 5 {
			calls = append(calls, g.ask(fmt.Sprint(i), 1))
			fail = append(fail, g.ask("poisoned", 1))
		}
		g.awaitWaiting(10)
		g.client.pass(3)
		if granted := g.granted(calls); granted != 7 {
			t.Errorf("%q: %d of 7 were granted", poison, granted)
		}
		for _, a := range fail {
			<-a.done
			var failure *penstock.StoreError
			if !errors.As(a.err, &failure) || failure.Reason != penstock.ReasonCorrupt {
				t.Errorf("%q: %v", poison, a.err)
			}
		}
	}
}

// A script goes on as long as one of its callers waits, and is cancelled with the last.
func TestScriptIsGivenUpWithItsLastCaller(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	others := g.hold()
	var together []*asked
	for range 3 {
		together = append(together, g.ask("k", 1))
	}
	g.awaitWaiting(3)
	g.client.pass(2)
	ended := make(chan struct{})
	g.client.held <- func(ctx context.Context) error {
		defer close(ended)
		for i, a := range together {
			if ctx.Err() != nil {
				t.Errorf("given up with %d of 3 callers waiting", 3-i)
			}
			a.cancel()
			<-a.done
		}
		if ctx.Err() == nil {
			t.Error("it goes on without a caller")
		}
		return ctx.Err()
	}
	<-ended
	if granted := g.granted(others); granted != 2 {
		t.Errorf("%d of 2 were granted", granted)
	}
	for _, a := range together {
		if !errors.Is(a.err, context.Canceled) {
			t.Errorf("a caller that went away has %v", a.err)
		}
	}
}

// Batches of all kinds are coalesced, those of one kind in one script.
func TestBatchesOfAllKindsAreCoalesced(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescing(t, dial(server.URL())(t))
	calls := g.holdThree()
	kinds := [][]penstock.Charge{
		{{Plan: penstock.PerHour(10).MustCompile(), Cost: 1}},
		{{Plan: penstock.PerHour(10).With(penstock.SlidingLog).MustCompile(), Cost: 1}},
		{{Plan: penstock.InFlight(10, time.Minute).MustCompile(), Cost: 1, Holder: "h"}},
		{{Plan: penstock.PerHour(10).MustCompile(), Cost: 1}, {Plan: penstock.PerDay(10).MustCompile(), Cost: 1}},
		{{Plan: penstock.PerHour(10).MustCompile(), Cost: 1}, {Key: "everybody", Plan: penstock.PerDay(1000).MustCompile(), Cost: 1}},
		{{Plan: penstock.Every(time.Hour).With(penstock.LeakyBucket).WithBurst(9).MustCompile(), Cost: 1, Holder: "h", Patience: 20 * time.Hour}},
	}
	for i := range 10 {
		for n, kind := range kinds {
			charges := make([]penstock.Charge, len(kind))
			for c := range kind {
				charges[c] = kind[c]
				limit := charges[c].Plan.Limit()
				limit.Group = fmt.Sprint("g", n)
				charges[c].Plan = limit.MustCompile()
				if charges[c].Key == "" {
					charges[c].Key = fmt.Sprint("k", n)
				}
				if charges[c].Holder != "" {
					charges[c].Holder = fmt.Sprint("h", i)
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			calls = append(calls, g.askIn(ctx, cancel, charges...))
		}
	}
	g.awaitWaiting(len(kinds) * 10)
	go g.passAll()
	if granted := g.granted(calls); granted != len(calls) {
		t.Errorf("%d of %d were granted", granted, len(calls))
	}
	if scripts := g.client.scripts.Load(); scripts > 3+5 {
		t.Errorf("they took %d scripts", scripts)
	}
}

// On a Cluster the callers of a slot do not wait for those of other slots.
func TestEachSlotOfAClusterCoalescesAlone(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	g := newCoalescing(t, dial("redis+cluster://"+strings.Join(cluster.Addrs(), ","))(t))
	var calls []*asked
	for range 2 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.await("two scripts in flight", func() bool { return g.client.scripts.Load() == 2 })
	for range 20 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.awaitWaiting(20)
	calls = append(calls, g.ask("another", 1))
	g.await("another slot's script", func() bool { return g.client.scripts.Load() == 3 })
	g.client.pass(4)
	if granted := g.granted(calls); granted != 23 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 23 were granted in %d scripts; want all in 4", granted, g.client.scripts.Load())
	}
}

func TestWithoutCoalescingNobodyWaits(t *testing.T) {
	server := redistest.Shared(t)
	client := &gatedClient{Client: dial(server.URL())(t), held: make(chan func(context.Context) error)}
	g := &coalescing{T: t, client: client, limit: penstock.PerHour(30).MustCompile(), store: redisstore.DisableCoalescing(over(t, client, redisstore.Options{}))}
	var calls []*asked
	for range 20 {
		calls = append(calls, g.ask("k", 1))
	}
	g.await("20 scripts", func() bool { return client.scripts.Load() == 20 })
	client.pass(20)
	if granted := g.granted(calls); granted != 20 {
		t.Errorf("%d of 20 were granted", granted)
	}
}

// A hoarder fails every other script, and keeps what it was given: clients do so with what they
// have not sent when a context ends.
type hoarder struct {
	redisstore.Client
	mu    sync.Mutex
	calls int
	kept  [][2][]string // what it was given, and what that was
}

func (h *hoarder) EvalSha(_ context.Context, _ string, keys, args []string) (string, error) {
	time.Sleep(time.Millisecond) // so that others gather
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls++; h.calls%2 == 0 {
		return h.Client.EvalSha(context.Background(), "", keys, args)
	}
	given, was := slices.Concat(keys, args), []string{}
	for _, s := range given {
		was = append(was, strings.Clone(s))
	}
	h.kept = append(h.kept, [2][]string{given, was})
	return "", errors.New("lost")
}

type answering struct{ redisstore.Client }

func (answering) EvalSha(context.Context, string, []string, []string) (string, error) { return "", nil }
func (answering) Sharded(context.Context) (bool, error)                               { return false, nil }
func (answering) Close() error                                                        { return nil }

// Otherwise a script that is sent late charges for others, or twice.
func TestWhatAFailedScriptWasGivenStaysAsItWas(t *testing.T) {
	t.Parallel()
	client := &hoarder{Client: answering{}}
	store := over(t, client, redisstore.Options{})
	var all sync.WaitGroup
	for who := range 16 {
		all.Go(func() {
			for i := range 50 {
				key := fmt.Sprint("key ", who, i)
				batch := []penstock.Charge{
					{Key: key, Plan: penstock.PerHour(30).MustCompile(), Cost: int64(who)},
					{Key: key, Plan: penstock.PerDay(99).With(penstock.SlidingLog).MustCompile(), Cost: int64(i % 30)},
				}
				_, _ = store.Decide(context.Background(), batch[:1+(who+i)%2])
			}
		})
	}
	all.Wait()
	for i, k := range client.kept {
		if !slices.Equal(k[0], k[1]) {
			t.Fatalf("script %d of %d was given %q; later that is %q", i, len(client.kept), k[1], k[0])
		}
	}
	t.Logf("counted: %d failed scripts, with what they were given", len(client.kept))
}

// A deadline that passes in the queue says that nothing was sent, not that the server was out of
// reach; after that the outcome is unknown. It does not matter whether the deadline has a timer.
func TestReasonOfADeadlineTellsWhetherTheBatchWasSent(t *testing.T) {
	for name, within := range map[string]func(penstock.Store, time.Duration) penstock.Store{
		"timer": func(store penstock.Store, after time.Duration) penstock.Store {
			return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				ctx, cancel := context.WithTimeout(ctx, after)
				defer cancel()
				return store.Decide(ctx, charges)
			})
		},
		"no timer": func(store penstock.Store, after time.Duration) penstock.Store {
			return guard.Timeout(guard.TimeoutOptions{After: after})(store)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := over(t, new(heedless), redisstore.Options{})
				errs := make(chan error, 3)
				for i := range cap(errs) { // two scripts are sent, and the third caller waits
					after := time.Duration(20-5*i) * time.Millisecond
					go func() {
						_, err := within(store, after).Decide(context.Background(), []penstock.Charge{spend("k", penstock.PerHour(30).MustCompile(), 1)})
						errs <- err
					}()
					synctest.Wait()
				}
				reasons := make(map[penstock.Reason]int)
				for range cap(errs) {
					err := <-errs
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, penstock.ErrUnavailable) || strings.Contains(err.Error(), "unreachable") {
						t.Errorf("%v", err)
					} else {
						reasons[penstock.AsStoreError(err).Reason]++
					}
				}
				if reasons[penstock.ReasonTimeout] != 2 || reasons[penstock.ReasonLate] != 1 {
					t.Errorf("the reasons are %v; want two timeouts, and one that is late", reasons)
				}
				time.Sleep(2 * time.Hour) // the client's calls end
			})
		})
	}
}
