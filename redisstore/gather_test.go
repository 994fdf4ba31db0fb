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
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A gated client holds scripts back until it is told how they go on.
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

type gathering struct {
	*testing.T
	client *gatedClient
	store  *redisstore.Store
	limit  penstock.Limit
}

func newGathering(t *testing.T, client redisstore.Client) *gathering {
	g := &gathering{T: t, client: &gatedClient{Client: client, held: make(chan func(context.Context) error)}, limit: penstock.PerHour(30)}
	g.store = over(t, g.client, redisstore.Options{Prefix: aPrefix()})
	return g
}

// An asked is a call under way.
type asked struct {
	cancel   context.CancelFunc
	decision penstock.Decision
	err      error
	done     chan struct{}
}

func (g *gathering) ask(key string, cost int64) *asked {
	ctx, cancel := context.WithCancel(context.Background())
	return g.askIn(ctx, cancel, penstock.Charge{Key: key, Limit: g.limit, Cost: cost})
}

func (g *gathering) askIn(ctx context.Context, cancel context.CancelFunc, charges ...penstock.Charge) *asked {
	return g.askOf(ctx, cancel, g.store, charges...)
}

// askWithin asks with a deadline that is told as guard.Timeout tells it.
func (g *gathering) askWithin(after time.Duration, charges ...penstock.Charge) *asked {
	return g.askOf(context.Background(), nil, guard.Timeout(guard.TimeoutOptions{After: after})(g.store), charges...)
}

func (g *gathering) askOf(ctx context.Context, cancel context.CancelFunc, store penstock.Store, charges ...penstock.Charge) *asked {
	a := &asked{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.decision, a.err = store.Decide(ctx, charges)
	}()
	return a
}

func (g *gathering) await(what string, ready func() bool) {
	g.Helper()
	for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			g.Fatalf("waited in vain for %s", what)
		}
	}
}

// fly makes two scripts fly, so that all others gather.
func (g *gathering) fly() []*asked {
	g.Helper()
	first := []*asked{g.ask("a", 1), g.ask("b", 1)}
	g.await("two scripts to fly", func() bool { return g.client.scripts.Load() == 2 })
	return first
}

// flyBunch makes a bunch fly beside a script that is of one caller.
func (g *gathering) flyBunch() []*asked {
	g.Helper()
	calls := append(g.fly(), g.ask("c", 1))
	g.gathered(1)
	g.client.pass(1)
	g.await("the bunch", func() bool { return g.client.scripts.Load() == 3 })
	return calls
}

// flyThree makes three scripts fly, so that all others gather, however much they ask.
func (g *gathering) flyThree() []*asked {
	g.Helper()
	calls := g.fly()
	for i := range 16 {
		calls = append(calls, g.ask(fmt.Sprint("many", i), 1))
	}
	g.await("three scripts to fly", func() bool { return g.client.scripts.Load() == 3 })
	return calls
}

// gathered waits until n callers wait.
func (g *gathering) gathered(n int) {
	g.Helper()
	g.await(fmt.Sprint(n, " callers to wait"), func() bool { return redisstore.Waiting(g.store) == n })
}

func (g *gathering) granted(calls []*asked) (granted int) {
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

func TestCallersThatWaitGoTogether(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	for i := range 60 {
		calls = append(calls, g.ask(fmt.Sprint("key", i%3), 1+int64(i/30))) // of each key 10 of 1 unit, and 10 of 2
	}
	g.gathered(60)
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

func TestNoMoreThan64GoTogether(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.flyThree()
	for i := range 200 {
		calls = append(calls, g.ask(fmt.Sprint(i), 1))
	}
	g.gathered(200)
	g.client.pass(3 + 4)
	if granted := g.granted(calls); granted != len(calls) || g.client.scripts.Load() != 7 {
		t.Errorf("%d of %d were granted in %d scripts; want all in 7", granted, len(calls), g.client.scripts.Load())
	}
}

// However many ask the same, they go together, and each has an answer of its own.
func TestThoseWhoAskTheSameGoTogether(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	for range 200 {
		calls = append(calls, g.ask("k", 1))
	}
	g.gathered(200)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 2+30 || g.client.scripts.Load() != 3 {
		t.Errorf("%d of 202 were granted in %d scripts; want 32 in 3", granted, g.client.scripts.Load())
	}
	left := make(map[int64]int)
	for _, a := range calls[2:] {
		if a.decision.Allowed {
			left[a.decision.Remaining()]++
		} else if status := a.decision.Status(0); status.Remaining != 0 || status.RetryAfter <= 0 {
			t.Errorf("a denied one was told %+v", status)
		}
	}
	for n := range int64(30) {
		if left[n] != 1 {
			t.Errorf("%d callers were told that %d units are left; want one", left[n], n)
		}
	}
}

// While a bunch is under way, another one waits unless it is worth a script; it never waits for
// itself to grow.
func TestASmallBunchWaitsForTheOneUnderWay(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.flyBunch()
	for i := range 7 {
		calls = append(calls, g.ask(fmt.Sprint(i), 1))
	}
	g.gathered(7)
	g.client.pass(1) // of two that are under way
	calls = append(calls, g.ask("0", 1))
	g.gathered(8) // as it asks what another asks
	calls = append(calls, g.ask("7", 1))
	g.await("the small bunch to have grown", func() bool { return g.client.scripts.Load() == 4 })
	calls = append(calls, g.ask("8", 1))
	g.gathered(1)
	go g.client.pass(3)
	if granted := g.granted(calls); granted != len(calls) || g.client.scripts.Load() != 5 {
		t.Errorf("%d of %d were granted in %d scripts; want all in 5", granted, len(calls), g.client.scripts.Load())
	}
}

// Many who ask the same do not wait for it either.
func TestACrowdGoesBesideTheBunchUnderWay(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.flyBunch()
	for range 23 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.gathered(23)
	g.client.pass(1) // of two that are under way
	calls = append(calls, g.ask("hot", 1))
	g.await("the crowd to have gone", func() bool { return g.client.scripts.Load() == 4 })
	go g.client.pass(2)
	if granted := g.granted(calls); granted != len(calls) || g.client.scripts.Load() != 4 {
		t.Errorf("%d of %d were granted in %d scripts; want all in 4", granted, len(calls), g.client.scripts.Load())
	}
}

// Where there is much to ask a third script goes; not a fourth, and not for many who ask the same.
func TestAThirdGoesIfThereIsMuchToAsk(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	for range 100 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.gathered(100)
	for i := range 14 {
		calls = append(calls, g.ask(fmt.Sprint(i), 1))
	}
	g.gathered(114)
	calls = append(calls, g.ask("fifteen", 1))
	g.await("a third script", func() bool { return g.client.scripts.Load() == 3 })
	for i := range 40 {
		calls = append(calls, g.ask(fmt.Sprint(i), 1))
	}
	g.gathered(40)
	g.client.pass(4)
	if granted := g.granted(calls); granted != 2+30+15+40 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of %d were granted in %d scripts; want 87 in 4", granted, len(calls), g.client.scripts.Load())
	}
}

// Whoever goes away before the script is sent is charged nothing, and others are served.
func TestWhoLeavesBeforeItIsSentIsNotCharged(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	var leave []*asked
	for range 10 {
		calls = append(calls, g.ask("k", 1))
		leave = append(leave, g.ask("k", 1))
	}
	g.gathered(20)
	for _, a := range leave {
		a.cancel()
		<-a.done
		if !errors.Is(a.err, context.Canceled) || errors.Is(a.err, penstock.ErrUnavailable) {
			t.Errorf("who left was told %v", a.err)
		}
	}
	g.gathered(10)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 12 {
		t.Errorf("%d of 12 were granted", granted)
	}
	a := g.ask("k", 20)
	g.client.pass(1)
	if g.granted([]*asked{a}) != 1 {
		t.Error("who left was charged")
	}
}

// A deadline that passes in the queue says that nothing was charged, and not that the server was
// out of reach.
func TestADeadlineInTheQueueIsLate(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	late := g.askIn(ctx, cancel, penstock.Charge{Key: "k", Limit: g.limit, Cost: 30})
	<-late.done
	var failure *penstock.StoreError
	if !errors.As(late.err, &failure) || failure.Reason != penstock.ReasonLate ||
		strings.Contains(late.err.Error(), "unreachable") || !errors.Is(late.err, context.DeadlineExceeded) {
		t.Errorf("in the queue: %v", late.err)
	}
	calls = append(calls, g.ask("k", 30)) // so nothing was charged
	g.gathered(1)
	g.client.pass(3)
	if granted := g.granted(calls); granted != 3 {
		t.Errorf("%d of 3 were granted", granted)
	}
}

// A deadline that tells itself without a timer of its own ends the wait as well: that of
// guard.Timeout.
func TestALazyDeadlineEndsTheWait(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	charges := []penstock.Charge{{Key: "k", Limit: g.limit, Cost: 30}}
	late := guard.Timeout(guard.TimeoutOptions{After: 20 * time.Millisecond})(g.store)
	for range 2 {
		_, err := late.Decide(context.Background(), charges)
		var failure *penstock.StoreError
		if !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) ||
			!errors.As(err, &failure) || failure.Reason != penstock.ReasonLate {
			t.Errorf("in the queue: %v", err)
		}
	}
	patient := guard.Timeout(guard.TimeoutOptions{After: time.Hour})(g.store)
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := patient.Decide(ctx, charges)
		left <- err
	}()
	g.gathered(1)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("who left was told %v", err)
	}
	served := make(chan error)
	go func() { // nothing was charged, and nothing is left of the deadlines before
		d, err := patient.Decide(context.Background(), charges)
		if err == nil && !d.Allowed {
			err = errors.New(d.String())
		}
		served <- err
	}()
	g.gathered(1)
	g.client.pass(3)
	if err := <-served; err != nil || g.granted(calls) != 2 {
		t.Errorf("who waited was told %v", err)
	}
}

// Of those that wait together each leaves when its own time is over: not charged if nothing was
// sent, or else not knowing. The others are answered.
func TestEachLeavesTheCrowdWhenItsTimeIsOver(t *testing.T) {
	server := redistest.Start(t)
	for _, test := range []struct {
		sent  bool
		after time.Duration // of the first that leaves
	}{{false, 20 * time.Millisecond}, {true, 500 * time.Millisecond}} {
		g := newGathering(t, dial(server.URL())(t))
		others := g.fly()
		var leave, stay []*asked
		for i := range 12 {
			after, list := test.after+time.Duration(i)*300*time.Microsecond, &leave
			if i%4 == 0 {
				after, list = time.Hour, &stay
			}
			*list = append(*list, g.askWithin(after, penstock.Charge{Key: "k", Limit: g.limit, Cost: 1}))
			if i == 0 { // the most patient one is first
				g.gathered(1)
			}
		}
		left := len(stay)
		if test.sent {
			g.gathered(12)
			g.client.pass(2)
			g.await("the crowd's script", func() bool { return g.client.scripts.Load() == 3 })
			left = 0
		}
		charged := len(stay)
		for _, a := range leave {
			<-a.done
			var failure *penstock.StoreError
			switch {
			case !errors.As(a.err, &failure) || !errors.Is(a.err, context.DeadlineExceeded):
				t.Errorf("who left was told %v", a.err)
			case failure.Reason == penstock.ReasonTimeout:
				charged++
			case failure.Reason != penstock.ReasonLate:
				t.Errorf("who left was told %v: %v", failure.Reason, a.err)
			}
		}
		if test.sent == (charged == len(stay)) {
			t.Errorf("sent: %v, and %d of those who left were", test.sent, charged-len(stay))
		}
		g.gathered(left)
		if !test.sent {
			g.client.pass(2)
		}
		g.client.pass(1)
		if granted := g.granted(append(others, stay...)); granted != 5 {
			t.Errorf("%d of 5 who stayed were granted", granted)
		}
		fits := func(cost int) bool {
			a := g.ask("k", int64(cost))
			g.client.pass(1)
			return g.granted([]*asked{a}) == 1
		}
		if !fits(30-charged) || fits(1) {
			t.Errorf("the crowd has not used %d units", charged)
		}
	}
}

// Whoever goes away while the script is under way does not take it from the others.
func TestOneCallersCancellationHarmsNoOther(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.fly()
	leaves := g.ask("k", 1)
	for range 9 {
		calls = append(calls, g.ask("k", 1))
	}
	g.gathered(10)
	go g.client.pass(2)
	g.await("the third script", func() bool { return g.client.scripts.Load() == 3 })
	leaves.cancel()
	<-leaves.done
	if !errors.Is(leaves.err, context.Canceled) {
		t.Errorf("who left was told %v", leaves.err)
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

// A script that fails fails its callers, and nobody else; and it is not sent again.
func TestAFailedScriptFailsItsCallersAlone(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	others := g.fly()
	var together []*asked
	for range 5 {
		together = append(together, g.ask("k", 1))
	}
	g.gathered(5)
	go g.client.pass(2)
	g.await("the third script", func() bool { return g.client.scripts.Load() == 3 })
	later := g.ask("k", 1)
	g.client.held <- func(context.Context) error { return errors.New("the connection broke") }
	for _, a := range together {
		<-a.done
		var failure *penstock.StoreError
		if !errors.As(a.err, &failure) || !failure.MayBeCharged {
			t.Errorf("one of the script's callers was told %v", a.err)
		}
	}
	g.client.pass(1)
	if granted := g.granted(append(others, later)); granted != 3 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 3 others were granted, in %d scripts; want 3 in 4", granted, g.client.scripts.Load())
	}
}

// A key that holds something else is the trouble of those who ask for it.
func TestAPoisonedKeyFailsItsCallersAlone(t *testing.T) {
	server := redistest.Start(t)
	for _, poison := range [][]string{{"LPUSH", "x"}, {"SET", "garbage"}, {"SET", "\x01\x02\x03\x04\x05\x06\x07"}, {"SET", strings.Repeat("\xff", 40)}} {
		g := newGathering(t, dial(server.URL())(t))
		key, err := redisstore.KeyOf(penstock.Charge{Key: "poisoned", Limit: g.limit}, redisstore.Options{Prefix: redisstore.PrefixOf(g.store)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Do(poison[0], key, poison[1]); err != nil {
			t.Fatal(err)
		}
		calls := g.fly()
		var fail []*asked
		for i := range 5 {
			calls = append(calls, g.ask(fmt.Sprint(i), 1))
			fail = append(fail, g.ask("poisoned", 1))
		}
		g.gathered(10)
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

// A script goes on as long as one of its callers waits for it, and is given up with the last.
func TestScriptIsGivenUpWithItsLastCaller(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	others := g.fly()
	var together []*asked
	for range 3 {
		together = append(together, g.ask("k", 1))
	}
	g.gathered(3)
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

// Batches of all kinds go together, those of one kind in one script.
func TestBatchesOfAllKindsGather(t *testing.T) {
	server := redistest.Start(t)
	g := newGathering(t, dial(server.URL())(t))
	calls := g.flyThree()
	kinds := [][]penstock.Charge{
		{{Limit: penstock.PerHour(10), Cost: 1}},
		{{Limit: penstock.PerHour(10).With(penstock.SlidingLog), Cost: 1}},
		{{Limit: penstock.InFlight(10, time.Minute), Cost: 1, Holder: "h"}},
		{{Limit: penstock.PerHour(10), Cost: 1}, {Limit: penstock.PerDay(10), Cost: 1}},
		{{Limit: penstock.PerHour(10), Cost: 1}, {Key: "everybody", Limit: penstock.PerDay(1000), Cost: 1}},
		{{Limit: penstock.Every(time.Hour).With(penstock.LeakyBucket).WithBurst(9), Cost: 1, Holder: "h", Patience: 20 * time.Hour}},
	}
	for i := range 10 {
		for n, kind := range kinds {
			charges := make([]penstock.Charge, len(kind))
			for c := range kind {
				charges[c] = kind[c]
				charges[c].Limit.Group = fmt.Sprint("g", n)
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
	g.gathered(len(kinds) * 10)
	go g.client.pass(100)
	if granted := g.granted(calls); granted != len(calls) {
		t.Errorf("%d of %d were granted", granted, len(calls))
	}
	if scripts := g.client.scripts.Load(); scripts > 3+5 {
		t.Errorf("they took %d scripts", scripts)
	}
}

// On a Cluster those of one slot go together, and those of other slots do not wait for them.
func TestOnAClusterOneSlotGathers(t *testing.T) {
	cluster := redistest.StartCluster(t)
	g := newGathering(t, dial("redis+cluster://"+strings.Join(cluster.Addrs(), ","))(t))
	var calls []*asked
	for range 2 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.await("two scripts to fly", func() bool { return g.client.scripts.Load() == 2 })
	for range 20 {
		calls = append(calls, g.ask("hot", 1))
	}
	g.gathered(20)
	calls = append(calls, g.ask("another", 1))
	g.await("another slot's script", func() bool { return g.client.scripts.Load() == 3 })
	g.client.pass(4)
	if granted := g.granted(calls); granted != 23 || g.client.scripts.Load() != 4 {
		t.Errorf("%d of 23 were granted in %d scripts; want all in 4", granted, g.client.scripts.Load())
	}
}

// Each decides by itself where that is asked for.
func TestApartNobodyWaits(t *testing.T) {
	server := redistest.Start(t)
	client := &gatedClient{Client: dial(server.URL())(t), held: make(chan func(context.Context) error)}
	g := &gathering{T: t, client: client, limit: penstock.PerHour(30), store: over(t, client, redisstore.Options{Prefix: aPrefix(), Apart: true})}
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
					{Key: key, Limit: penstock.PerHour(30), Cost: int64(who)},
					{Key: key, Limit: penstock.PerDay(99).With(penstock.SlidingLog), Cost: int64(i % 30)},
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
