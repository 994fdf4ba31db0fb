package core

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/internal/labels"
)

// health logs the beginning, progress and end of a store outage: one line for each reason and
// logInterval, not one for each call.
type health struct {
	log       *slog.Logger
	isFailing atomic.Bool

	mu          sync.Mutex
	calls       int64                  // calls without a decision in this outage
	reason      string                 // of the latest call that failed, other than by an open breaker
	cause       error                  // the error of that call
	reasons     map[string]*reasonLine // log lines of this outage, by reason
	latest      time.Time              // time of the latest call without a decision
	failedTests int                    // consecutive self-tests that failed while no other call did
}

// A reasonLine is the state of the log lines of one reason.
type reasonLine struct {
	lastLine time.Time // zero: none yet
	calls    int64     // calls without a decision since lastLine
}

const (
	// logInterval is the time between two lines with the same reason. An outage ends with the first
	// decision after a logInterval without a failed call.
	logInterval = 10 * time.Second

	// testsToReport is how many self-tests in a row must fail before they report an outage. A failed
	// call of a request reports it immediately.
	testsToReport = 2
)

// recordFailure records a call for which the store made no decision. A call that an open breaker
// rejects counts under the reason of the latest other failure. A corrupt key is no outage, and only
// logged. If the call is logged, its line gets the attributes.
func (h *health) recordFailure(err error, attributes ...any) {
	reason, cause := labels.Reason(err), err
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	isOutage := reason != penstock.ReasonCorrupt.String() // which is the fault of one key
	if isOutage {
		h.isFailing.Store(true)
		h.calls++
		h.latest = now
		if reason != penstock.ReasonBreakerOpen.String() || h.cause == nil {
			h.reason, h.cause = reason, err
		}
		reason, cause = h.reason, h.cause
	}
	if h.reasons == nil {
		h.reasons = make(map[string]*reasonLine)
	}
	r := h.reasons[reason]
	if r == nil {
		r = new(reasonLine)
		h.reasons[reason] = r
	}
	r.calls++
	if !r.lastLine.IsZero() && now.Sub(r.lastLine) < logInterval {
		return
	}
	line := withHint(cause, "calls", r.calls, "reason", reason, "err", cause)
	line = append(line, attributes...)
	if isFirst := r.lastLine.IsZero(); isFirst && isOutage { // the reason is new in this outage
		line = append(line, activity.EventAttribute, activity.StoreFails)
	}
	h.log.Error("the store made no decision", line...)
	r.lastLine, r.calls = now, 0
}

func (h *health) recordSuccess() {
	if !h.isFailing.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isFailing.Load() && time.Since(h.latest) >= logInterval {
		h.isFailing.Store(false)
		h.log.Info("the store decides again", activity.EventAttribute, activity.StoreWorks, "calls_without_decision", h.calls)
		h.calls, h.reasons, h.reason, h.cause = 0, nil, "", nil
	}
}

// storeDownAtStart records that the store decides nothing at the start, and why. It logs nothing.
func (h *health) storeDownAtStart(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason, h.cause = labels.Reason(err), err
	h.isFailing.Store(true)
}

// recordProbe records the result of a self-test. It returns true if the caller must report the
// error, because it is the first sign of an outage.
func (h *health) recordProbe(err error) (isFirstSign bool) {
	if err == nil {
		h.recordSuccess()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.failedTests = 0
	case h.isFailing.Load():
		h.reason, h.cause = labels.Reason(err), err
	default:
		h.failedTests++
		return h.failedTests >= testsToReport
	}
	return false
}

// currentReason returns why the store fails, or "" if it works.
func (h *health) currentReason() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isFailing.Load() {
		return ""
	}
	return h.reason
}

// withHint adds the hint of an error, if it has one, to the attributes of a log line.
func withHint(err error, attributes ...any) []any {
	if e := penstock.AsStoreError(err); e != nil && e.Hint != "" {
		return append(attributes, "needs", e.Hint)
	}
	return attributes
}
