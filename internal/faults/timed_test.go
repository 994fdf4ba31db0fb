package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
)

// The server's clock steps. By minutes: beyond the stall, and too short to refill a unit of the
// policies.
var timed = []row{
	{
		id: "F19", name: "clock back a little",
		clocked: true, deadline: patient,
		begin: step(-2 * time.Second), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F19", name: "clock back by minutes",
		clocked: true, deadline: patient,
		begin: step(-2 * time.Minute), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F20", name: "clock forward by minutes",
		clocked: true, deadline: patient,
		begin: step(2 * time.Minute), end: step(0),
		answered: byStore, also: withoutError,
	},
	{
		id: "F20", name: "clock forward by days",
		clocked: true, deadline: patient,
		begin: step(50 * time.Hour), end: step(0),
		answered: byStore, also: withoutError,
		forgets: 1, // all has been refilled
	},
}

// step has the server's clock go so much ahead.
func step(ahead time.Duration) func(*lab) {
	return func(l *lab) {
		l.Helper()
		if err := l.to.clock.Set(ahead); err != nil {
			l.Fatal(err)
		}
	}
}

// F19 and F20: however the server's clock goes, a bucket admits what it allows in true time, and
// once more its burst for each step forward; and whatever the step, it goes on after a while.
func TestBucketHoldsHoweverTheClockSteps(t *testing.T) {
	t.Parallel()
	const rate, burst = 100, 20
	limit, err := penstock.Limit{Name: "paced", Count: rate, Period: time.Second, Burst: burst}.Ready()
	if err != nil {
		t.Fatal(err)
	}
	server, clock := redistest.StartClocked(t)
	var granted atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	began := time.Now()
	var spies []*spy
	for range instances {
		g, s, shut, err := openLeasing(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer shut()
		spies = append(spies, s)
		all.Go(func() {
			for ctx.Err() == nil {
				d, err := g.Decide(context.Background(), []penstock.Charge{{Key: "k", Limit: limit, Cost: 1}})
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					granted.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	steps := []time.Duration{0, -2 * time.Second, -time.Second, -time.Hour, 0, 10 * time.Second, time.Hour, 2 * time.Hour, 0}
	forward := int64(0)
	for range times(1, 20) {
		for i, to := range steps {
			if err := clock.Set(to); err != nil {
				t.Fatal(err)
			}
			if i > 0 && to > steps[i-1] {
				forward++
			}
			had := granted.Load()
			eventually(t, func() bool { return granted.Load() >= had+2*burst }, fmt.Sprint("nothing is admitted with the clock at ", to))
		}
	}
	cancel()
	all.Wait()
	for _, s := range spies {
		for class, texts := range s.texts {
			if class != penstock.ReasonUnknown.String() && class != penstock.ReasonUnreachable.String() { // which a slow machine may see
				t.Errorf("errors of class %s: %v", class, texts)
			}
		}
	}
	bound := burst + int64(rate*time.Since(began).Seconds()) + forward*burst + burst/4/children*instances // the last is leased
	if got := granted.Load(); got > bound {
		t.Errorf("%d units were admitted; the bound is %d", got, bound)
	}
	t.Logf("counted: %d steps of a server's clock (%d of at most %d units admitted)", times(1, 20)*len(steps), granted.Load(), bound)
}
