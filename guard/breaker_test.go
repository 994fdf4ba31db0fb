package guard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/storetest"
)

// A circuit is a breaker around a faulty store, and the changes that it reported.
type circuit struct {
	*faulty
	penstock.Store
	*testing.T
	charges []penstock.Charge

	mu      sync.Mutex
	changes []string // each is the name of the node (often empty), and the states: "closed-open"
}

func newCircuit(t *testing.T, o guard.BreakerOptions) *circuit {
	c := &circuit{faulty: newFaulty(), T: t, charges: one(compiled(t, penstock.PerSecond(1)), "k")}
	o.Changed = func(node string, from, to guard.State) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changes = append(c.changes, fmt.Sprintf("%s%v-%v", node, from, to))
	}
	c.Store = guard.Breaker(o)(c.faulty)
	return c
}

func (c *circuit) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	return c.Store.Decide(ctx, charges)
}

// call makes a call, and returns true if it has reached the store.
func (c *circuit) call() bool {
	c.Helper()
	before := c.calls.Load()
	_, err := c.Decide(c.Context(), c.charges)
	hasReached := c.calls.Load() > before
	if isOpen := reasonIs(err, penstock.ReasonBreakerOpen); isOpen == hasReached || isOpen && !errors.Is(err, penstock.ErrUnavailable) {
		c.Fatalf("the error is %v, and the call has reached the store: %v; want either that, or an error of an open breaker", err, hasReached)
	}
	return hasReached
}

// checkReached makes n calls, and checks that want of them reach the store.
func (c *circuit) checkReached(n, want int) {
	c.Helper()
	got := 0
	for range n {
		if c.call() {
			got++
		}
	}
	if got != want {
		c.Fatalf("%d of %d calls reached the store; want %d", got, n, want)
	}
}

// openBreaker makes calls to a failing store until the breaker is open.
func (c *circuit) openBreaker() {
	c.Helper()
	c.setFault(failWith(errDown))
	for n := 0; c.call(); n++ {
		if n == 100 {
			c.Fatal("the breaker is closed after 100 failures; want it open")
		}
	}
}

// timeUntilCall returns the time until a call reaches the store, to the millisecond.
func (c *circuit) timeUntilCall() time.Duration {
	c.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if c.call() {
			return time.Since(start)
		}
		if time.Since(start) > time.Hour {
			c.Fatal("no call has reached the store for an hour")
		}
	}
}

// recoverStore repairs the store and sends calls until the breaker is closed.
func (c *circuit) recoverStore() {
	c.setFault(nil)
	for c.changes[len(c.changes)-1] != "half_open-closed" {
		time.Sleep(10 * time.Millisecond)
		c.call()
	}
}

// within20Percent returns the bounds of a pause, as timeUntilCall measures it.
func within20Percent(d time.Duration) (least, most time.Duration) {
	return d - d/5, d + d/5 + time.Millisecond
}

func TestBreakerObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Breaker(guard.BreakerOptions{})(memstore.New(memstore.Options{}))
	})
}

func TestFiveFailuresInARowOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		for range 20 { // four failures in a row do not open it
			c.setFault(failWith(errDown))
			c.checkReached(4, 4)
			c.setFault(nil)
			c.checkReached(5, 5) // a denial is a success
			time.Sleep(time.Second)
		}
		c.setFault(failWith(errDown))
		c.checkReached(1000, 5)
		_, err := c.Decide(t.Context(), c.charges)
		if !strings.Contains(err.Error(), "connection refused") {
			t.Fatalf("the error is %q; want it to contain the failure, \"connection refused\"", err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Decide(canceled, c.charges); err != context.Canceled {
			t.Fatalf("a canceled caller gets %v; want context.Canceled", err)
		}
	})
}

func TestFiveSlowFailuresOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		c.setFault(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(time.Second) // longer than the window of the failure rate
			return penstock.Decision{}, errDown
		})
		for i := range 5 {
			if !c.call() {
				t.Fatalf("the breaker opened after %d failures; want 5", i)
			}
			time.Sleep(time.Minute)
		}
		c.Store.Decide(t.Context(), c.charges) // half-open by now: this call fails too
		c.checkReached(10, 0)
	})
}

func TestHalfOfTwentyCallsFailingOpensTheBreaker(t *testing.T) {
	for _, row := range []struct {
		name         string
		every        int           // one call in this many fails
		period       time.Duration // from one call to the next
		opensBreaker bool
	}{
		{name: "half, fast", every: 2, period: time.Millisecond, opensBreaker: true},
		{name: "a third, fast", every: 3, period: time.Millisecond, opensBreaker: false},
		{name: "half, just over 20 calls a second", every: 2, period: 45 * time.Millisecond, opensBreaker: true},
		{name: "half, fewer than 20 calls a second", every: 2, period: 100 * time.Millisecond, opensBreaker: false},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCircuit(t, guard.BreakerOptions{})
				reached := 0
				for i := range 500 {
					c.setFault(nil)
					if i%row.every == row.every-1 {
						c.setFault(failWith(errDown))
					}
					if c.call() {
						reached++
					}
					if isOpen := len(c.changes) > 0; isOpen && !row.opensBreaker {
						t.Fatalf("the breaker opened at call %d; want it closed", i)
					} else if isOpen {
						break
					}
					time.Sleep(row.period)
				}
				if row.opensBreaker && reached != 20 {
					t.Fatalf("%d calls reached the store; want 20", reached)
				}
			})
		})
	}
}

// reasonIs returns true if an error is a StoreError with this reason.
func reasonIs(err error, reason penstock.Reason) bool {
	e := penstock.AsStoreError(err)
	return e != nil && e.Reason == reason
}

func TestCallersOwnErrorsNeverOpenTheBreaker(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithTimeout(context.Background(), -time.Second)
	defer cancel()
	for _, row := range []struct {
		name string
		ctx  context.Context
		err  error
	}{
		{name: "canceled by the caller", ctx: canceled, err: context.Canceled},
		{name: "canceled by the caller, wrapped", ctx: canceled, err: fmt.Errorf("%w: %w", penstock.ErrUnavailable, context.Canceled)},
		{name: "past the caller's deadline, and not sent", ctx: expired, err: context.DeadlineExceeded},
		{name: "invalid", ctx: context.Background(), err: fmt.Errorf("%w: cost", penstock.ErrInvalid)},
		{name: "not the store's fault", ctx: context.Background(), err: penstock.NewStoreError(penstock.ReasonCorrupt, errDown)},
		{name: "not the store's fault, wrapped", ctx: context.Background(), err: fmt.Errorf("guard: %w", penstock.NewStoreError(penstock.ReasonCorrupt, errDown))},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCircuit(t, guard.BreakerOptions{})
			c.setFault(failWith(row.err))
			for range 1000 {
				if _, err := c.Decide(row.ctx, c.charges); err != row.err {
					t.Fatalf("the error is %v; want %v", err, row.err)
				}
			}
			if c.calls.Load() != 1000 || len(c.changes) > 0 {
				t.Fatalf("the store was called %d times, and the breaker's changes are %v; want 1000 calls and no change", c.calls.Load(), c.changes)
			}
			for range 5 { // five failures, with such an error after each
				c.setFault(failWith(errDown))
				c.Decide(t.Context(), c.charges)
				c.setFault(failWith(row.err))
				c.Decide(row.ctx, c.charges)
			}
			if len(c.changes) != 1 {
				t.Fatalf("the breaker's changes are %v; want one change, because five failures open it despite the errors between them", c.changes)
			}
		})
	}
	t.Run("shed", func(t *testing.T) {
		shed := guard.Timeout(guard.TimeoutOptions{InFlight: 1})
		store := shed(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			return penstock.Decision{}, nil
		}))
		var inner penstock.Store
		nested := shed(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			return inner.Decide(ctx, charges) // a decision is in flight, so this one is shed
		}))
		inner = nested
		c := newCircuit(t, guard.BreakerOptions{})
		c.setFault(nested.Decide)
		for range 1000 {
			if _, err := c.Decide(t.Context(), c.charges); !reasonIs(err, penstock.ReasonShed) {
				t.Fatalf("the error is %v; want ReasonShed", err)
			}
		}
		if _, err := store.Decide(t.Context(), c.charges); err != nil {
			t.Fatalf("a decision that is not nested in another has the error %v; want none", err)
		}
		if len(c.changes) > 0 {
			t.Fatalf("the breaker's changes are %v; want no change", c.changes)
		}
	})
}

func TestPauseDoublesUntilTheStoreHasRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		c.openBreaker()
		pauses := 0
		for want := 250 * time.Millisecond; pauses < 12; want = min(2*want, 8*time.Second) {
			least, most := within20Percent(want)
			if got := c.timeUntilCall(); got < least || got > most {
				t.Fatalf("pause %d lasts %v; want %v ± 20 %%", pauses, got, want)
			}
			pauses++
		}
		c.recoverStore()
		time.Sleep(time.Second) // less than the last pause
		c.openBreaker()
		if got := c.timeUntilCall(); got < 6*time.Second {
			t.Fatalf("after a second without failures, the pause is %v; want at least 6s, because it must not start anew", got)
		}
		c.recoverStore()
		time.Sleep(40 * time.Second)
		c.openBreaker()
		least, most := within20Percent(250 * time.Millisecond)
		if got := c.timeUntilCall(); got < least || got > most {
			t.Fatalf("after 40 s without failures, the pause is %v; want 250ms ± 20 %%, the first pause", got)
		}
		t.Logf("counted: %d pauses of a breaker", pauses+2)
	})
}

func TestHalfOpenBreakerLetsOneThenTwoThenFourThenEightPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		c.openBreaker()
		c.setFault(nil)
		c.timeUntilCall()
		passed := []int{1, 0, 0, 0}
		for ms := range 200 {
			for c.changes[len(c.changes)-1] != "half_open-closed" && c.call() {
				passed[ms/50]++
			}
			time.Sleep(time.Millisecond)
		}
		if !slices.Equal(passed, []int{1, 2, 4, 8}) {
			t.Fatalf("the numbers of calls that passed in each 50 ms are %v; want 1, 2, 4 and 8", passed)
		}
		if want := []string{"closed-open", "open-half_open", "half_open-closed"}; !slices.Equal(c.changes, want) {
			t.Fatalf("the breaker's changes are %v; want %v", c.changes, want)
		}
		c.checkReached(1000, 1000)
	})
}

func TestAFailedProbeOpensTheBreakerAgain(t *testing.T) {
	for successes := range 15 { // the probes that succeed before one fails; the first always does
		synctest.Test(t, func(t *testing.T) {
			c := newCircuit(t, guard.BreakerOptions{})
			c.openBreaker()
			c.setFault(nil)
			c.timeUntilCall()
			for passed := 1; passed < successes; {
				if c.call() {
					passed++
				}
				time.Sleep(time.Millisecond)
			}
			c.setFault(failWith(errDown))
			c.timeUntilCall()
			c.checkReached(100, 0)
			time.Sleep(300 * time.Millisecond) // the pause has doubled: at least 400 ms
			c.checkReached(100, 0)
		})
	}
	t.Log("counted: 15 probes that failed")
}

func TestProbesThatHangLetOneCallPassPer50ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		c.openBreaker()
		c.setFault(hang)
		ctx, cancel := context.WithCancel(t.Context())
		before := c.calls.Load()
		for range 5000 {
			go c.Decide(ctx, c.charges)
			time.Sleep(time.Millisecond)
		}
		if hung := c.calls.Load() - before; hung > 15 {
			t.Fatalf("%d calls hang in a store that is probed; want 15 at most", hung)
		}
		cancel()
		synctest.Wait()
		c.setFault(nil)
		c.timeUntilCall() // canceled probes count as neither failures nor successes, so new probes pass
	})
}

func TestDeadNodeOpensOnlyItsOwnBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // virtual time does not advance, so no pause ends
		c := newCircuit(t, guard.BreakerOptions{Node: func(charges []penstock.Charge) string { return charges[0].Key[:1] }})
		c.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Key[0] == 'b' {
				return penstock.Decision{}, errDown
			}
			return c.store.Decide(ctx, charges)
		})
		limit := compiled(t, penstock.PerSecond(1))
		rejected := map[byte]int{} // by the first letter of the key
		for i := range 3000 {
			key := fmt.Sprintf("%c%d", 'a'+i%3, i)
			if _, err := c.Decide(t.Context(), one(limit, key)); reasonIs(err, penstock.ReasonBreakerOpen) {
				rejected[key[0]]++
				if !strings.Contains(err.Error(), `"b"`) {
					t.Fatalf("the error is %q; want it to contain the node, \"b\"", err)
				}
			}
		}
		if rejected['a'] != 0 || rejected['b'] < 990 || rejected['c'] != 0 || !slices.Equal(c.changes, []string{"bclosed-open"}) {
			t.Fatalf("of 1000 calls to each node, breakers rejected %d of a, %d of b and %d of c, with the changes %v; want that only b's breaker opens", rejected['a'], rejected['b'], rejected['c'], c.changes)
		}
		t.Log("counted: 3000 decisions on three nodes, one of them dead")
	})
}

func TestNumberOfBreakersIsBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	synctest.Test(t, func(t *testing.T) { // virtual time does not advance, so no pause ends
		c := newCircuit(t, guard.BreakerOptions{Node: func(charges []penstock.Charge) string { return charges[0].Key }})
		limit := compiled(t, penstock.PerSecond(1))
		c.setFault(failWith(errDown))
		for i := range 3000 {
			c.Decide(t.Context(), one(limit, fmt.Sprint(i)))
		}
		if !slices.Equal(c.changes, []string{"closed-open"}) {
			t.Fatalf("the breakers' changes are %v; want one change, since the nodes beyond the bound share one breaker", c.changes)
		}
	})
}

func TestFlappingStoreIsCalledLessAndLess(t *testing.T) {
	effort.SkipUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		var failedCalls [5]int // that reached the store, in each minute
		for start := time.Now(); time.Since(start) < 5*time.Minute; time.Sleep(time.Millisecond) {
			down := time.Since(start)/(700*time.Millisecond)%2 == 0
			c.setFault(nil)
			if down {
				c.setFault(failWith(errDown))
			}
			if c.call() && down {
				failedCalls[time.Since(start)/time.Minute]++
			}
		}
		for minute, n := range failedCalls {
			// Each time that the breaker closes, five failures open it again. In a minute it closes after
			// at most 10 pauses of 6.4 s or more, and at first after six shorter pauses.
			if n > 5*(10+6) {
				t.Fatalf("in minute %d, %d calls reached the store while it was down; want at most 80; the calls of all minutes: %v", minute, n, failedCalls)
			}
		}
		t.Logf("counted: 300000 calls to a store that fails and recovers every 700 ms (failed calls per minute: %v)", failedCalls)
	})
}

func TestBreakerClosesAfterAnyFault(t *testing.T) {
	effort.SkipUnderRace(t)
	seeds := effort.Of(20, 100)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			c := newCircuit(t, guard.BreakerOptions{})
			c.Store = guard.Breaker(guard.BreakerOptions{})(guard.Timeout(guard.TimeoutOptions{})(c.faulty))
			faults := []fault{nil, failWith(errDown), hang, func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if random.IntN(2) == 0 {
					return penstock.Decision{}, errDown
				}
				return c.store.Decide(ctx, charges)
			}}
			gap := time.Duration(1+random.IntN(200)) * time.Millisecond
			for range 20 {
				c.setFault(faults[random.IntN(len(faults))])
				for start, length := time.Now(), time.Duration(random.Int64N(int64(20*time.Second))); time.Since(start) < length; time.Sleep(gap) {
					c.call()
				}
			}
			c.setFault(nil)
			recovery := 30*time.Second + 15*gap + time.Second // more than the longest pause and 15 probes
			for start := time.Now(); time.Since(start) < recovery; time.Sleep(gap) {
				c.call()
			}
			for range 100 {
				if !c.call() {
					t.Fatalf("seed %d: after %v in which the store worked, a call does not reach it", seed, recovery)
				}
			}
		})
	}
	t.Logf("counted: %d seeds of 20 faults each, after which the breaker closed", seeds)
}

func TestBreakerUnderManyCallers(t *testing.T) {
	c := newCircuit(t, guard.BreakerOptions{Pause: time.Millisecond, MaxPause: 4 * time.Millisecond})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := range 20_000 {
				if i%1000 == 0 {
					c.setFault(nil)
				} else if i%1000 == 500 {
					c.setFault(failWith(errDown))
				}
				c.Decide(t.Context(), c.charges)
			}
		})
	}
	callers.Wait()
	legal := map[string]bool{"closed-open open-half_open": true, "open-half_open half_open-open": true,
		"open-half_open half_open-closed": true, "half_open-open open-half_open": true, "half_open-closed closed-open": true}
	for i := range len(c.changes) - 1 {
		if step := c.changes[i] + " " + c.changes[i+1]; !legal[step] {
			t.Fatalf("changes %d and %d are %s; want one of %v", i, i+1, step, slices.Collect(maps.Keys(legal)))
		}
	}
	t.Logf("counted: 160000 calls of 8 concurrent callers (%d changes)", len(c.changes))
}

func BenchmarkBreakerClosed(b *testing.B) {
	benchmark(b, guard.Breaker(guard.BreakerOptions{})(immediate), one(compiled(b, penstock.PerSecond(100)), "k"))
}

func BenchmarkBreakerClosedOfANode(b *testing.B) {
	node := func([]penstock.Charge) string { return "127.0.0.1:6379" }
	benchmark(b, guard.Breaker(guard.BreakerOptions{Node: node})(immediate), one(compiled(b, penstock.PerSecond(100)), "k"))
}

func BenchmarkBreakerOpen(b *testing.B) {
	store := guard.Breaker(guard.BreakerOptions{Pause: time.Hour})(penstock.StoreFunc(failWith(errDown)))
	benchmark(b, store, one(compiled(b, penstock.PerSecond(100)), "k"))
}

// If two of three calls hang until the deadline, the breaker opens, although the others succeed
// between them.
func TestMostCallsHangingOpensTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		var isOpen atomic.Bool
		s := guard.Breaker(guard.BreakerOptions{Changed: func(string, guard.State, guard.State) { isOpen.Store(true) }})(
			guard.Timeout(guard.TimeoutOptions{})(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if charges[0].Key == "hangs" {
					return hang(ctx, charges)
				}
				return store.Decide(ctx, charges)
			})))
		var all sync.WaitGroup
		for range 200 {
			for _, key := range []string{"hangs", "hangs", "does not"} {
				all.Go(func() { s.Decide(t.Context(), one(penstock.PerSecond(1_000_000).MustCompile(), key)) })
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !isOpen.Load() {
			t.Error("the breaker is closed although most calls hang until the deadline; want it open")
		}
		all.Wait()
	})
}

// A call that fails while others are in flight often fails for all of them: they shared a script or
// a connection. So these failures count once.
func TestFailuresOfCallsThatWereInFlightTogetherCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCircuit(t, guard.BreakerOptions{})
		c.setFault(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(time.Millisecond)
			return penstock.Decision{}, errDown
		})
		loseCalls := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { c.Decide(t.Context(), c.charges) })
			}
			all.Wait()
		}
		for range 4 {
			loseCalls(64)
		}
		c.succeed() // ends the row
		if len(c.changes) > 0 {
			t.Fatalf("the breaker has changed its state: %v; want that it stays closed, after four failures in a row", c.changes)
		}
		for range 4 {
			loseCalls(64)
		}
		loseCalls(1)
		if want := []string{"closed-open"}; !slices.Equal(c.changes, want) {
			t.Errorf("after five failures in a row, the changes are %v; want %v", c.changes, want)
		}
	})
}

// succeed makes a call that succeeds.
func (c *circuit) succeed() {
	c.Helper()
	fault := c.fault.Swap(nil)
	c.checkReached(1, 1)
	c.fault.Store(fault)
}

// Each call that has waited for its whole deadline is a failure of its own. So the breaker opens
// after the first deadline if many callers wait for a store that hangs.
func TestEachTimeoutCounts(t *testing.T) {
	for _, reason := range []penstock.Reason{penstock.ReasonTimeout, penstock.ReasonLate} {
		synctest.Test(t, func(t *testing.T) {
			c := newCircuit(t, guard.BreakerOptions{})
			c.setFault(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
				time.Sleep(time.Millisecond)
				return penstock.Decision{}, penstock.NewStoreError(reason, context.DeadlineExceeded)
			})
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { c.Decide(t.Context(), c.charges) })
			}
			all.Wait()
			if want := []string{"closed-open"}; !slices.Equal(c.changes, want) {
				t.Errorf("after five failures of reason %v at the same time, the changes are %v; want %v", reason, c.changes, want)
			}
		})
	}
}
