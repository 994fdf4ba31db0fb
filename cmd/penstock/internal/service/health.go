package service

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// health logs when the store stops making decisions, how that goes on, and when it decides again: a
// line for each reason and interval, not one for every call.
type health struct {
	log     *slog.Logger
	failing atomic.Bool

	mu      sync.Mutex
	all     int64                  // calls without a decision, in this outage
	reason  string                 // of the latest one whose reason is known
	cause   error                  // and its error
	reasons map[string]*reasonLine // of this outage; there are few
	latest  time.Time              // call without a decision
	missed  int                    // self-tests in a row that failed while nothing else did
}

// A reasonLine is what is logged about one reason.
type reasonLine struct {
	at    time.Time // of the last line; zero: none yet
	calls int64     // since then
}

const (
	// interval is between two lines with one reason, and how long there must be no failure before all
	// is well.
	interval = 10 * time.Second

	// maxMissed is how many self-tests in a row must fail, one a second, before an outage is reported
	// without a request.
	maxMissed = 2
)

// failed notes a call for which the store made no decision, and why. That a breaker is open is no
// reason of its own: such a call counts for the failure before.
func (h *health) failed(err error) {
	reason := reasonOf(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.failing.Store(true)
	h.all++
	h.latest = now
	if reason != penstock.ReasonBreakerOpen.String() || h.cause == nil {
		h.reason, h.cause = reason, err
	}
	if h.reasons == nil {
		h.reasons = make(map[string]*reasonLine)
	}
	r := h.reasons[h.reason]
	if r == nil {
		r = new(reasonLine)
		h.reasons[h.reason] = r
	}
	r.calls++
	if !r.at.IsZero() && now.Sub(r.at) < interval {
		return
	}
	line := []any{"calls", r.calls, "reason", h.reason, "err", h.cause}
	if hint := hintOf(h.cause); hint != "" {
		line = append(line, "needs", hint)
	}
	h.log.Error("the store made no decision", line...)
	r.at, r.calls = now, 0
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
		h.log.Info("the store decides again", "calls_without_decision", h.all)
		h.all, h.reasons, h.reason, h.cause = 0, nil, "", nil
	}
}

// begin notes that the store makes no decisions from the start on, and why. The caller logs it.
func (h *health) begin(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason, h.cause = reasonOf(err), err
	h.failing.Store(true)
}

// tested notes the outcome of a self-test. It returns true if the error must be reported: it is the
// first sign of an outage.
func (h *health) tested(err error) (isNews bool) {
	if err == nil {
		h.answered()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.missed = 0
	case h.failing.Load():
		h.reason, h.cause = reasonOf(err), err
	default:
		h.missed++
		return h.missed >= maxMissed
	}
	return false
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

// reasonOf names the reason of a store's error, as metrics have it.
func reasonOf(err error) string {
	if e := penstock.AsStoreError(err); e != nil {
		return e.Reason.String()
	}
	if errors.Is(err, penstock.ErrInvalid) {
		return "invalid"
	}
	return "other"
}

// hintOf says how to mend a store's error, or is "".
func hintOf(err error) string {
	if e := penstock.AsStoreError(err); e != nil {
		return e.Hint
	}
	return ""
}
