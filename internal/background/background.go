// Package background runs goroutines that may outlast the call that starts them.
package background

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

// A Group of goroutines has one context. The group's owner cancels the group, and waits until all
// goroutines have ended.
type Group struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu  sync.Mutex // held while a goroutine is started, so that none starts after Cancel
	all sync.WaitGroup
}

func New() *Group {
	g := new(Group)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Context returns the context of the group. This context ends when Cancel is called.
func (g *Group) Context() context.Context { return g.ctx }

// Start runs work in a goroutine. work must return when its context ends. After Cancel, Start runs
// nothing and returns false.
func (g *Group) Start(work func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return false
	}
	g.all.Go(func() {
		defer panicked.Recover("a store works in the background")
		work(g.ctx)
	})
	return true
}

// Enter makes Wait wait for the caller too, until it calls Leave. After Cancel it returns false.
func (g *Group) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return false
	}
	g.all.Add(1)
	return true
}

// Leave must be called once for each Enter that returned true.
func (g *Group) Leave() { g.all.Done() }

// Cancel cancels the context of the group. Call Wait to wait for the goroutines.
func (g *Group) Cancel() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancel()
}

func (g *Group) Wait() { g.all.Wait() }

// Every calls do after each interval, until ctx ends.
func Every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	ForEach(ctx, tick.C, func(time.Time) { do() })
}

// ForEach calls do with each value of a channel, until ctx ends.
func ForEach[T any](ctx context.Context, from <-chan T, do func(T)) {
	for {
		select {
		case <-ctx.Done():
			return
		case value := <-from:
			do(value)
		}
	}
}
