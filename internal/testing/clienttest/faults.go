package clienttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A loss is a way in which a proxy loses the reply to a script that ran.
type loss struct {
	name string
	set  func(p *redistest.Proxy, on bool)
}

var losses = []loss{
	{"silence", (*redistest.Proxy).DropReplies},
	{"end of the connection", (*redistest.Proxy).CutOnReply},
}

// A Target is a server, or a Cluster, behind proxies that can lose the replies to scripts.
type Target struct {
	Servers []*redistest.Server
	Proxies []*redistest.Proxy
	Direct  string // the URL that bypasses the proxies

	cluster *redistest.Cluster // nil: one server
}

// OneBehindProxy starts a server behind a proxy.
func OneBehindProxy(t testing.TB) Target {
	t.Helper()
	s := redistest.Start(t)
	p, err := redistest.NewProxy("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return Target{[]*redistest.Server{s}, []*redistest.Proxy{p}, s.URL(), nil}
}

// clusterBehindProxies starts a Cluster with a proxy in front of each node.
func clusterBehindProxies(t testing.TB) Target {
	t.Helper()
	c, proxies := redistest.StartProxiedCluster(t)
	return Target{c.Nodes, proxies, "redis+cluster://" + strings.Join(c.Addrs(), ","), c}
}

const (
	// shortReplyTimeout is far below the calls' deadline, so that there is time for the retries that
	// a library makes by default.
	shortReplyTimeout = 40 * time.Millisecond

	// longReplyTimeout is for tests that lose no reply, on a busy machine.
	longReplyTimeout = 10 * time.Second
)

const (
	lostCalls   = 12 // calls whose replies are lost
	chargedKeys = 6  // enough that each primary of a Cluster has some of them
)

// lostRepliesNeverChargeTwice loses replies to scripts that ran. The clients have the retries that
// their libraries make by default.
func lostRepliesNeverChargeTwice(t *testing.T, s Suite, target Target) {
	for _, l := range losses {
		for _, m := range s.clients(target, Options{ReplyTimeout: shortReplyTimeout}) {
			t.Run(l.name+"/"+m.Name, func(t *testing.T) { loseReplies(t, target, l, m) })
		}
	}
}

// loseReplies makes calls whose replies the proxies lose. Then it counts the charges over a
// connection that bypasses the proxies.
func loseReplies(t *testing.T, target Target, l loss, m Maker) {
	prefix := NewPrefix()
	store := NewStore(t, m.Client(t), redisstore.Options{Prefix: prefix})
	direct := OpenStore(t, target.Direct, redisstore.Options{Prefix: prefix})
	limit := SlowRefill("d", 1000)
	key := func(i int) string { return fmt.Sprint("k", i%chargedKeys) }
	// Load and peek until every server knows the script, and every client knows its servers.
	for _, s := range []*redisstore.Store{direct, store} {
		eventually.NoError(t, func() error { return s.Load(Within(t, time.Second), limit) })
	}
	for i := range chargedKeys {
		for _, s := range []penstock.Store{direct, store} {
			eventually.NoError(t, func() error {
				_, err := s.Decide(Within(t, time.Second), []penstock.Charge{{Key: key(i), Plan: limit, Mode: penstock.Peek}})
				return err
			})
		}
	}
	before := target.countScripts(t)
	target.lose(l, true)
	var unknown, unreached int64
	for i := range lostCalls {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		_, err := store.Decide(ctx, []penstock.Charge{Spend(key(i), limit, 1)})
		cancel()
		var e *penstock.StoreError
		switch {
		case !errors.As(err, &e):
			t.Errorf("call %d, whose answer was lost: %v; want a StoreError", i, err)
		case e.Reason == penstock.ReasonUnreachable || e.Reason == penstock.ReasonLate:
			unreached++
		case e.MayBeCharged:
			unknown++
		default:
			t.Errorf("call %d, whose answer was lost, has the reason %v (%v); want one of a call that may be charged, or that was not sent", i, e.Reason, err)
		}
	}
	target.lose(l, false)
	ran := target.countScripts(t) - before
	var charged int64
	for i := range chargedKeys {
		charged += 1000 - Remaining(t, direct, key(i), limit)
	}
	t.Logf("counted: %d calls with lost answers (%d unknown, %d unreached; %d scripts ran, %d charges)", lostCalls, unknown, unreached, ran, charged)
	if charged > unknown || ran > lostCalls {
		t.Errorf("%d calls of unknown outcome have charged %d times, in %d scripts; want no more charges than such calls, and at most %d scripts", unknown, charged, ran, lostCalls)
	}
	least := int64(lostCalls / 2)
	if l.name == "silence" {
		least = 1 // while a call waits for its answer, rueidis may delay others
	}
	if charged < least {
		t.Errorf("%d of %d calls have charged; want %d or more, because the proxies lose replies, not commands", charged, lostCalls, least)
	}
	eventually.NoError(t, func() error { // the client recovers
		_, err := store.Decide(Within(t, time.Second), []penstock.Charge{Spend(key(0), limit, 1)})
		return err
	})
}

// forgottenScriptsChargeOnce flushes the scripts of the servers in a loop. Each call must still
// charge exactly once.
func forgottenScriptsChargeOnce(t *testing.T, s Suite, target Target) {
	for _, m := range s.clients(target, Options{ReplyTimeout: longReplyTimeout}) {
		t.Run(m.Name, func(t *testing.T) { forgetScripts(t, target, m) })
	}
}

func forgetScripts(t *testing.T, target Target, m Maker) {
	store := NewStore(t, m.Client(t), redisstore.Options{Prefix: NewPrefix()})
	const units = 1_000_000 // more than the calls spend
	one, two := SlowRefill("one", units), SlowRefill("two", units).Limit().With(penstock.SlidingLog).MustCompile()
	flushes, stop := 0, make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for ; ; flushes++ {
			for _, s := range target.Servers {
				if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
					t.Errorf("SCRIPT FLUSH: %v; want no error", err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	const clients, keys = 8, 4
	var admitted [keys]atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(effort.Of(150, 500)) * time.Millisecond)
	for who := range clients {
		all.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				k := (who + i) % keys
				batch := []penstock.Charge{Spend(fmt.Sprint("k", k), one, 1), Spend(fmt.Sprint("k", k), two, 1)}
				d, err := store.Decide(t.Context(), batch[:1+i%2]) // one limit or both, in turn
				if err != nil || !d.Allowed {
					t.Errorf("client %d, call %d: allowed %v, %v; want allowed", who, i, d.Allowed, err)
					return
				}
				admitted[k].Add(1)
			}
		})
	}
	all.Wait()
	close(stop)
	flushing.Wait()
	total := int64(0)
	for k := range admitted {
		n := admitted[k].Load()
		total += n
		if charged := units - Remaining(t, store, fmt.Sprint("k", k), one); charged != n {
			t.Errorf("key %d was charged %d times by %d calls; want once by each", k, charged, n)
		}
	}
	t.Logf("counted: %d decisions among forgotten scripts (%d flushes)", total, flushes)
}

// tolerance is how late a call may end after its deadline. The tolerance is large because test
// machines are busy.
const tolerance = 2 * time.Second

// everyCallEnds kills a server under load, or stops its process. Every call must end soon after its
// deadline.
func everyCallEnds(t *testing.T, suite Suite) {
	for _, fault := range []struct {
		name       string
		begin, end func(*redistest.Server) error
		lasts      time.Duration
	}{
		{
			name:  "killed",
			begin: func(s *redistest.Server) error { s.Kill(); return nil },
			end:   (*redistest.Server).Restart,
			lasts: 300 * time.Millisecond,
		},
		{
			name:  "stopped",
			begin: func(s *redistest.Server) error { s.Pause(); return nil },
			end:   func(s *redistest.Server) error { s.Resume(); return nil },
			// Clients have enough time to close their connections and open others, which the kernel accepts
			// for the stopped process.
			lasts: 3 * time.Second,
		},
	} {
		for _, callers := range []int{1, 8} {
			s := redistest.Start(t)
			m := suite.on(s.Addr, Options{NoRetries: true})
			t.Run(fmt.Sprintf("%s/%s/%d callers", fault.name, m.Name, callers), func(t *testing.T) {
				t.Parallel()
				store := NewStore(t, m.Client(t), redisstore.Options{})
				eventually.NoError(t, func() error { return store.Load(t.Context(), loadedLimit) })
				load := startLoad(t, store, callers)
				eventually.NoError(t, load.wantDecisions)
				load.hasFault.Store(true)
				if err := fault.begin(s); err != nil {
					t.Fatal(err)
				}
				eventually.NoError(t, load.wantFailures)
				time.Sleep(fault.lasts)
				ended := time.Now()
				if err := fault.end(s); err != nil {
					t.Fatal(err)
				}
				load.answers.Store(0)
				eventually.NoError(t, load.wantDecisions)
				t.Logf("the store decided again %v after the fault; %d calls failed, and the slowest took %v", time.Since(ended), load.failures.Load(), time.Duration(load.slowest.Load()))
			})
		}
	}
}

// A load calls a store in a loop, and checks that every call ends.
type load struct {
	hasFault          atomic.Bool
	answers, failures atomic.Int64 // how many calls ended with a decision, or with an error
	slowest           atomic.Int64 // the time of the slowest call, in ns
}

// loadedLimit is the limit of each call of a load.
var loadedLimit = SlowRefill("d", 1_000_000)

// patienceOfLoad is the time until the deadline of each call of a load.
const patienceOfLoad = 100 * time.Millisecond

func startLoad(t *testing.T, store penstock.Store, callers int) *load {
	l := new(load)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for who := range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				l.call(t, ctx, store, fmt.Sprint("k", who%3))
				time.Sleep(time.Millisecond)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return l
}

// serverComesUpLater connects to a server that does not run yet.
func serverComesUpLater(t *testing.T, suite Suite) {
	s := redistest.Start(t)
	s.Kill()
	charge := []penstock.Charge{Spend("k", SlowRefill("d", 10), 1)}
	makers := []Maker{suite.on(s.Addr, Options{NoRetries: true})}
	if suite.Socket != nil {
		makers = append(makers, Maker{"socket", func(t testing.TB) redisstore.Client { t.Helper(); return suite.Socket(t, s.Socket) }})
	}
	stores := make([]*redisstore.Store, len(makers))
	for i, m := range makers {
		stores[i] = NewStore(t, m.Client(t), redisstore.Options{})
		for range 3 {
			_, err := stores[i].Decide(Within(t, time.Minute), charge)
			WantReason(t, m.Name, err, penstock.ReasonUnreachable)
			WantReason(t, m.Name+" ping", stores[i].Ping(Within(t, time.Minute)), penstock.ReasonUnreachable)
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i, m := range makers {
		eventually.NoError(t, func() error {
			_, err := stores[i].Decide(Within(t, time.Second), charge)
			return err
		})
		t.Logf("%s: decides %v after the server came up", m.Name, time.Since(start))
	}
	if left := Remaining(t, stores[0], "k", SlowRefill("d", 10)); left != 10-int64(len(stores)) {
		t.Errorf("%d units are left of 10 after %d were spent; want that failed calls are not charged later", left, len(stores))
	}
}

func (target Target) addrs() []string {
	var addrs []string
	for _, p := range target.Proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func (target Target) lose(l loss, on bool) {
	for _, p := range target.Proxies {
		p.Only("EVALSHA")
		l.set(p, on)
	}
}

// countScripts returns how many scripts have run on all servers.
func (target Target) countScripts(t testing.TB) (n int64) {
	t.Helper()
	for _, s := range target.Servers {
		for _, command := range []string{"evalsha", "eval"} {
			calls, _, err := s.CommandStats(command)
			if err != nil {
				t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}

func (l *load) call(t *testing.T, ctx context.Context, store penstock.Store, key string) {
	start := time.Now() // taken before the deadline is set: a call that its deadline ends takes at least patienceOfLoad
	ctx, cancel := context.WithTimeout(ctx, patienceOfLoad)
	defer cancel()
	_, err := store.Decide(ctx, []penstock.Charge{Spend(key, loadedLimit, 1)})
	took := time.Since(start)
	if int64(took) > l.slowest.Load() {
		l.slowest.Store(int64(took))
	}
	if took > patienceOfLoad+tolerance {
		t.Errorf("a call with a deadline of %v took %v: %v; want at most %v more", patienceOfLoad, took, err, tolerance)
	}
	switch {
	case err == nil:
		l.answers.Add(1)
	case errors.Is(err, context.Canceled): // the test is over
	case !errors.Is(err, penstock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("a call failed with %v; want an ErrUnavailable or the end of its context", err)
	case !l.hasFault.Load() && took < patienceOfLoad:
		t.Errorf("a call failed before the fault: %v; want a decision", err)
	default:
		l.failures.Add(1)
	}
}

// wantDecisions returns an error until 20 calls have got a decision.
func (l *load) wantDecisions() error {
	if l.answers.Load() < 20 {
		return fmt.Errorf("%d decisions; want 20", l.answers.Load())
	}
	return nil
}

// wantFailures returns an error until 8 calls have failed.
func (l *load) wantFailures() error {
	if l.failures.Load() < 8 {
		return fmt.Errorf("%d failures; want 8", l.failures.Load())
	}
	return nil
}
