package service

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// health tells those who run the gate when the store stops answering, how it goes on, and when it
// answers again: a line for each reason and interval, not one for every request.
type health struct {
	log     *slog.Logger
	prefix  string // of the store's keys
	failing atomic.Bool

	mu       sync.Mutex
	failures int64                // since the last line
	reason   string               // of the latest failure whose reason is known
	lines    map[string]time.Time // the last of each reason, of which there are few
	latest   time.Time            // failure
}

// interval is between two lines with one reason, and how long there must be no failure before all
// is well.
const interval = 10 * time.Second

// failed notes a question that the store did not answer, and why.
func (h *health) failed(err error, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.failing.Store(true)
	h.failures++
	told := h.lines[reason]
	if reason == "open" { // so the reason has been told before
		told = h.latestLine()
	}
	if reason != "open" || h.reason == "" {
		h.reason = reason
	}
	h.latest = now
	if !told.IsZero() && now.Sub(told) < interval {
		return
	}
	line := []any{"questions", h.failures, "reason", reason, "err", err}
	if right := rightFor(err, h.prefix); right != "" {
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

// answered notes that the store has made a decision.
func (h *health) answered() {
	if !h.failing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing.Load() && time.Since(h.latest) >= interval {
		h.failing.Store(false)
		h.log.Info("the store answers again", "questions_meanwhile", h.failures)
		h.failures, h.lines, h.reason = 0, nil, ""
	}
}

// begin notes that the store gives no answer from the start on, and why. Somebody else tells.
func (h *health) begin(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason = reason
	h.failing.Store(true)
}

// look asks the store while it fails: perhaps no request comes that would find it back.
func (h *health) look(ctx context.Context, decides func(context.Context) error) {
	if !h.failing.Load() {
		return
	}
	err := decides(ctx)
	if err == nil {
		h.answered()
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing.Load() {
		h.reason = reasonOf(err)
	}
}

// now is why the store fails, "" if it does not.
func (h *health) now() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing.Load() {
		return ""
	}
	return h.reason
}

// reasonOf is what kind an error of the store itself is of, as metrics have it.
func reasonOf(err error) string {
	var named interface{ ClassName() string }
	if errors.As(err, &named) {
		return named.ClassName()
	}
	return "other"
}
