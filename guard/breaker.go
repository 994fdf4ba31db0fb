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
	"github.com/penstock/penstock/internal/panicked"
)

// A State is what a breaker lets pass.
type State uint8

// The states of a breaker.
const (
	StateClosed   State = iota // everything passes
	StateOpen                  // nothing passes
	StateHalfOpen              // a few calls pass, to see how the store is
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
	// Node names the node of the store that decides a batch: each node has a breaker of its own, up
	// to 1024 of them; further names share one. Default: the store has one node, whose name is "".
	Node func([]penstock.Charge) string

	// Failures is how many failures in a row open the breaker. Default: 5.
	Failures int

	// Pause is how long the breaker is open at first, give or take 20 %. Each time that the store
	// fails again before it has been well for four times the last pause, the next pause is twice as
	// long, up to MaxPause. Defaults: 250 ms and 8 s.
	Pause, MaxPause time.Duration

	// Changed is told of every change, one at a time for each node. The breaker waits for it: it must
	// be quick, and not ask the Store. Default: nobody is told.
	Changed func(node string, from, to State)
}

// Breaker stops asking a store that fails, and finds out with few calls when it works again. While
// the breaker is open, an error of ReasonBreakerOpen comes at once.
//
// It opens after Failures failures in a row, when half of at least 20 calls that began in the last
// second have failed. After its pause one call in 50 ms passes, and one more for each that has
// succeeded: 1, 2, 4, 8. Fifteen successes close it, one failure opens it again. In Standard, the
// first of these calls are the breaker's own, so that no caller waits for a store that hangs, and
// they are made even if no caller comes.
//
// A failure is an error that wraps penstock.ErrUnavailable. A denial is a success. Nothing is
// learnt from what the store may not have seen: the caller's own cancellation, penstock.ErrInvalid,
// and errors of which IsStoreFault is false.
func Breaker(o BreakerOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return newBreaker(next, o) }
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
	b := &breaker{options: o, next: next}
	b.rest = newCircuit(b, "")
	b.circuits.Store(&map[string]*circuit{"": b.rest})
	return b
}

const (
	maxCircuits = 1024

	rateWindow = time.Second // of at least rateCalls calls that began in it, half must fail; several deadlines long
	rateSlots  = 5
	rateCalls  = 20

	unused = time.Minute // after which a circuit is given up, when somebody looks

	probeEvery = 50 * time.Millisecond
	probes     = 1 + 2 + 4 + 8 // successes that close a breaker
)

type breaker struct {
	options BreakerOptions
	next    penstock.Store
	rest    *circuit // of the store that has one node, and of names beyond maxCircuits

	circuits atomic.Pointer[map[string]*circuit] // never changed, only replaced
	mu       sync.Mutex                          // for replacing it, for sweeping, and for life
	life     context.Context                     // of those who watch circuits that are not closed; nil: nobody does
	watchers sync.WaitGroup
}

// watched has circuits watched from now on, until end is called: they close although no caller
// asks.
func (b *breaker) watched() (end func()) {
	life, cancel := context.WithCancel(context.Background())
	b.life = life
	return func() {
		b.mu.Lock()
		cancel() // now none begins any more
		b.mu.Unlock()
		b.watchers.Wait()
	}
}

func (b *breaker) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if b.options.Node == nil {
		return b.rest.decide(ctx, charges)
	}
	return b.circuit(b.options.Node(charges)).decide(ctx, charges)
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
		return b.rest
	}
	known[node] = newCircuit(b, node)
	b.circuits.Store(&known)
	return known[node]
}

// inUseLocked are the circuits, without those that nobody has asked for unused: of servers that are
// gone. The last one stays.
func (b *breaker) inUseLocked(now time.Time) map[string]*circuit {
	known := maps.Clone(*b.circuits.Load())
	for node, c := range known {
		if c.asked.Swap(false) {
			c.seen = now
		}
		if now.Sub(c.seen) > unused && len(known) > 1 {
			delete(known, node)
		}
	}
	return known
}

// states are those of all nodes that are in use.
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
	breaker *breaker
	node    string
	next    penstock.Store
	options *BreakerOptions
	pause   atomic.Pointer[pause] // nil while closed
	watched atomic.Bool           // somebody asks until it is closed
	probed  atomic.Bool           // the breaker's own calls find out whether the store is back
	asked   atomic.Bool           // since somebody has looked
	seen    time.Time             // when it was last found asked; under the breaker's lock
	zero    time.Time             // from which the window's slots are counted

	mu         sync.Mutex
	state      State
	generation int               // of states; what began in an earlier one does not count
	window     [rateSlots]counts // of the closed state
	underWay   int               // calls of the half-open state
	successes  int               // likewise
	failures   int               // in a row
	last       error             // failure
	length     time.Duration     // of the last pause, before its jitter
	closed     time.Time
}

// counts are the calls that began in one slot of the window.
type counts struct {
	slot            int64
	calls, failures int
}

// A ticket says when a call began.
type ticket struct {
	generation int
	slot       int64
}

func newCircuit(b *breaker, node string) *circuit {
	now := time.Now()
	return &circuit{breaker: b, node: node, next: b.next, options: &b.options, seen: now, zero: now}
}

func (c *circuit) decide(ctx context.Context, charges []penstock.Charge) (d penstock.Decision, err error) {
	if !c.asked.Load() {
		c.asked.Store(true)
	}
	if p := c.pause.Load(); p != nil && (p.succeeded.Load() == 0 && c.probed.Load() || !p.lets()) {
		return d, p.refuse(ctx)
	}
	return c.ask(ctx, charges)
}

// ask asks the store, and notes whether that failed.
func (c *circuit) ask(ctx context.Context, charges []penstock.Charge) (d penstock.Decision, err error) {
	t, ok := c.begin()
	if !ok { // the state has changed meanwhile
		return d, c.pause.Load().refuse(ctx)
	}
	returned := false
	defer func() {
		if !returned {
			c.end(t, errPanicked)
		}
	}()
	d, err = c.next.Decide(ctx, charges)
	returned = true
	c.end(t, judge(ctx, err))
	if err != nil && c.pause.Load() != nil && c.watched.CompareAndSwap(false, true) {
		c.watch(charges)
	}
	return d, err
}

// watch peeks at the charges' limits as often as the pauses allow, until the circuit is closed. So
// the circuit closes soon after the store is back even if no caller comes, and no caller waits for
// a store that hangs: callers pass once a peek was answered, or if its answer says nothing about
// the store.
func (c *circuit) watch(charges []penstock.Charge) {
	b := c.breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == nil || b.life.Err() != nil {
		return
	}
	peeks := slices.Clone(charges)
	for i := range peeks {
		peeks[i].Mode, peeks[i].Patience = penstock.Peek, 0
	}
	c.probed.Store(true)
	b.watchers.Go(func() {
		defer panicked.Recover("a store is watched")
		defer c.watched.Store(false)
		defer c.probed.Store(false)
		for p := c.pause.Load(); p != nil; p = c.pause.Load() {
			if p.lets() {
				_, err := c.ask(b.life, peeks)
				if err == nil {
					continue
				}
				if judge(b.life, err) == errNothingLearnt {
					return // callers have to find out
				}
			}
			wait := probeEvery
			if p := c.pause.Load(); p != nil {
				wait = max(wait, time.Until(p.until))
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-b.life.Done():
				timer.Stop()
				return
			}
		}
	})
}

// begin tells whether a call may begin.
func (c *circuit) begin() (t ticket, ok bool) {
	slot := int64(time.Since(c.zero) / (rateWindow / rateSlots))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == StateOpen && time.Since(c.pause.Load().until) >= 0 {
		c.changeLocked(StateHalfOpen)
	}
	if c.state == StateOpen || c.state == StateHalfOpen && c.underWay >= probes {
		return ticket{}, false
	}
	if c.state == StateHalfOpen {
		c.underWay++
	}
	return ticket{c.generation, slot}, true
}

// end notes what judge said of a call.
func (c *circuit) end(t ticket, verdict error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.generation != c.generation {
		return
	}
	if c.state == StateHalfOpen {
		c.underWay--
	}
	switch {
	case verdict == errNothingLearnt:
	case verdict != nil:
		c.failures++
		c.last = verdict
		c.countLocked(t.slot, 1)
		if c.state == StateHalfOpen || c.failures >= c.options.Failures || c.failsOftenLocked() {
			c.changeLocked(StateOpen)
		}
	case c.state == StateHalfOpen:
		c.failures = 0
		c.pause.Load().succeeded.Add(1)
		if c.successes++; c.successes == probes {
			c.changeLocked(StateClosed)
		}
	default:
		c.failures = 0
		c.countLocked(t.slot, 0)
	}
}

// countLocked counts a call in the slot in which it began, unless the window is past that.
func (c *circuit) countLocked(slot int64, failures int) {
	w := &c.window[slot%rateSlots]
	if w.slot > slot {
		return
	}
	if w.slot < slot {
		*w = counts{slot: slot}
	}
	w.calls++
	w.failures += failures
}

// failsOftenLocked tells whether half of the calls that began in the window have failed.
func (c *circuit) failsOftenLocked() bool {
	calls, failures := 0, 0
	oldest := int64(time.Since(c.zero)/(rateWindow/rateSlots)) - rateSlots + 1
	for _, w := range c.window {
		if w.slot >= oldest {
			calls += w.calls
			failures += w.failures
		}
	}
	return calls >= rateCalls && 2*failures >= calls
}

func (c *circuit) changeLocked(to State) {
	from := c.state
	c.state, c.generation, c.underWay, c.successes = to, c.generation+1, 0, 0
	switch to {
	case StateOpen:
		c.pause.Store(c.nextPauseLocked(from))
	case StateClosed:
		c.closed = time.Now()
		c.window = [rateSlots]counts{}
		c.pause.Store(nil)
	}
	if c.options.Changed != nil {
		c.options.Changed(c.node, from, to)
	}
}

func (c *circuit) nextPauseLocked(from State) *pause {
	p := &pause{err: breakerOpen(c.node, c.last), slot: -1}
	if from == StateHalfOpen || time.Since(c.closed) < 4*c.length {
		c.length = min(max(2*c.length, c.options.Pause), c.options.MaxPause)
	} else {
		c.length = c.options.Pause
	}
	p.until = time.Now().Add(time.Duration(float64(c.length) * (0.8 + 0.4*rand.Float64())))
	return p
}

// A pause is a time without calls, and what follows: a few, until the breaker is closed or opens
// anew.
type pause struct {
	until     time.Time
	err       error
	succeeded atomic.Int64

	mu   sync.Mutex
	slot int64 // of probeEvery since until
	left int64 // calls that may still pass in the slot
}

// state is that of a breaker with this pause, or with none.
func (p *pause) state() State {
	switch {
	case p == nil:
		return StateClosed
	case time.Since(p.until) < 0:
		return StateOpen
	}
	return StateHalfOpen
}

// lets tells whether a call may pass.
func (p *pause) lets() bool {
	over := time.Since(p.until)
	if over < 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot := int64(over / probeEvery); slot != p.slot {
		p.slot, p.left = slot, p.succeeded.Load()+1
	}
	if p.left == 0 {
		return false
	}
	p.left--
	return true
}

// refuse is the error of a call that does not pass. It may be called on nil: the breaker has been
// closed meanwhile.
func (p *pause) refuse(ctx context.Context) error {
	if err := callersErr(ctx); err != nil {
		return err
	}
	if p == nil {
		return breakerOpen("", errors.New("unknown, since the breaker has closed"))
	}
	return p.err
}

// breakerOpen quotes why the breaker opened, but does not wrap it: nothing was sent this time.
func breakerOpen(node string, cause error) error {
	of := ""
	if node != "" {
		of = fmt.Sprintf(" of %q", node)
	}
	return penstock.NewStoreError(penstock.ReasonBreakerOpen, fmt.Errorf("the last failure%s was: %v", of, cause))
}

// judge says what a call tells of the store's health: nil if it is well, errNothingLearnt, or the
// failure.
func judge(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	e := penstock.AsStoreError(err)
	if e == nil || !e.IsStoreFault || wentAway(ctx, err) {
		return errNothingLearnt
	}
	return err
}

// wentAway tells whether an error is that the caller has cancelled its call.
func wentAway(ctx context.Context, err error) bool {
	return ctx.Err() == context.Canceled && errors.Is(err, context.Canceled)
}

var (
	errNothingLearnt = errors.New("nothing learnt")
	errPanicked      = errors.New("the store panicked")
)
