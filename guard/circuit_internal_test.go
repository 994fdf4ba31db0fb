package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
)

// A downStore fails until it is repaired, and notes its calls.
type downStore struct {
	began time.Time

	mu    sync.Mutex
	isUp  bool
	err   error           // while it is down
	calls []time.Duration // the times since began
	last  penstock.Charge // the first charge of the last call
}

func (s *downStore) Decide(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.last = append(s.calls, time.Since(s.began)), charges[0]
	if !s.isUp {
		return penstock.Decision{}, s.err
	}
	return penstock.Single(penstock.Status{}), nil
}

// made returns the calls until now, and the first charge of the last one.
func (s *downStore) made() (calls []time.Duration, last penstock.Charge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls), s.last
}

// change lets the store work, or fail with another error.
func (s *downStore) change(isUp bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isUp, s.err = isUp, err
}

var errUnreachable = penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("refused"))

func chargeOfOne() []penstock.Charge {
	plan := penstock.PerSecond(1).With(penstock.LeakyBucket).WithBurst(9).MustCompile()
	return []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Patience: time.Second}}
}

// A breaker without callers peeks at the moment in which each pause ends, and at no other time. It
// closes after 15 successes, within 150 ms.
func TestWatcherPeeksAtTheEndOfEachPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &downStore{err: errUnreachable, began: time.Now()}
		b := newBreaker(store, BreakerOptions{Pause: 10 * time.Second, MaxPause: 40 * time.Second})
		defer b.startWatching()()
		for range 5 {
			if _, err := batches.Func(b.decide).Decide(t.Context(), chargeOfOne()); err == nil {
				t.Fatal("a call of a store that is down has no error; want one")
			}
		}
		ends := []time.Duration{0, 0, 0, 0, 0} // of the pauses; the five calls above began at 0
		for range 3 {
			synctest.Wait()
			until := b.overflow.pause.Load().until
			ends = append(ends, until.Sub(store.began))
			time.Sleep(time.Until(until))
			synctest.Wait()
			calls, _ := store.made()
			if got, want := fmt.Sprint(calls), fmt.Sprint(ends); got != want {
				t.Fatalf("the store was called at %s; want %s, the ends of the pauses", got, want)
			}
		}
		if _, last := store.made(); last.Mode != penstock.Peek || last.Patience != 0 || last.Key != "k" {
			t.Errorf("the breaker sends %+v; want a Peek of the caller's key without patience", last)
		}
		store.change(true, nil)
		synctest.Wait()
		until := b.overflow.pause.Load().until
		time.Sleep(time.Until(until) + 150*time.Millisecond - 1)
		synctest.Wait()
		if b.overflow.pause.Load() == nil {
			t.Error("the breaker has closed before 150 ms; want that it lets 1, 2, 4 and 8 calls pass in 50 ms each")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		calls, _ := store.made()
		if b.overflow.pause.Load() != nil || b.overflow.isWatched.Load() || b.overflow.isOnlyProbed.Load() || len(calls) != len(ends)+15 {
			t.Errorf("after 150 ms and %d successes, the breaker is closed: %t; want it closed after 15, and not watched any more", len(calls)-len(ends), b.overflow.pause.Load() == nil)
		}
	})
}

// A probe that shows nothing about the store ends the watch, so that callers may pass.
func TestInconclusiveProbeEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &downStore{err: errUnreachable, began: time.Now()}
		b := newBreaker(store, BreakerOptions{})
		defer b.startWatching()()
		for range 5 {
			batches.Func(b.decide).Decide(t.Context(), chargeOfOne())
		}
		store.change(false, penstock.ErrInvalid)
		time.Sleep(time.Second)
		synctest.Wait()
		calls, _ := store.made()
		if len(calls) != 6 || b.overflow.isWatched.Load() || b.overflow.isOnlyProbed.Load() {
			t.Errorf("the store was called %d times, and the circuit is watched: %t; want 6 calls, and no watcher", len(calls), b.overflow.isWatched.Load())
		}
		if _, err := batches.Func(b.decide).Decide(t.Context(), chargeOfOne()); err != penstock.ErrInvalid {
			t.Errorf("the next caller gets %v; want the error of the store", err)
		}
	})
}

// After its pause, a breaker lets as many batches of a list pass as it would let calls pass: 1, 2,
// 4 and 8. It rejects the others, and all of the list in the pause.
func TestHalfOpenBreakerLetsPartsOfListsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &downStore{err: errUnreachable, began: time.Now()}
		b := newBreaker(store, BreakerOptions{Pause: time.Second, MaxPause: time.Second})
		var list []*batches.Batch
		for range 9 {
			list = append(list, &batches.Batch{Charges: chargeOfOne()})
		}
		for range 5 {
			b.decide(t.Context(), list[:1])
		}
		sent := func() int {
			before, _ := store.made()
			b.decide(t.Context(), list)
			after, _ := store.made()
			passed := 0
			for i, batch := range list {
				if batch.Err == nil {
					passed++
				} else if e := penstock.AsStoreError(batch.Err); e == nil || e.Reason != penstock.ReasonBreakerOpen {
					t.Errorf("batch %d: %v; want no error, or that of an open breaker", i, batch.Err)
				}
			}
			if n := len(after) - len(before); n != passed {
				t.Errorf("%d batches were sent, and %d have a decision; want the same", n, passed)
			}
			return passed
		}
		store.change(true, nil)
		if n := sent(); n != 0 {
			t.Errorf("in the pause, %d batches were sent; want none", n)
		}
		time.Sleep(time.Until(b.overflow.pause.Load().until))
		for _, want := range []int{1, 2, 4, 8, 9} {
			if n := sent(); n != want {
				t.Errorf("%d of 9 batches were sent; want %d", n, want)
			}
			if want < 8 {
				if n := sent(); n != 0 {
					t.Errorf("%d batches were sent at the same time as %d; want none", n, want)
				}
			}
			time.Sleep(probeEvery)
		}
		if b.overflow.state != StateClosed || b.overflow.inFlight != 0 {
			t.Errorf("the breaker is %v with %d calls in flight; want it closed, with none", b.overflow.state, b.overflow.inFlight)
		}
	})
}

// A circuit without calls for a minute is removed. One circuit stays.
func TestCircuitsWithoutCallsAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := "a"
		b := newBreaker(&downStore{isUp: true}, BreakerOptions{Node: func([]penstock.Charge) string { return node }})
		call := func() {
			if _, err := batches.Func(b.decide).Decide(t.Context(), chargeOfOne()); err != nil {
				t.Fatal(err)
			}
		}
		states := func() string { return fmt.Sprint(b.states()) }
		call()
		if got, want := states(), "map[:closed a:closed]"; got != want {
			t.Errorf("the states are %s; want %s", got, want)
		}
		time.Sleep(time.Minute)
		node = "b"
		call()
		if got, want := states(), "map[:closed a:closed b:closed]"; got != want {
			t.Errorf("after a minute, the states are %s; want %s", got, want)
		}
		time.Sleep(time.Nanosecond)
		if got, want := states(), "map[b:closed]"; got != want {
			t.Errorf("after more than a minute, the states are %s; want %s", got, want)
		}
		time.Sleep(time.Hour)
		if got, want := states(), "map[b:closed]"; got != want {
			t.Errorf("after an hour, the states are %s; want %s, the last", got, want)
		}
	})
}

// The first 1024 nodes have a breaker of their own. The nodes after them share one.
func TestFurtherNodesShareACircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(&downStore{isUp: true}, BreakerOptions{})
		for i := 1; i < 1024; i++ { // the node "" has one already
			if c := b.circuit(fmt.Sprint(i)); c == b.overflow || c.node != fmt.Sprint(i) || b.circuit(c.node) != c {
				t.Fatalf("node %d has the circuit of %q; want its own, twice", i, c.node)
			}
		}
		if c := b.circuit("1024"); c != b.overflow {
			t.Errorf("node 1024 has the circuit of %q; want the shared one", c.node)
		}
		time.Sleep(time.Minute + 1)
		if c := b.circuit("1024"); c == b.overflow {
			t.Error("after a minute without calls of others, node 1024 shares a circuit; want its own")
		}
	})
}

// A breaker opens if half of at least 20 calls of the last second have failed, and at least 10 of
// them by failures of their own.
func TestRateOfFailuresThatOpensABreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			calls, failed, failures int
			isOften                 bool
		}{
			{20, 10, 10, true}, {19, 10, 10, false}, {20, 9, 9, false}, {20, 10, 9, false}, {20, 20, 9, false}, {21, 10, 10, false}, {21, 11, 10, true}, {40, 20, 10, true}, {40, 19, 19, false},
		} {
			c := newCircuit(newBreaker(nil, BreakerOptions{}), "")
			time.Sleep(700 * time.Millisecond) // in slot 3
			for i := range row.calls {
				isFailed, isFailure := 0, 0
				if i < row.failed {
					isFailed = 1
				}
				if i < row.failures {
					isFailure = 1
				}
				c.countLocked(int64(i%4), isFailed, isFailure)
			}
			if got := c.failsOftenLocked(); got != row.isOften {
				t.Errorf("%d calls, %d failed, %d failures: fails often %t; want %t", row.calls, row.failed, row.failures, got, row.isOften)
			}
			time.Sleep(299 * time.Millisecond) // just before slot 5, in which slot 0 has passed
			if got := c.failsOftenLocked(); got != row.isOften {
				t.Errorf("%d calls, %d failed, %d failures, within a second: fails often %t; want %t", row.calls, row.failed, row.failures, got, row.isOften)
			}
			time.Sleep(time.Second)
			if c.failsOftenLocked() {
				t.Error("calls of the second before count; want that they do not")
			}
		}
		c := newCircuit(newBreaker(nil, BreakerOptions{}), "")
		c.countLocked(7, 1, 1)
		c.countLocked(2, 1, 1) // of a call that began a second before
		if got, want := c.window[2], (slotCounts{slot: 7, calls: 1, failed: 1, failures: 1}); got != want {
			t.Errorf("the slot is %+v; want %+v, without the late call", got, want)
		}
		c.countLocked(7, 0, 0)
		c.countLocked(12, 0, 0)
		if got, want := c.window[2], (slotCounts{slot: 12, calls: 1}); got != want {
			t.Errorf("the slot is %+v; want %+v", got, want)
		}
	})
}

// A pause is up to 20 % shorter or longer. The chance that one of ten parts of this range has none
// of 1000 pauses is below 1e-44.
func TestPausesDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(nil, BreakerOptions{Pause: time.Second, MaxPause: time.Minute})
		var tenths [10]int
		for range 1000 {
			c := newCircuit(b, "")
			time.Sleep(time.Hour)
			length := time.Until(c.nextPauseLocked(StateClosed).until)
			if length < 800*time.Millisecond || length > 1200*time.Millisecond {
				t.Fatalf("a pause lasts %v; want 0.8 s to 1.2 s", length)
			}
			tenths[min(int((length-800*time.Millisecond)/(40*time.Millisecond)), 9)]++
		}
		for i, n := range tenths {
			if n == 0 {
				t.Errorf("no pause of 1000 is in the tenth %d of the range; want some", i)
			}
		}
		for _, row := range []struct {
			closedFor time.Duration
			from      State
			want      time.Duration // before it is made shorter or longer
		}{
			{8*time.Second - 1, StateClosed, 4 * time.Second}, {8 * time.Second, StateClosed, time.Second}, {time.Hour, StateHalfOpen, 4 * time.Second},
		} {
			c := newCircuit(b, "")
			c.lastPause, c.closedAt = 2*time.Second, time.Now()
			time.Sleep(row.closedFor)
			if c.nextPauseLocked(row.from); c.lastPause != row.want {
				t.Errorf("after %v in the state %v, a pause of 2 s is followed by one of %v; want %v", row.closedFor, row.from, c.lastPause, row.want)
			}
		}
		c := newCircuit(b, "")
		c.lastPause = 50 * time.Second
		if c.nextPauseLocked(StateHalfOpen); c.lastPause != time.Minute {
			t.Errorf("the pause after one of 50 s is %v; want a minute, MaxPause", c.lastPause)
		}
	})
	b := newBreaker(nil, BreakerOptions{})
	if o := b.options; o.Failures != 5 || o.Pause != 250*time.Millisecond || o.MaxPause != 8*time.Second {
		t.Errorf("the defaults are %+v; want 5 failures, 250 ms and 8 s", o)
	}
	if o := newBreaker(nil, BreakerOptions{Failures: 1, Pause: time.Minute}).options; o.Failures != 1 || o.MaxPause != time.Minute {
		t.Errorf("the options are %+v; want 1 failure, and that MaxPause is not below Pause", o)
	}
}

// A caller whose call is rejected gets the reason, also if the breaker has closed since.
func TestRejectionsSayWhy(t *testing.T) {
	var none *pause
	for want, err := range map[string]error{
		"the last failure was: unknown, since the breaker has closed": none.rejection(t.Context()),
		`the last failure of "n" was: refused`:                        errBreakerOpen("n", errors.New("refused")),
		"the last failure was: refused":                               errBreakerOpen("", errors.New("refused")),
	} {
		if e := penstock.AsStoreError(err); e == nil || e.Reason != penstock.ReasonBreakerOpen || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("the rejection is %v; want ReasonBreakerOpen with %q", err, want)
		}
	}
	if none.state() != StateClosed {
		t.Errorf("without a pause, the state is %v; want closed", none.state())
	}
}

// Batches of a list whose deadline has passed are not sent.
func TestListAfterItsDeadlineIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &downStore{isUp: true, began: time.Now()}
		set := &deadline.Set{After: 250 * time.Millisecond}
		isLate := false
		guarded := set.Within(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if isLate {
				time.Sleep(250 * time.Millisecond)
			}
			calls := []*batches.Batch{{Charges: charges}, {Charges: charges}}
			batches.Of(TimeoutOptions{}.timeout(set)(store))(ctx, calls)
			if (calls[0].Err == nil) != (calls[1].Err == nil) {
				t.Errorf("the errors of a list are %v and %v; want the same", calls[0].Err, calls[1].Err)
			}
			return calls[0].Decision, calls[0].Err
		}))
		if _, err := guarded.Decide(t.Context(), chargeOfOne()); err != nil || len(store.calls) != 2 {
			t.Errorf("in time: %v, and %d calls; want no error and 2 calls", err, len(store.calls))
		}
		isLate = true
		if _, err := guarded.Decide(t.Context(), chargeOfOne()); err != errTooLate || len(store.calls) != 2 {
			t.Errorf("after the deadline: %v, and %d calls; want errTooLate and no further call", err, len(store.calls))
		}
	})
}

// Each batch of a list that the store does not decide is reported.
func TestOnStoreErrorReportsEachBatchOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []Event
		store := onStoreError(func(e Event) { events = append(events, e) })(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Key == "down" {
				time.Sleep(time.Second)
				return penstock.Decision{}, errUnreachable
			}
			return penstock.Single(penstock.Status{}), nil
		}))
		down := chargeOfOne()
		down[0].Key = "down"
		batches.Of(store)(t.Context(), []*batches.Batch{{Charges: down}, {Charges: chargeOfOne()}})
		if len(events) != 1 || events[0].Err != error(errUnreachable) || events[0].Latency != time.Second || events[0].Plan != down[0].Plan {
			t.Errorf("the events are %+v; want one of the batch that failed, after a second", events)
		}
	})
	if inner := penstock.Store(&downStore{}); onStoreError(nil)(inner) != inner {
		t.Error("without a report, onStoreError returns another store; want the store itself")
	}
}

// A list for a caller that has left is not decided by the fallback.
func TestListOfACanceledCallerHasNoFallback(t *testing.T) {
	store := &downStore{isUp: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := []*batches.Batch{{Charges: chargeOfOne()}, {Charges: chargeOfOne()}}
	batches.Of(Fallback(FallbackOptions{})(store))(ctx, calls)
	if calls[0].Err != context.Canceled || calls[1].Err != context.Canceled || len(store.calls) != 0 {
		t.Errorf("the errors are %v and %v after %d calls; want context.Canceled without a call", calls[0].Err, calls[1].Err, len(store.calls))
	}
}

// The sum of what remains of all shares is 0 for a limit that is denied.
func TestBoundsOfLimitsThatAreNotValid(t *testing.T) {
	o := Options{Instances: 2, Limits: func(*penstock.Plan) Settings {
		return Settings{OnFailure: FailOpen, Ceiling: penstock.Limit{Count: -1, Period: time.Second}}
	}}
	for _, b := range o.Bounds(penstock.PerSecond(9).MustCompile()) {
		if b.When == "store fails" && (b.MaxExcess != 0 || b.Text != "nothing passes: the ceiling is not valid") {
			t.Errorf("the bound of a ceiling that is not valid is %+v; want that nothing passes", b)
		}
	}
	if makeShare(penstock.Limit{Count: -1, Period: time.Second}, 2) != nil {
		t.Error("a limit that is not valid has a share; want none")
	}
	for _, c := range []struct{ a, b, want int64 }{{0, 3, 0}, {1, 3, 1}, {3, 3, 1}, {4, 3, 2}, {6, 3, 2}} {
		if got := ceil(c.a, c.b); got != c.want {
			t.Errorf("%d/%d rounded up is %d; want %d", c.a, c.b, got, c.want)
		}
	}
}

// The demand of a limit is known after 64 requests. Until then, the smallest cost may be 1.
func TestDemandIsLearntFromRequests(t *testing.T) {
	var d demands
	plan := penstock.PerSecond(9).With(penstock.LeakyBucket).WithBurst(9).MustCompile()
	charge := func(mode penstock.Mode, cost int64, patience time.Duration) []penstock.Charge {
		return []penstock.Charge{{Key: "k", Plan: plan, Mode: mode, Cost: cost, Patience: patience}}
	}
	d.learn(charge(penstock.Spend, 3, time.Second))
	d.learn(charge(penstock.Spend, 2, 2*time.Second))
	for range 61 {
		d.learn(charge(penstock.Spend, 5, 0))
	}
	d.learn(charge(penstock.Peek, 1, time.Hour)) // takes nothing
	d.learn(charge(penstock.Refund, 1, 0))
	d.learn(charge(penstock.Spend, 0, time.Hour))
	if got, want := d.of(plan), (demand{1, 2 * time.Second}); got != want {
		t.Errorf("after 63 requests, the demand is %+v; want %+v", got, want)
	}
	d.learn(charge(penstock.Spend, 4, 0))
	if got, want := d.of(plan), (demand{2, 2 * time.Second}); got != want {
		t.Errorf("after 64 requests, the demand is %+v; want %+v", got, want)
	}
	for range 100 {
		d.learn(charge(penstock.Spend, 4, 0))
	}
	if n := d.entry(plan).requests.Load(); n != 64 {
		t.Errorf("%d requests are counted; want 64 at most", n)
	}
	for _, c := range []struct {
		a, b demand
		want bool
	}{
		{demand{1, 1}, demand{1, 1}, false}, {demand{1, 1}, demand{2, 1}, true}, {demand{2, 1}, demand{1, 1}, false}, {demand{1, 2}, demand{1, 1}, true}, {demand{1, 1}, demand{1, 2}, false},
	} {
		if got := c.a.exceeds(c.b); got != c.want {
			t.Errorf("%+v exceeds %+v: %t; want %t", c.a, c.b, got, c.want)
		}
	}
}
