package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// A loss is how a proxy loses the answer to a script that ran.
type loss struct {
	name string
	set  func(p *redistest.Proxy, on bool)
}

var losses = []loss{
	{"silence", (*redistest.Proxy).Lose},
	{"end of the connection", (*redistest.Proxy).Cut},
}

// A target is a server, or a Cluster, behind proxies that lose answers to scripts once they are
// told to.
type target struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
	direct  string // the URL past the proxies
}

func (to target) addrs() []string {
	var addrs []string
	for _, p := range to.proxies {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

func (to target) lose(l loss, on bool) {
	for _, p := range to.proxies {
		p.Only("EVALSHA")
		l.set(p, on)
	}
}

// ran counts the scripts that ran.
func (to target) ran(t testing.TB) (n int64) {
	t.Helper()
	for _, s := range to.servers {
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

func oneBehindProxy(t testing.TB) target {
	t.Helper()
	s := redistest.Start(t)
	p, err := redistest.NewProxy("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return target{[]*redistest.Server{s}, []*redistest.Proxy{p}, s.URL()}
}

func clusterBehindProxies(t testing.TB) target {
	t.Helper()
	c, proxies := redistest.StartProxiedCluster(t)
	return target{c.Nodes, proxies, "redis+cluster://" + strings.Join(c.Addrs(), ",")}
}

// soon is how long the clients of go-redis wait for an answer. It is far below the calls' deadline,
// so that there is time for the retries that the library makes by default.
const soon = 40 * time.Millisecond

// patient is how long they wait where no answer is lost, on a busy machine.
const patient = 10 * time.Second

// Every client is used as it comes: with the retries that its library makes by default.
func clientsOfOne(to target, answer time.Duration) []maker {
	addr := to.addrs()[0]
	return []maker{
		{"url", dial("redis://" + addr)},
		{"rueidis", func(t testing.TB) redisstore.Client {
			return rueidisClient(t, rueidis.ClientOption{InitAddress: []string{addr}})
		}},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: answer}))
		}},
		{"go-redis ring", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": addr}, ReadTimeout: answer}))
		}},
	}
}

func clientsOfCluster(to target, answer time.Duration) []maker {
	return []maker{
		{"url", dial("redis+cluster://" + strings.Join(to.addrs(), ","))},
		{"rueidis", func(t testing.TB) redisstore.Client {
			return rueidisClient(t, rueidis.ClientOption{InitAddress: to.addrs()})
		}},
		{"go-redis", func(t testing.TB) redisstore.Client {
			return goRedisClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: to.addrs(), ReadTimeout: answer}))
		}},
	}
}

const lostCalls = 12

func TestLostAnswerNeverChargesTwice(t *testing.T) {
	t.Parallel()
	for _, on := range []struct {
		name    string
		start   func(testing.TB) target
		clients func(target, time.Duration) []maker
	}{{"one server", oneBehindProxy, clientsOfOne}, {"cluster", clusterBehindProxies, clientsOfCluster}} {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			to := on.start(t)
			for _, l := range losses {
				for _, m := range on.clients(to, soon) {
					t.Run(l.name+"/"+m.name, func(t *testing.T) { loseAnswers(t, to, l, m) })
				}
			}
		})
	}
}

// loseAnswers makes calls whose answers are lost, and counts what they have charged past the
// proxies.
func loseAnswers(t *testing.T, to target, l loss, m maker) {
	prefix := aPrefix()
	store := over(t, m.client(t), redisstore.Options{Prefix: prefix})
	direct := open(t, to.direct, redisstore.Options{Prefix: prefix})
	limit := slow("d", 1000)
	key := func(i int) string { return fmt.Sprint("k", i%6) }
	for i := range 6 { // every server knows the script, every client its servers
		for _, s := range []penstock.Store{direct, store} {
			eventually(t, 5*time.Second, func() error {
				_, err := s.Decide(within(t, time.Second), []penstock.Charge{{Key: key(i), Limit: limit, Mode: penstock.Peek}})
				return err
			})
		}
	}
	before := to.ran(t)
	to.lose(l, true)
	var unknown, unreached int64
	for i := range lostCalls {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		_, err := store.Decide(ctx, []penstock.Charge{spend(key(i), limit, 1)})
		cancel()
		var e *penstock.StoreError
		switch {
		case !errors.As(err, &e):
			t.Errorf("call %d, whose answer was lost, returned %v", i, err)
		case e.Reason == penstock.ReasonUnreachable || e.Reason == penstock.ReasonLate:
			unreached++
		case e.MayBeCharged:
			unknown++
		default:
			t.Errorf("call %d, whose answer was lost, is %v: %v", i, e.Reason, err)
		}
	}
	to.lose(l, false)
	ran := to.ran(t) - before
	var charged int64
	for i := range 6 {
		charged += 1000 - remaining(t, direct, key(i), limit)
	}
	t.Logf("counted: %d calls with lost answers (%d unknown, %d unreached; %d scripts ran, %d charges)", lostCalls, unknown, unreached, ran, charged)
	if charged > unknown || ran > lostCalls {
		t.Errorf("%d calls of unknown outcome have charged %d times, in %d scripts", unknown, charged, ran)
	}
	least := int64(lostCalls / 2)
	if l.name == "silence" {
		least = 1 // while a call waits for its answer, rueidis may keep others back
	}
	if charged < least {
		t.Errorf("only %d of %d calls ran: the answers were not lost, the questions were", charged, lostCalls)
	}
	eventually(t, 10*time.Second, func() error { // and the client recovers
		_, err := store.Decide(within(t, time.Second), []penstock.Charge{spend(key(0), limit, 1)})
		return err
	})
}

// This is what happens without the care that the clients take: the test above can fail.
func TestPlainScriptRunOfGoRedisChargesMoreThanOnce(t *testing.T) {
	t.Parallel()
	to := oneBehindProxy(t)
	script := redis.NewScript("return redis.call('INCR', KEYS[1])")
	client := redis.NewClient(&redis.Options{Addr: to.addrs()[0]})
	t.Cleanup(func() { _ = client.Close() })
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err != nil {
		t.Fatal(err)
	}
	to.lose(losses[1], true)
	if err := script.Run(t.Context(), client, []string{"counter"}).Err(); err == nil {
		t.Error("the answer was not lost")
	}
	charged, err := strconv.Atoi(must(t, to.servers[0], "GET", "counter").(string))
	t.Logf("one call has charged %d times", charged-1)
	if err != nil || charged < 3 {
		t.Errorf("one call has charged %d times (%v), so lost answers are not what go-redis retries", charged-1, err)
	}
}

func TestForgottenScriptsAreSentAgainAndChargeOnce(t *testing.T) {
	t.Parallel()
	for _, on := range []struct {
		name    string
		start   func(testing.TB) target
		clients func(target, time.Duration) []maker
	}{{"one server", oneBehindProxy, clientsOfOne}, {"cluster", clusterBehindProxies, clientsOfCluster}} {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			to := on.start(t)
			for _, m := range on.clients(to, patient) {
				t.Run(m.name, func(t *testing.T) { forgetScripts(t, to, m) })
			}
		})
	}
}

func forgetScripts(t *testing.T, to target, m maker) {
	store := over(t, m.client(t), redisstore.Options{Prefix: aPrefix()})
	one, two := slow("one", 1_000_000), slow("two", 1_000_000).With(penstock.SlidingLog)
	flushes, stop := 0, make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for ; ; flushes++ {
			for _, s := range to.servers {
				if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
					t.Errorf("script flush: %v", err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	var admitted [4]atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(500 * time.Millisecond)
	for who := range 8 {
		all.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				k := (who + i) % 4
				batch := []penstock.Charge{spend(fmt.Sprint("k", k), one, 1), spend(fmt.Sprint("k", k), two, 1)}
				d, err := store.Decide(t.Context(), batch[:1+i%2])
				if err != nil || !d.Allowed {
					t.Errorf("client %d, call %d: %v", who, i, err)
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
		if charged := 1_000_000 - remaining(t, store, fmt.Sprint("k", k), one); charged != n {
			t.Errorf("key %d: %d charges for %d calls", k, charged, n)
		}
	}
	t.Logf("counted: %d decisions among forgotten scripts (%d flushes)", total, flushes)
}

// A deadline is kept to within this, which is for a busy machine.
const slack = 2 * time.Second

func TestEveryCallEndsWhateverTheServerDoes(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name       string
		make, heal func(*redistest.Server) error
		lasts      time.Duration
	}{
		{"killed", func(s *redistest.Server) error { s.Kill(); return nil }, (*redistest.Server).Restart, 300 * time.Millisecond},
		// Long enough for clients to give up their connections and to try others, which the system
		// accepts.
		{"stopped", func(s *redistest.Server) error { s.Pause(); return nil }, func(s *redistest.Server) error { s.Resume(); return nil }, 3 * time.Second},
	} {
		for _, row := range []struct{ client, callers int }{{0, 1}, {0, 8}, {1, 1}, {1, 8}} {
			s := redistest.Start(t)
			m := bothClients(s)[row.client]
			t.Run(fmt.Sprintf("%s/%s/%d callers", fault.name, m.name, row.callers), func(t *testing.T) {
				t.Parallel()
				load := startLoad(t, over(t, m.client(t), redisstore.Options{}), row.callers)
				eventually(t, 5*time.Second, load.decided)
				load.faulty.Store(true)
				if err := fault.make(s); err != nil {
					t.Fatal(err)
				}
				eventually(t, 10*time.Second, load.failed)
				time.Sleep(fault.lasts)
				healed := time.Now()
				if err := fault.heal(s); err != nil {
					t.Fatal(err)
				}
				load.answers.Store(0)
				eventually(t, 5*time.Second, load.decided)
				t.Logf("decisions again after %v; %d failed, the slowest call took %v", time.Since(healed), load.failures.Load(), time.Duration(load.slowest.Load()))
			})
		}
	}
}

// A load asks a store all the time, and checks that every call ends.
type load struct {
	faulty            atomic.Bool
	answers, failures atomic.Int64
	slowest           atomic.Int64
}

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

func (l *load) call(t *testing.T, ctx context.Context, store penstock.Store, key string) {
	ctx, cancel := context.WithTimeout(ctx, patienceOfLoad)
	defer cancel()
	start := time.Now()
	_, err := store.Decide(ctx, []penstock.Charge{spend(key, slow("d", 1_000_000), 1)})
	took := time.Since(start)
	if int64(took) > l.slowest.Load() {
		l.slowest.Store(int64(took))
	}
	if took > patienceOfLoad+slack {
		t.Errorf("a call with %v to live took %v: %v", patienceOfLoad, took, err)
	}
	switch {
	case err == nil:
		l.answers.Add(1)
	case errors.Is(err, context.Canceled): // the test is over
	case !errors.Is(err, penstock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("a call failed with %v", err)
	case !l.faulty.Load() && took < patienceOfLoad:
		t.Errorf("a call failed before the fault: %v", err)
	default:
		l.failures.Add(1)
	}
}

func (l *load) decided() error {
	if l.answers.Load() < 20 {
		return fmt.Errorf("%d decisions", l.answers.Load())
	}
	return nil
}

func (l *load) failed() error {
	if l.failures.Load() < 8 {
		return fmt.Errorf("%d failures", l.failures.Load())
	}
	return nil
}

func TestServerMayComeUpLater(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	charge := []penstock.Charge{spend("k", slow("d", 10), 1)}
	makers := append(bothClients(s), maker{"socket", dial(s.URL())})
	stores := make([]*redisstore.Store, len(makers))
	for i, m := range makers {
		stores[i] = over(t, m.client(t), redisstore.Options{})
		for range 3 {
			_, err := stores[i].Decide(within(t, 5*time.Second), charge)
			wantReason(t, m.name, err, penstock.ReasonUnreachable)
			wantReason(t, m.name+" ping", stores[i].Ping(within(t, 5*time.Second)), penstock.ReasonUnreachable)
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for i, m := range makers {
		eventually(t, 5*time.Second, func() error {
			_, err := stores[i].Decide(within(t, time.Second), charge)
			return err
		})
		t.Logf("%s: decides %v after the server came up", m.name, time.Since(start))
	}
	if left := remaining(t, stores[0], "k", slow("d", 10)); left != 7 {
		t.Errorf("%d units are left of 10 after 3 were spent: what failed was charged later", left)
	}
}

func TestClosedStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, use := range []bool{false, true} {
		store, err := redisstore.Open(s.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if use {
			remaining(t, store, "k", slow("d", 10))
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("closed again: %v", err)
		}
		if _, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slow("d", 10), 1)}); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("a closed store: %v", err)
		}
	}
}

// A partly is a Client of a server that claims to be several, one for each key. Some cannot be
// reached from some call on.
type partly struct {
	redisstore.Client
	down func(key string, call int) bool // calls of a key are counted from 1

	mu    sync.Mutex
	calls map[string]int
}

func (p *partly) Sharded(context.Context) (bool, error) { return true, nil }

func (p *partly) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	if p.isDown(keys[0]) {
		return "", errors.New("down")
	}
	return p.Client.EvalSha(ctx, digest, keys, args)
}

func (p *partly) isDown(key string) bool {
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

func TestFailureOnOneServerGivesBackWhatTheOthersCharged(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limit := slow("d", 10)
	for _, row := range []struct {
		name  string
		batch []penstock.Charge
		up    map[string]int // how many calls a key's server answers; the others answer all
		left  [3]int64
	}{
		{"asked", []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}, map[string]int{"b": 0}, [3]int64{4, 4, 4}},
		{"spends", []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}, map[string]int{"b": 1}, [3]int64{4, 4, 4}},
		{"spends in the other order", []penstock.Charge{spend("b", limit, 1), spend("a", limit, 3)}, map[string]int{"b": 1}, [3]int64{4, 4, 4}},
		{"refunds", []penstock.Charge{
			{Key: "a", Limit: limit, Mode: penstock.Refund, Cost: 2}, {Key: "b", Limit: limit, Mode: penstock.Refund, Cost: 2},
		}, map[string]int{"b": 0}, [3]int64{6, 4, 4}},
		{"a spend and refunds", []penstock.Charge{
			spend("c", limit, 3), {Key: "a", Limit: limit, Mode: penstock.Refund, Cost: 2}, {Key: "b", Limit: limit, Mode: penstock.Refund, Cost: 2},
		}, map[string]int{"b": 0}, [3]int64{6, 4, 4}},
		{"spends of which one cannot be given back", []penstock.Charge{
			spend("a", limit, 3), spend("b", limit, 1), {Key: "c", Limit: limit, Mode: penstock.Force, Cost: 1},
		}, map[string]int{"b": 2, "c": 1}, [3]int64{4, 3, 4}},
		{"forces", []penstock.Charge{
			{Key: "a", Limit: limit, Mode: penstock.Force, Cost: 9}, {Key: "b", Limit: limit, Mode: penstock.Force, Cost: 1},
		}, map[string]int{"b": 0}, [3]int64{4, 4, 4}},
	} {
		t.Run(row.name, func(t *testing.T) {
			prefix, client := aPrefix(), dial(server.URL())(t)
			direct := over(t, client, redisstore.Options{Prefix: prefix})
			for _, key := range []string{"a", "b", "c"} {
				if _, err := direct.Decide(t.Context(), []penstock.Charge{spend(key, limit, 6)}); err != nil {
					t.Fatal(err)
				}
			}
			store := over(t, &partly{Client: client, down: func(key string, call int) bool {
				up, limited := row.up[key]
				return limited && call > up
			}}, redisstore.Options{Prefix: prefix})
			if d, err := store.Decide(t.Context(), row.batch); !errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("a batch of which a part cannot be decided: allowed %t, %v", d.Allowed, err)
			}
			for i, key := range []string{"a", "b", "c"} {
				if left := remaining(t, direct, key, limit); left != row.left[i] {
					t.Errorf("%d units are left under %q, want %d", left, key, row.left[i])
				}
			}
		})
	}
}

func TestCallerThatGoesAwayLeavesNoHalfBatch(t *testing.T) {
	t.Parallel()
	client := dial(redistest.Start(t).URL())(t)
	limit := slow("d", 10)
	ctx, cancel := context.WithCancelCause(t.Context())
	store := over(t, &partly{Client: client, down: func(key string, call int) bool {
		if key == "b" && call == 2 { // charged
			cancel(errors.New("gone"))
		}
		return false
	}}, redisstore.Options{})
	if _, err := store.Decide(ctx, []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went away while it was served got %v, want its context's error", err)
	}
	await(t, "the units to be back", func() bool { return remaining(t, store, "a", limit) == 10 })
}

// A stuck client is one of several servers: that of a key with a b is asked and then fails, and
// that of any other key is asked, charges and then hangs, until it is released.
type stuck struct {
	redisstore.Client
	released     chan struct{}
	hanging, max atomic.Int64
	calls        partly
}

func stuckClient(client redisstore.Client) *stuck {
	return &stuck{Client: client, released: make(chan struct{}), calls: partly{
		down: func(key string, call int) bool { return call > 2 || key[0] == 'b' && call > 1 },
	}}
}

func (s *stuck) Sharded(context.Context) (bool, error) { return true, nil }

func (s *stuck) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
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

// A batch whose charges cannot be given back in time ends with its context all the same. They are
// given back when the server comes to.
func TestBatchEndsWithItsContextWhileItsGiveBackHangs(t *testing.T) {
	t.Parallel()
	client := dial(redistest.Start(t).URL())(t)
	limit := slow("d", 10)
	if _, err := over(t, client, redisstore.Options{}).Decide(t.Context(), []penstock.Charge{spend("warm", limit, 1)}); err != nil {
		t.Fatal(err)
	}
	for try := range 20 { // the machine may be too busy to release it within a second
		prefix := aPrefix()
		stuck := stuckClient(client)
		store := over(t, stuck, redisstore.Options{Prefix: prefix})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := store.Decide(ctx, []penstock.Charge{spend("a", limit, 3), spend("b", limit, 1)})
			ended <- err
		}()
		await(t, "the give-back to hang", func() bool { return stuck.hanging.Load() == 1 || len(ended) == 1 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("try %d: %v", try, err)
		}
		hangs := stuck.hanging.Load()
		close(stuck.released)
		if hangs == 1 {
			await(t, "the units to be back", func() bool {
				return remaining(t, over(t, client, redisstore.Options{Prefix: prefix}), "a", limit) == 10
			})
			return
		}
	}
	t.Error("the call has never ended before its give-back")
}

// Only so many give-backs outlast their calls, and Close ends them. Nobody knows what became of
// such a batch.
func TestGiveBacksThatOutlastTheirCallsAreBounded(t *testing.T) {
	t.Parallel()
	limit := slow("d", 10)
	stuck := stuckClient(dial(redistest.Start(t).URL())(t))
	if _, err := over(t, stuck.Client, redisstore.Options{}).Decide(t.Context(), []penstock.Charge{spend("warm", limit, 1)}); err != nil {
		t.Fatal(err)
	}
	store := over(t, stuck, redisstore.Options{})
	const calls = redisstore.MaxGivingBack + 100
	var all sync.WaitGroup
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(500*time.Millisecond))
	defer cancel()
	for i := range calls {
		all.Go(func() {
			_, err := store.Decide(ctx, []penstock.Charge{spend(fmt.Sprint("k", i), limit, 3), spend(fmt.Sprint("b", i), limit, 1)})
			if e, ok := errors.AsType[*penstock.StoreError](err); !ok || !e.MayBeCharged && e.Reason != penstock.ReasonLate { // on a slow machine
				t.Errorf("a batch that is not given back: %v", err)
			}
		})
	}
	all.Wait()
	if n := redisstore.GivingBack(store); n > redisstore.MaxGivingBack {
		t.Errorf("%d give-backs outlast their calls", n)
	}
	if err := store.Close(); err != nil || stuck.hanging.Load() != 0 {
		t.Errorf("closed (%v), and %d give-backs go on", err, stuck.hanging.Load())
	}
	t.Logf("counted: %d batches whose give-backs hang (%d at once)", calls, stuck.max.Load())
}

// TestEveryKeyExpires charges at random on the server's own clock.
func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	var limits []penstock.Limit
	for i, a := range []*algorithm.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow,
		penstock.SlidingLog, penstock.Concurrency, penstock.SubWindow(5), penstock.CalendarWindow(algorithm.Month, time.UTC),
	} {
		for j, period := range []time.Duration{3 * time.Millisecond, 80 * time.Millisecond, time.Minute, 30 * 24 * time.Hour} {
			limits = append(limits, penstock.Limit{
				Name: fmt.Sprint("l", i, "-", j), Group: fmt.Sprint("g", rng.IntN(2)), Algorithm: a, Count: 1 + rng.Int64N(8),
				Period: period, Burst: rng.Int64N(9),
			})
		}
	}
	const users = 8
	var longest [users]time.Time // until when the answers to a user allow its keys to live: twice as long as their state needs
	for range 4000 {
		user := rng.IntN(users)
		var batch []penstock.Charge
		for _, i := range rng.Perm(len(limits))[:1+rng.IntN(3)] {
			batch = append(batch, penstock.Charge{
				Key: fmt.Sprint("u", user), Limit: limits[i], Cost: rng.Int64N(5), Mode: penstock.Mode(rng.IntN(6)),
				Patience: time.Duration(rng.IntN(2)) * time.Millisecond, Holder: fmt.Sprint("h", rng.IntN(4)),
			})
		}
		d, err := store.Decide(t.Context(), batch)
		if err != nil {
			t.Fatalf("seed %d: %+v: %v", seed, batch, err)
		}
		for i := range d.Len() {
			if end := time.Now().Add(2 * d.Status(i).ResetAfter); end.After(longest[user]) {
				longest[user] = end
			}
		}
		if rng.IntN(100) == 0 {
			time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
		}
	}
	keys := must(t, s, "KEYS", "*").([]any)
	for _, k := range keys {
		key := k.(string)
		user := int(key[strings.Index(key, "{u")+2] - '0')
		asked := time.Now()
		needed := time.Duration(0)
		for _, l := range limits {
			if strings.HasSuffix(key, "}"+l.Group) && !l.Algorithm.Collection || strings.Contains(key, "}"+l.Group+":"+l.Name+":") {
				d, err := store.Decide(t.Context(), []penstock.Charge{{Key: fmt.Sprint("u", user), Limit: l, Mode: penstock.Peek}})
				if err != nil {
					t.Fatal(err)
				}
				needed = max(needed, d.Status(0).ResetAfter)
			}
		}
		ttl := time.Duration(must(t, s, "PTTL", key).(int64)) * time.Millisecond
		switch {
		case ttl == -2*time.Millisecond: // it has just expired
		case ttl < 0:
			t.Errorf("seed %d: key %q never expires", seed, key)
		case ttl+time.Since(asked) < needed:
			t.Errorf("seed %d: key %q expires in %v, before its state is fresh in %v", seed, key, ttl, needed)
		case ttl > time.Until(longest[user])+6*time.Second: // with a few seconds for clocks that step back
			t.Errorf("seed %d: key %q expires in %v, but should at the latest in %v", seed, key, ttl, time.Until(longest[user]))
		}
	}
	t.Logf("seed %d: %d keys", seed, len(keys))
}
