package deadline

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lazy"
)

// storeFunc returns a store that calls f with the context of each decision.
func storeFunc(f func(ctx context.Context)) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
		f(ctx)
		return penstock.Decision{}, nil
	})
}

func decide(t *testing.T, ctx context.Context, store penstock.Store) {
	t.Helper()
	if _, err := store.Decide(ctx, nil); err != nil {
		t.Error(err)
	}
}

// A decision has a deadline until it is made, even if Set.After is 0. Then its context ends.
func TestDecisionHasADeadlineUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{0, 1, time.Second} {
			set := &Set{After: after}
			var d *Context
			decide(t, t.Context(), set.Within(storeFunc(func(ctx context.Context) {
				if d = From(ctx); d == nil || d.Left() != after || set.stalls.inFlight.Load() != 1 {
					t.Fatalf("the deadline is %+v, and %d decisions are in flight; want %v left, and 1 in flight", d, set.stalls.inFlight.Load(), after)
				}
			})))
			if err, inFlight := d.Err(), set.stalls.inFlight.Load(); err != context.Canceled && after > 0 || inFlight != 0 {
				t.Errorf("after the decision, the error is %v, and %d decisions are in flight; want it canceled, and 0", err, inFlight)
			}
		}
		decide(t, t.Context(), (&Set{After: -1}).Within(storeFunc(func(ctx context.Context) {
			if From(ctx) != nil {
				t.Error("there is a deadline; want none")
			}
		})))
	})
}

// The deadline of the outermost guard is that of all guards below.
func TestGuardsBelowUseTheDeadline(t *testing.T) {
	outer, inner := &Set{After: time.Hour}, &Set{After: time.Second}
	decide(t, t.Context(), outer.Within(storeFunc(func(ctx context.Context) {
		d := From(ctx)
		decide(t, ctx, inner.Within(storeFunc(func(ctx context.Context) {
			if From(ctx) != d {
				t.Error("the inner guard has made another deadline")
			}
		})))
		if err := d.Err(); err != nil {
			t.Errorf("after the inner guard, the deadline has ended with %v; want that it goes on", err)
		}
	})))
}

type testKey struct{}

func TestAnswerByShortensTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for by, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Minute - 1: time.Minute - 1, time.Minute: time.Minute, time.Hour: time.Minute} {
			ctx := WithAnswerDeadline(context.WithValue(t.Context(), testKey{}, "value"), time.Now().Add(by))
			if got := ctx.Value(testKey{}); got != "value" {
				t.Errorf("the context has the value %v; want that of the caller", got)
			}
			set := &Set{After: time.Minute}
			d, isOwn := set.Of(ctx)
			if got := d.Left(); got != want || !isOwn || d.Value(testKey{}) != "value" {
				t.Errorf("with an answer by %v and a timeout of a minute, %v are left; want %v", by, got, want)
			}
			d.End()
		}
	})
}

// Only the caller's own end is an error of the caller.
// Durations and times far away must not overflow into a deadline that has passed, or into none.
func TestExtremeDeadlines(t *testing.T) {
	forever := Set{After: math.MaxInt64}
	d, _ := forever.Of(t.Context())
	if d.Left() <= 0 || d.Err() != nil || time.Until(d.Until()) <= 0 {
		t.Errorf("with the longest After, Left returns %v and Err %v; want time left", d.Left(), d.Err())
	}
	d.End()
	d, _ = forever.Of(WithAnswerDeadline(t.Context(), time.Time{}))
	if d.Left() > 0 || d.Err() != context.DeadlineExceeded {
		t.Errorf("with an answer deadline in the year 1, Left returns %v and Err %v; want none left", d.Left(), d.Err())
	}
	d.End()
}

func TestErrorOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type contexts struct{ caller, decision, between, guarded context.Context }
		for name, row := range map[string]struct {
			end  func(c contexts, cancelCaller, cancelBetween func())
			of   func(c contexts) context.Context
			want error
		}{
			"nothing has ended":           {want: nil},
			"the caller has left":         {end: func(_ contexts, cancel, _ func()) { cancel() }, want: context.Canceled},
			"the decision's time is over": {end: func(contexts, func(), func()) { time.Sleep(time.Minute) }, want: nil},
			"a guard in between has canceled": {
				end: func(_ contexts, _, cancel func()) { cancel() }, of: func(c contexts) context.Context { return c.between }, want: context.Canceled,
			},
			"the time of a guard in between is over": {
				end: func(contexts, func(), func()) { time.Sleep(10 * time.Second) }, of: func(c contexts) context.Context { return c.guarded }, want: nil,
			},
			"the decision has ended":           {end: func(c contexts, _, _ func()) { From(c.decision).End() }, want: nil},
			"no decision":                      {of: func(c contexts) context.Context { return c.caller }, want: nil},
			"no decision, and the caller left": {end: func(_ contexts, cancel, _ func()) { cancel() }, of: func(c contexts) context.Context { return c.caller }, want: context.Canceled},
		} {
			var c contexts
			var cancelCaller, cancelBetween, cancelGuarded func()
			c.caller, cancelCaller = context.WithCancel(t.Context())
			decision, _ := (&Set{After: time.Minute}).Of(c.caller)
			c.decision = decision
			c.between, cancelBetween = context.WithCancel(decision)
			c.guarded, cancelGuarded = context.WithTimeout(decision, 10*time.Second)
			if row.end != nil {
				row.end(c, cancelCaller, cancelBetween)
			}
			ctx := c.decision
			if row.of != nil {
				ctx = row.of(c)
			}
			synctest.Wait()
			if got := CallerErr(ctx); got != row.want {
				t.Errorf("%s: the caller's error is %v; want %v", name, got, row.want)
			}
			cancelBetween()
			cancelGuarded()
			cancelCaller()
			decision.End()
		}
	})
}

// Work that goes on after a decision has the caller's values, and nothing ends it.
func TestDetachedWorkGoesOn(t *testing.T) {
	caller, cancel := context.WithCancel(context.WithValue(t.Context(), testKey{}, "value"))
	decision, _ := (&Set{After: time.Minute}).Of(caller)
	between, cancelBetween := context.WithCancel(decision)
	for name, ctx := range map[string]context.Context{"the caller": caller, "the decision": decision, "a guard": between} {
		detached := Detach(ctx)
		if From(detached) != nil || detached.Value(testKey{}) != "value" {
			t.Errorf("detached from %s, the deadline is %v and the value %v; want no deadline, and the caller's value", name, From(detached), detached.Value(testKey{}))
		}
		defer func() {
			if err := detached.Err(); err != nil {
				t.Errorf("detached from %s, the context has ended: %v", name, err)
			}
		}()
	}
	decision.End()
	cancelBetween()
	cancel()
}

// Await ends with the event, the caller, a guard in between, or the decision's time.
func TestAwait(t *testing.T) {
	const after = 250 * time.Millisecond
	for name, row := range map[string]struct {
		ends    time.Duration // when the event comes
		cancels time.Duration // when the caller leaves
		lost    time.Duration // by the process, at 100 ms
		child   bool          // wait with a context of a guard in between
		plain   bool          // there is no deadline
		want    time.Duration
		isDone  bool
	}{
		"the event":                            {ends: 100 * time.Millisecond, want: 100 * time.Millisecond, isDone: true},
		"the caller":                           {cancels: 100 * time.Millisecond, want: 100 * time.Millisecond},
		"the deadline":                         {want: after},
		"the deadline, a nanosecond later":     {lost: 1, want: after + 1},
		"the deadline, much later":             {lost: time.Second, want: after + time.Second},
		"the event after a lost time":          {lost: time.Second, ends: time.Second, want: time.Second, isDone: true},
		"the event, in a guard":                {child: true, ends: 100 * time.Millisecond, want: 100 * time.Millisecond, isDone: true},
		"the guard is canceled":                {child: true, cancels: 100 * time.Millisecond, want: 100 * time.Millisecond},
		"the deadline, in a guard":             {child: true, want: after},
		"the event, without a deadline":        {plain: true, ends: time.Hour, want: time.Hour, isDone: true},
		"the caller leaves without a deadline": {plain: true, cancels: time.Hour, want: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				d := &Context{Context: ctx, stalls: new(stallMeter), baseDeadline: now() + after}
				if !row.plain {
					ctx = d
				}
				if row.child {
					ctx, cancel = context.WithCancel(ctx)
					defer cancel()
				}
				done := make(chan struct{})
				if row.ends > 0 {
					time.AfterFunc(row.ends, func() { close(done) })
				}
				if row.cancels > 0 {
					time.AfterFunc(row.cancels, cancel)
				}
				if row.lost > 0 {
					time.AfterFunc(100*time.Millisecond, func() { d.stalls.measured.Store(&measurement{stalled: row.lost}) })
				}
				began := time.Now()
				isDone := lazy.Await(ctx, done, nil) == nil
				if took := time.Since(began); took != row.want || isDone != row.isDone {
					t.Errorf("Await returned %v after %v; want %v after %v", isDone, took, row.isDone, row.want)
				}
				if hasTimer := d.done != nil; hasTimer != row.child {
					t.Errorf("the context was asked for its Done: %v; want only by a guard in between, because Done costs more than a timer", hasTimer)
				}
			})
		})
	}
}

// A context ends with the earlier of the decision's deadline and the caller's.
func TestDeadlineIsTheCallersIfThatIsEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for callers, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: time.Minute, 0: time.Minute} {
			ctx := t.Context()
			if callers > 0 {
				bounded, cancel := context.WithTimeout(ctx, callers)
				defer cancel()
				ctx = bounded
			}
			d, _ := (&Set{After: time.Minute}).Of(ctx)
			at, ok := d.Deadline()
			done, lazy := d.Lazy()
			if !ok || time.Until(at) != want || time.Until(lazy) != want || done != ctx.Done() {
				t.Errorf("with %v of the caller, Deadline is in %v, %v, and Lazy in %v; want %v, and the caller's Done", callers, time.Until(at), ok, time.Until(lazy), want)
			}
			d.End()
		}
	})
}

// A decision has not ended a nanosecond before its deadline.
func TestDecisionEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := (&Set{After: time.Second}).Of(t.Context())
		defer d.End()
		time.Sleep(time.Second - 1)
		if err := d.Err(); err != nil {
			t.Errorf("a nanosecond before the deadline, the error is %v; want none", err)
		}
		time.Sleep(time.Nanosecond)
		if err := d.Err(); err != context.DeadlineExceeded {
			t.Errorf("at the deadline, the error is %v; want %v", err, context.DeadlineExceeded)
		}
	})
}

// The error of a context never changes, and Done is closed with it.
func TestErrorOfADecisionStays(t *testing.T) {
	for name, row := range map[string]struct {
		end  func(d *Context, cancel func())
		want error
	}{
		"the deadline": {func(*Context, func()) { time.Sleep(time.Second) }, context.DeadlineExceeded},
		"the caller":   {func(_ *Context, cancel func()) { cancel() }, context.Canceled},
		"the decision": {func(d *Context, _ func()) { d.End() }, context.Canceled},
	} {
		for _, asksFirst := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				d, _ := (&Set{After: time.Second}).Of(ctx)
				done := d.Done()
				if err := d.Err(); err != nil || d.Done() != done {
					t.Errorf("%s: before the end, the error is %v; want none, and one Done", name, err)
				}
				row.end(d, cancel)
				if asksFirst { // Err closes Done if it notices the end before the timer
					if err := d.Err(); err != row.want {
						t.Errorf("%s: the error is %v; want %v", name, err, row.want)
					}
				} else {
					synctest.Wait()
				}
				select {
				case <-done:
				default:
					t.Errorf("%s: Done is open after the end; want it closed", name)
				}
				if d.timer.Stop() || d.stopFollowing() {
					t.Errorf("%s: the context still waits for its end; want no timer, and that it follows the caller no longer", name)
				}
				time.Sleep(5 * time.Second)
				cancel()
				d.End()
				if err := d.Err(); err != row.want {
					t.Errorf("%s: in the end, the error is %v; want %v", name, err, row.want)
				}
			})
		}
	}
}
