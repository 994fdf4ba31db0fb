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
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"
)

// An instance is one of the programs that share a target. It has the standard guards, and a spy
// between them and the store.
type instance struct {
	store *guard.Guarded
	spy   *spy

	opened atomic.Int64 // how often breakers opened
	nodes  sync.Map     // nodes whose breakers opened: name to true
}

func openInstance(t *testing.T, option rueidis.ClientOption, deadline time.Duration) *instance {
	t.Helper()
	store, err := redisstore.New(clienttest.Dial(option), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	i := &instance{spy: newSpy(store)}
	i.store, err = guard.Standard(i.spy, guard.Options{
		Server:    store,
		Timeout:   guard.TimeoutOptions{After: deadline},
		Breaker:   guard.BreakerOptions{Changed: i.recordBreaker},
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

func (i *instance) recordBreaker(node string, _, to guard.State) {
	if to == guard.StateOpen {
		i.opened.Add(1)
		i.nodes.Store(node, true)
	}
}

// A limitKey identifies a counter: a key under a limit.
type limitKey struct {
	limit int // index in guardedLimits
	key   string
}

// callCount is the context key of a request's counter of store calls.
type callCount struct{}

// A spy is between the guards and the store. It records the calls and their results.
type spy struct {
	*redisstore.Store // the guards use its Node and Heartbeat

	calls, inFlight atomic.Int64
	withoutDeadline atomic.Int64 // number of calls without a deadline
	latest          atomic.Int64 // longest time from a call's deadline to the call's end, in ns

	mu      sync.Mutex
	reasons map[string]int      // number of errors, by penstock.Reason
	texts   map[string][]string // of at most maxTexts errors, by reason
	unknown map[limitKey]int    // number of calls without a reply that may have been charged
}

const maxTexts = 5

func newSpy(store *redisstore.Store) *spy {
	return &spy{Store: store, reasons: map[string]int{}, texts: map[string][]string{}, unknown: map[limitKey]int{}}
}

func (s *spy) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.calls.Add(1)
	if count, ok := ctx.Value(callCount{}).(*atomic.Int64); ok && charges[0].Mode == penstock.Spend { // not the calls of leases
		count.Add(1)
	}
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	deadline, hasDeadline := ctx.Deadline()
	d, err := s.Store.Decide(ctx, charges)
	if hasDeadline {
		raise(&s.latest, int64(time.Since(deadline)))
	} else {
		s.withoutDeadline.Add(1)
	}
	if err != nil && charges[0].Mode != penstock.Refund { // a lease that cannot return units in time keeps them
		s.recordError(charges, err)
	}
	return d, err
}

func (s *spy) recordError(charges []penstock.Charge, err error) {
	reason, mayBeCharged := "other", true
	if e := penstock.AsStoreError(err); e != nil {
		reason, mayBeCharged = e.Reason.String(), e.MayBeCharged
		switch e.Reason {
		case penstock.ReasonTimeout:
			reason = penstock.ReasonUnknown.String() // whether a call gets this reason or a timeout depends on the machine's speed
		case penstock.ReasonLate:
			reason = penstock.ReasonUnreachable.String()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons[reason]++
	if text := err.Error(); len(s.texts[reason]) < maxTexts && !slices.Contains(s.texts[reason], text) {
		s.texts[reason] = append(s.texts[reason], text)
	}
	if mayBeCharged {
		for i := range charges {
			s.unknown[limitKey{indexOfLimit(charges[i].Plan), charges[i].Key}]++
		}
	}
}
