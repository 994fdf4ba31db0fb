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
	"github.com/penstock/penstock/internal/effort"
)

// A decision may need several questions, or wait for the answer to another's. Whatever it does, it
// has one deadline.
func TestEveryDecisionHasOneDeadline(t *testing.T) {
	effort.WithoutRace(t)
	limits := map[string]guard.Settings{
		"plain": {}, "leased": {Lease: 100}, "split": {SplitInto: 8}, "both": {Lease: 100, SplitInto: 8}, "closed": {OnFailure: guard.FailClosed},
	}
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{Limits: func(l *penstock.Plan) guard.Settings { return limits[l.Name()] }})
		defer s.Close()
		asked, late := 0, time.Duration(0)
		ask := func(name string, mode penstock.Mode) {
			charge := penstock.Charge{Key: "k", Plan: penstock.PerSecond(400).WithName(name).MustCompile(), Cost: 1, Mode: mode}
			start := time.Now()
			if _, err := s.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Errorf("%v of %s: %v", mode, name, err)
			}
			if took := time.Since(start); took > 250*time.Millisecond {
				t.Errorf("%v of %s took %v", mode, name, took)
			} else {
				late = max(late, took)
			}
			asked++
		}
		for round := range 4 {
			for range 3000 { // beyond the limits, so that denials are remembered, and quota is drawn
				for name := range limits {
					ask(name, penstock.Spend)
				}
				time.Sleep(200 * time.Microsecond)
			}
			slow := time.Duration(200*round) * time.Millisecond // 0: for ever
			store.breaks(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if slow == 0 {
					return hangs(ctx, charges)
				}
				select {
				case <-time.After(slow):
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
						asked++
						took := time.Since(start)
						late = max(late, took)
						if err != nil || took > 250*time.Millisecond {
							t.Errorf("%v of %s while each answer takes %v: %v after %v", charge.Mode, name, slow, err, took)
						}
					})
				}
			}
			all.Wait()
			store.breaks(nil)
			time.Sleep(3 * time.Second)
		}
		t.Logf("counted: %d decisions within their deadline (the slowest took %v)", asked, late)
	})
}

// A caller who comes long after the store did finds the breaker closed, and so does a whole crowd.
func TestBreakerClosesThoughNobodyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{OnFailure: guard.FailClosed})
		limit := ready(t, penstock.PerSecond(1_000_000))
		store.breaks(fails(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "k"))
		}
		time.Sleep(time.Hour)
		if asked := store.asked.Load(); asked > 4*3600 {
			t.Errorf("the store was asked %d times in an hour in which it was dead", asked)
		}
		if state := s.Stats().Breakers[""]; state == guard.StateClosed {
			t.Error("the breaker is closed while the store is dead")
		}
		store.breaks(nil)
		time.Sleep(time.Second)
		if state := s.Stats().Breakers[""]; state != guard.StateClosed {
			t.Errorf("the breaker is %v a second after the store's return", state)
		}
		var all sync.WaitGroup
		var denied atomic.Int64
		for i := range 1000 {
			all.Go(func() {
				if d, err := s.Decide(t.Context(), one(limit, fmt.Sprint(i))); err != nil || d.Source != penstock.FromStore {
					denied.Add(1)
				}
			})
		}
		all.Wait()
		if n := denied.Load(); n > 0 {
			t.Errorf("%d of 1000 that came later were not decided by the store", n)
		}
		// What was asked meanwhile has charged nothing.
		if d, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit, Mode: penstock.Peek}}); err != nil || d.Status(0).Remaining != 1_000_000 {
			t.Errorf("%+v, %v is left for a key that was never charged", d, err)
		}
		store.breaks(fails(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "k"))
		}
		s.Close() // or the watch goes on, and the test never ends
		asked := store.asked.Load()
		time.Sleep(time.Hour)
		if now := store.asked.Load(); now != asked {
			t.Errorf("the store was asked %d times after Close", now-asked)
		}
	})
}

// Servers come and go; those that nobody asks any more are forgotten, and the breaker of none stays
// open for ever.
func TestBreakersOfServersThatAreGoneAreForgotten(t *testing.T) {
	effort.WithoutRace(t)
	synctest.Test(t, func(t *testing.T) {
		store := &moving{faulty: newFaulty()}
		s := standard(t, store, guard.Options{})
		defer s.Close()
		limit := ready(t, penstock.PerSecond(1_000_000))
		servers := 0
		for range 3000 {
			servers++
			store.at.Store(int64(servers))
			if servers%2 == 0 {
				store.breaks(fails(errDown))
			}
			for range 10 {
				s.Decide(t.Context(), one(limit, "k"))
			}
			store.breaks(nil)
			time.Sleep(time.Second)
			if n := len(s.Stats().Breakers); n > 70 {
				t.Fatalf("%d breakers after %d servers, of which each was asked for a second", n, servers)
			}
		}
		store.at.Store(0)
		time.Sleep(time.Second)
		for range 3 {
			s.Decide(t.Context(), one(limit, "k"))
			time.Sleep(time.Minute)
		}
		if b := s.Stats().Breakers; len(b) != 1 || b["server 0"] != guard.StateClosed {
			t.Errorf("%v; want the last server's alone", b)
		}
		t.Logf("counted: %d servers that came and went", servers)
	})
}

type moving struct {
	*faulty
	at atomic.Int64
}

func (m *moving) Shard([]penstock.Charge) string { return fmt.Sprint("server ", m.at.Load()) }

// A caller who gives the store next to no time learns nothing of its health. One who gives it more
// than half of it does.
func TestHurriedCallersDoNotOpenTheBreaker(t *testing.T) {
	for patience, opens := range map[time.Duration]bool{time.Millisecond: false, 124 * time.Millisecond: false, 126 * time.Millisecond: true, time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			store := newFaulty()
			store.breaks(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				_, err := hangs(ctx, charges)
				return penstock.Decision{}, fmt.Errorf("%w: %w", penstock.ErrUnavailable, err) // as redisstore has it
			})
			s := standard(t, store, guard.Options{})
			defer s.Close()
			limit := ready(t, penstock.PerSecond(1000))
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				s.Decide(ctx, one(limit, "k"))
				cancel()
			}
			if open := s.Stats().Breakers[""] != guard.StateClosed; open != opens {
				t.Errorf("50 callers who waited for %v: the breaker is open: %v; want %v", patience, open, opens)
			}
		})
	}
}

// Who waits for another's answer, and then has to ask, may run out of time though the store answers
// each question soon enough. That is no failure of the store's, and opens no breaker.
func TestWhoHasWaitedForAnotherOpensNoBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		store.breaks(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
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
		charges := one(ready(t, penstock.PerSecond(10).WithBurst(2)), "k")
		var late atomic.Int64
		for range 30 {
			d := decide(t, s, charges...)
			for d.Allowed {
				d = decide(t, s, charges...)
			}
			time.Sleep(d.RetryAfter() + 101*time.Millisecond)
			var all sync.WaitGroup
			for range 20 { // the first is granted one of two units, so the others ask too, with 10 ms left
				all.Go(func() {
					if d, err := s.Decide(t.Context(), charges); err == nil && d.Source == penstock.FromFallback {
						late.Add(1)
					}
				})
			}
			all.Wait()
		}
		if state := s.Stats().Breakers[""]; state != guard.StateClosed || opened != 0 {
			t.Errorf("the breaker of a store that answers within 15ms is %v, and has opened %d times", state, opened)
		}
		if late.Load() < 300 {
			t.Errorf("%d decisions ran out of time; is the test still right?", late.Load())
		}
	})
}

// When a store hangs, the first callers wait for the deadline, and nobody does afterwards: the
// breaker itself asks whether the store is back.
func TestNobodyWaitsForAStoreThatIsKnownToHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{})
		defer s.Close()
		limit := ready(t, penstock.PerSecond(1_000_000))
		store.breaks(hangs)
		var first sync.WaitGroup
		for i := range 20 {
			first.Go(func() { s.Decide(t.Context(), one(limit, fmt.Sprint(i))) })
		}
		first.Wait()
		for range 20_000 {
			start := time.Now()
			if _, err := s.Decide(t.Context(), one(limit, "k")); err != nil || time.Since(start) > 0 {
				t.Fatalf("a decision took %v, %v", time.Since(start), err)
			}
			time.Sleep(time.Millisecond)
		}
		store.breaks(nil)
		time.Sleep(time.Second)
		if d, err := s.Decide(t.Context(), one(limit, "k")); err != nil || d.Source != penstock.FromStore {
			t.Errorf("a second after the store's return: %v, %v", d.Source, err)
		}
	})
}

// The breaker asks what opened it. Where the answer says nothing of the store, as of a key that
// holds something else, callers find out that the store is back.
func TestBreakerClosesThoughItsOwnQuestionTellsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty()
		s := standard(t, store, guard.Options{OnFailure: guard.FailClosed})
		defer s.Close()
		limit := ready(t, penstock.PerSecond(1_000_000))
		store.breaks(fails(errDown))
		for range 20 {
			s.Decide(t.Context(), one(limit, "poisoned"))
		}
		store.breaks(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
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
			t.Errorf("the breaker is %v two seconds after the store's return", state)
		}
	})
}
