package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/internal/panicked"
)

// A State of a breaker says which calls it lets through.
type State uint8

// The states of a breaker.
const (
	StateClosed   State = iota // all calls pass
	StateOpen                  // no call passes
	StateHalfOpen              // a few calls pass, to test the store
)

var stateNames = [...]string{"closed", "open", "half_open"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// BreakerOptions configure Breaker. The zero value is useful.
type BreakerOptions struct {
	// Node names the node of the store that decides a batch. Each node has its own breaker, up to
	// 1024 nodes. Further nodes share one. Default: the store has one node, whose name is "".
	Node func([]penstock.Charge) string

	// Failures is how many failures in a row open the breaker. Default: 5.
	Failures int

	// Pause is how long the breaker stays open at first. The next pause is twice as long, up to
	// MaxPause, if the store fails again before it has worked for four times the last pause. Each
	// pause is up to 20 % shorter or longer, by chance. Defaults: 250 ms and 8 s.
	Pause, MaxPause time.Duration

	// Changed is called for every change of state. The calls for one node are made one after another,
	// and the node's breaker waits for each. Changed must be fast, and must not call the Store.
	// Default: none.
	Changed func(node string, from, to State)
}

// Breaker stops sending calls to a store that fails, except a few that find out when the store
// works again. While the breaker is open, calls end immediately with an error of ReasonBreakerOpen.
//
// A cut connection or a lost script makes many calls fail at once. So a call that fails counts as a
// failure only if no other call has failed since it began. A timeout always counts, because each
// call waits for its own deadline. The breaker opens after Failures failures in a row. It also
// opens when at least 20 calls began in the last second, half of them have failed, and at least 10
// of these count as failures.
//
// After its pause, the breaker lets a few calls through in each 50 ms: one call, and one more for
// each success so far. If all succeed, these are 1, 2, 4 and 8 calls. The 15 successes close the
// breaker. One failure opens it again. In Standard, the breaker makes the first of these calls
// itself. So no caller waits for a store that hangs, and the breaker closes even without callers.
//
// A failure is an error that wraps penstock.ErrUnavailable. A denial is a success. Some errors
// count as neither, because the store may not have received the call: the caller's own
// cancellation, penstock.ErrInvalid, and errors whose IsStoreFault is false.
func Breaker(o BreakerOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return batches.Func(newBreaker(next, o).decide) }
}

func newBreaker(next penstock.Store, o BreakerOptions) *breaker {
	if o.Failures <= 0 {
		o.Failures = 5
	}
	if o.Pause <= 0 {
		o.Pause = 250 * time.Millisecond
	}
	if o.MaxPause <= 0 {
		o.MaxPause = 8 * time.Second
	}
	o.MaxPause = max(o.MaxPause, o.Pause)
	b := &breaker{options: o, next: batches.Of(next)}
	b.overflow = newCircuit(b, "")
	b.circuits.Store(&map[string]*circuit{"": b.overflow})
	return b
}

const (
	maxCircuits = 1024 // nodes that have a breaker of their own

	// A breaker opens if at least rateCalls calls began in rateWindow, half of them have failed, and
	// at least rateFailures of these count as failures. rateWindow is several deadlines long. Its
	// calls are counted in rateSlots slots.
	rateWindow   = time.Second
	rateSlots    = 5
	rateCalls    = 20
	rateFailures = rateCalls / 2

	maxIdle = time.Minute // a circuit without calls for this long is removed

	probeEvery    = 50 * time.Millisecond // the length of a slot of the half-open state
	probesToClose = 1 + 2 + 4 + 8         // successes that close a breaker
)

type breaker struct {
	options  BreakerOptions
	next     batches.Func
	overflow *circuit // for a store without Node, and for nodes beyond maxCircuits

	circuits atomic.Pointer[map[string]*circuit] // the map never changes: it is replaced
	mu       sync.Mutex                          // guards the replacement of circuits, circuit.seenAt and watchCtx
	watchCtx context.Context                     // for the goroutines that probe; nil: none may start
	watchers sync.WaitGroup
}

// startWatching makes the breaker probe circuits that are not closed, until end is called. So they
// close even without callers.
func (b *breaker) startWatching() (end func()) {
	watchCtx, cancel := context.WithCancel(context.Background())
	b.watchCtx = watchCtx
	return func() {
		b.mu.Lock()
		cancel() // no watcher starts from now on
		b.mu.Unlock()
		b.watchers.Wait()
	}
}

func (b *breaker) decide(ctx context.Context, list []*batches.Batch) {
	c := b.overflow
	if node := b.options.Node; node != nil {
		name := node(list[0].Charges)
		for _, other := range list[1:] {
			if node(other.Charges) != name {
				batches.Each(ctx, b.decide, list)
				return
			}
		}
		c = b.circuit(name)
	}
	c.decide(ctx, list)
}

func (b *breaker) circuit(node string) *circuit {
	if c := (*b.circuits.Load())[node]; c != nil {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known := *b.circuits.Load()
	if c := known[node]; c != nil {
		return c
	}
	known = b.inUseLocked(time.Now())
	if len(known) >= maxCircuits {
		return b.overflow
	}
	known[node] = newCircuit(b, node)
	b.circuits.Store(&known)
	return known[node]
}

// inUseLocked returns the circuits that had a call within maxIdle. The nodes of the others probably
// no longer exist. The last circuit stays in any case.
func (b *breaker) inUseLocked(now time.Time) map[string]*circuit {
	known := maps.Clone(*b.circuits.Load())
	for node, c := range known {
		if c.hasCalls.Swap(false) {
			c.seenAt = now
		}
		if now.Sub(c.seenAt) > maxIdle && len(known) > 1 {
			delete(known, node)
		}
	}
	return known
}

func (b *breaker) states() map[string]State {
	b.mu.Lock()
	defer b.mu.Unlock()
	circuits := b.inUseLocked(time.Now())
	b.circuits.Store(&circuits)
	states := make(map[string]State, len(circuits))
	for node, c := range circuits {
		states[node] = c.pause.Load().state()
	}
	return states
}

// A circuit is the breaker of one node.
type circuit struct {
	breaker      *breaker
	node         string
	next         batches.Func
	options      *BreakerOptions
	pause        atomic.Pointer[pause] // nil while closed
	isWatched    atomic.Bool           // a watcher runs
	isOnlyProbed atomic.Bool           // callers are rejected until a call of the watcher succeeds
	hasCalls     atomic.Bool           // a call came since inUseLocked last ran
	seenAt       time.Time             // when inUseLocked last found hasCalls set; guarded by breaker.mu
	start        time.Time             // the window's slots are counted from here

	mu            sync.Mutex
	state         State
	generation    int                   // grows with each change of state; calls of earlier generations do not count
	window        [rateSlots]slotCounts // calls in the closed state
	inFlight      int                   // calls in the half-open state
	successes     int                   // of calls in the half-open state
	failuresInRow int                   // failures since the last success
	totalFailures int                   // calls since the start that count as failures: see Breaker
	lastErr       error                 // the last failure
	lastPause     time.Duration         // the length of the last pause, before jitter
	closedAt      time.Time             // when the circuit closed last
}

// slotCounts are the counts of calls that began in one slot of the window.
type slotCounts struct {
	slot     int64
	calls    int
	failed   int // calls that failed, also those that do not count as failures
	failures int // those of them that count as failures
}

// A callStart is when a call began: in which generation of the circuit, in which slot of the
// window, and after how many failures.
type callStart struct {
	generation    int
	slot          int64
	totalFailures int
}

func newCircuit(b *breaker, node string) *circuit {
	now := time.Now()
	return &circuit{breaker: b, node: node, next: b.next, options: &b.options, seenAt: now, start: now}
}

func (c *circuit) decide(ctx context.Context, list []*batches.Batch) {
	if !c.hasCalls.Load() { // a write costs more than a read when many cores call
		c.hasCalls.Store(true)
	}
	n := len(list)
	if p := c.pause.Load(); p != nil {
		if n = c.allow(p, n); n < len(list) {
			batches.Fail(list[n:], p.rejection(ctx))
		}
	}
	if n > 0 {
		c.call(ctx, list[:n])
	}
}

// allow returns how many of n callers may pass in a pause.
func (c *circuit) allow(p *pause, n int) int {
	for passing := range n {
		isForWatcher := p.succeeded.Load() == 0 && c.isOnlyProbed.Load()
		if isForWatcher || !p.allow() {
			return passing
		}
	}
	return n
}

// call calls the store, and records which batches failed.
func (c *circuit) call(ctx context.Context, list []*batches.Batch) {
	t, n := c.begin(len(list))
	if n < len(list) { // the state has changed since the caller read it
		batches.Fail(list[n:], c.pause.Load().rejection(ctx))
	}
	if n == 0 {
		return
	}
	list = list[:n]
	hasReturned := false
	defer func() {
		if !hasReturned {
			for range list {
				c.end(t, errPanicked)
			}
		}
	}()
	c.next(ctx, list)
	hasReturned = true
	for _, b := range list {
		c.end(t, classify(ctx, b.Err))
		if b.Err != nil && c.pause.Load() != nil && c.isWatched.CompareAndSwap(false, true) {
			c.watch(b.Charges)
		}
	}
}

// watch probes the store until the circuit is closed: it peeks at the charges' limits as often as
// the pauses allow. So the circuit closes soon after the store is back, even without callers.
// Callers do not wait for a store that hangs. They pass only after a peek that succeeded, or after
// a peek whose error is not about the store's health.
func (c *circuit) watch(charges []penstock.Charge) {
	b := c.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watchCtx == nil || b.watchCtx.Err() != nil {
		return
	}
	peeks := slices.Clone(charges)
	for i := range peeks {
		peeks[i].Mode, peeks[i].Patience = penstock.Peek, 0
	}
	c.isOnlyProbed.Store(true)
	b.watchers.Go(func() {
		defer panicked.Recover("a store is probed")
		defer c.isWatched.Store(false)
		defer c.isOnlyProbed.Store(false)
		for p := c.pause.Load(); p != nil; p = c.pause.Load() {
			if p.allow() {
				_, err := batches.Func(c.call).Decide(b.watchCtx, peeks)
				if err == nil {
					continue
				}
				if classify(b.watchCtx, err) == errNothingLearnt {
					return // callers must find out whether the store works
				}
			}
			wait := probeEvery
			if p := c.pause.Load(); p != nil {
				wait = max(wait, time.Until(p.until))
			}
			select {
			case <-time.After(wait):
			case <-b.watchCtx.Done():
				return
			}
		}
	})
}

// begin returns the callStart of a list of n calls, and how many of them may pass.
func (c *circuit) begin(n int) (t callStart, passing int) {
	slot := int64(time.Since(c.start) / (rateWindow / rateSlots))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateOpen && time.Since(c.pause.Load().until) >= 0 {
		c.changeStateLocked(StateHalfOpen)
	}
	switch c.state {
	case StateOpen:
		n = 0
	case StateHalfOpen:
		n = min(n, probesToClose-c.inFlight)
		c.inFlight += n
	}
	return callStart{c.generation, slot, c.totalFailures}, n
}

func (c *circuit) end(t callStart, result error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.generation != c.generation {
		return
	}
	if c.state == StateHalfOpen {
		c.inFlight--
	}
	switch {
	case result == errNothingLearnt:
	case result != nil:
		c.lastErr = result
		failures := 0
		isFirst := t.totalFailures == c.totalFailures // no other call has failed since this one began
		if isFirst || isTimeout(result) {
			failures = 1
		}
		c.failuresInRow += failures
		c.totalFailures += failures
		c.countLocked(t.slot, 1, failures)
		if c.state == StateHalfOpen || c.failuresInRow >= c.options.Failures || c.failsOftenLocked() {
			c.changeStateLocked(StateOpen)
		}
	case c.state == StateHalfOpen:
		c.failuresInRow = 0
		c.pause.Load().succeeded.Add(1)
		if c.successes++; c.successes == probesToClose {
			c.changeStateLocked(StateClosed)
		}
	default:
		c.failuresInRow = 0
		c.countLocked(t.slot, 0, 0)
	}
}

// countLocked counts a call in the slot in which it began, unless the window has moved on.
func (c *circuit) countLocked(slot int64, failed, failures int) {
	w := &c.window[slot%rateSlots]
	if w.slot > slot {
		return
	}
	if w.slot < slot {
		*w = slotCounts{slot: slot}
	}
	w.calls++
	w.failed += failed
	w.failures += failures
}

// failsOftenLocked reports whether enough of the calls that began in the window have failed: see
// rateWindow.
func (c *circuit) failsOftenLocked() bool {
	calls, failed, failures := 0, 0, 0
	oldest := int64(time.Since(c.start)/(rateWindow/rateSlots)) - rateSlots + 1
	for _, w := range c.window {
		if w.slot >= oldest {
			calls += w.calls
			failed += w.failed
			failures += w.failures
		}
	}
	return calls >= rateCalls && 2*failed >= calls && failures >= rateFailures
}

func (c *circuit) changeStateLocked(to State) {
	from := c.state
	c.state, c.generation, c.inFlight, c.successes = to, c.generation+1, 0, 0
	switch to {
	case StateOpen:
		c.pause.Store(c.nextPauseLocked(from))
	case StateClosed:
		c.closedAt = time.Now()
		c.window = [rateSlots]slotCounts{}
		c.pause.Store(nil)
	}
	if c.options.Changed != nil {
		c.options.Changed(c.node, from, to)
	}
}

// nextPauseLocked returns a pause of the length that BreakerOptions.Pause documents, within 20 %.
func (c *circuit) nextPauseLocked(from State) *pause {
	p := &pause{err: errBreakerOpen(c.node, c.lastErr), slot: -1}
	if from == StateHalfOpen || time.Since(c.closedAt) < 4*c.lastPause {
		c.lastPause = min(max(2*c.lastPause, c.options.Pause), c.options.MaxPause)
	} else {
		c.lastPause = c.options.Pause
	}
	p.until = time.Now().Add(time.Duration(float64(c.lastPause) * (0.8 + 0.4*rand.Float64())))
	return p
}

// A pause is the time while a breaker is open, and the half-open time after it.
type pause struct {
	until     time.Time
	err       error        // of calls that may not pass
	succeeded atomic.Int64 // successful calls in the half-open time

	mu        sync.Mutex
	slot      int64 // the current slot of the half-open time; each lasts for probeEvery
	callsLeft int64 // calls that may still pass in the slot
}

// state returns the state of a breaker with this pause. A nil pause means closed.
func (p *pause) state() State {
	switch {
	case p == nil:
		return StateClosed
	case time.Since(p.until) < 0:
		return StateOpen
	}
	return StateHalfOpen
}

func (p *pause) allow() bool {
	halfOpenFor := time.Since(p.until)
	if halfOpenFor < 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot := int64(halfOpenFor / probeEvery); slot != p.slot {
		p.slot, p.callsLeft = slot, p.succeeded.Load()+1
	}
	if p.callsLeft == 0 {
		return false
	}
	p.callsLeft--
	return true
}

// rejection returns the error of a call that may not pass. A nil pause means that the breaker has
// closed since the call was rejected.
func (p *pause) rejection(ctx context.Context) error {
	if err := deadline.CallerErr(ctx); err != nil {
		return err
	}
	if p == nil {
		return errBreakerOpen("", errors.New("unknown, since the breaker has closed"))
	}
	return p.err
}

// errBreakerOpen is the error of a call to an open breaker. The error has the text of the last
// failure, but does not wrap that failure, because this call was not sent.
func errBreakerOpen(node string, cause error) error {
	ofNode := ""
	if node != "" {
		ofNode = fmt.Sprintf(" of %q", node)
	}
	return penstock.NewStoreError(penstock.ReasonBreakerOpen, fmt.Errorf("the last failure%s was: %v", ofNode, cause))
}

// classify returns what the result of a call shows about the store: nil for a success,
// errNothingLearnt, or the failure.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	e := penstock.AsStoreError(err)
	if e == nil || !e.IsStoreFault || isCanceledByCaller(ctx, err) {
		return errNothingLearnt
	}
	return err
}

func isTimeout(failure error) bool {
	e := penstock.AsStoreError(failure)
	return e != nil && (e.Reason == penstock.ReasonTimeout || e.Reason == penstock.ReasonLate)
}

func isCanceledByCaller(ctx context.Context, err error) bool {
	return ctx.Err() == context.Canceled && errors.Is(err, context.Canceled)
}

var (
	errNothingLearnt = errors.New("nothing learnt")
	errPanicked      = errors.New("the store panicked")
)
