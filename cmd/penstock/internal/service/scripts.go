package service

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

// scripts is the store, with all scripts loaded that the policy can need. If the store is down at
// the start, it gets no decision before they are loaded.
type scripts struct {
	*redisstore.Store
	log     *slog.Logger
	decides func(context.Context) error // asks the store whether it does

	closed  atomic.Bool // to decisions: the store was down at the start, and may lack scripts
	pending atomic.Bool // retry must load: the store was down at the latest attempt

	loading sync.Mutex // one attempt at a time

	mu     sync.Mutex
	limits []penstock.Limit // in force, or about to be
	loads  int              // how often limits have changed
	err    error            // of the latest attempt
	told   bool             // that scripts cannot be loaded
}

const (
	scriptsPatience = 3 * time.Second        // for one attempt
	scriptsPause    = 200 * time.Millisecond // between attempts
)

func (s *scripts) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if s.closed.Load() {
		return penstock.Decision{}, s.unavailable()
	}
	return s.Store.Decide(ctx, charges)
}

// unavailable is the error while no decision is sent: why the latest attempt has failed. Nothing
// was charged.
func (s *scripts) unavailable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := penstock.AsStoreError(s.err); e != nil && !e.MayBeCharged {
		return e
	}
	return penstock.NewStoreError(penstock.ReasonUnreachable, fmt.Errorf("its scripts are not loaded yet: %w", s.err))
}

// begin notes that the store is down at the start.
func (s *scripts) begin(err error) {
	s.err = err
	s.closed.Store(true)
	s.pending.Store(true)
}

// load loads the scripts of limits into the store. It returns when that is done, or has failed. If
// the store is down, it returns at once: limits take effect without it, and retry loads the
// scripts.
func (s *scripts) load(ctx context.Context, limits []penstock.Limit) {
	s.mu.Lock()
	s.limits = append(slices.Clone(limits), selfTest[0].Limit)
	s.loads++
	s.mu.Unlock()
	if !s.pending.Load() {
		s.try(ctx)
	}
}

func (s *scripts) try(ctx context.Context) {
	s.loading.Lock()
	defer s.loading.Unlock()
	s.mu.Lock()
	limits, loads := s.limits, s.loads
	s.mu.Unlock()
	patient, cancel := context.WithTimeout(ctx, scriptsPatience)
	defer cancel()
	err := s.Load(patient, limits...)
	if err != nil && ctx.Err() == nil {
		if down := s.decides(ctx); down != nil {
			s.mu.Lock()
			s.err = down
			s.mu.Unlock()
			s.pending.Store(true)
			return
		}
		s.tell(err)
	}
	s.closed.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.Store(s.loads != loads) // limits that have changed meanwhile are not loaded yet
}

// tell logs once that the store decides, but its scripts cannot be loaded.
func (s *scripts) tell(err error) {
	s.mu.Lock()
	told := s.told
	s.told = true
	s.mu.Unlock()
	if told {
		return
	}
	line := []any{"err", err}
	if hint := hintOf(err); hint != "" {
		line = append(line, "needs", hint)
	}
	s.log.Warn("the store's scripts could not be loaded; the first call that needs one sends it", line...)
}

// retry tries again while the store is down, until ctx ends.
func (s *scripts) retry(ctx context.Context) {
	tick := time.NewTicker(scriptsPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.pending.Load() {
			s.try(ctx)
		}
	}
}

// counts are what the metrics tell.
func (s *scripts) counts() (missing, loaded, evals int64) {
	stats := s.Scripts()
	return stats.Missing, stats.Loaded, stats.Evals
}
