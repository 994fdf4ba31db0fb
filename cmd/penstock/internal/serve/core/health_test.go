package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/redisstore"
)

func TestOutageIsLoggedEveryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		h := &health{log: log.Logger()}
		const seconds, perSecond = 35, 100
		for range seconds {
			for range perSecond {
				h.recordFailure(noAnswer(penstock.ReasonUnreachable))
				h.recordSuccess() // some calls still succeed
			}
			time.Sleep(time.Second)
		}
		if n := len(log.Lines("level=ERROR", "the store made no decision")); n != 4 {
			t.Errorf("%d failures in %d s made %d lines; want 4:\n%s", seconds*perSecond, seconds, n, log)
		}
		if !strings.Contains(log.String(), "calls=1000") || !h.isFailing.Load() {
			t.Errorf("isFailing is %v; want true, and a line with calls=1000:\n%s", h.isFailing.Load(), log)
		}
		for range 20 { // seconds, more than logInterval
			h.recordSuccess()
			time.Sleep(time.Second)
		}
		if n := len(log.Lines("event=store_fails")); n != 1 {
			t.Errorf("%d lines of one outage are events; want only the first:\n%s", n, log)
		}
		if n := len(log.Lines("level=INFO", "the store decides again", "event=store_works")); n != 1 || h.isFailing.Load() {
			t.Errorf("%d lines report the end of the outage, and isFailing is %v; want 1 and false:\n%s", n, h.isFailing.Load(), log)
		}
		h.recordFailure(noAnswer(penstock.ReasonUnreachable))
		if n := len(log.Lines("level=ERROR")); n != 5 {
			t.Errorf("after the next outage began, %d errors are logged; want 5:\n%s", n, log)
		}
		if n := len(log.Lines("event=store_fails")); n != 2 {
			t.Errorf("%d lines of two outages are events; want 2:\n%s", n, log)
		}
		t.Logf("counted: %d failures logged in 4 lines", seconds*perSecond)
	})
}

// One corrupt key is no outage: the store decides the requests of all other keys.
func TestCorruptKeyIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		h := &health{log: log.Logger()}
		for range 35 { // seconds
			h.recordFailure(penstock.NewStoreError(penstock.ReasonCorrupt, errors.New("WRONGTYPE")), "rule", "login")
			h.recordSuccess()
			time.Sleep(time.Second)
		}
		if n := len(log.Lines("level=ERROR", "reason=corrupt", "rule=login")); n != 4 || h.currentReason() != "" {
			t.Errorf("a corrupt key made %d lines, and the outage %q; want 4 and none:\n%s", n, h.currentReason(), log)
		}
		if log := log.String(); strings.Contains(log, "event=") {
			t.Errorf("a corrupt key made an event; want none:\n%s", log)
		}
		h.recordFailure(noAnswer(penstock.ReasonUnreachable))
		h.recordFailure(penstock.NewStoreError(penstock.ReasonCorrupt, errors.New("WRONGTYPE")))
		if n := len(log.Lines("reason=unreachable", "event=store_fails")); n != 1 || h.currentReason() != "unreachable" {
			t.Errorf("an outage made %d events, and has the reason %q; want 1 and unreachable:\n%s", n, h.currentReason(), log)
		}
	})
}

func TestNewReasonIsLoggedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		h := &health{log: log.Logger()}
		reasons := []penstock.Reason{penstock.ReasonUnreachable, penstock.ReasonTimeout, penstock.ReasonPermissionDenied}
		for second := range 10 {
			reasonsSoFar := reasons[:min(second+1, len(reasons))] // a new one each second
			for i := range 100 {
				reason := reasonsSoFar[i%len(reasonsSoFar)]
				h.recordFailure(noAnswer(reason))
			}
			for i, reason := range reasons {
				want := 0
				if second >= i {
					want = 1
				}
				if n := len(log.Lines("level=ERROR", "reason="+reason.String())); n != want {
					t.Errorf("after %d s: %d lines have the reason %s; want %d:\n%s", second, n, reason, want, log)
				}
			}
			time.Sleep(time.Second)
		}
		if n := len(log.Lines("event=store_fails")); n != len(reasons) {
			t.Errorf("%d lines are events; want one for each of the %d reasons:\n%s", n, len(reasons), log)
		}
		t.Log("counted: 1000 failures logged in 3 lines")
	})
}

// newPolledCore returns a core that only polls its store.
func newPolledCore(t *testing.T, probe func(context.Context) error) (*Core, *logbuffer.Buffer) {
	log := new(logbuffer.Buffer)
	c := newCore(complete(Options{Log: log.Logger(), Metrics: metrics.New("", nil, 80)}))
	c.Settings.Store, c.Settings.StoreTimeout = "redis://localhost", time.Second
	c.backend.probe = probe
	ctx, stop := context.WithCancel(t.Context())
	c.background.Go(func() { c.testStoreEachSecond(ctx) })
	t.Cleanup(func() { stop(); c.background.Wait() })
	return c, log
}

func noAnswer(reason penstock.Reason) error {
	return penstock.NewStoreError(reason, errors.New("no answer"))
}

var breakerOpen = penstock.NewStoreError(penstock.ReasonBreakerOpen, nil)

func TestOutageAndItsEndAreNoticedWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		var isUp atomic.Bool
		down := noAnswer(penstock.ReasonUnreachable)
		c, log := newPolledCore(t, func(context.Context) error {
			calls.Add(1)
			if !isUp.Load() {
				return down
			}
			return nil
		})
		isUp.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := calls.Swap(0); n < 59 || n > 61 || c.health.isFailing.Load() {
			t.Errorf("%d self-tests in a minute without requests; want 59 to 61, and no outage: %s", n, log)
		}
		isUp.Store(false)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if c.health.isFailing.Load() {
			t.Errorf("one failed self-test is reported as an outage; want no report before the second: %s", log)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !c.health.isFailing.Load() || len(log.Lines("level=ERROR", "the store made no decision")) != 1 {
			t.Errorf("two failed self-tests in a row are not reported as an outage, in one line: %s", log)
		}
		calls.Store(0)
		c.storeFailed(down)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := calls.Load(); n < 59 || n > 61 || !c.health.isFailing.Load() || log.Lines("decides again") != nil {
			t.Errorf("%d self-tests in a minute of outage; want 59 to 61, and no end of the outage: %s", n, log)
		}
		isUp.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c.health.isFailing.Load() || len(log.Lines("level=INFO", "the store decides again")) != 1 {
			t.Errorf("after a self-test has succeeded, the end of the outage is not reported in one line: %s", log)
		}
	})
}

func TestOnlyDecisionsOfTheStoreEndItsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &penstock.StoreError{Reason: penstock.ReasonOutOfMemory, Err: redisstore.ReplyError("OOM command not allowed")}
		c, log := newPolledCore(t, func(context.Context) error { return full })
		c.storeFailed(&penstock.StoreError{Reason: penstock.ReasonUnreachable, Err: errors.New("no route")})
		if reason := c.health.currentReason(); reason != "unreachable" {
			t.Errorf("the reason is %q; want unreachable", reason)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		c.storeFailed(breakerOpen)
		if reason := c.health.currentReason(); reason != "out_of_memory" { // the reason of the self-test
			t.Errorf("after a minute the reason is %q; want out_of_memory: %s", reason, log)
		}
		time.Sleep(logInterval)
		c.Observe(&admission.Event{Rule: "a", Outcome: admission.Allowed, Source: penstock.FromFallback})
		if c.health.currentReason() == "" {
			t.Error("a decision of the fallback has ended the outage")
		}
		c.Observe(&admission.Event{Rule: "a", Outcome: admission.Allowed, Source: penstock.FromStore})
		if c.health.currentReason() != "" || len(log.Lines("level=INFO", "the store decides again")) != 1 {
			t.Errorf("a decision of the store has not ended the outage, with one line: %s", log)
		}
	})
}

func TestBreakerIsLoggedOncePerOutage(t *testing.T) {
	c, log := newPolledCore(t, func(context.Context) error { return nil })
	states := []guard.State{guard.StateClosed, guard.StateOpen, guard.StateHalfOpen, guard.StateOpen, guard.StateHalfOpen, guard.StateClosed}
	for i, to := range states[1:] {
		c.breakerChanged("", states[i], to)
	}
	if open, closed := len(log.Lines("circuit breaker open", "event=breaker_open")), len(log.Lines("circuit breaker closed", "event=breaker_closed")); open != 1 || closed != 1 {
		t.Errorf("%d lines report an open breaker, %d a closed one; want one each:\n%s", open, closed, log)
	}
}

func TestOpenBreakerIsNotLoggedAsAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := noAnswer(penstock.ReasonTimeout)
		c, log := newPolledCore(t, func(context.Context) error { return hangs })
		for range 350 { // tenths of a second
			c.storeFailed(hangs)
			for range 10 {
				c.storeFailed(breakerOpen)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if open, all := len(log.Lines("reason=breaker_open")), len(log.Lines("level=ERROR")); open != 0 || all != 4 {
			t.Errorf("of %d error lines, %d have the reason breaker_open; want 4 and 0:\n%s", all, open, log)
		}
		for range 300 { // tenths of a second; these calls count for the last known reason
			c.storeFailed(breakerOpen)
			time.Sleep(100 * time.Millisecond)
		}
		if open, timeouts := len(log.Lines("reason=breaker_open")), len(log.Lines("level=ERROR", "reason=timeout")); open != 0 || timeouts < 6 || timeouts > 8 {
			t.Errorf("after 65 s, %d lines have the reason timeout, and %d breaker_open; want 6 to 8, and none:\n%s", timeouts, open, log)
		}
	})
}

// An outage without requests has not ended.
func TestEndOfUnlimitedRequestsIsLoggedWhenTheStoreWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isUp atomic.Bool
		c, log := newPolledCore(t, func(context.Context) error {
			if isUp.Load() {
				return nil
			}
			return penstock.ErrUnavailable
		})
		c.health.recordFailure(penstock.ErrUnavailable)
		c.Observe(&admission.Event{Rule: "other", Outcome: admission.Allowed, Source: penstock.FromFallback, SkippedRule: "search"})
		time.Sleep(time.Minute)
		if lines := log.Lines("event=limited_again"); lines != nil {
			t.Errorf("in the outage, the log has %q; want no such line", lines)
		}
		isUp.Store(true)
		time.Sleep(time.Minute)
		if lines := log.Lines("event=limited_again", "requests=1"); len(lines) != 1 {
			t.Errorf("after the outage, the log is %s; want one line of the event limited_again", log)
		}
	})
}

func TestRequestsThatPassUnlimitedAreLoggedAsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, log := newPolledCore(t, func(context.Context) error { return nil })
		const line = "requests pass unlimited"
		// countLines returns how many lines have the words, and the sum of the requests that they report.
		countLines := func(words ...string) (n, requests int) {
			for _, line := range log.Lines(words...) {
				_, after, _ := strings.Cut(line, "requests=")
				count := 0
				fmt.Sscan(after, &count)
				n, requests = n+1, requests+count
			}
			return n, requests
		}
		failOpenLines := func() (n, requests int) { return countLines("level=ERROR", "critical=true", line, "rule=search") }
		endLines := func() (n, requests int) { // the clock of synctest starts at 2000-01-01T00:00:00Z
			return countLines("level=WARN", "requests had passed unlimited", "until=2000-01-01T00:00:34Z")
		}
		passUnlimited := func(n int) {
			for range n {
				c.Observe(&admission.Event{Rule: "other", Outcome: admission.Allowed, Source: penstock.FromFallback, SkippedRule: "search"})
			}
		}
		c.Observe(&admission.Event{Rule: "search", Outcome: admission.ShadowAllowed, Source: penstock.FromOpen})
		c.Observe(&admission.Event{Rule: "search", Outcome: admission.Allowed, Source: penstock.FromFallback})
		c.Observe(&admission.Event{Outcome: admission.Unlimited})
		if n, _ := failOpenLines(); n != 0 {
			t.Errorf("%d lines report unlimited requests; want none: %s", n, log)
		}
		passUnlimited(1)
		if n, requests := failOpenLines(); n != 1 || requests != 1 {
			t.Errorf("after the first unlimited request, %d lines report %d; want 1 line, 1 request", n, requests)
		}
		for range 35 {
			passUnlimited(100)
			time.Sleep(time.Second)
		}
		// The first request after 30 s logs the fourth line. The lines report this request and the 3001
		// before it.
		if n, requests := failOpenLines(); n != 4 || requests != 3002 {
			t.Errorf("in 35 s, %d lines report %d requests; want 4 lines, 3002 requests:\n%s", n, requests, log)
		}
		time.Sleep(20 * time.Second)
		if n, _ := failOpenLines(); n != 4 {
			t.Errorf("20 s after the last unlimited request, %d lines report such requests; want 4, as before:\n%s", n, log)
		}
		if n, requests := endLines(); n != 1 || requests != 3501 || len(log.Lines("critical")) != 4 {
			t.Errorf("%d lines report a total of %d requests; want 1 line, 3501 requests, and 4 critical lines:\n%s", n, requests, log)
		}
		if began, ended := len(log.Lines("event=unlimited")), len(log.Lines("event=limited_again")); began != 1 || ended != 1 {
			t.Errorf("%d lines are events of the beginning, and %d of the end; want one each:\n%s", began, ended, log)
		}
		passUnlimited(1)
		if n, requests := failOpenLines(); n != 5 || requests != 3003 {
			t.Errorf("after the next unlimited request, %d lines report %d; want 5 lines, 3003 requests", n, requests)
		}
		t.Logf("counted: %d requests without limits, logged in 6 lines", 3502)
	})
}
