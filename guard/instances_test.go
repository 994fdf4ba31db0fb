package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/guard"
)

// A register is a store's list of instances, with the time at which each registration ends.
type register struct {
	mu     sync.Mutex
	until  map[string]time.Time
	isDown bool
}

func (r *register) Heartbeat(_ context.Context, name string, life time.Duration) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDown {
		return 0, errors.New("no answer")
	}
	if r.until == nil {
		r.until = make(map[string]time.Time)
	}
	r.until[name] = time.Now().Add(life)
	for other, until := range r.until {
		if !until.After(time.Now()) {
			delete(r.until, other)
		}
	}
	return len(r.until), nil
}

func (r *register) setDown(isDown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isDown = isDown
}

func TestInstancesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r register
		var all []*guard.InstanceCounter
		for range 4 {
			all = append(all, guard.NewInstanceCounter(guard.InstanceCounterOptions{Heartbeat: r.Heartbeat}))
		}
		wantInstances := func(when string, n int, some ...*guard.InstanceCounter) {
			t.Helper()
			for i, counter := range some {
				if got := counter.Instances(); got != n {
					t.Errorf("%s: instance %d counts %d instances; want %d", when, i, got, n)
				}
			}
		}
		time.Sleep(6 * time.Second)
		wantInstances("all have started", 4, all...)

		r.setDown(true)
		time.Sleep(10 * time.Hour)
		wantInstances("in an outage", 4, all...)

		r.setDown(false)
		time.Sleep(6 * time.Second)
		wantInstances("after the outage", 4, all...)

		all[3].Close()
		time.Sleep(30 * time.Second)
		wantInstances("30 s after one has left", 4, all[:3]...)
		time.Sleep(40 * time.Second)
		wantInstances("70 s after one has left", 3, all[:3]...)

		more := guard.NewInstanceCounter(guard.InstanceCounterOptions{Heartbeat: r.Heartbeat, MinInstances: 10})
		time.Sleep(6 * time.Second)
		wantInstances("another one has started", 4, all[:3]...)
		wantInstances("an instance with at least 10 instances", 10, more)
		for _, counter := range append(all[:3], more) {
			counter.Close()
		}
		if n, _ := r.Heartbeat(context.Background(), "x", 0); n != 0 {
			t.Errorf("after Close, the register has %d instances; want 0", n)
		}
	})
}

func TestBeforeTheFirstHeartbeatTheFloorIsAssumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := register{isDown: true}
		counter := guard.NewInstanceCounter(guard.InstanceCounterOptions{Heartbeat: r.Heartbeat, MinInstances: 3})
		defer counter.Close()
		time.Sleep(time.Hour)
		if n := counter.Instances(); n != 3 {
			t.Errorf("the counter returns %d instances; want MinInstances, 3", n)
		}
	})
}
