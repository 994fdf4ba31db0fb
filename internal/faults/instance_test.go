package faults

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"
)

// An instance is one of the programs that share a target: the guards that every user has, and a spy
// between them and the store.
type instance struct {
	store *guard.Guarded
	spy   *spy

	opened, closed atomic.Int64 // how often breakers did
	shards         sync.Map     // whose breakers opened: by name, true
}

func openInstance(t *testing.T, option rueidis.ClientOption, deadline time.Duration) *instance {
	t.Helper()
	store, err := redisstore.New(redisstore.Dial(option), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{spy: newSpy(store)}
	i.store, err = guard.Standard(i.spy, guard.Options{
		Server:    store,
		Timeout:   guard.TimeoutOptions{After: deadline},
		Breaker:   guard.BreakerOptions{Changed: i.changed},
		Limits:    settingsOf,
		Instances: instances,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		i.store.Close()
		_ = store.Close()
	})
	return i
}

func (i *instance) changed(shard string, _, to guard.State) {
	switch to {
	case guard.StateOpen:
		i.opened.Add(1)
		i.shards.Store(shard, true)
	case guard.StateClosed:
		i.closed.Add(1)
	}
}

// An account is a key of a limit.
type account struct {
	policy int
	key    string
}

// timesAsked is the key under which a question's context counts how often the store was asked.
type timesAsked struct{}

// A spy stands where the guards end, and sees what they ask of the store and what becomes of it.
type spy struct {
	*redisstore.Store // whose Shard and Live the guards use

	asked, underWay atomic.Int64
	unbounded       atomic.Int64 // questions without a deadline
	latest          atomic.Int64 // how long after its deadline a question ended, at most, in ns

	mu      sync.Mutex
	classes map[string]int      // errors, by penstock.Reason
	texts   map[string][]string // a few of each class
	unknown map[account]int     // questions that may have been charged
}

func newSpy(store *redisstore.Store) *spy {
	return &spy{Store: store, classes: map[string]int{}, texts: map[string][]string{}, unknown: map[account]int{}}
}

func (s *spy) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.asked.Add(1)
	if times, ok := ctx.Value(timesAsked{}).(*atomic.Int64); ok && charges[0].Mode == penstock.Spend { // and not what a lease does
		times.Add(1)
	}
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	deadline, ok := ctx.Deadline()
	if !ok {
		s.unbounded.Add(1)
	}
	d, err := s.Store.Decide(ctx, charges)
	for late, most := int64(time.Since(deadline)), s.latest.Load(); ok && late > most && !s.latest.CompareAndSwap(most, late); {
		most = s.latest.Load()
	}
	if err != nil && charges[0].Mode != penstock.Refund { // a lease gives back in time or not at all
		s.failed(charges, err)
	}
	return d, err
}

func (s *spy) failed(charges []penstock.Charge, err error) {
	class, mayBeCharged := "other", true
	if e := penstock.AsStoreError(err); e != nil {
		class, mayBeCharged = e.Reason.String(), e.MayBeCharged
		switch e.Reason {
		case penstock.ReasonTimeout:
			class = penstock.ReasonUnknown.String() // which one it is depends on the machine's speed
		case penstock.ReasonLate:
			class = penstock.ReasonUnreachable.String()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classes[class]++
	if text := err.Error(); len(s.texts[class]) < 5 && !slices.Contains(s.texts[class], text) {
		s.texts[class] = append(s.texts[class], text)
	}
	if mayBeCharged {
		for i := range charges {
			s.unknown[account{policyOf(&charges[i].Limit), charges[i].Key}]++
		}
	}
}
