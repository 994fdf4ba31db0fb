package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The server's clock jumps. After a jump back, counters pause for at most 5 s. A jump by minutes is
// longer than that, and too short to refill a unit of the limits.
var timed = []fault{
	{
		id: "F19", name: "clock back a little",
		hasClock: true, deadline: patient,
		begin: step(-2 * time.Second), end: step(0),
		decidedBy: byStore, finally: checkNoError,
	},
	{
		id: "F19", name: "clock back by minutes",
		hasClock: true, deadline: patient,
		begin: step(-2 * time.Minute), end: step(0),
		decidedBy: byStore, finally: checkNoError,
	},
	{
		id: "F20", name: "clock forward by minutes",
		hasClock: true, deadline: patient,
		begin: step(2 * time.Minute), end: step(0),
		decidedBy: byStore, finally: checkNoError,
	},
	{
		id: "F20", name: "clock forward by days",
		hasClock: true, deadline: patient,
		begin: step(50 * time.Hour), end: step(0),
		decidedBy: byStore, finally: checkNoError,
		dataLosses: 1, // everything has refilled
	},
}

// step sets how far the server's clock is ahead of true time.
func step(ahead time.Duration) func(*experiment) {
	return func(e *experiment) {
		e.Helper()
		if err := e.target.clock.Set(ahead); err != nil {
			e.Fatal(err)
		}
	}
}

// F19 and F20: a bucket admits at most its burst and its rate in true time, and its burst once more
// for each jump forward. After any jump, it admits units again within 30 s.
func TestBucketStaysWithinItsBoundWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	const rate, burst = 100, 20
	limit, err := penstock.Limit{Name: "paced", Count: rate, Period: time.Second, Burst: burst}.Compile()
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
		g, s, closeAll, err := openLeasing(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll()
		spies = append(spies, s)
		all.Go(func() {
			for ctx.Err() == nil {
				d, err := g.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: limit, Cost: 1}})
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
	forwardJumps := int64(0)
	for range repeats(1, 20) {
		for i, to := range steps {
			if err := clock.Set(to); err != nil {
				t.Fatal(err)
			}
			if i > 0 && to > steps[i-1] {
				forwardJumps++
			}
			grantedBefore := granted.Load()
			eventually.True(t, fmt.Sprint("units are admitted while the clock is ahead by ", to), func() bool { return granted.Load() >= grantedBefore+2*burst })
		}
	}
	cancel()
	all.Wait()
	for _, s := range spies {
		s.mu.Lock() // leases may still write
		for reason, texts := range s.texts {
			if reason != penstock.ReasonUnknown.String() && reason != penstock.ReasonUnreachable.String() { // a slow machine may see these
				t.Errorf("errors with reason %s: %v; want none", reason, texts)
			}
		}
		s.mu.Unlock()
	}
	const leases = burst / 4 / configuredInstances * instances // the most units in leases at one time
	bound := burst + int64(rate*time.Since(began).Seconds()) + forwardJumps*burst + leases
	if got := granted.Load(); got > bound {
		t.Errorf("%d units were admitted; want at most %d", got, bound)
	}
	t.Logf("counted: %d jumps of a server's clock (%d of at most %d units admitted)", repeats(1, 20)*len(steps), granted.Load(), bound)
}
