package guard_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// panicsOn returns a store that panics if the first charge of a batch has this mode.
func panicsOn(mode penstock.Mode) penstock.Store {
	memory := memstore.New(memstore.Options{})
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if charges[0].Mode == mode {
			panic("a bug in a decorator")
		}
		return memory.Decide(ctx, charges)
	})
}

// Panics of a draw or a refund count as failures of the store.
func TestPanicOfADrawDoesNotEndTheProcess(t *testing.T) {
	for _, mode := range []penstock.Mode{penstock.Draw, penstock.Refund} {
		synctest.Test(t, func(t *testing.T) {
			l := guard.NewLease(panicsOn(mode), guard.LeaseSetup{Limits: leaseUpTo(100)})
			charges := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(1000).MustCompile(), Cost: 1}}
			for range 2000 {
				if _, err := l.Decide(t.Context(), charges); err != nil && !errors.Is(err, penstock.ErrUnavailable) {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Millisecond)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if s := l.Stats(); s.Draws == 0 || s.Live != 0 {
				t.Errorf("with a panic for each %v, the stats after Close are %+v; want draws, and 0 live units", mode, s)
			}
		})
	}
}

func TestPanicOfAProbeDoesNotEndTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := panicsOn(penstock.Peek)
		var down atomic.Bool
		down.Store(true)
		g := standard(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if down.Load() && charges[0].Mode != penstock.Peek {
				return penstock.Decision{}, penstock.ErrUnavailable
			}
			return store.Decide(ctx, charges)
		}), guard.Options{})
		defer g.Close()
		charges := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(10).MustCompile(), Cost: 1}}
		for range 10 {
			g.Decide(t.Context(), charges)
		}
		time.Sleep(time.Minute)
		down.Store(false)
		if d, err := g.Decide(t.Context(), charges); err != nil || d.Source != penstock.FromStore {
			t.Errorf("once the store works again: %v by %v, error %v; want a decision by the store", d, d.Source, err)
		}
	})
}

func TestPanicOfTheHeartbeatIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heartbeats := 0
		counter := guard.NewInstanceCounter(guard.InstanceCounterOptions{Heartbeat: func(context.Context, string, time.Duration) (int, error) {
			if heartbeats++; heartbeats == 1 {
				panic("a bug in a caller")
			}
			return 3, nil
		}})
		time.Sleep(time.Minute)
		if got := counter.Instances(); got != 3 {
			t.Errorf("after a heartbeat that panicked, Instances returns %d; want 3, as the later heartbeats return", got)
		}
		counter.Close()
	})
}
