// Package flaky has a store that tests can switch off.
package flaky

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// ErrDown is the error of a Store that is down.
var ErrDown = fmt.Errorf("%w: the store is down", penstock.ErrUnavailable)

// A Store wraps another one. While it is down, every call fails with ErrDown.
type Store struct {
	IsDown       atomic.Bool
	LosesAnswers atomic.Bool // while the Store is down, the wrapped store still decides, and only its answers are lost

	store   penstock.Store
	mu      sync.Mutex
	charges []penstock.Charge // since the last Forget
}

// New returns a Store that is up.
func New(store penstock.Store) *Store { return &Store{store: store} }

// Decide implements penstock.Store.
func (s *Store) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	s.mu.Lock()
	s.charges = append(s.charges, charges...)
	s.mu.Unlock()
	if !s.IsDown.Load() {
		return s.store.Decide(ctx, charges)
	}
	if s.LosesAnswers.Load() {
		_, _ = s.store.Decide(ctx, charges)
	}
	return penstock.Decision{}, ErrDown
}

// Received returns the name of the limit of each charge with this mode. It covers all charges since
// the last Forget, also those that arrived while the Store was down.
func (s *Store) Received(mode penstock.Mode) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.charges {
		if c := &s.charges[i]; c.Mode == mode {
			names = append(names, c.Plan.Name())
		}
	}
	return names
}

// Forget clears what Received returns.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charges = nil
}
