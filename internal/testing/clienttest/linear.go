package clienttest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// The size of a history whose linearizability is checked.
const (
	linearClients        = 8
	linearCallsPerClient = 25 // calls of each client
	linearKeys           = 3
)

// linearLimits are the limits of the histories. The clock of the stores does not run, so a limit is
// a simple counter. The concurrency limit has a counter for each holder.
var linearLimits = []*penstock.Plan{
	penstock.Limit{Name: "token", Group: "g", Count: 6, Period: time.Hour}.MustCompile(),
	penstock.Limit{Name: "window", Group: "g", Algorithm: penstock.FixedWindow, Count: 9, Period: time.Hour}.MustCompile(),
	penstock.Limit{Name: "log", Group: "g", Algorithm: penstock.SlidingLog, Count: 7, Period: time.Hour}.MustCompile(),
	penstock.Limit{Name: "slots", Group: "g", Algorithm: penstock.Concurrency, Count: 5, Period: time.Hour}.MustCompile(),
}

const slotsLimit = 3 // the index of the concurrency limit; those before it are counters

// A linearState is the state of the model: units used by limit, and slots held by holder.
type linearState struct {
	used  [linearKeys][slotsLimit]int64    // by key and limit
	holds [linearKeys][linearClients]int64 // by key and holder
}

// A linearCharge is a charge, with its key, limit and holder as numbers.
type linearCharge struct {
	key, limit, holder int
	mode               penstock.Mode
	cost               int64
}

// A linearStatus is what the model predicts of a status.
type linearStatus struct {
	granted, remaining int64
	retry              time.Duration // simplified: 0, or 1 for any finite time, or Never
}

// A linearAnswer has the status of each charge of a batch. A nil linearAnswer means that the
// charges may or may not have been made.
type linearAnswer []linearStatus

var linearModel = porcupine.Model{
	Init: func() any { return linearState{} },
	Step: func(state, input, output any) (bool, any) {
		answer, next := state.(linearState).decide(input.([]linearCharge))
		got := output.(linearAnswer)
		return got == nil || slices.Equal(got, answer), next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v -> %v", input, output) },
	DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
}

// A history is the calls of clients, with their answers and times.
type history struct {
	start time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

// randomBatch returns a random batch of one client. client is its index. The keys of the batch are
// numbers below keyCount. Most charges spend, so that the limits are nearly used up and the order
// of calls matters.
func randomBatch(rng *rand.Rand, client, keyCount int) []linearCharge {
	modes := []penstock.Mode{
		penstock.Spend, penstock.Spend, penstock.Spend, penstock.Spend, penstock.Draw, penstock.Refund, penstock.Refund, penstock.Peek,
		penstock.Force, penstock.Reset,
	}
	var batch []linearCharge
	size := 1 + rng.IntN(3)*rng.IntN(2) // 1 to 3; mostly 1
	for _, i := range rng.Perm(keyCount * len(linearLimits))[:size] {
		holder := client
		if rng.IntN(8) == 0 {
			holder = rng.IntN(linearClients)
		}
		mode := modes[rng.IntN(len(modes)-rng.IntN(2))] // Reset, the last one, is half as frequent as the others
		if mode == penstock.Reset && rng.IntN(4) > 0 {
			mode = penstock.Refund
		}
		cost := 1 + rng.Int64N(3)
		if rng.IntN(20) == 0 {
			cost = []int64{0, 20}[rng.IntN(2)] // 20 is more than any limit has
		}
		if mode == penstock.Force {
			cost = min(cost, 3)
		}
		batch = append(batch, linearCharge{key: i % keyCount, limit: i / keyCount, holder: holder, mode: mode, cost: cost})
	}
	return batch
}

// makeHistory lets clients call the stores concurrently. Each client makes callsPerClient calls,
// under keyCount keys. makeHistory returns the history, and the seed of the random batches.
func makeHistory(t *testing.T, stores []penstock.Store, callsPerClient, keyCount int, batch func(rng *rand.Rand, client, keyCount int) []linearCharge) (*history, uint64) {
	t.Helper()
	h, seed := &history{start: time.Now()}, rand.Uint64()
	prefix := NewPrefix()
	var all sync.WaitGroup
	for client := range linearClients {
		rng := rand.New(rand.NewPCG(seed, uint64(client)))
		all.Go(func() {
			for range callsPerClient {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				err := h.record(ctx, stores[client%len(stores)], prefix, client, batch(rng, client, keyCount))
				cancel()
				if err != nil {
					t.Errorf("seed %d: %v; want a decision, or an error of the connection", seed, err)
				}
			}
		})
	}
	all.Wait()
	return h, seed
}

// StandingClock returns options with a clock that does not run, which makes the model of counters
// exact.
func StandingClock() redisstore.Options {
	now := time.Now()
	return redisstore.Options{Now: func() time.Time { return now }}
}

// linearizable checks n histories of several stores that decide concurrently. Some stores use the
// client under test, and some are opened by URL. Each call must get the reply that it would get if
// all calls were made one after another, in some order.
func linearizable(t *testing.T, suite Suite, n int) {
	s, o := redistest.Start(t), StandingClock()
	stores := []penstock.Store{
		OpenStore(t, s.URL(), o), NewStore(t, suite.One(t, s.Addr, Options{NoRetries: true}), o), OpenStore(t, "redis://"+s.Addr, o),
	}
	ops := 0
	for i := range n {
		h, seed := makeHistory(t, stores, linearCallsPerClient, 1+i%linearKeys, randomBatch)
		ops += len(h.ops)
		if h.check(t, seed) == porcupine.Illegal {
			t.Fatalf("seed %d: no order of these calls explains all replies; want that one does\n%v", seed, h)
		}
	}
	t.Logf("counted: %d histories of concurrent clients (%d operations in all)", n, ops)
}

// linearizableByKey is linearizable on a Cluster, with one key: so one server decides each batch.
func linearizableByKey(t *testing.T, suite Suite, c *redistest.Cluster, n int) {
	o := StandingClock()
	stores := []penstock.Store{
		OpenStore(t, "redis+cluster://"+strings.Join(c.Addrs(), ","), o),
		NewStore(t, suite.Cluster(t, c.Addrs(), Options{}), o),
	}
	for range n {
		h, seed := makeHistory(t, stores, linearCallsPerClient, 1, randomBatch)
		if h.check(t, seed) == porcupine.Illegal {
			t.Fatalf("seed %d: no order of these calls explains all replies; want that one does\n%v", seed, h)
		}
	}
	t.Logf("counted: %d histories of concurrent clients (on a Cluster)", n)
}

// linearizableWithLostReplies cuts connections while replies are on their way. Each charge whose
// outcome is unknown was made once or not at all.
func linearizableWithLostReplies(t *testing.T, suite Suite, n int) {
	target, o := OneBehindProxy(t), StandingClock()
	p := target.Proxies[0]
	p.Only("EVAL")
	stores := []penstock.Store{
		OpenStore(t, "redis://"+p.Addr(), o), NewStore(t, suite.One(t, p.Addr(), Options{}), o),
	}
	unknown, undecided := 0, 0
	for range n {
		stop := make(chan struct{})
		var cutting sync.WaitGroup
		cutting.Go(func() { p.CutOnce(stop) })
		h, seed := makeHistory(t, stores, linearCallsPerClient/2, 1, randomBatch)
		close(stop)
		cutting.Wait()
		unknown += h.countUnknown()
		switch porcupine.CheckOperationsTimeout(linearModel, h.ops, 2*time.Second) {
		case porcupine.Illegal:
			t.Fatalf("seed %d: no order of these calls explains all replies; want that one does\n%v", seed, h)
		case porcupine.Unknown: // an unknown charge may have been made at any time, so some histories have too many orders
			undecided++
		}
	}
	t.Logf("counted: %d histories of concurrent clients (with %d unknown outcomes; %d more were too large to check)", n-undecided, unknown, undecided)
	if unknown < n/2 || undecided > n/5 {
		t.Errorf("of %d histories with %d lost answers, %d were too large to check; want %d lost answers or more, and at most %d too large", n, unknown, undecided, n/2, n/5)
	}
}

func (c linearCharge) String() string {
	return fmt.Sprintf("%v %d of %s/%d by %d", c.mode, c.cost, linearLimits[c.limit].Name(), c.key, c.holder)
}

// step is the sequential specification of one charge. It returns the status that the charge must
// get, and the state after the charge.
func (s linearState) step(c linearCharge) (linearStatus, linearState) {
	count, before := linearLimits[c.limit].Limit().Count, s
	own, takenByOthers := s.counterOf(c)
	had := *own
	base, free := had, max(count-had, 0) // counter: a Spend adds its cost to what was used
	if c.limit == slotsLimit {           // slots: a Spend sets the number that the holder holds
		base, free = 0, max(count-takenByOthers, had)
	}
	cost, granted, fits := c.cost, int64(0), true
	switch c.mode {
	case penstock.Spend, penstock.Peek:
		fits = cost <= free || cost == 0
	case penstock.Draw:
		cost = min(cost, free)
		fits = cost > 0 || c.cost == 0
	case penstock.Refund:
		granted = min(c.cost, had)
		*own = had - granted
	case penstock.Reset:
		*own = 0
		if c.limit == slotsLimit {
			s.holds[c.key] = [linearClients]int64{}
		}
	}
	isSpending := c.mode == penstock.Spend || c.mode == penstock.Draw || c.mode == penstock.Force
	if isSpending && fits && cost > 0 {
		*own = base + cost
		granted = max(*own-had, 0)
	}
	if !fits {
		s = before
	}
	status := linearStatus{granted: granted, remaining: s.remaining(c)}
	if !fits {
		status.retry = 1
		if c.cost > count && c.mode != penstock.Draw {
			status.retry = penstock.Never
		}
	}
	return status, s
}

// counterOf returns the counter that a charge changes: that of the units, or that of the slots of
// the charge's holder. It also returns how many slots other holders have.
func (s *linearState) counterOf(c linearCharge) (own *int64, takenByOthers int64) {
	if c.limit < slotsLimit {
		return &s.used[c.key][c.limit], 0
	}
	for client, n := range s.holds[c.key] {
		if client != c.holder {
			takenByOthers += n
		}
	}
	return &s.holds[c.key][c.holder], takenByOthers
}

// remaining returns how much the limit of a charge has left.
func (s linearState) remaining(c linearCharge) int64 {
	own, takenByOthers := s.counterOf(c)
	used := *own + takenByOthers
	return max(linearLimits[c.limit].Limit().Count-used, 0)
}

// decide is the sequential specification of a batch.
func (s linearState) decide(batch []linearCharge) (linearAnswer, linearState) {
	answer, next, allowed := make(linearAnswer, len(batch)), s, true
	for i, c := range batch {
		answer[i], next = next.step(c)
		allowed = allowed && answer[i].retry == 0
	}
	if allowed {
		return answer, next
	}
	for i, c := range batch {
		if answer[i].retry == 0 {
			answer[i] = linearStatus{remaining: s.remaining(c)}
		}
	}
	return answer, s
}

// record calls the store and records the call. A call of unknown outcome may take effect at any
// later time, or never. In a history, a call that never takes effect equals a call after all other
// calls. So a call of unknown outcome is recorded with neither an answer nor an end.
func (h *history) record(ctx context.Context, store penstock.Store, prefix string, client int, batch []linearCharge) error {
	charges := make([]penstock.Charge, len(batch))
	for i, c := range batch {
		charges[i] = penstock.Charge{
			Key: fmt.Sprint(prefix, c.key), Plan: linearLimits[c.limit], Mode: c.mode, Cost: c.cost, Holder: fmt.Sprint("holder", c.holder),
		}
	}
	op := porcupine.Operation{ClientId: client, Input: batch, Call: int64(time.Since(h.start))}
	d, err := store.Decide(ctx, charges)
	op.Return = int64(time.Since(h.start))
	var e *penstock.StoreError
	switch {
	case errors.As(err, &e) && (e.Reason == penstock.ReasonUnreachable || e.Reason == penstock.ReasonLate):
		return nil
	case errors.As(err, &e) && e.MayBeCharged:
		op.Output, op.Return = linearAnswer(nil), math.MaxInt64
	case err != nil:
		return err
	default:
		answer := make(linearAnswer, d.Len())
		for i := range answer {
			s := d.Status(i)
			answer[i] = linearStatus{s.Granted, s.Remaining, s.RetryAfter}
			if s.RetryAfter != 0 && s.RetryAfter != penstock.Never {
				answer[i].retry = 1
			}
		}
		op.Output = answer
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	return nil
}

// countUnknown returns how many calls have an unknown outcome.
func (h *history) countUnknown() (n int) {
	for _, op := range h.ops {
		if op.Output.(linearAnswer) == nil {
			n++
		}
	}
	return n
}

func (h *history) String() string {
	slices.SortFunc(h.ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var s strings.Builder
	for _, op := range h.ops {
		fmt.Fprintf(&s, "client %d, %d to %d: %s\n", op.ClientId, op.Call, op.Return, linearModel.DescribeOperation(op.Input, op.Output))
	}
	return s.String()
}

func (h *history) check(t *testing.T, seed uint64) porcupine.CheckResult {
	t.Helper()
	result := porcupine.CheckOperationsTimeout(linearModel, h.ops, time.Minute)
	if result == porcupine.Unknown {
		t.Errorf("seed %d: the check of %d operations took more than a minute; want a result", seed, len(h.ops))
	}
	return result
}
