package guard

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

// FleetOptions configure NewFleet.
type FleetOptions struct {
	// Heartbeat notes that this instance is there for as long as life, and counts those that are:
	// (*redisstore.Store).Heartbeat. A life of 0 forgets the instance.
	Heartbeat func(ctx context.Context, instance string, life time.Duration) (int, error)

	// Every is how often it is noted. Default: 5 s. It counts as there for three times as long.
	Every time.Duration

	// Floor is how many instances there are at least, whatever was counted. Default: 1.
	Floor int

	// Memory is for how long the largest count is remembered, so that instances that go, or are cut
	// off, do not make those that stay give more too soon. Default: 60 s.
	Memory time.Duration
}

// A Fleet knows how many instances share a store. While the store does not answer, it knows how
// many there were.
type Fleet struct {
	o    FleetOptions
	name string
	stop context.CancelFunc
	done chan struct{}

	known atomic.Int64 // instances

	mu     sync.Mutex
	counts []counted // ascending in time, descending in number: the first is the largest that is remembered
	last   time.Time // when one was made
}

type counted struct {
	at time.Time
	n  int
}

// NewFleet begins to note this instance. Close ends that.
func NewFleet(o FleetOptions) *Fleet {
	if o.Every <= 0 {
		o.Every = 5 * time.Second
	}
	if o.Memory <= 0 {
		o.Memory = time.Minute
	}
	o.Floor = max(o.Floor, 1)
	ctx, stop := context.WithCancel(context.Background())
	f := &Fleet{o: o, name: rand.Text(), stop: stop, done: make(chan struct{})}
	f.known.Store(int64(o.Floor))
	go f.run(ctx)
	return f
}

// Instances is how many there are: the largest count that is remembered. The last one is kept for
// as long as no other comes.
func (f *Fleet) Instances() int { return int(f.known.Load()) }

func (f *Fleet) run(ctx context.Context) {
	defer close(f.done)
	for {
		f.note(ctx)
		pause := time.NewTimer(f.o.Every)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}

func (f *Fleet) note(ctx context.Context) {
	defer panicked.Recover("instances are counted")
	ctx, cancel := context.WithTimeout(ctx, f.o.Every)
	defer cancel()
	if n, err := f.o.Heartbeat(ctx, f.name, 3*f.o.Every); err == nil {
		f.count(time.Now(), n)
	}
}

func (f *Fleet) count(now time.Time, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// Time without an answer does not count: after an outage, instances come back one after the other.
	if gap := now.Sub(f.last) - f.o.Every; !f.last.IsZero() && gap > 0 {
		for i := range f.counts {
			f.counts[i].at = f.counts[i].at.Add(gap)
		}
	}
	f.last = now
	// What is older than the memory goes, and what is not larger than this count is of no use any
	// more.
	for len(f.counts) > 0 && now.Sub(f.counts[0].at) > f.o.Memory {
		f.counts = f.counts[1:]
	}
	for len(f.counts) > 0 && f.counts[len(f.counts)-1].n <= n {
		f.counts = f.counts[:len(f.counts)-1]
	}
	f.counts = append(f.counts, counted{now, n})
	f.known.Store(int64(max(f.counts[0].n, f.o.Floor)))
}

// Close takes this instance out of the count, as far as the store answers within a second.
func (f *Fleet) Close() {
	f.stop()
	<-f.done
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = f.o.Heartbeat(ctx, f.name, 0)
}
