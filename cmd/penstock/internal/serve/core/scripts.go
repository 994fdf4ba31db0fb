package core

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/redisstore"
)

// A scriptLoader loads the scripts of the policy into the store. If Redis is down at the start, no
// batch passes the scriptLoader before the scripts are loaded.
type scriptLoader struct {
	*redisstore.Store
	log   *slog.Logger
	probe func(context.Context) error // returns nil if the store makes decisions

	isRejecting atomic.Bool // decisions are rejected: the store was down at the start, and may lack scripts
	isPending   atomic.Bool // retry must load the scripts: the store was down at the latest attempt

	loading sync.Mutex // held during an attempt

	mu       sync.Mutex
	limits   []*penstock.Plan // the current limits, or those that are about to take effect
	changes  int              // how often limits was set
	err      error            // of the latest failed attempt
	isLogged bool             // logOnce has logged its line
}

const (
	scriptsTimeout = 3 * time.Second        // timeout of one attempt
	scriptsPause   = 200 * time.Millisecond // time between two attempts
)

// around is a penstock.Decorator. It rejects batches while isRejecting is set.
func (s *scriptLoader) around(store penstock.Store) penstock.Store {
	decide := batches.Of(store)
	return batches.Func(func(ctx context.Context, list []*batches.Batch) {
		if s.isRejecting.Load() {
			batches.Fail(list, s.unavailable())
			return
		}
		decide(ctx, list)
	})
}

// unavailable returns the error for calls while decisions are rejected: the cause of the latest
// failed attempt. Its MayBeCharged is false.
func (s *scriptLoader) unavailable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := penstock.AsStoreError(s.err); e != nil && !e.MayBeCharged {
		return e
	}
	return penstock.NewStoreError(penstock.ReasonUnreachable, fmt.Errorf("scripts are not loaded yet: %w", s.err))
}

func (s *scriptLoader) storeDownAtStart(err error) {
	s.err = err
	s.isRejecting.Store(true)
	s.isPending.Store(true)
}

// load loads the scripts of limits into the store, and returns when that is done or has failed. If
// the store is down, it returns immediately. The limits then take effect without their scripts, and
// retry loads the scripts later.
func (s *scriptLoader) load(ctx context.Context, limits []*penstock.Plan) {
	s.mu.Lock()
	s.limits = append(slices.Clone(limits), selfTestCharges[0].Plan)
	s.changes++
	s.mu.Unlock()
	if !s.isPending.Load() {
		s.try(ctx)
	}
}

// try makes one attempt to load the scripts of the current limits. If the store is down, retry must
// load them later.
func (s *scriptLoader) try(ctx context.Context) {
	s.loading.Lock()
	defer s.loading.Unlock()
	s.mu.Lock()
	limits, changes := s.limits, s.changes
	s.mu.Unlock()
	if changes == 0 { // the policy is not loaded yet, so its scripts are not known
		return
	}
	loadCtx, cancel := context.WithTimeout(ctx, scriptsTimeout)
	defer cancel()
	err := s.Load(loadCtx, limits...)
	if err != nil && ctx.Err() == nil {
		if probeErr := s.probe(ctx); probeErr != nil {
			s.mu.Lock()
			s.err = probeErr
			s.mu.Unlock()
			s.isPending.Store(true)
			return
		}
		s.logOnce(err)
	}
	s.isRejecting.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isPending.Store(s.changes != changes) // a newer set of limits is not loaded yet
}

// logOnce logs that the store makes decisions, but its scripts cannot be loaded.
func (s *scriptLoader) logOnce(err error) {
	s.mu.Lock()
	isLogged := s.isLogged
	s.isLogged = true
	s.mu.Unlock()
	if isLogged {
		return
	}
	s.log.Warn("the store's scripts could not be loaded; the first call that needs one sends it", withHint(err, "err", err)...)
}

// retry repeats failed loads until ctx ends.
func (s *scriptLoader) retry(ctx context.Context) {
	background.Every(ctx, scriptsPause, func() {
		if s.isPending.Load() {
			s.try(ctx)
		}
	})
}
