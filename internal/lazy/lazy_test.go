package lazy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A lateContext is a Context whose deadline may be extended.
type lateContext struct {
	context.Context
	first, at time.Time
}

func (l *lateContext) Lazy() (<-chan struct{}, time.Time) { return l.Context.Done(), l.first }
func (l *lateContext) Deadline() (time.Time, bool)        { return l.at, true }

func TestAwaitEndsByWhatComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, isLazy := range []bool{false, true} {
			for name, c := range map[string]struct {
				done, canceled, closed time.Duration // 0: never
				want                   error
				after                  time.Duration
			}{
				"done":           {done: time.Second, want: nil, after: time.Second},
				"canceled":       {canceled: time.Second, want: context.Canceled, after: time.Second},
				"closed":         {closed: time.Second, want: ErrClosed, after: time.Second},
				"deadline":       {want: context.DeadlineExceeded, after: 3 * time.Second},
				"done later":     {done: 2500 * time.Millisecond, want: nil, after: 2500 * time.Millisecond},
				"canceled later": {canceled: 2500 * time.Millisecond, want: context.Canceled, after: 2500 * time.Millisecond},
				"closed later":   {closed: 2500 * time.Millisecond, want: ErrClosed, after: 2500 * time.Millisecond},
			} {
				parent, cancel := context.WithCancel(t.Context())
				began := time.Now()
				ctx, stop := context.WithDeadline(parent, began.Add(3*time.Second))
				if isLazy {
					stop()
					ctx = &lateContext{parent, began.Add(2 * time.Second), began.Add(3 * time.Second)} // extended by a second
				}
				after := func(d time.Duration) <-chan struct{} {
					c := make(chan struct{})
					if d > 0 {
						time.AfterFunc(d, func() { close(c) })
					}
					return c
				}
				if c.canceled > 0 {
					time.AfterFunc(c.canceled, cancel)
				}
				if err := Await(ctx, after(c.done), after(c.closed)); err != c.want || time.Since(began) != c.after {
					t.Errorf("%s, lazy %t: Await returns %v after %v; want %v after %v", name, isLazy, err, time.Since(began), c.want, c.after)
				}
				cancel()
				stop()
				time.Sleep(time.Hour)
			}
		}
	})
}

func TestErrReadsNoClockBeforeTheDeadline(t *testing.T) {
	now := time.Now()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		parent    context.Context
		first, at time.Duration // of the deadline, from now
		want      error
		canRead   bool // the clock
	}{
		"in time":               {t.Context(), time.Hour, time.Hour, nil, false},
		"canceled":              {ended, time.Hour, time.Hour, context.Canceled, true},
		"late":                  {t.Context(), -time.Hour, -time.Hour, context.DeadlineExceeded, true},
		"late, but is extended": {t.Context(), -time.Hour, time.Hour, nil, true},
	} {
		ctx := &clockContext{lateContext: lateContext{c.parent, now.Add(c.first), now.Add(c.at)}}
		if got := Err(ctx, now.Add(-time.Minute), time.Minute); got != c.want || ctx.reads > 0 && !c.canRead {
			t.Errorf("%s: Err returns %v after %d readings of the clock; want %v", name, got, ctx.reads, c.want)
		}
	}
	if got := Err(ended, now, 0); got != context.Canceled {
		t.Errorf("Err of another context returns %v; want its error", got)
	}
}

// A clockContext counts how often the clock was read for its error.
type clockContext struct {
	lateContext
	reads int
}

func (c *clockContext) Err() error {
	c.reads++
	if time.Until(c.at) <= 0 {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}
