package coalesce

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A setup has a Coalescer whose scripts take a second, and a store in memory that decides them.
type setup struct {
	*testing.T
	coalescer *Coalescer
	store     *memstore.Store

	mu      sync.Mutex
	sizes   []int // number of waiters of each flight that was sent
	failure error // the error of the next flights; nil: they succeed
}

const scriptTime = time.Second

// ScriptFor returns the name of the limit, or nil for charges with a holder.
func (s *setup) ScriptFor(charges []penstock.Charge) Script {
	if charges[0].Holder != "" {
		return nil
	}
	return charges[0].Plan.Name()
}

func (s *setup) DecideFlight(ctx context.Context, f *Flight) {
	s.mu.Lock()
	s.sizes = append(s.sizes, f.Len())
	cause := s.failure
	s.mu.Unlock()
	for _, r := range f.Requests {
		for _, w := range r.Waiters {
			if w.Err = cause; cause == nil {
				w.Decision, w.Err = s.store.Decide(context.Background(), r.Charges)
			}
		}
	}
	select {
	case <-time.After(scriptTime):
	case <-ctx.Done():
	}
}

// inBubble runs a test in a synctest bubble, where time passes only while all goroutines wait.
func inBubble(t *testing.T, test func(s *setup)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &setup{T: t, store: memstore.New(memstore.Options{})}
		s.coalescer = New(s)
		test(s)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.coalescer.inFlight != 0 || len(s.coalescer.queue) != 0 || len(s.coalescer.flights) != 0 {
			t.Errorf("at the end, %d scripts are in flight, with %d flights, and %d flights are queued; want none", s.coalescer.inFlight, len(s.coalescer.flights), len(s.coalescer.queue))
		}
	})
}

func listOf(waiters ...*Waiter) []*Waiter { return waiters }

// occupy keeps two scripts in flight until the test calls release. Meanwhile, all other callers
// wait.
func (s *setup) occupy() (release func()) {
	for range 2 {
		if !s.coalescer.Enter(s.Context(), listOf(new(Waiter))) {
			s.Fatal("a caller waits while fewer than two scripts are in flight; want that it decides itself")
		}
	}
	return func() { s.coalescer.Exit(); s.coalescer.Exit() }
}

// A result is what a caller got.
type result struct {
	decision penstock.Decision
	isSent   bool // the batch may have been sent
	err      error
	after    time.Duration // how long the caller waited for the result
}

// decide decides a waiter's batch.
func (s *setup) decide(ctx context.Context, w *Waiter) result {
	begin := time.Now()
	if s.coalescer.Enter(ctx, listOf(w)) {
		defer s.coalescer.Exit()
		d, err := s.store.Decide(ctx, w.Charges)
		time.Sleep(scriptTime)
		return result{decision: d, isSent: true, err: err, after: time.Since(begin)}
	}
	isSent, err := s.coalescer.Wait(ctx, w)
	if err != nil { // the flight may still write to the waiter
		return result{isSent: isSent, err: err, after: time.Since(begin)}
	}
	return result{decision: w.Decision, isSent: isSent, err: w.Err, after: time.Since(begin)}
}

// call decides charges in the background.
func (s *setup) call(ctx context.Context, charges ...penstock.Charge) <-chan result {
	results := make(chan result, 1)
	go func() { results <- s.decide(ctx, &Waiter{Charges: charges}) }()
	synctest.Wait()
	return results
}

// callWithin decides charges in the background, with a deadline. Like the deadlines of
// guard.Timeout, it has no timer of its own.
func (s *setup) callWithin(after time.Duration, charges ...penstock.Charge) <-chan result {
	results := make(chan result, 1)
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		r := s.decide(ctx, &Waiter{Charges: charges})
		results <- r
		return r.decision, r.err
	})
	go func() {
		_, _ = guard.Timeout(guard.TimeoutOptions{After: after})(store).Decide(context.Background(), charges)
	}()
	synctest.Wait()
	return results
}

var thirtyPerDay = penstock.PerDay(30).With(penstock.FixedWindow).MustCompile()

func spend(key string, cost int64) penstock.Charge {
	return penstock.Charge{Key: key, Plan: thirtyPerDay, Cost: cost}
}

// wantUsed checks how many of the 30 units of a key are used.
func (s *setup) wantUsed(key string, want int64) {
	s.Helper()
	d, err := s.store.Decide(context.Background(), []penstock.Charge{{Key: key, Plan: thirtyPerDay, Mode: penstock.Peek}})
	if err != nil {
		s.Fatal(err)
	}
	if used := 30 - d.Remaining(); used != want {
		s.Errorf("%d units of %q are used, want %d", used, key, want)
	}
}

func (s *setup) failWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// wantFlights checks the number of waiters of each flight that was sent until now. Flights that are
// sent at the same moment reach the store in any order, so the order is not checked.
func (s *setup) wantFlights(sizes ...int) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(slices.Sorted(slices.Values(s.sizes)), slices.Sorted(slices.Values(sizes))) {
		s.Errorf("flights of %v waiters were sent, want %v", s.sizes, sizes)
	}
}

func TestCallersDoNotWaitForAnIdleStore(t *testing.T) {
	inBubble(t, func(s *setup) {
		for range 3 {
			if r := <-s.call(s.Context(), spend("k", 1)); r.err != nil || r.after != scriptTime {
				t.Errorf("a call to an idle store: %+v; want a decision after %v", r, scriptTime)
			}
		}
		s.wantFlights()
		s.wantUsed("k", 3)
	})
}

func TestEqualBatchesAreOneRequest(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		var calls []<-chan result
		for range 200 {
			calls = append(calls, s.call(s.Context(), spend("k", 1)))
		}
		release()
		granted := 0
		for _, c := range calls {
			if r := <-c; r.err != nil {
				t.Errorf("a call: %v; want a decision", r.err)
			} else if r.decision.Allowed {
				granted++
			}
		}
		if granted != 30 {
			t.Errorf("%d of 30 units were granted; want all", granted)
		}
		s.wantFlights(200)
	})
}

// A flight costs the server at most 256 units: 4 for a request of one charge, and 1 for each
// further waiter. So it has up to 64 different requests, or 253 equal ones. Here three scripts are
// in flight, so that all others wait.
func TestCostOfAFlightIsBounded(t *testing.T) {
	for _, row := range []struct {
		name string
		call func(i int) penstock.Charge
		n    int   // how many calls are made
		want []int // waiters of each flight
	}{
		{
			name: "different requests",
			call: func(i int) penstock.Charge { return spend(fmt.Sprint(i), 1) },
			n:    200, want: []int{64, 64, 64, 8},
		},
		{
			name: "equal requests",
			call: func(int) penstock.Charge { return spend("k", 1) },
			n:    600, want: []int{253, 253, 94},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(s *setup) {
				defer s.occupy()()
				s.sendThird()
				for i := range row.n {
					s.call(s.Context(), row.call(i))
				}
				s.wantFlights(thirdFlightMinRequests)
				time.Sleep(time.Minute)
				s.wantFlights(append([]int{thirdFlightMinRequests}, row.want...)...)
			})
		})
	}
}

// sendThird makes just enough calls that a third script is sent.
func (s *setup) sendThird() {
	for i := range thirdFlightMinRequests {
		s.call(s.Context(), spend(fmt.Sprint("third", i), 1))
	}
}

// While one flight is in flight, the next flight waits until it has enough requests or enough
// waiters.
func TestSecondFlightHasAThreshold(t *testing.T) {
	for _, row := range []struct {
		name  string
		call  func(i int) penstock.Charge
		least int // how many calls are needed for a further flight
	}{
		{
			name:  "different requests",
			call:  func(i int) penstock.Charge { return spend(fmt.Sprint(i), 1) },
			least: secondFlightMinRequests,
		},
		{
			name:  "equal requests",
			call:  func(int) penstock.Charge { return spend("hot", 1) },
			least: secondFlightMinWaiters,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(s *setup) {
				release := s.occupy()
				s.call(s.Context(), spend("first", 1))
				release() // the first flight is sent
				synctest.Wait()
				var calls []<-chan result
				for i := range row.least - 1 {
					calls = append(calls, s.call(s.Context(), row.call(i)))
				}
				s.wantFlights(1)
				calls = append(calls, s.call(s.Context(), row.call(row.least-1)))
				s.wantFlights(1, row.least)
				small := s.call(s.Context(), spend("small", 1))
				for _, c := range append(calls, small) {
					<-c
				}
				s.wantFlights(1, row.least, 1)
			})
		})
	}
}

// A further flight waits until it is as large as those in flight, so that many callers are not
// divided into many small scripts.
func TestFurtherFlightIsAsLargeAsThoseInFlight(t *testing.T) {
	for _, row := range []struct {
		first int   // how many calls wait at first
		sent  []int // waiters of each flight that is in flight after these calls
		least int   // how many calls are needed for a further flight
	}{
		{first: 1, sent: []int{1}, least: secondFlightMinRequests},
		{first: 15, sent: []int{15}, least: 15},
		{first: 60, sent: []int{thirdFlightMinRequests, 44}, least: 2 * maxFlightMinRequests},
	} {
		inBubble(t, func(s *setup) {
			release := s.occupy()
			for i := range row.first {
				s.call(s.Context(), spend(fmt.Sprint("first", i), 1))
			}
			release()
			synctest.Wait()
			for i := range row.least - 1 {
				s.call(s.Context(), spend(fmt.Sprint("next", i), 1))
			}
			s.wantFlights(row.sent...)
			s.call(s.Context(), spend("last", 1))
			s.wantFlights(append(row.sent, row.least)...)
		})
	}
}

// A third flight needs many different requests; equal requests do not count. A fourth flight is not
// sent before a script has ended.
func TestThirdFlightHasAThreshold(t *testing.T) {
	inBubble(t, func(s *setup) {
		defer s.occupy()()
		for range 100 {
			s.call(s.Context(), spend("hot", 1))
		}
		for i := range thirdFlightMinRequests - 2 { // with the hot request, 1 fewer than the third flight needs
			s.call(s.Context(), spend(fmt.Sprint(i), 1))
		}
		s.wantFlights()
		s.call(s.Context(), spend("last", 1))
		s.wantFlights(100 + thirdFlightMinRequests - 1)
		for i := range 40 {
			s.call(s.Context(), spend(fmt.Sprint(i), 1))
		}
		s.wantFlights(100 + thirdFlightMinRequests - 1)
	})
}

// A decision takes at most two round trips: one until the scripts in flight have ended, and one of
// its own script. The callers come at random times, and then again as soon as they have an answer.
func TestDecisionTakesAtMostTwoRoundTrips(t *testing.T) {
	for _, row := range []struct{ callers, limits, keys int }{
		{callers: 4, limits: 1, keys: 4},
		{callers: 64, limits: 6, keys: 64},
		{callers: 600, limits: 1, keys: 1},
		{callers: 600, limits: 1, keys: 600},
		{callers: 600, limits: 6, keys: 600},
		{callers: 2000, limits: 1, keys: 2000},
	} {
		inBubble(t, func(s *setup) {
			seed := effort.Seed()
			random := rand.New(rand.NewPCG(seed, 0))
			longest := make(chan time.Duration, row.callers)
			for i := range row.callers {
				limit := penstock.PerDay(30).With(penstock.FixedWindow)
				limit.Name = fmt.Sprint("limit", i%row.limits)
				charge := penstock.Charge{Key: fmt.Sprint(i % row.keys), Plan: limit.MustCompile(), Cost: 1}
				pause := time.Duration(random.Int64N(int64(scriptTime)))
				go func() {
					var most time.Duration
					for range 8 {
						time.Sleep(pause)
						r := s.decide(s.Context(), &Waiter{Charges: []penstock.Charge{charge}})
						most = max(most, r.after)
					}
					longest <- most
				}()
			}
			var most time.Duration
			for range row.callers {
				most = max(most, <-longest)
			}
			if most > 2*scriptTime {
				t.Errorf("seed %d: with %+v, a decision took %.2f round trips; want at most 2", seed, row, most.Seconds()/scriptTime.Seconds())
			}
		})
	}
}

// If maxFlights are in flight, further flights wait for one of them to end. If the scripts hang, no
// further flight is sent.
func TestNumberOfFlightsIsBounded(t *testing.T) {
	inBubble(t, func(s *setup) {
		const perFlight, waiting = 64, maxFlights + 4
		release := s.occupy()
		s.sendThird()
		var calls []<-chan result
		for i := range perFlight * waiting {
			calls = append(calls, s.call(s.Context(), spend(fmt.Sprint(i), 1)))
		}
		s.wantNumbers(3, waiting)
		release()
		time.Sleep(scriptTime)
		synctest.Wait()
		s.wantNumbers(maxFlights, 2)
		time.Sleep(scriptTime)
		synctest.Wait()
		s.wantNumbers(2, 0)
		for _, c := range calls {
			if r := <-c; r.err != nil || r.after > 3*scriptTime {
				t.Errorf("a call: %+v; want a decision within 3 round trips", r)
			}
		}
	})
}

// wantNumbers checks how many scripts are in flight, and how many flights are queued.
func (s *setup) wantNumbers(inFlight, queued int) {
	s.Helper()
	if n, m := s.coalescer.Flights(); n != inFlight || m != queued {
		s.Errorf("%d scripts are in flight and %d are queued; want %d and %d", n, m, inFlight, queued)
	}
}

// A waiter that leaves before its flight is sent is not charged. The others are charged.
func TestWaiterThatLeavesTheQueueIsNotCharged(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		ctx, cancel := context.WithCancel(s.Context())
		leaves, stays := s.call(ctx, spend("k", 1)), s.call(s.Context(), spend("k", 1))
		cancel()
		if r := <-leaves; !errors.Is(r.err, context.Canceled) || r.isSent {
			t.Errorf("the waiter that left: %+v; want context.Canceled, not sent", r)
		}
		release()
		if r := <-stays; r.err != nil || !r.decision.Allowed {
			t.Errorf("the waiter that stayed: %+v; want a grant", r)
		}
		s.wantUsed("k", 1)
		s.wantFlights(1)
	})
}

// If a deadline has a timer, the wait ends exactly at the deadline. If it has none, the wait ends
// at most minTimerInterval later.
func TestDeadlinesEndTheWait(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		ctx, cancel := context.WithTimeout(s.Context(), 20*time.Millisecond)
		defer cancel()
		plain := s.call(ctx, spend("k", 30))
		if r := <-plain; !errors.Is(r.err, context.DeadlineExceeded) || r.isSent || r.after != 20*time.Millisecond {
			t.Errorf("with a timer: %+v; want DeadlineExceeded after 20ms, not sent", r)
		}
		for range 2 {
			if r := <-s.callWithin(20*time.Millisecond, spend("k", 30)); !errors.Is(r.err, context.DeadlineExceeded) || r.isSent || r.after > 20*time.Millisecond+minTimerInterval {
				t.Errorf("without a timer: %+v; want DeadlineExceeded after about 20ms, not sent", r)
			}
		}
		stays := s.callWithin(time.Hour, spend("k", 30)) // the deadlines that have passed do not end its wait
		release()
		if r := <-stays; r.err != nil || !r.decision.Allowed {
			t.Errorf("the waiter that stayed: %+v; want a grant", r)
		}
	})
}

// Each waiter of a shared request leaves at its own deadline. A waiter that leaves before the
// flight is sent is not charged. The outcome of one that leaves later is unknown. The other waiters
// get their answers.
func TestEachWaiterLeavesAtItsOwnDeadline(t *testing.T) {
	for _, isSent := range []bool{false, true} {
		inBubble(t, func(s *setup) {
			release := s.occupy()
			var staying, leaving []<-chan result
			var deadlines []time.Duration
			for i := range 12 {
				if i%4 == 0 { // also the first waiter: its deadline is later than those that follow
					staying = append(staying, s.callWithin(time.Hour, spend("k", 1)))
					continue
				}
				deadline := 20*time.Millisecond + time.Duration(i)*300*time.Microsecond
				deadlines = append(deadlines, deadline)
				leaving = append(leaving, s.callWithin(deadline, spend("k", 1)))
			}
			if isSent {
				release()
			}
			for i, c := range leaving {
				r := <-c
				if !errors.Is(r.err, context.DeadlineExceeded) || r.isSent != isSent || r.after < deadlines[i] || r.after > deadlines[i]+minTimerInterval {
					t.Errorf("flight sent: %v; the waiter with a deadline after %v: %+v; want DeadlineExceeded at most %v after the deadline", isSent, deadlines[i], r, minTimerInterval)
				}
			}
			if !isSent {
				release()
			}
			for _, c := range staying {
				if r := <-c; r.err != nil || !r.decision.Allowed {
					t.Errorf("flight sent: %v; a waiter that stayed: %+v; want a grant", isSent, r)
				}
			}
			used := int64(len(staying))
			if isSent {
				used += int64(len(leaving))
			}
			s.wantUsed("k", used)
		})
	}
}

// A borrowedContext may be used until its call returns, like the contexts of guards whose requests
// are pooled.
type borrowedContext struct {
	context.Context
	deadline   time.Time
	isReturned atomic.Bool
	lateCalls  atomic.Int64 // calls of Deadline after the return
}

func (c *borrowedContext) Lazy() (<-chan struct{}, time.Time) { return c.Done(), c.deadline }

func (c *borrowedContext) Deadline() (time.Time, bool) {
	if c.isReturned.Load() {
		c.lateCalls.Add(1)
	}
	return c.deadline, true
}

// The context of a waiter that has left is not used again, although its batch is still in flight.
func TestContextOfADepartedWaiterIsNotUsed(t *testing.T) {
	for _, n := range []int{1, 2} { // waiters of the caller that leaves
		inBubble(t, func(s *setup) {
			release := s.occupy()
			ctx, cancel := context.WithCancel(s.Context())
			borrowed := &borrowedContext{Context: ctx, deadline: time.Now().Add(100 * time.Millisecond)}
			leaving := listOf(&Waiter{Charges: []penstock.Charge{spend("k", 1)}}, &Waiter{Charges: []penstock.Charge{spend("l", 1)}})[:n]
			if s.coalescer.Enter(borrowed, leaving) {
				t.Fatal("a caller decides itself while two scripts are in flight; want that it waits")
			}
			stays := s.callWithin(time.Hour, spend("k", 1))
			release()
			synctest.Wait()
			cancel()
			for _, w := range leaving {
				if isSent, err := s.coalescer.Wait(borrowed, w); !errors.Is(err, context.Canceled) || !isSent {
					t.Errorf("the waiter that left: %v, sent %t; want context.Canceled, and that the batch was sent", err, isSent)
				}
			}
			borrowed.isReturned.Store(true)
			if r := <-stays; r.err != nil || !r.decision.Allowed {
				t.Errorf("the waiter that stayed: %+v; want a grant", r)
			}
			if n := borrowed.lateCalls.Load(); n > 0 {
				t.Errorf("Deadline of the context was called %d times after its call had returned; want never", n)
			}
		})
	}
}

// A flight runs as long as one of its waiters waits, and is canceled when the last has left.
func TestFlightIsCanceledWithItsLastWaiter(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		var cancels []context.CancelFunc
		var calls []<-chan result
		for range 3 {
			ctx, cancel := context.WithCancel(s.Context())
			cancels = append(cancels, cancel)
			calls = append(calls, s.call(ctx, spend("k", 1)))
		}
		release()
		synctest.Wait()
		flight := s.coalescer.flights[0].ctx
		for i, cancel := range cancels {
			if flight.Err() != nil {
				t.Errorf("the flight was canceled while %d waiters wait; want it still running", 3-i)
			}
			cancel()
			if r := <-calls[i]; !errors.Is(r.err, context.Canceled) || !r.isSent {
				t.Errorf("the waiter that left: %+v; want context.Canceled, and that the batch was sent", r)
			}
		}
		if flight.Err() == nil {
			t.Error("the flight runs after its last waiter has left; want it canceled")
		}
	})
}

// If a flight fails, only its waiters fail.
func TestFailedFlightFailsOnlyItsWaiters(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		s.failWith(errors.New("the connection broke"))
		var failing []<-chan result
		for range 5 {
			failing = append(failing, s.call(s.Context(), spend("k", 1)))
		}
		release()
		synctest.Wait()
		later := s.call(s.Context(), spend("k", 1))
		s.failWith(nil)
		for _, c := range failing {
			if r := <-c; r.err == nil || !r.isSent {
				t.Errorf("a waiter of the failed flight: %+v; want the flight's error", r)
			}
		}
		if r := <-later; r.err != nil {
			t.Errorf("a waiter of the next flight: %+v; want no error", r)
		}
		s.wantFlights(5, 1)
	})
}

// Batches of different uniform scripts do not share a flight. All batches without a uniform script
// share a flight.
func TestFlightsHaveOneScript(t *testing.T) {
	inBubble(t, func(s *setup) {
		release := s.occupy()
		held := penstock.InFlight(100, time.Hour).MustCompile()
		for i := range 5 {
			s.call(s.Context(), spend(fmt.Sprint(i), 1))
			s.call(s.Context(), penstock.Charge{Key: fmt.Sprint(i), Plan: held, Cost: 1, Holder: fmt.Sprint(i)})
		}
		release()
		time.Sleep(time.Minute)
		s.wantFlights(5, 5)
	})
}

// The caller of an idle store decides its batches itself if one script can do so, and waits for
// flights otherwise.
func TestListIsDecidedInOneScriptIfItFits(t *testing.T) {
	held := penstock.Charge{Key: "k", Plan: penstock.InFlight(100, time.Hour).MustCompile(), Cost: 1, Holder: "h"}
	window := penstock.Charge{Key: "k", Plan: penstock.PerHour(5).WithName("other").MustCompile(), Cost: 1}
	for name, row := range map[string]struct {
		n       int // batches of the list
		charge  func(i int) penstock.Charge
		flights []int // waiters of each; nil: the caller decides
	}{
		"a small list":         {n: 64, charge: func(i int) penstock.Charge { return spend(fmt.Sprint(i), 1) }},
		"a large list":         {n: 65, charge: func(i int) penstock.Charge { return spend(fmt.Sprint(i), 1) }, flights: []int{64, 1}},
		"two scripts":          {n: 2, charge: func(i int) penstock.Charge { return []penstock.Charge{spend("k", 1), window}[i] }, flights: []int{1, 1}},
		"without a script":     {n: 2, charge: func(int) penstock.Charge { return held }, flights: []int{2}},
		"one without a script": {n: 2, charge: func(i int) penstock.Charge { return []penstock.Charge{spend("k", 1), held}[i] }, flights: []int{1, 1}},
	} {
		inBubble(t, func(s *setup) {
			var list []*Waiter
			for i := range row.n {
				list = append(list, &Waiter{Charges: []penstock.Charge{row.charge(i)}})
			}
			if s.coalescer.Enter(s.Context(), list) {
				if s.coalescer.Exit(); row.flights != nil {
					t.Errorf("%s: the caller decides; want flights of %v waiters", name, row.flights)
				}
				return
			}
			for _, w := range list {
				if _, err := s.coalescer.Wait(s.Context(), w); err != nil || w.Err != nil {
					t.Errorf("%s: %v, %v; want no error", name, err, w.Err)
				}
			}
			s.wantFlights(row.flights...)
		})
	}
}

// While lists with the same first batch wait, all of them join its request.
func TestListsJoinTheRequestsOfTheListBefore(t *testing.T) {
	inBubble(t, func(s *setup) {
		defer s.occupy()()
		for range 3 {
			list := listOf(&Waiter{Charges: []penstock.Charge{spend("k", 1)}}, &Waiter{Charges: []penstock.Charge{spend("shadow", 1)}})
			s.coalescer.Enter(s.Context(), list)
		}
		f := s.coalescer.queue[0]
		if len(f.requests) != 2 || f.waiters != 6 || f.recentRequest != 0 {
			t.Errorf("three lists have %d requests of %d waiters, and the next is expected to join request %d; want 2 of 6, and 0", len(f.requests), f.waiters, f.recentRequest)
		}
	})
}

func TestSlotsDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(s *setup) {
		slots := NewSlots(s)
		one, other := slots.Of(1), slots.Of(2)
		if one == other || slots.Of(1) != one {
			t.Fatal("two slots share a Coalescer, or one slot has two; want one for each slot")
		}
		for range 2 {
			one.Enter(s.Context(), listOf(new(Waiter)))
		}
		waiter := &Waiter{Charges: []penstock.Charge{spend("k", 1)}}
		if one.Enter(s.Context(), listOf(waiter)) || slots.Waiting() != 1 {
			t.Errorf("%d callers wait after the third call of a slot; want 1", slots.Waiting())
		}
		if !other.Enter(s.Context(), listOf(new(Waiter))) {
			t.Error("a caller of an idle slot waits; want that it decides itself")
		}
		other.Exit()
		one.Exit()
		one.Exit()
		if _, err := one.Wait(s.Context(), waiter); err != nil {
			t.Errorf("the waiter of slot 1: %v; want no error", err)
		}
	})
}
