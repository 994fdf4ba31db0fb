package guard

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

type instanceCounterOptions struct {
	// Heartbeat registers this instance in the store for as long as life, and returns how many are
	// registered. A life of 0 removes the instance. Required.
	Heartbeat func(ctx context.Context, instance string, life time.Duration) (int, error)

	// Every is the time between two heartbeats. Each registers the instance for three times as long.
	// The second one comes after 2 s if Every is longer. Default: 5 s.
	Every time.Duration

	// MinInstances is the smallest number that Instances returns. Default: 1.
	MinInstances int

	// KeepFor is how long the largest count is kept. If instances stop or lose their connection,
	// the others do not take larger shares within this time. Default: 60 s.
	KeepFor time.Duration
}

// An instanceCounter counts the instances that share a store. While the store does not answer, the
// last count stays.
type instanceCounter struct {
	options instanceCounterOptions
	name    string
	stop    context.CancelFunc
	done    chan struct{} // closed when the heartbeat has ended

	instances atomic.Int64 // what Instances returns

	mu          sync.Mutex
	counts      []instanceCount // the oldest first; later ones are smaller, so the first is the largest
	lastCountAt time.Time       // when the last count came
}

type instanceCount struct {
	at        time.Time
	instances int
}

// newInstanceCounter registers this instance and keeps it registered until Close.
func newInstanceCounter(o instanceCounterOptions) *instanceCounter {
	if o.Every <= 0 {
		o.Every = 5 * time.Second
	}
	if o.KeepFor <= 0 {
		o.KeepFor = time.Minute
	}
	o.MinInstances = max(o.MinInstances, 1)
	ctx, stop := context.WithCancel(context.Background())
	c := &instanceCounter{options: o, name: rand.Text(), stop: stop, done: make(chan struct{})}
	c.instances.Store(int64(o.MinInstances))
	go c.run(ctx)
	return c
}

// Instances returns the number of instances: the largest remembered count. The newest count is
// remembered until the next one arrives.
func (c *instanceCounter) Instances() int { return int(c.instances.Load()) }

// secondBeat is the time until the second heartbeat. It is short, because Losses of a redisstore
// needs two heartbeats before it sees a loss.
const secondBeat = 2 * time.Second

func (c *instanceCounter) run(ctx context.Context) {
	defer close(c.done)
	pause := min(c.options.Every, secondBeat)
	for {
		c.beat(ctx)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = c.options.Every
	}
}

func (c *instanceCounter) beat(ctx context.Context) {
	defer panicked.Recover("counting instances")
	ctx, cancel := context.WithTimeout(ctx, c.options.Every)
	defer cancel()
	if n, err := c.options.Heartbeat(ctx, c.name, 3*c.options.Every); err == nil {
		c.count(time.Now(), n)
	}
}

func (c *instanceCounter) count(now time.Time, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Time without a count does not age the older counts, because instances register one after another
	// when an outage ends.
	if gap := now.Sub(c.lastCountAt) - c.options.Every; !c.lastCountAt.IsZero() && gap > 0 {
		for i := range c.counts {
			c.counts[i].at = c.counts[i].at.Add(gap)
		}
	}
	c.lastCountAt = now
	// Drop the counts that are too old, and those that are not larger than the new one: they can no
	// longer be the largest.
	for len(c.counts) > 0 && now.Sub(c.counts[0].at) > c.options.KeepFor {
		c.counts = c.counts[1:]
	}
	for len(c.counts) > 0 && c.counts[len(c.counts)-1].instances <= n {
		c.counts = c.counts[:len(c.counts)-1]
	}
	c.counts = append(c.counts, instanceCount{now, n})
	c.instances.Store(int64(max(c.counts[0].instances, c.options.MinInstances)))
}

// Close ends the heartbeat and removes this instance from the store. Close waits for at most one
// second.
func (c *instanceCounter) Close() {
	c.stop()
	<-c.done
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = c.options.Heartbeat(ctx, c.name, 0)
}
