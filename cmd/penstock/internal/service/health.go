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
	prefix  string // of the store's keys
	failing atomic.Bool

	mu       sync.Mutex
	failures int64                // since the last line
	lines    map[string]time.Time // the last of each reason, of which there are few
	latest   time.Time            // failure
	barred   bool                 // the store does not let the gate do what it must, until it decides again
}

// interval is between two lines with one reason, and how long there must be no failure before all is well.
const interval = 10 * time.Second

// failed notes a question that the store did not answer, and why.
func (h *health) failed(err error, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.failing.Store(true)
	h.failures++
	right := rightFor(err, h.prefix)
	h.barred = h.barred || right != ""
	told := h.lines[reason]
	if reason == "open" { // so the reason has been told before
		told = h.latestLine()
	}
	h.latest = now
	if !told.IsZero() && now.Sub(told) < interval {
		return
	}
	line := []any{"questions", h.failures, "reason", reason, "err", err}
	if right != "" {
		line = append(line, "needs", right)
	}
	h.log.Error("the store does not answer", line...)
	if h.lines == nil {
		h.lines = make(map[string]time.Time)
	}
	h.failures, h.lines[reason] = 0, now
}

func (h *health) latestLine() (latest time.Time) {
	for _, line := range h.lines {
		if line.After(latest) {
			latest = line
		}
	}
	return latest
}

// A sign of life is how the store has answered.
type sign uint8

const (
	ponged  sign = iota // it was there when it was asked
	decided             // it made a decision
)

// answered notes a sign of life.
func (h *health) answered(how sign) {
	if !h.failing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.barred = h.barred && how != decided; h.barred {
		return
	}
	if h.failing.Load() && time.Since(h.latest) >= interval {
		h.failing.Store(false)
		h.log.Info("the store answers again", "questions_meanwhile", h.failures)
		h.failures, h.lines = 0, nil
	}
}

// look asks the store while it fails: perhaps no request comes that would find it back.
func (h *health) look(ctx context.Context, ping func(context.Context) error) {
	if h.failing.Load() && ping(ctx) == nil {
		h.answered(ponged)
	}
}
