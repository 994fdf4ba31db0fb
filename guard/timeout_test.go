package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/storetest"
)

func TestTimeoutObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store {
		return guard.Timeout(guard.TimeoutOptions{After: time.Minute})(memstore.New(memstore.Options{}))
	})
}

func TestDecisionOfAHangingStoreEndsAtTheDeadline(t *testing.T) {
	for _, row := range []struct {
		name           string
		after          time.Duration // TimeoutOptions.After
		callerDeadline time.Duration // 0: none
		endsAfter      time.Duration
		isUnavailable  bool // whether the error is ErrUnavailable
	}{
		{name: "by default", endsAfter: 250 * time.Millisecond, isUnavailable: true},
		{name: "as configured", after: time.Second, endsAfter: time.Second, isUnavailable: true},
		{name: "the caller's deadline is later", after: time.Second, callerDeadline: time.Minute, endsAfter: time.Second, isUnavailable: true},
		{name: "the caller's deadline is earlier", after: time.Second, callerDeadline: 10 * time.Millisecond, endsAfter: 10 * time.Millisecond},
		{name: "without a timeout", after: -1, callerDeadline: time.Hour, endsAfter: time.Hour},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if row.callerDeadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, row.callerDeadline)
					defer cancel()
				}
				store := guard.Timeout(guard.TimeoutOptions{After: row.after})(penstock.StoreFunc(hang))
				start := time.Now()
				_, err := store.Decide(ctx, one(penstock.PerSecond(1).MustCompile(), "k"))
				if took := time.Since(start); took != row.endsAfter {
					t.Errorf("the decision ended after %v; want %v", took, row.endsAfter)
				}
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, penstock.ErrUnavailable) != row.isUnavailable {
					t.Errorf("the error is %v; want DeadlineExceeded, and whether it is ErrUnavailable: %v", err, row.isUnavailable)
				}
			})
		})
	}
}

func TestCanceledCallerIsNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := guard.Timeout(guard.TimeoutOptions{})(penstock.StoreFunc(hang)).Decide(ctx, one(penstock.PerSecond(1).MustCompile(), "k"))
		if !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("the error is %v; want context.Canceled, and not ErrUnavailable", err)
		}
	})
}

func TestErrorOfTheStoreItselfIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := guard.Timeout(guard.TimeoutOptions{})(penstock.StoreFunc(
			func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
				<-ctx.Done()
				return penstock.Decision{}, errDown
			})).Decide(t.Context(), one(penstock.PerSecond(1).MustCompile(), "k"))
		if err != errDown {
			t.Fatalf("the error is %v; want %v, the store's own", err, errDown)
		}
	})
}

func TestDecisionsBeyondInFlightAreShedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxInFlight = 8
		hung := newFaulty()
		hung.setFault(hang)
		store := guard.Timeout(guard.TimeoutOptions{InFlight: maxInFlight})(hung)
		limit := penstock.PerSecond(1).MustCompile()
		ended := make(chan error, maxInFlight)
		for i := range maxInFlight {
			go func() {
				_, err := store.Decide(t.Context(), one(limit, fmt.Sprint(i)))
				ended <- err
			}()
		}
		synctest.Wait()
		shed := 0
		for range 100 {
			start := time.Now()
			_, err := store.Decide(t.Context(), one(limit, "one more"))
			if !reasonIs(err, penstock.ReasonShed) || !errors.Is(err, penstock.ErrUnavailable) || time.Since(start) != 0 {
				t.Fatalf("a decision beyond InFlight ended after %v with %v; want ReasonShed after 0s", time.Since(start), err)
			}
			shed++
		}
		if calls := hung.calls.Load(); calls != maxInFlight {
			t.Fatalf("the store was called %d times; want %d", calls, maxInFlight)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := store.Decide(canceled, one(limit, "k")); !errors.Is(err, context.Canceled) || reasonIs(err, penstock.ReasonShed) {
			t.Fatalf("a canceled caller gets %v; want context.Canceled, not ReasonShed", err)
		}
		for range maxInFlight {
			if err := <-ended; reasonIs(err, penstock.ReasonShed) || !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("a decision in flight ended with %v; want an ErrUnavailable by the timeout, not ReasonShed", err)
			}
		}
		hung.setFault(nil)
		if d, err := store.Decide(t.Context(), one(limit, "afterwards")); err != nil || !d.Allowed {
			t.Fatalf("once the store works again: %v, error %v; want an allowed decision", d, err)
		}
		t.Logf("counted: %d decisions shed beyond the %d in flight", shed, maxInFlight)
	})
}

func TestPanicOfAStoreLeavesRoomForOthers(t *testing.T) {
	store := guard.Timeout(guard.TimeoutOptions{InFlight: 1})(penstock.StoreFunc(
		func(context.Context, []penstock.Charge) (penstock.Decision, error) { panic("broken") }))
	for range 2 {
		func() {
			defer func() {
				if recover() == nil {
					t.Fatal("Decide returned without a panic; want the store's panic each time, since no decision is in flight")
				}
			}()
			store.Decide(t.Context(), one(penstock.PerSecond(1).MustCompile(), "k"))
		}()
	}
}

// immediate is a store that answers immediately, so that a benchmark measures the guards around it.
var immediate = penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
	return penstock.Single(penstock.Status{Granted: 1}), nil
})

func benchmark(b *testing.B, store penstock.Store, charges []penstock.Charge) {
	b.ReportAllocs()
	for b.Loop() {
		store.Decide(b.Context(), charges)
	}
}

func BenchmarkTimeout(b *testing.B) {
	benchmark(b, guard.Timeout(guard.TimeoutOptions{})(immediate), one(compiled(b, penstock.PerSecond(100)), "k"))
}

// The context that a store gets behaves like any other, although it has no timer until the first
// call of Done.
func TestTimeoutContextBehavesLikeAnyOther(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Hour)
		defer cancel()
		var kept, child context.Context
		store := guard.Timeout(guard.TimeoutOptions{After: time.Second})(penstock.StoreFunc(
			func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				if at, ok := ctx.Deadline(); !ok || time.Until(at) != time.Second || ctx.Err() != nil || ctx.Value(key{}) != "value" {
					t.Errorf("the context has a deadline: %v, in %v; its error is %v, its value %v; want one in 1s, no error, and \"value\"", ok, time.Until(at), ctx.Err(), ctx.Value(key{}))
				}
				kept = ctx
				if charges[0].Key != "calls Done" {
					return penstock.Decision{}, nil
				}
				var end context.CancelFunc
				child, end = context.WithCancel(ctx)
				t.Cleanup(end)
				time.Sleep(time.Second)
				if synctest.Wait(); ctx.Err() != context.DeadlineExceeded || child.Err() != context.DeadlineExceeded || ctx.Value(key{}) != "value" {
					t.Errorf("after its deadline, the context's error is %v, its child's %v, its value %v; want DeadlineExceeded for both, and \"value\"", ctx.Err(), child.Err(), ctx.Value(key{}))
				}
				return penstock.Decision{}, nil
			}))
		for _, key := range []string{"calls Done", "does not call Done"} {
			if _, err := store.Decide(parent, one(penstock.PerSecond(1).MustCompile(), key)); err != nil {
				t.Fatal(err)
			}
			select {
			case <-kept.Done():
			default:
				t.Errorf("a store that %s: after the decision, the channel of the context's Done is open; want it closed", key)
			}
		}
		if err := kept.Err(); err != context.Canceled {
			t.Errorf("after the decision, the context's error is %v; want context.Canceled", err)
		}
		late := guard.Timeout(guard.TimeoutOptions{After: time.Second})(penstock.StoreFunc(
			func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
				time.Sleep(time.Second)
				return penstock.Decision{}, ctx.Err()
			}))
		if _, err := late.Decide(parent, one(penstock.PerSecond(1).MustCompile(), "k")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("if a store returns at its deadline without a call of Done, the error is %v; want an ErrUnavailable that wraps DeadlineExceeded", err)
		}
		cancel()
		if _, err := late.Decide(parent, one(penstock.PerSecond(1).MustCompile(), "k")); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled caller gets %v; want context.Canceled", err)
		}
	})
}

// A store that had less than half of the timeout is not at fault, also if WithAnswerDeadline set
// the earlier time.
func TestEarlyAnswerTimeIsNoFaultOfTheStore(t *testing.T) {
	for answerBy, isStoreFault := range map[time.Duration]bool{
		10 * time.Millisecond: false, 124 * time.Millisecond: false, 126 * time.Millisecond: true, time.Minute: true,
	} {
		synctest.Test(t, func(t *testing.T) {
			store := guard.Timeout(guard.TimeoutOptions{})(penstock.StoreFunc(hang))
			_, err := store.Decide(guard.WithAnswerDeadline(t.Context(), time.Now().Add(answerBy)), one(penstock.PerSecond(1).MustCompile(), "k"))
			if e := penstock.AsStoreError(err); e == nil || e.Reason != penstock.ReasonTimeout || e.IsStoreFault != isStoreFault {
				t.Errorf("with WithAnswerDeadline in %v, the error is %+v; want ReasonTimeout, and IsStoreFault %v", answerBy, err, isStoreFault)
			}
			if want := fmt.Sprint("no answer within ", min(answerBy, 250*time.Millisecond)); !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("with WithAnswerDeadline in %v, the error is %q; want it to contain %q", answerBy, err, want)
			}
		})
	}
	store := guard.Timeout(guard.TimeoutOptions{})(newCountingStore())
	_, err := store.Decide(guard.WithAnswerDeadline(t.Context(), time.Now().Add(-time.Second)), one(penstock.PerSecond(1).MustCompile(), "k"))
	if e := penstock.AsStoreError(err); e == nil || e.Reason != penstock.ReasonLate || e.IsStoreFault {
		t.Errorf("with WithAnswerDeadline in the past, the error is %+v; want ReasonLate, which is no fault of the store", err)
	}
}

// A caller with little time gets the fallback's answer while there is time to send it.
func TestFallbackAnswersBeforeTheCallerGivesUp(t *testing.T) {
	for _, row := range []struct{ answerBy, endsAfter time.Duration }{ // both counted from the call
		{answerBy: 15 * time.Millisecond, endsAfter: 15 * time.Millisecond},
		{answerBy: time.Minute, endsAfter: 250 * time.Millisecond}, // the default timeout is earlier
		{answerBy: -time.Second, endsAfter: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, err := guard.Standard(penstock.StoreFunc(hang), guard.Options{Instances: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			start := time.Now()
			d, err := g.Decide(guard.WithAnswerDeadline(t.Context(), start.Add(row.answerBy)), one(penstock.PerSecond(1).MustCompile(), "k"))
			if took := time.Since(start); err != nil || d.Source != penstock.FromFallback || took != row.endsAfter {
				t.Errorf("with WithAnswerDeadline in %v, the decision ended after %v: %v by %v, error %v; want the fallback's decision after %v", row.answerBy, took, d, d.Source, err, row.endsAfter)
			}
		})
	}
}
