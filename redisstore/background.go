package redisstore

import (
	"context"
	"sync"

	"github.com/penstock/penstock/internal/panicked"
)

// A background is where goroutines run that may outlast the call that started them. Whoever has it
// ends them, and waits until they have ended.
type background struct {
	life   context.Context // of each of them
	cancel context.CancelFunc

	mu  sync.Mutex // none starts once it was ended
	all sync.WaitGroup
}

func newBackground() *background {
	b := new(background)
	b.life, b.cancel = context.WithCancel(context.Background())
	return b
}

// start runs work, which ends with its context. After end it runs nothing, and returns false.
func (b *background) start(work func(ctx context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.all.Go(func() {
		defer panicked.Recover("a store works in the background")
		work(b.life)
	})
	return true
}

// enter makes wait wait for the caller too, until it calls leave. After end, enter returns false.
func (b *background) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.all.Add(1)
	return true
}

func (b *background) leave() { b.all.Done() }

// end ends the context of all. It does not wait for them: wait does.
func (b *background) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel()
}

func (b *background) wait() { b.all.Wait() }
