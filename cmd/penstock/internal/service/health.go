package service

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// health tells those who run the gate when the store stops answering, how it goes on, and when it answers again: a line each
// interval, not one for every request.
type health struct {
	log     *slog.Logger
	failing atomic.Bool

	mu       sync.Mutex
	failures int64 // since the last line
	line     time.Time
	latest   time.Time
}

// interval is between two lines, and how long there must be no failure before all is well.
const interval = 10 * time.Second

// failed notes a decision that the store did not make, and what became of the request.
func (h *health) failed(err error, outcome string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.failing.Store(true)
	h.failures++
	h.latest = now
	if now.Sub(h.line) < interval {
		return
	}
	h.log.Error("the store does not answer", "requests", h.failures, "outcome", outcome, "err", err)
	h.failures, h.line = 0, now
}

// answered notes a decision that the store made.
func (h *health) answered() {
	if !h.failing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing.Load() && time.Since(h.latest) >= interval {
		h.failing.Store(false)
		h.log.Info("the store answers again", "requests_meanwhile", h.failures)
		h.failures, h.line = 0, time.Time{}
	}
}
