package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Concurrent clients of guarded stores must get decisions that some sequence of the same calls
// would give. With leases, a denial is also legal if it would be one after the leased units were
// spent. The clock of Redis does not run here, so limits are counters.

const historyClients = 8

var historyLimits = []penstock.Limit{
	{Name: "token", Group: "g", Count: 60, Period: time.Hour},
	{Name: "window", Group: "g", Algorithm: penstock.FixedWindow, Count: 80, Period: time.Hour},
	{Name: "log", Group: "g", Algorithm: penstock.SlidingLog, Count: 50, Period: time.Hour},
}

// A grantedUnits has the units that callers were granted, for each of historyLimits.
type grantedUnits [3]int64

// An operation is a charge of a limit.
type operation struct {
	limit int // index in historyLimits, or dataLoss
	mode  penstock.Mode
	cost  int64
}

func (o operation) String() string {
	return fmt.Sprintf("%v %d of %s", o.mode, o.cost, historyLimits[o.limit].Name)
}

// dataLoss is the limit of the operation in which a server loses all data.
const dataLoss = -1

// An answer is what a client got.
type answer struct {
	isUnknown bool // the operations may have been done, or not
	isExcused bool // a denial by a deny cache during a refund; it is legal in any case
	isAllowed bool
	source    penstock.Source
	granted   [3]int64 // of each operation
	left      [3]int64 // of each operation
}

// historyModel returns the sequential specification. Up to idle units of each limit may be leased
// and not spent.
func historyModel(idle int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return grantedUnits{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(grantedUnits).apply(input.([]operation), output.(answer), idle)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %+v", input, output) },
	}
}

// apply returns whether an answer is legal, and the units that are granted after it.
func (c grantedUnits) apply(operations []operation, got answer, idle int64) (isLegal bool, next grantedUnits) {
	if operations[0].limit == dataLoss {
		return true, grantedUnits{}
	}
	next = c
	canGrant, mustGrant := true, true // whether a grant is legal, and whether a denial is illegal
	for i, o := range operations {
		count, used := historyLimits[o.limit].Count, c[o.limit]
		free := max(count-used, 0)
		cost := o.cost
		switch o.mode {
		case penstock.Spend, penstock.Peek:
			canGrant = canGrant && cost <= free
			mustGrant = mustGrant && cost+idle <= free
		case penstock.Draw:
			canGrant = canGrant && free > 0
			mustGrant = mustGrant && idle < free
			if cost = min(cost, free); idle > 0 {
				cost = got.granted[i]
			}
		case penstock.Refund:
			cost = -min(cost, used)
		case penstock.Reset:
			cost = -used
		}
		if o.mode != penstock.Peek {
			next[o.limit] += cost
		}
		granted := max(cost, -cost) // the absolute value
		if o.mode == penstock.Reset || o.mode == penstock.Peek {
			granted = 0
		}
		if got.isAllowed && !got.isUnknown && got.granted[i] != granted {
			return false, c
		}
		left := max(count-next[o.limit], 0)
		hasRemaining := got.isAllowed && got.source == penstock.FromStore && !got.isUnknown
		if hasRemaining && (got.left[i] > left || got.left[i] < left-idle) {
			return false, c
		}
	}
	if got.isUnknown && !canGrant {
		return true, c
	}
	if !got.isUnknown && !got.isAllowed {
		return got.isExcused || !mustGrant, c
	}
	return canGrant, next
}

// A history is the calls of clients, with their answers and times.
type history struct {
	start   time.Time
	mu      sync.Mutex
	ops     []porcupine.Operation
	sources [sourceCount]int // answers, by penstock.Source
}

// sourceCount is the number of Sources. FromClosed is the last of them.
const sourceCount = penstock.FromClosed + 1

// record makes a call for a client, and records the call if the store was called.
func (h *history) record(store penstock.Store, client int, key string, operations []operation) (isStoreCalled bool) {
	charges := make([]penstock.Charge, len(operations))
	for i, o := range operations {
		charges[i] = penstock.Charge{Key: key, Plan: historyLimits[o.limit].MustCompile(), Mode: o.mode, Cost: o.cost}
	}
	op := porcupine.Operation{ClientId: client, Input: operations, Call: int64(time.Since(h.start))}
	var hasReached atomic.Bool
	d, err := store.Decide(context.WithValue(context.Background(), reachedKey{}, &hasReached), charges)
	op.Return = int64(time.Since(h.start))
	if (err != nil || d.Source == penstock.FromClosed) && !hasReached.Load() {
		return false
	}
	out := answer{isAllowed: d.Allowed, source: d.Source}
	if err != nil || d.Source == penstock.FromClosed {
		out, op.Return = answer{isUnknown: true}, math.MaxInt64 // the call may take effect at any later time, or never
	} else {
		for i := range operations {
			s := d.Status(i)
			out.granted[i], out.left[i] = s.Granted, s.Remaining
		}
	}
	op.Output = out
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources[out.source]++
	h.ops = append(h.ops, op)
	return true
}

// A recorder wraps a store. It records whether a call reached the store, and counts the units of
// draws and refunds without an answer.
type recorder struct {
	penstock.Store
	lostUnits atomic.Int64 // units that may have been drawn or refunded
}

type reachedKey struct{}

func (w *recorder) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	d, err := w.Store.Decide(ctx, charges)
	if e, ok := errors.AsType[*penstock.StoreError](err); ok && e.Reason == penstock.ReasonUnreachable {
		return d, err
	}
	if reached, ok := ctx.Value(reachedKey{}).(*atomic.Bool); ok {
		reached.Store(true)
	}
	if m := charges[0].Mode; err != nil && (m == penstock.Draw || m == penstock.Refund) {
		w.lostUnits.Add(charges[0].Cost)
	}
	return d, err
}

// recordLoss records that the server has lost all data at some time between since and now.
func (h *history) recordLoss(since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: historyClients, Input: []operation{{limit: dataLoss}}, Output: answer{},
		Call: int64(since.Sub(h.start)), Return: int64(time.Since(h.start))})
}

// excuseDenials excuses denials by a deny cache while a Refund or Reset was in flight. The cache
// forgets its denials only when the answer arrives. excuseDenials returns the number of excused
// denials.
func (h *history) excuseDenials() (n int) {
	for i := range h.ops {
		op := &h.ops[i]
		out := op.Output.(answer)
		for _, other := range h.ops {
			freesUnits := slices.ContainsFunc(other.Input.([]operation), func(o operation) bool { return o.mode == penstock.Refund || o.mode == penstock.Reset })
			overlaps := other.Call < op.Return && other.Return > op.Call
			if out.source == penstock.FromDenyCache && freesUnits && overlaps {
				out.isExcused = true
			}
		}
		if out.isExcused {
			op.Output = out
			n++
		}
	}
	return n
}

func (h *history) countUnknown() (n int) {
	for _, op := range h.ops {
		if op.Output.(answer).isUnknown {
			n++
		}
	}
	return n
}

func (h *history) String() string {
	slices.SortFunc(h.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var s strings.Builder
	for _, op := range h.ops {
		fmt.Fprintf(&s, "client %d, %d to %d: %v -> %+v\n", op.ClientId, op.Call, op.Return, op.Input, op.Output)
	}
	return s.String()
}

// A historyTest describes the histories of a test. Each history has a new key.
type historyTest struct {
	name      string // for the log
	histories int
	calls     int          // by each client, in each history
	idle      func() int64 // argument of historyModel for the last history
	stores    []penstock.Store
	batch     func(*rand.Rand) []operation           // makes the charges of a call
	pause     time.Duration                          // longest pause between two calls of a client; 0: none
	disturb   func(h *history, stop <-chan struct{}) // runs besides the clients, if it is not nil
}

// check makes the calls of concurrent clients, and checks each history. The result is the number of
// answers of each penstock.Source.
func (p historyTest) check(t *testing.T) (sources [sourceCount]int) {
	t.Helper()
	operations, unknown, excused, undecided := 0, 0, 0, 0
	for range p.histories {
		h, seed, key := &history{start: time.Now()}, rand.Uint64(), fmt.Sprint("k", rand.Uint64())
		stop := make(chan struct{})
		var clients, disturber sync.WaitGroup
		if p.disturb != nil {
			disturber.Go(func() { p.disturb(h, stop) })
		}
		for client := range historyClients {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			clients.Go(func() {
				for range p.calls {
					for !h.record(p.stores[client%len(p.stores)], client, key, p.batch(rng)) {
						time.Sleep(time.Millisecond)
					}
					if p.pause > 0 {
						time.Sleep(time.Duration(rng.Int64N(int64(p.pause))))
					}
				}
			})
		}
		clients.Wait()
		close(stop)
		disturber.Wait()
		operations += len(h.ops)
		unknown += h.countUnknown()
		excused += h.excuseDenials()
		for i, n := range h.sources {
			sources[i] += n
		}
		switch porcupine.CheckOperationsTimeout(historyModel(p.idle()), h.ops, 5*time.Second) {
		case porcupine.Illegal:
			t.Fatalf("seed %d: no order of these calls gives these answers; want one\n%v", seed, h)
		case porcupine.Unknown:
			undecided++
		}
	}
	t.Logf("counted: %d histories of concurrent clients through guards (%s: %d operations, %d unknown; %d by the store, %d by deny caches of "+
		"which %d excused, %d by leases; %d were too large to check)", p.histories, p.name, operations, unknown, sources[penstock.FromStore],
		sources[penstock.FromDenyCache], excused, sources[penstock.FromLease], undecided)
	if undecided > p.histories/5 {
		t.Errorf("%d of %d histories were too large to check; want at most a fifth", undecided, p.histories)
	}
	return sources
}

// noneIdle is the idle function of histories without leases: no unit is leased and unspent.
func noneIdle() int64 { return 0 }

// spendsAndPeeks returns a random batch of spends, draws and peeks.
func spendsAndPeeks(rng *rand.Rand) []operation {
	modes := []penstock.Mode{penstock.Spend, penstock.Spend, penstock.Spend, penstock.Spend, penstock.Draw, penstock.Peek}
	var operations []operation
	size := 1 + rng.IntN(3)*rng.IntN(2) // in two of three cases 1, else 2 or 3
	for _, limit := range rng.Perm(len(historyLimits))[:size] {
		operations = append(operations, operation{limit: limit, mode: modes[rng.IntN(len(modes))], cost: 1 + rng.Int64N(4)})
	}
	return operations
}

// allModes returns a random batch of charges of all modes.
func allModes(rng *rand.Rand) []operation {
	operations := spendsAndPeeks(rng)
	for i := range operations {
		switch rng.IntN(24) {
		case 0:
			operations[i].mode = penstock.Refund
		case 1:
			operations[i].mode = penstock.Force
		case 2:
			if rng.IntN(4) == 0 {
				operations[i].mode, operations[i].cost = penstock.Reset, 0
			}
		}
	}
	return operations
}

// guardedStores returns n instances over a server whose clock does not run. The timeout of these
// instances is long, because the machine may be busy.
func guardedStores(t *testing.T, n int, url string, o guard.Options) []penstock.Store {
	stores, _ := recordedStores(t, n, url, o)
	return stores
}

// recordedStores returns guardedStores, and the recorder inside each of them.
func recordedStores(t *testing.T, n int, url string, o guard.Options) (stores []penstock.Store, recorders []*recorder) {
	t.Helper()
	now := time.Now()
	o.OnFailure, o.Timeout.After = guard.FailClosed, 10*time.Second
	for range n {
		redis, err := redisstore.Open(url, redisstore.Options{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { redis.Close() })
		w := &recorder{Store: redis}
		g := standard(t, w, o)
		t.Cleanup(g.Close)
		stores, recorders = append(stores, g), append(recorders, w)
	}
	return stores, recorders
}

func TestDecisionsOfAGuardedStoreAreLinearizable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	withoutCache := guardedStores(t, 2, server.URL(), guard.Options{DenyCacheTTL: -1})
	historyTest{name: "no deny cache", histories: seeds(150), calls: 25, idle: noneIdle, stores: withoutCache, batch: allModes}.check(t)
	single := guardedStores(t, 1, server.URL(), guard.Options{})
	sources := historyTest{name: "one instance", histories: seeds(150), calls: 25, idle: noneIdle, stores: single, batch: allModes}.check(t)
	if sources[penstock.FromDenyCache] == 0 {
		t.Error("the deny cache has denied 0 batches; want at least 1")
	}
}

// Without refunds, the deny caches of several instances are exact too.
func TestDecisionsOfSeveralInstancesAreLinearizable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := guardedStores(t, 3, server.URL(), guard.Options{})
	sources := historyTest{name: "three instances", histories: seeds(150), calls: 25, idle: noneIdle, stores: stores, batch: spendsAndPeeks}.check(t)
	if sources[penstock.FromDenyCache] == 0 {
		t.Error("the deny caches have denied 0 batches; want at least 1")
	}
}

// Leases grant no more units than the store without leases. Each of the n instances may hold a
// block of unspent units. A denial must be one that the store would give if these blocks were
// spent.
func TestDecisionsWithLeasesAreLinearizableButForTheirBlocks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const n, block, groups = 2, 5, 4
	spends := func(rng *rand.Rand) []operation {
		limit := rng.IntN(2) // the limits that are leased
		switch rng.IntN(12) {
		case 0:
			return []operation{{limit: limit, mode: penstock.Peek}}
		case 1:
			return []operation{{limit: 0, mode: penstock.Spend, cost: 1}, {limit: 1, mode: penstock.Spend, cost: 1}}
		}
		return []operation{{limit: limit, mode: penstock.Spend, cost: 1}}
	}
	fromLeases := 0 // answers
	life := 10 * time.Millisecond
	for range groups {
		stores, recorders := recordedStores(t, n, server.URL(), guard.Options{
			Limits: func(*penstock.Plan) guard.Settings { return guard.Settings{Lease: block} },
			Lease:  guard.LeaseOptions{Life: life}, Instances: n,
		})
		lostBefore := make([]int64, n) // units that each instance's leases had lost before this history
		idle := func() int64 {
			units := int64(n * block)
			for i, w := range recorders { // add the units that neither the store nor a lease has any more
				s := stores[i].(*guard.Guarded).Stats().Lease
				units += w.lostUnits.Swap(0) + s.Expired + s.Lost - lostBefore[i]
				lostBefore[i] = s.Expired + s.Lost
			}
			return units
		}
		sources := historyTest{
			name: fmt.Sprintf("leases of %v", life), histories: seeds(100) / groups, calls: 40, idle: idle,
			stores: stores, batch: spends, pause: 400 * time.Microsecond,
		}.check(t)
		fromLeases += sources[penstock.FromLease]
		if sources[penstock.FromLease] < sources[penstock.FromStore]/10 {
			life *= 4 // on a busy machine, the store may take longer to answer than a short lease lives
		}
	}
	if fromLeases == 0 {
		t.Error("no lease has answered; want leases")
	}
}

// Answers are lost, and closed limits reject these calls. Each call was done once, at some time,
// or not at all.
func TestLostAnswersLeaveGuardedDecisionsLinearizable(t *testing.T) {
	t.Parallel()
	proxy := behindProxy(t, redistest.Start(t))
	stores := guardedStores(t, 2, "redis://"+proxy.Addr(), guard.Options{
		Breaker: guard.BreakerOptions{Pause: time.Millisecond, MaxPause: time.Millisecond},
	})
	cut := func(_ *history, stop <-chan struct{}) { proxy.CutOnce(stop) }
	historyTest{name: "lost answers", histories: seeds(60), calls: 12, idle: noneIdle, stores: stores, batch: spendsAndPeeks, disturb: cut}.check(t)
}

// A server that is killed and comes back empty loses all its data at one time. The results of calls
// that were in flight then, and of calls that a breaker rejects, are unknown.
func TestRestartsLeaveGuardedDecisionsLinearizable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	stores := guardedStores(t, 2, server.URL(), guard.Options{
		DenyCacheTTL: -1, // a cached denial would outlive the lost counter
		Breaker:      guard.BreakerOptions{Pause: time.Millisecond, MaxPause: time.Millisecond, Failures: 2},
	})
	restart := func(h *history, stop <-chan struct{}) {
		select {
		case <-stop:
			return
		case <-time.After(rand.N(3 * time.Millisecond)):
		}
		since := time.Now()
		server.Kill()
		if err := server.Restart(); err != nil {
			t.Error(err)
		}
		h.recordLoss(since)
	}
	historyTest{name: "restarts", histories: seeds(10), calls: 12, idle: noneIdle, stores: stores, batch: spendsAndPeeks, disturb: restart}.check(t)
	eventually.True(t, "after the restart, a decision is by the store", func() bool {
		return decide(t, stores[0], one(compiled(t, historyLimits[0]), "at last")...).Source == penstock.FromStore
	})
}

// behindProxy starts a proxy in front of a server. The proxy cuts only connections that have called
// a script.
func behindProxy(t *testing.T, server *redistest.Server) *redistest.Proxy {
	t.Helper()
	proxy, err := redistest.NewProxy("unix", server.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	proxy.Only("EVAL")
	return proxy
}

// The check must detect a deny cache that ignores refunds by other instances, and a store that
// grants units that others hold.
func TestHistoriesOfGuardsCanBeIllegal(t *testing.T) {
	t.Parallel()
	for name, model := range map[string]porcupine.Model{"exact": historyModel(0), "leased": historyModel(10)} {
		ops := func(h ...answer) (ops []porcupine.Operation) {
			for i, out := range h {
				ops = append(ops, porcupine.Operation{Input: []operation{{limit: 0, mode: penstock.Spend, cost: 1}}, Output: out, Call: int64(2 * i), Return: int64(2*i + 1)})
			}
			return ops
		}
		granted := answer{isAllowed: true, source: penstock.FromLease, granted: [3]int64{1}}
		if porcupine.CheckOperations(model, ops(granted, answer{})) {
			t.Errorf("%s: a denial of available units is legal; want illegal", name)
		}
		if porcupine.CheckOperations(model, ops(slices.Repeat([]answer{granted}, 61)...)) {
			t.Errorf("%s: 61 grants of 60 units are legal; want illegal", name)
		}
		if !porcupine.CheckOperations(model, ops(append(slices.Repeat([]answer{granted}, 60), answer{})...)) {
			t.Errorf("%s: 60 grants of 60 units, and a denial, are illegal; want legal", name)
		}
	}
}
