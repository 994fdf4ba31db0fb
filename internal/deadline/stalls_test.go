package deadline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lazy"
)

// delayTick makes the next tick late, as if the process had been stopped for that long until now.
func (l *stallMeter) delayTick(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.measured.Store(&measurement{l.stalled(now()), now() - by})
	l.nextLocked(now())
}

func TestLateTicksMeasureLostTime(t *testing.T) {
	for _, row := range []struct{ late, lost time.Duration }{
		{0, 0},
		{time.Millisecond, 0}, // as on any machine
		{8 * time.Millisecond, 7 * time.Millisecond},
		{200 * time.Millisecond, 175 * time.Millisecond},
		{10 * time.Second, 10*time.Second - 25*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l stallMeter
			l.begin()
			defer l.end()
			for range 3 {
				l.delayTick(row.late)
			}
			if got := l.stalled(now()); got != 3*row.lost {
				t.Errorf("after three ticks that were %v late, the lost time is %v; want %v", row.late, got, 3*row.lost)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := l.stalled(now()); got != 3*row.lost {
				t.Errorf("after a further minute without late ticks, the lost time is %v; want %v", got, 3*row.lost)
			}
		})
	}
}

func TestTimerStopsWithoutDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l stallMeter
		if got := l.stalledAtLastTick(); got != 0 {
			t.Errorf("before the first decision, the lost time is %v; want 0", got)
		}
		for range 3 {
			l.begin()
			if m := l.measured.Load(); m == nil || m.due == 0 {
				t.Fatal("the timer is stopped after a decision has begun")
			}
			l.begin()
			time.Sleep(time.Second)
			l.end()
			time.Sleep(time.Second)
			if synctest.Wait(); l.measured.Load().due == 0 {
				t.Error("the timer is stopped while a decision is in flight")
			}
			l.end()
			time.Sleep(tickInterval)
			if synctest.Wait(); l.measured.Load().due != 0 {
				t.Error("the timer runs while no decision is in flight")
			}
			if got := l.stalled(now() + time.Hour); got != 0 {
				t.Errorf("while the timer is stopped, the lost time is %v; want 0", got)
			}
		}
	})
}

// A starved process still ends its decisions. Each ends after at most eight times the deadline, or
// after one long pause for each 25 ms of the deadline.
func TestStarvedProcessWaitsForABoundedTime(t *testing.T) {
	const after = 250 * time.Millisecond
	for _, late := range []time.Duration{0, 2 * time.Millisecond, 27 * time.Millisecond, 95 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second} {
		var l stallMeter
		now := now()
		end, pauses := now+after, 0
		l.measured.Store(&measurement{due: now + tickInterval})
		began := now
		for now < end+l.stalled(now) {
			now += tickInterval + late
			l.measured.Store(&measurement{l.stalled(now), now + tickInterval})
			pauses++
		}
		longest := max(8*after, 10*late+after) + tickInterval + late // 10 pauses, because the deadline has 10 times 25 ms
		if took := now - began; took > longest || took < after {
			t.Errorf("with a pause of %v in each %v, a decision ends after %v and %d pauses; want %v to %v", late, tickInterval+late, took, pauses, after, longest)
		}
	}
}

// A process loses time while a decision waits. An answer that comes after the original deadline is
// used. Without an answer, the decision ends later by the lost time.
func TestLostTimeExtendsTheDeadline(t *testing.T) {
	for _, row := range []struct {
		name       string
		lost       time.Duration
		answer     time.Duration // when it comes; 0: never
		endsAfter  time.Duration
		isAnswered bool
	}{
		{name: "no answer", endsAfter: 250 * time.Millisecond},
		{name: "an answer in time", answer: 249 * time.Millisecond, endsAfter: 249 * time.Millisecond, isAnswered: true},
		{name: "a late answer", answer: 300 * time.Millisecond, endsAfter: 250 * time.Millisecond},
		{name: "a late answer, and lost time", lost: 80 * time.Millisecond, answer: 310 * time.Millisecond, endsAfter: 310 * time.Millisecond, isAnswered: true},
		{name: "no answer, and lost time", lost: 80 * time.Millisecond, endsAfter: 330 * time.Millisecond},
	} {
		waits := map[string]func(ctx context.Context, answer <-chan struct{}) error{
			"Done": func(ctx context.Context, answer <-chan struct{}) error {
				select {
				case <-answer:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			},
			"Await": func(ctx context.Context, answer <-chan struct{}) error {
				if lazy.Await(ctx, answer, nil) == nil {
					return nil
				}
				return ctx.Err()
			},
			"a child": func(ctx context.Context, answer <-chan struct{}) error {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				select {
				case <-answer:
					return nil
				case <-child.Done():
					return child.Err()
				}
			},
		}
		for how, wait := range waits {
			t.Run(row.name+", by "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := &Set{After: 250 * time.Millisecond}
					d.stalls.measured.Store(&measurement{stalled: time.Hour}) // lost before this decision, so it does not count
					store := d.Within(penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
						answer := make(chan struct{})
						if row.answer > 0 {
							timer := time.AfterFunc(row.answer, func() { close(answer) })
							defer timer.Stop()
						}
						return penstock.Decision{}, wait(ctx, answer)
					}))
					began := time.Now()
					if row.lost > 0 {
						delay := row.lost * 8 / 7 // seven eighths of it are lost
						time.AfterFunc(100*time.Millisecond, func() { d.stalls.delayTick(delay) })
					}
					_, err := store.Decide(t.Context(), nil)
					took := time.Since(began).Round(100 * time.Microsecond)
					if took != row.endsAfter || (err == nil) != row.isAnswered || err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("the decision ended after %v with the error %v; want %v, and no error: %v", took, err, row.endsAfter, row.isAnswered)
					}
				})
			})
		}
	}
}

func TestAllMethodsReturnOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Set{After: 250 * time.Millisecond}
		d.stalls.measured.Store(&measurement{stalled: time.Hour}) // lost before this decision, so it does not count
		c, _ := d.Of(t.Context())
		defer c.End()
		for _, want := range []time.Duration{250 * time.Millisecond, 330 * time.Millisecond} {
			deadline, _ := c.Deadline()
			_, lazy := c.Lazy()
			if left, until := c.Left(), time.Until(c.Until()); left != want || until != want || time.Until(deadline) != want || time.Until(lazy) != want {
				t.Errorf("Left returns %v, Until is in %v, Deadline in %v and Lazy in %v; want %v each", left, until, time.Until(deadline), time.Until(lazy), want)
			}
			d.stalls.delayTick(80 * time.Millisecond * 8 / 7) // seven eighths of it are lost
		}
	})
}

// A caller that first calls Done after the context has ended does not wait.
func TestDoneIsClosedAfterTheEnd(t *testing.T) {
	for name, end := range map[string]func(d *Context, cancel func()){
		"the deadline": func(*Context, func()) { time.Sleep(time.Second) },
		"the caller":   func(_ *Context, cancel func()) { cancel() },
		"the decision": func(d *Context, _ func()) { d.End() },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			set := &Set{After: time.Second}
			d, _ := set.Of(ctx)
			end(d, cancel)
			select {
			case <-d.Done():
			default:
				t.Errorf("after the end by %s, Done is open; want it closed", name)
			}
		})
	}
}
