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
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A gatedClient delays scripts until the test decides what happens to them.
type gatedClient struct {
	redisstore.Client
	scripts atomic.Int64
	// Each value releases one script. A function is called before the script, and its error is the
	// result of the script. nil only releases the script.
	releases chan func(context.Context) error

	mu      sync.Mutex
	unknown map[string]int // by digest, how many calls got NOSCRIPT and will be repeated
}

func (c *gatedClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	if !c.isRepeated(digest) {
		c.scripts.Add(1)
		select {
		case before := <-c.releases:
			if before != nil {
				if err := before(ctx); err != nil {
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

// isRepeated returns true if a call repeats a released script after NOSCRIPT. It removes this
// repetition from c.unknown.
func (c *gatedClient) isRepeated(digest string) bool {
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
		c.releases <- nil
	}
}

// passAll lets all scripts pass, and blocks until the test ends.
func (g *coalescingTest) passAll() {
	for {
		select {
		case g.client.releases <- nil:
		case <-g.Context().Done():
			return
		}
	}
}

// A coalescingTest is a store whose scripts wait in a gatedClient.
type coalescingTest struct {
	*testing.T
	client *gatedClient
	store  *redisstore.Store
	limit  *penstock.Plan
	prefix string
}

func newCoalescingTest(t *testing.T, client redisstore.Client) *coalescingTest {
	g := &coalescingTest{T: t, client: &gatedClient{Client: client, releases: make(chan func(context.Context) error)}, limit: penstock.PerHour(30).MustCompile(), prefix: newPrefix()}
	g.store = newStore(t, g.client, redisstore.Options{Prefix: g.prefix})
	return g
}

// A pendingCall is a call in flight.
type pendingCall struct {
	cancel   context.CancelFunc
	decision penstock.Decision
	err      error
	done     chan struct{}
}

// call starts a call with one charge of g.limit.
func (g *coalescingTest) call(key string, cost int64) *pendingCall {
	ctx, cancel := context.WithCancel(context.Background())
	return g.callIn(ctx, cancel, penstock.Charge{Key: key, Plan: g.limit, Cost: cost})
}

// callIn starts a call with these charges in ctx, which cancel ends.
func (g *coalescingTest) callIn(ctx context.Context, cancel context.CancelFunc, charges ...penstock.Charge) *pendingCall {
	call := &pendingCall{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(call.done)
		call.decision, call.err = g.store.Decide(ctx, charges)
	}()
	return call
}

// holdTwo starts two calls and keeps their scripts in flight, so that all other callers wait. It
// returns the calls.
func (g *coalescingTest) holdTwo() []*pendingCall {
	g.Helper()
	first := []*pendingCall{g.call("a", 1), g.call("b", 1)}
	eventually.True(g, "two scripts in flight", func() bool { return g.client.scripts.Load() == 2 })
	return first
}

// holdThree keeps three scripts in flight, so that any number of other callers wait. It returns the
// calls of these scripts.
func (g *coalescingTest) holdThree() []*pendingCall {
	g.Helper()
	calls := g.holdTwo()
	for i := range 16 { // thirdFlightMinRequests of package coalesce
		calls = append(calls, g.call(fmt.Sprint("many", i), 1))
	}
	eventually.True(g, "three scripts in flight", func() bool { return g.client.scripts.Load() == 3 })
	return calls
}

// awaitWaiters returns when n callers wait.
func (g *coalescingTest) awaitWaiters(n int) {
	g.Helper()
	eventually.True(g, fmt.Sprint(n, " callers wait"), func() bool { return redisstore.Waiting(g.store) == n })
}

// countGranted waits until the calls have ended, and returns how many of them were granted.
func (g *coalescingTest) countGranted(calls []*pendingCall) (granted int) {
	g.Helper()
	for _, call := range calls {
		<-call.done
		if call.err != nil {
			g.Errorf("a call failed: %v; want a decision", call.err)
		} else if call.decision.Allowed {
			granted++
		}
	}
	return granted
}

func TestWaitersShareAScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	for i := range 60 {
		calls = append(calls, g.call(fmt.Sprint("key", i%3), 1+int64(i/30))) // for each key, 10 calls of 1 unit and 10 of 2 units
	}
	g.awaitWaiters(60)
	g.client.pass(3) // two that are held, and one for the waiters
	if granted := g.countGranted(calls); granted != 62 || g.client.scripts.Load() != 3 {
		t.Errorf("%d of 62 calls were granted in %d scripts; want all of them in 3", granted, g.client.scripts.Load())
	}
	for _, key := range []string{"key0", "key1", "key2"} {
		call := g.call(key, 1)
		g.client.pass(1)
		if granted := g.countGranted([]*pendingCall{call}); granted != 0 {
			t.Errorf("%s: a call after all 30 units were spent was granted; want a denial", key)
		}
	}
}

// Any number of equal batches share a script, and each caller has an answer of its own.
func TestEqualBatchesShareAScript(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	for range 200 {
		calls = append(calls, g.call("k", 1))
	}
	g.awaitWaiters(200)
	g.client.pass(3) // two that are held, and one for the waiters
	if granted := g.countGranted(calls); granted != 2+30 || g.client.scripts.Load() != 3 {
		t.Errorf("%d of 202 calls were granted in %d scripts; want 32 in 3", granted, g.client.scripts.Load())
	}
	left := make(map[int64]int)
	for _, call := range calls[2:] { // without the two of holdTwo
		if call.decision.Allowed {
			left[call.decision.Remaining()]++
		} else if status := call.decision.Status(0); status.Remaining != 0 || status.RetryAfter <= 0 {
			t.Errorf("a denied call got %+v; want the status of a denial", status)
		}
	}
	for n := range int64(30) {
		if left[n] != 1 {
			t.Errorf("%d callers got a reply with %d units remaining; want one", left[n], n)
		}
	}
}

// A caller that leaves before the script is sent is not charged, and the others are served.
func TestWaiterThatLeavesTheQueueIsNotCharged(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	var leavers []*pendingCall
	for range 10 {
		calls = append(calls, g.call("k", 1))
		leavers = append(leavers, g.call("k", 1))
	}
	g.awaitWaiters(20)
	for _, call := range leavers {
		call.cancel()
		<-call.done
		if !errors.Is(call.err, context.Canceled) || errors.Is(call.err, penstock.ErrUnavailable) {
			t.Errorf("a caller that left got %v; want context.Canceled", call.err)
		}
	}
	g.awaitWaiters(10)
	g.client.pass(3) // two that are held, and one for the waiters
	if granted := g.countGranted(calls); granted != 12 {
		t.Errorf("%d of 12 calls were granted; want all", granted)
	}
	call := g.call("k", 20)
	g.client.pass(1)
	if g.countGranted([]*pendingCall{call}) != 1 {
		t.Error("a call of 20 units was denied after 10 of 30 units were granted; want no charge for callers that left")
	}
}

// A caller that leaves while the script is in flight does not cancel it for the others.
func TestCanceledCallerDoesNotCancelOthers(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdTwo()
	leaver := g.call("k", 1)
	for range 9 {
		calls = append(calls, g.call("k", 1))
	}
	g.awaitWaiters(10)
	go g.client.pass(2)
	eventually.True(g, "the third script", func() bool { return g.client.scripts.Load() == 3 })
	leaver.cancel()
	<-leaver.done
	if !errors.Is(leaver.err, context.Canceled) {
		t.Errorf("a caller that left got %v; want context.Canceled", leaver.err)
	}
	g.client.pass(1)
	if granted := g.countGranted(calls); granted != 11 {
		t.Errorf("%d of 11 calls were granted; want all", granted)
	}
	call := g.call("k", 20) // of 30: ten were charged, including the caller that left
	g.client.pass(1)
	if g.countGranted([]*pendingCall{call}) != 1 {
		t.Error("a call of 20 units was denied; want it granted, because only 10 of 30 units were charged before")
	}
}

// If a script fails, only its callers fail, and it is not sent again.
func TestFailedScriptFailsOnlyItsCallers(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	others := g.holdTwo()
	var together []*pendingCall
	for range 5 {
		together = append(together, g.call("k", 1))
	}
	g.awaitWaiters(5)
	go g.client.pass(2)
	eventually.True(g, "the third script", func() bool { return g.client.scripts.Load() == 3 })
	later := g.call("k", 1)
	g.client.releases <- func(context.Context) error { return errors.New("the connection broke") }
	for _, call := range together {
		<-call.done
		var failure *penstock.StoreError
		if !errors.As(call.err, &failure) || !failure.MayBeCharged {
			t.Errorf("a caller of the failed script got %v; want a StoreError with MayBeCharged", call.err)
		}
	}
	g.client.pass(1)
	if granted := g.countGranted(append(others, later)); granted != 3 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 3 other calls were granted, in %d scripts; want 3 in 4", granted, g.client.scripts.Load())
	}
}

// A key with other data fails only the callers of that key, and keeps its data. If each key has one
// caller, the script reads all keys at once.
func TestMalformedKeyFailsOnlyItsCallers(t *testing.T) {
	server := redistest.Shared(t)
	for _, callersOfEach := range []int{1, 5} {
		for _, foreign := range [][]string{{"LPUSH", "x"}, {"SET", "garbage"}, {"SET", "\x01\x02\x03\x04\x05\x06\x07"}, {"SET", strings.Repeat("\xff", 40)}} {
			g := newCoalescingTest(t, dial(server.URL())(t))
			key, err := redisstore.KeyOf(penstock.Charge{Key: "malformed", Plan: g.limit}, redisstore.Options{Prefix: g.prefix})
			if err != nil {
				t.Fatal(err)
			}
			must(t, server, foreign[0], key, foreign[1])
			before := must(t, server, "DUMP", key)
			calls := g.holdTwo()
			var failing []*pendingCall
			for i := range 5 {
				calls = append(calls, g.call(fmt.Sprint(i), 1))
			}
			for range callersOfEach {
				failing = append(failing, g.call("malformed", 1))
			}
			g.awaitWaiters(5 + callersOfEach)
			g.client.pass(3) // two that are held, and one for the waiters
			if granted := g.countGranted(calls); granted != 7 {
				t.Errorf("%q: %d of 7 callers of other keys were granted; want all", foreign, granted)
			}
			for _, call := range failing {
				<-call.done
				var failure *penstock.StoreError
				if !errors.As(call.err, &failure) || failure.Reason != penstock.ReasonCorrupt {
					t.Errorf("%q: %v; want an error of reason corrupt", foreign, call.err)
				}
			}
			if after := must(t, server, "DUMP", key); after != before {
				t.Errorf("%q with %d callers: the key has become %q; want it unchanged", foreign, callersOfEach, after)
			}
		}
	}
}

// A script runs as long as one of its callers waits, and is canceled when the last has left.
func TestScriptIsCanceledWithItsLastCaller(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	others := g.holdTwo()
	var together []*pendingCall
	for range 3 {
		together = append(together, g.call("k", 1))
	}
	g.awaitWaiters(3)
	g.client.pass(2)
	ended := make(chan struct{})
	g.client.releases <- func(ctx context.Context) error {
		defer close(ended)
		for i, call := range together {
			if ctx.Err() != nil {
				t.Errorf("the script was canceled while %d of 3 callers waited; want it to run", 3-i)
			}
			call.cancel()
			<-call.done
		}
		if ctx.Err() == nil {
			t.Error("the script still runs after its last caller has left; want it canceled")
		}
		return ctx.Err()
	}
	<-ended
	if granted := g.countGranted(others); granted != 2 {
		t.Errorf("%d of 2 calls were granted; want all", granted)
	}
	for _, call := range together {
		if !errors.Is(call.err, context.Canceled) {
			t.Errorf("a caller that left got %v; want context.Canceled", call.err)
		}
	}
}

// Batches of all kinds are coalesced, those of one kind in one script.
func TestBatchesOfAllKindsAreCoalesced(t *testing.T) {
	server := redistest.Shared(t)
	g := newCoalescingTest(t, dial(server.URL())(t))
	calls := g.holdThree()
	// Each batch gets a group of its own, and each caller a holder of its own.
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
			calls = append(calls, g.callIn(ctx, cancel, charges...))
		}
	}
	g.awaitWaiters(len(kinds) * 10)
	go g.passAll()
	if granted := g.countGranted(calls); granted != len(calls) {
		t.Errorf("%d of %d calls were granted; want all", granted, len(calls))
	}
	const most = 3 + 3 + 1 + 1 // three that are held, one for each uniform kind, one for all mixed kinds, and one to spare
	if scripts := g.client.scripts.Load(); scripts > most {
		t.Errorf("the calls took %d scripts; want at most %d", scripts, most)
	}
}

// On a Cluster the callers of a slot do not wait for those of other slots.
func TestEachSlotOfAClusterCoalescesAlone(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	g := newCoalescingTest(t, dial("redis+cluster://"+strings.Join(cluster.Addrs(), ","))(t))
	var calls []*pendingCall
	for range 2 {
		calls = append(calls, g.call("hot", 1))
	}
	eventually.True(g, "two scripts in flight", func() bool { return g.client.scripts.Load() == 2 })
	for range 20 {
		calls = append(calls, g.call("hot", 1))
	}
	g.awaitWaiters(20)
	calls = append(calls, g.call("another", 1))
	eventually.True(g, "another slot's script", func() bool { return g.client.scripts.Load() == 3 })
	g.client.pass(4)
	if granted := g.countGranted(calls); granted != 23 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 23 calls were granted in %d scripts; want all in 4", granted, g.client.scripts.Load())
	}
}

func TestWithoutCoalescingCallersDoNotWait(t *testing.T) {
	server := redistest.Shared(t)
	client := &gatedClient{Client: dial(server.URL())(t), releases: make(chan func(context.Context) error)}
	g := &coalescingTest{T: t, client: client, limit: penstock.PerHour(30).MustCompile(), store: redisstore.DisableCoalescing(newStore(t, client, redisstore.Options{}))}
	var calls []*pendingCall
	for range 20 {
		calls = append(calls, g.call("k", 1))
	}
	eventually.True(g, "20 scripts", func() bool { return client.scripts.Load() == 20 })
	client.pass(20)
	if granted := g.countGranted(calls); granted != 20 {
		t.Errorf("%d of 20 calls were granted; want all", granted)
	}
}

// A keepingClient fails every other script, and keeps its arguments. Real clients keep the
// arguments of commands that were not sent when a context ended.
type keepingClient struct {
	redisstore.Client
	mu    sync.Mutex
	calls int
	kept  []keptArguments
}

// keptArguments are the arguments of a failed script, and a copy made when it was called.
type keptArguments struct{ given, copied []string }

func (c *keepingClient) EvalSha(_ context.Context, _ string, keys, args []string) (string, error) {
	time.Sleep(time.Millisecond) // so that other callers wait
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.calls%2 == 0 {
		return c.Client.EvalSha(context.Background(), "", keys, args)
	}
	arguments := keptArguments{given: slices.Concat(keys, args)}
	for _, s := range arguments.given {
		arguments.copied = append(arguments.copied, strings.Clone(s))
	}
	c.kept = append(c.kept, arguments)
	return "", errors.New("lost")
}

// An emptyClient replies an empty text to each script.
type emptyClient struct{ redisstore.Client }

func (emptyClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", nil
}
func (emptyClient) Sharded(context.Context) (bool, error) { return false, nil }
func (emptyClient) Close() error                          { return nil }

// A client may still send a failed script later. With other arguments, that script would make the
// charges of other callers, or charge twice.
func TestArgumentsOfAFailedScriptDoNotChange(t *testing.T) {
	t.Parallel()
	client := &keepingClient{Client: emptyClient{}}
	store := newStore(t, client, redisstore.Options{})
	var all sync.WaitGroup
	for caller := range 16 {
		all.Go(func() {
			for i := range 50 {
				key := fmt.Sprint("key ", caller, i)
				batch := []penstock.Charge{
					{Key: key, Plan: penstock.PerHour(30).MustCompile(), Cost: int64(caller)},
					{Key: key, Plan: penstock.PerDay(99).With(penstock.SlidingLog).MustCompile(), Cost: int64(i % 30)},
				}
				_, _ = store.Decide(context.Background(), batch[:1+(caller+i)%2])
			}
		})
	}
	all.Wait()
	for i, arguments := range client.kept {
		if !slices.Equal(arguments.given, arguments.copied) {
			t.Fatalf("script %d of %d had the arguments %q; later they are %q; want them unchanged", i, len(client.kept), arguments.copied, arguments.given)
		}
	}
	t.Logf("counted: %d failed scripts whose arguments did not change", len(client.kept))
}

// If a caller's deadline passes in the queue, its batch was not sent, and the reason is late. If
// the deadline passes after the script was sent, the reason is timeout. Both statements hold for a
// deadline with a timer and for a deadline without one.
func TestReasonOfADeadlineShowsWhetherTheBatchWasSent(t *testing.T) {
	for name, withDeadline := range map[string]func(penstock.Store, time.Duration) penstock.Store{
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
				store := newStore(t, new(slowClient), redisstore.Options{})
				errs := make(chan error, 3)
				for i := range cap(errs) { // two scripts are sent, and the third caller waits
					after := time.Duration(20-5*i) * time.Millisecond // the waiting caller has the first deadline
					go func() {
						_, err := withDeadline(store, after).Decide(context.Background(), []penstock.Charge{spend("k", penstock.PerHour(30).MustCompile(), 1)})
						errs <- err
					}()
					synctest.Wait()
				}
				reasons := make(map[penstock.Reason]int)
				for range cap(errs) {
					err := <-errs
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, penstock.ErrUnavailable) || strings.Contains(err.Error(), "unreachable") {
						t.Errorf("%v; want an ErrUnavailable that wraps DeadlineExceeded and does not call the server unreachable", err)
					} else {
						reasons[penstock.AsStoreError(err).Reason]++
					}
				}
				if reasons[penstock.ReasonTimeout] != 2 || reasons[penstock.ReasonLate] != 1 {
					t.Errorf("the reasons are %v; want \"timeout\" twice and \"late\" once", reasons)
				}
				time.Sleep(2 * time.Hour) // the client's calls end
			})
		})
	}
}
