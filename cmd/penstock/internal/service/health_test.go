package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/redisstore"
)

func TestOutageIsToldSeldomAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logged)
		h := &health{log: slog.New(slog.NewTextHandler(log, nil))}
		const seconds, each = 35, 100
		for range seconds {
			for range each {
				h.failed(noAnswer(penstock.ReasonUnreachable))
				h.answered() // some still do
			}
			time.Sleep(time.Second)
		}
		if n := len(log.lines("level=ERROR", "the store made no decision")); n != 4 {
			t.Errorf("%d failures in %d s made %d lines; want 4:\n%s", seconds*each, seconds, n, log)
		}
		if !strings.Contains(log.String(), "calls=1000") || !h.failing.Load() {
			t.Errorf("logged %s", log)
		}
		for range 20 {
			h.answered()
			time.Sleep(time.Second)
		}
		if n := len(log.lines("level=INFO", "the store decides again")); n != 1 || h.failing.Load() {
			t.Errorf("its end made %d lines:\n%s", n, log)
		}
		h.failed(noAnswer(penstock.ReasonUnreachable))
		if n := len(log.lines("level=ERROR")); n != 5 {
			t.Errorf("the next outage was not told at once:\n%s", log)
		}
		t.Logf("counted: %d failures told in 4 lines", seconds*each)
	})
}

func TestNewReasonIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logged)
		h := &health{log: slog.New(slog.NewTextHandler(log, nil))}
		reasons := []penstock.Reason{penstock.ReasonUnreachable, penstock.ReasonTimeout, penstock.ReasonPermissionDenied}
		for second := range 10 {
			for i := range 100 {
				reason := reasons[i%min(second+1, len(reasons))]
				h.failed(noAnswer(reason))
			}
			for i, reason := range reasons {
				want := 0
				if second >= i {
					want = 1
				}
				if n := len(log.lines("level=ERROR", "reason="+reason.String())); n != want {
					t.Errorf("after %d s: %d lines say %s; want %d:\n%s", second, n, reason, want, log)
				}
			}
			time.Sleep(time.Second)
		}
		t.Log("counted: 1000 failures told in 3 lines")
	})
}

// watched is a service that does nothing but look after its store.
func watched(t *testing.T, decides func(context.Context) error) (*service, *logged) {
	log := new(logged)
	logger := slog.New(slog.NewTextHandler(log, nil))
	s := &service{health: health{log: logger}, alarm: alarm{log: logger}, store: store{decides: decides}, metrics: metrics.New("")}
	s.Log, s.Settings.Store, s.Settings.StoreTimeout = logger, "redis://localhost", time.Second
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.watch(ctx)
	}()
	t.Cleanup(func() { stop(); <-ended })
	return s, log
}

func noAnswer(reason penstock.Reason) error {
	return penstock.NewStoreError(reason, errors.New("no answer"))
}

var breakerOpen = penstock.NewStoreError(penstock.ReasonBreakerOpen, nil)

func TestOutageAndItsEndAreNoticedWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, up atomic.Int64
		down := noAnswer(penstock.ReasonUnreachable)
		s, log := watched(t, func(context.Context) error {
			if asked.Add(1); up.Load() == 0 {
				return down
			}
			return nil
		})
		up.Store(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := asked.Swap(0); n < 59 || n > 61 || s.health.failing.Load() {
			t.Errorf("asked %d times in a minute without requests; logged %s", n, log)
		}
		up.Store(0)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if s.health.failing.Load() {
			t.Errorf("one failed self-test is reported: %s", log)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !s.health.failing.Load() || len(log.lines("level=ERROR", "the store made no decision")) != 1 {
			t.Errorf("two failed self-tests in a row are not reported: %s", log)
		}
		asked.Store(0)
		s.unanswered(down)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := asked.Load(); n < 59 || n > 61 || !s.health.failing.Load() || log.lines("decides again") != nil {
			t.Errorf("asked %d times in a minute without an answer; logged %s", n, log)
		}
		up.Store(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.health.failing.Load() || len(log.lines("level=INFO", "the store decides again")) != 1 {
			t.Errorf("logged %s", log)
		}
	})
}

func TestOnlyTheStoreItselfEndsItsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &penstock.StoreError{Reason: penstock.ReasonOutOfMemory, Err: redisstore.ReplyError("OOM command not allowed")}
		s, log := watched(t, func(context.Context) error { return full })
		s.unanswered(&penstock.StoreError{Reason: penstock.ReasonUnreachable, Err: errors.New("no route")})
		if reason := s.health.now(); reason != "unreachable" {
			t.Errorf("it fails since it is %q", reason)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s.unanswered(breakerOpen)
		if reason := s.health.now(); reason != "out_of_memory" { // as it says itself; that the breaker is open is no reason
			t.Errorf("after a minute it fails since it is %q; logged %s", reason, log)
		}
		time.Sleep(interval)
		s.observe(httplimit.Event{Rule: "a", Outcome: httplimit.Allowed, Source: penstock.FromFallback})
		if s.health.now() == "" {
			t.Error("the fallback's answer is taken for the store's")
		}
		s.observe(httplimit.Event{Rule: "a", Outcome: httplimit.Allowed, Source: penstock.FromStore})
		if s.health.now() != "" || len(log.lines("level=INFO", "the store decides again")) != 1 {
			t.Errorf("logged %s", log)
		}
	})
}

func TestABreakerIsToldOnceForAnOutage(t *testing.T) {
	s, log := watched(t, func(context.Context) error { return nil })
	states := []guard.State{guard.StateClosed, guard.StateOpen, guard.StateHalfOpen, guard.StateOpen, guard.StateHalfOpen, guard.StateClosed}
	for i, to := range states[1:] {
		s.breakerChanged("", states[i], to)
	}
	if open, closed := len(log.lines("the breaker is open")), len(log.lines("the breaker is closed")); open != 1 || closed != 1 {
		t.Errorf("%d lines say that it is open, %d that it is closed:\n%s", open, closed, log)
	}
}

func TestAnOpenBreakerIsNotNewsBesideItsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := noAnswer(penstock.ReasonTimeout)
		s, log := watched(t, func(context.Context) error { return hangs })
		for range 350 {
			s.unanswered(hangs)
			for range 10 {
				s.unanswered(breakerOpen)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if open, all := len(log.lines("reason=breaker_open")), len(log.lines("level=ERROR")); open != 0 || all != 4 {
			t.Errorf("%d lines of %d tell of the breaker:\n%s", open, all, log)
		}
		for range 300 { // they count for the reason before, which is the only one that is known
			s.unanswered(breakerOpen)
			time.Sleep(100 * time.Millisecond)
		}
		if open, all := len(log.lines("reason=breaker_open")), len(log.lines("level=ERROR", "reason=timeout")); open != 0 || all < 6 || all > 8 {
			t.Errorf("after 65 s, %d lines say timeout, and %d tell of the breaker:\n%s", all, open, log)
		}
	})
}

func TestRequestsThatPassUnlimitedSoundTheAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := watched(t, func(context.Context) error { return nil })
		const line = "requests pass without limits"
		counted := func(words ...string) (n, requests int) {
			for _, line := range log.lines(words...) {
				_, after, _ := strings.Cut(line, "requests=")
				count := 0
				fmt.Sscan(after, &count)
				n, requests = n+1, requests+count
			}
			return n, requests
		}
		told := func() (n, requests int) { return counted("level=ERROR", "critical=true", line, "rule=search") }
		ended := func() (n, requests int) {
			return counted("level=WARN", "requests passed without limits", "until=2000-01-01T00:00:34Z")
		}
		pass := func(n int) {
			for range n {
				s.observe(httplimit.Event{Rule: "search", Outcome: httplimit.FailedOpen, Source: penstock.FromOpen})
			}
		}
		s.observe(httplimit.Event{Rule: "search", Outcome: httplimit.ShadowAllowed, Source: penstock.FromOpen})
		s.observe(httplimit.Event{Rule: "search", Outcome: httplimit.Allowed, Source: penstock.FromFallback})
		s.observe(httplimit.Event{Outcome: httplimit.Unlimited})
		if n, _ := told(); n != 0 {
			t.Errorf("told, while nothing passes that should not: %s", log)
		}
		pass(1)
		if n, requests := told(); n != 1 || requests != 1 {
			t.Errorf("the first is told in %d lines", n)
		}
		for range 35 {
			pass(100)
			time.Sleep(time.Second)
		}
		if n, requests := told(); n != 4 || requests != 3002 {
			t.Errorf("in 35 s, %d lines tell of %d requests; want 4, with those before the last:\n%s", n, requests, log)
		}
		time.Sleep(20 * time.Second)
		if n, _ := told(); n != 4 {
			t.Errorf("when it is over, it is told as if it were not:\n%s", log)
		}
		if n, requests := ended(); n != 1 || requests != 3501 || len(log.lines("critical")) != 4 {
			t.Errorf("%d lines tell that %d requests passed; want 1, 3501:\n%s", n, requests, log)
		}
		pass(1)
		if n, requests := told(); n != 5 || requests != 3003 {
			t.Errorf("when it begins again, %d lines tell of it", n)
		}
		t.Logf("counted: %d requests without limits, told in 6 lines", 3502)
	})
}
