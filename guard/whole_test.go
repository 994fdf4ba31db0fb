package guard_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
)

// A decision may need several calls to the store, or wait for the call of another request. In each
// case it has one deadline.
func TestEveryDecisionHasOneDeadline(t *testing.T) {
	effort.SkipUnderRace(t)
	const deadline = 250 * time.Millisecond // the default timeout
	limits := map[string]guard.Settings{
		"plain":        {},
		"leased":       {Lease: 100},
		"split":        {SplitInto: 8},
		"leased-split": {Lease: 100, SplitInto: 8},
		"closed":       {OnFailure: guard.FailClosed},
	}
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{Limits: func(l *penstock.Plan) guard.Settings { return limits[l.Name()] }})
		defer s.Close()
		calls, slowest := 0, time.Duration(0)
		call := func(name string, mode penstock.Mode) {
			charge := penstock.Charge{Key: "k", Plan: penstock.PerSecond(400).WithName(name).MustCompile(), Cost: 1, Mode: mode}
			start := time.Now()
			if _, err := s.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Errorf("%v of limit %s: the error is %v; want a decision", mode, name, err)
			}
			if took := time.Since(start); took > deadline {
				t.Errorf("%v of limit %s took %v; want at most %v", mode, name, took, deadline)
			} else {
				slowest = max(slowest, took)
			}
			calls++
		}
		for round := range 4 {
			for range 3000 { // beyond the limits, so that denials are cached and leases draw
				for name := range limits {
					call(name, penstock.Spend)
				}
				time.Sleep(200 * time.Microsecond)
			}
			answerTime := time.Duration(200*round) * time.Millisecond // 0: the store never answers
			store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if answerTime == 0 {
					return hang(ctx, charges)
				}
				select {
				case <-time.After(answerTime):
					return store.store.Decide(ctx, charges)
				case <-ctx.Done():
					return penstock.Decision{}, ctx.Err()
				}
			})
			var all sync.WaitGroup
			var mu sync.Mutex
			for name := range limits {
				for i := range 40 {
					all.Go(func() {
						start := time.Now()
						charge := penstock.Charge{Key: "k", Plan: penstock.PerSecond(400).WithName(name).MustCompile(), Cost: 1}
						if i%10 == 0 && name != "closed" {
							charge.Mode = penstock.Refund
						}
						_, err := s.Decide(t.Context(), []penstock.Charge{charge})
						mu.Lock()
						defer mu.Unlock()
						calls++
						took := time.Since(start)
						slowest = max(slowest, took)
						if err != nil || took > deadline {
							t.Errorf("%v of limit %s, while each answer takes %v (0s: forever), ended with error %v after %v; want a decision within %v", charge.Mode, name, answerTime, err, took, deadline)
						}
					})
				}
			}
			all.Wait()
			store.setFault(nil)
			time.Sleep(3 * time.Second)
		}
		t.Logf("counted: %d decisions within their deadline (the slowest took %v)", calls, slowest)
	})
}

// The breaker closes without callers. So all callers that come a second after the store's return
// get decisions by the store.
func TestBreakerClosesWithoutCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{OnFailure: guard.FailClosed})
		limit := compiled(t, penstock.PerSecond(1_000_000))
		store.setFault(failWith(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "k"))
		}
		time.Sleep(time.Hour)
		const maxProbes = 4 * 3600 // four a second
		if calls := store.calls.Load(); calls > maxProbes {
			t.Errorf("the store was called %d times in an hour in which it was dead; want at most %d", calls, maxProbes)
		}
		if state := s.Stats().Breakers[""]; state == guard.StateClosed {
			t.Error("the breaker is closed while the store is dead; want open or half-open")
		}
		store.setFault(nil)
		time.Sleep(time.Second)
		if state := s.Stats().Breakers[""]; state != guard.StateClosed {
			t.Errorf("the breaker is %v a second after the store's return; want closed", state)
		}
		var all sync.WaitGroup
		var notByStore atomic.Int64
		for i := range 1000 {
			all.Go(func() {
				if d, err := s.Decide(t.Context(), one(limit, fmt.Sprint(i))); err != nil || d.Source != penstock.FromStore {
					notByStore.Add(1)
				}
			})
		}
		all.Wait()
		if n := notByStore.Load(); n > 0 {
			t.Errorf("%d of 1000 later requests were not decided by the store; want 0", n)
		}
		// The breaker's probes have charged nothing.
		if d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit, Mode: penstock.Peek}}); err != nil || d.Status(0).Remaining != 1_000_000 {
			t.Errorf("a peek at a key that was never charged: %+v, error %v; want 1,000,000 units left", d, err)
		}
		store.setFault(failWith(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "k"))
		}
		s.Close() // or else probes go on, and the test never ends
		calls := store.calls.Load()
		time.Sleep(time.Hour)
		if now := store.calls.Load(); now != calls {
			t.Errorf("the store was called %d times after Close; want 0", now-calls)
		}
	})
}

// Servers come and go. The breaker of a server is removed about a minute after its last call, even
// if it is open.
func TestBreakersOfRemovedServersAreRemoved(t *testing.T) {
	effort.SkipUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		store := &movingStore{faulty: newFaulty()}
		s := standard(t, store, guard.Options{Breaker: guard.BreakerOptions{Node: store.node}})
		defer s.Close()
		limit := compiled(t, penstock.PerSecond(1_000_000))
		servers := 0
		for range 3000 {
			servers++
			store.server.Store(int64(servers))
			if servers%2 == 0 {
				store.setFault(failWith(errDown))
			}
			for range 10 {
				s.Decide(t.Context(), one(limit, "k"))
			}
			store.setFault(nil)
			time.Sleep(time.Second)
			if n := len(s.Stats().Breakers); n > 70 {
				t.Fatalf("after %d servers, each used for a second, there are %d breakers; want at most 70, those of about a minute", servers, n)
			}
		}
		store.server.Store(0)
		time.Sleep(time.Second)
		for range 3 {
			s.Decide(t.Context(), one(limit, "k"))
			time.Sleep(time.Minute)
		}
		b := s.Stats().Breakers
		if state, isThere := b["server 0"]; len(b) != 1 || !isThere || state != guard.StateClosed {
			t.Errorf("the breakers are %v; want only that of \"server 0\", closed", b)
		}
		t.Logf("counted: %d servers that came and went", servers)
	})
}

// A movingStore has one node at a time. The test changes the number of the node.
type movingStore struct {
	*faulty
	server atomic.Int64 // the number of the node
}

func (m *movingStore) node([]penstock.Charge) string { return fmt.Sprint("server ", m.server.Load()) }

// A caller's timeout counts as a failure of the store only if its deadline was more than half of
// the store's own deadline.
func TestShortDeadlinesDoNotOpenTheBreaker(t *testing.T) {
	for timeout, opensBreaker := range map[time.Duration]bool{time.Millisecond: false, 124 * time.Millisecond: false, 126 * time.Millisecond: true, time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFaulty()
			store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				_, err := hang(ctx, charges)
				return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err) // as redisstore returns it
			})
			s := standard(t, store, guard.Options{})
			defer s.Close()
			limit := compiled(t, penstock.PerSecond(1000))
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				s.Decide(ctx, one(limit, "k"))
				cancel()
			}
			if isOpen := s.Stats().Breakers[""] != guard.StateClosed; isOpen != opensBreaker {
				t.Errorf("after 50 calls of callers with a timeout of %v, whether the breaker is open: %v; want %v", timeout, isOpen, opensBreaker)
			}
		})
	}
}

// A caller may wait for the answer to another request, and then call the store itself. If it runs
// out of time although the store answers each call in time, that is not a failure of the store.
func TestTimeSpentWaitingDoesNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			select {
			case <-time.After(15 * time.Millisecond):
				return store.store.Decide(ctx, charges)
			case <-ctx.Done():
				return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, ctx.Err())
			}
		})
		opened := 0
		breaker := guard.BreakerOptions{Changed: func(_ string, _, to guard.State) {
			if to == guard.StateOpen {
				opened++
			}
		}}
		s := standard(t, store, guard.Options{Timeout: guard.TimeoutOptions{After: 25 * time.Millisecond}, Breaker: breaker})
		defer s.Close()
		charges := one(compiled(t, penstock.PerSecond(10).WithBurst(2)), "k")
		var late atomic.Int64
		for range 30 {
			d := decide(t, s, charges...)
			for d.Allowed {
				d = decide(t, s, charges...)
			}
			time.Sleep(d.RetryAfter() + 101*time.Millisecond) // until two units have returned
			var all sync.WaitGroup
			// The first caller is granted one of two units, so the others call the store too, when 10 ms
			// are left.
			for range 20 {
				all.Go(func() {
					if d, err := s.Decide(t.Context(), charges); err == nil && d.Source == penstock.FromFallback {
						late.Add(1)
					}
				})
			}
			all.Wait()
		}
		if state := s.Stats().Breakers[""]; state != guard.StateClosed || opened != 0 {
			t.Errorf("the breaker of a store that answers within 15ms is %v, and has opened %d times; want closed, and 0", state, opened)
		}
		if late.Load() < 300 {
			t.Errorf("%d decisions ran out of time; want at least 300, or the test does not cover this case", late.Load())
		}
	})
}

// When a store hangs, only the first callers wait for the deadline. Afterwards the breaker itself
// probes whether the store is back.
func TestCallersDoNotWaitWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{})
		defer s.Close()
		limit := compiled(t, penstock.PerSecond(1_000_000))
		store.setFault(hang)
		var first sync.WaitGroup
		for i := range 20 {
			first.Go(func() { s.Decide(t.Context(), one(limit, fmt.Sprint(i))) })
		}
		first.Wait()
		for range 20_000 {
			start := time.Now()
			if _, err := s.Decide(t.Context(), one(limit, "k")); err != nil || time.Since(start) > 0 {
				t.Fatalf("a decision took %v, with the error %v; want no time and no error", time.Since(start), err)
			}
			time.Sleep(time.Millisecond)
		}
		store.setFault(nil)
		time.Sleep(time.Second)
		if d, err := s.Decide(t.Context(), one(limit, "k")); err != nil || d.Source != penstock.FromStore {
			t.Errorf("a second after the store's return, a decision is by %v, error %v; want by the store", d.Source, err)
		}
	})
}

// The breaker probes with the call that opened it. The answer may tell nothing about the store's
// health, as for a key of a wrong type. Then calls of other keys close the breaker.
func TestBreakerClosesAlthoughItsProbeIsInconclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{OnFailure: guard.FailClosed})
		defer s.Close()
		limit := compiled(t, penstock.PerSecond(1_000_000))
		store.setFault(failWith(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "poisoned"))
		}
		store.setFault(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Key == "poisoned" {
				return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonCorrupt, errDown)
			}
			return store.store.Decide(ctx, charges)
		})
		time.Sleep(time.Second)
		for range 1000 {
			s.Decide(t.Context(), one(limit, "k"))
			time.Sleep(time.Millisecond)
		}
		if state := s.Stats().Breakers[""]; state != guard.StateClosed {
			t.Errorf("the breaker is %v two seconds after the store's return; want closed", state)
		}
	})
}
