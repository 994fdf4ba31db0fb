package service

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// health tells those who run the gate when the store stops answering, how it goes on, and when it answers again: a line for each reason and
// interval, not one for every request.
type health struct {
	log     *slog.Logger
	failing atomic.Bool

	mu       sync.Mutex
	failures int64                // since the last line
	lines    map[string]time.Time // the last of each reason, of which there are few
	latest   time.Time            // failure
}

// interval is between two lines with one reason, and how long there must be no failure before all is well.
const interval = 10 * time.Second

// failed notes a decision that the store did not make, why, and what became of the request.
func (h *health) failed(err error, reason, outcome string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.failing.Store(true)
	h.failures++
	h.latest = now
	if line, ok := h.lines[reason]; ok && now.Sub(line) < interval {
		return
	}
	h.log.Error("the store does not answer", "requests", h.failures, "outcome", outcome, "reason", reason, "err", err)
	if h.lines == nil {
		h.lines = make(map[string]time.Time)
	}
	h.failures, h.lines[reason] = 0, now
}

// answered notes that the store made a decision, or was there when it was asked.
func (h *health) answered() {
	if !h.failing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing.Load() && time.Since(h.latest) >= interval {
		h.failing.Store(false)
		h.log.Info("the store answers again", "requests_meanwhile", h.failures)
		h.failures, h.lines = 0, nil
	}
}

// watch asks the store each second while it fails, until ctx ends: perhaps no request comes that would find it back.
func (h *health) watch(ctx context.Context, ping func(context.Context) error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if h.failing.Load() && ping(ctx) == nil {
				h.answered()
			}
		}
	}
}
