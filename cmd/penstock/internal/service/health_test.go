package service

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutageIsToldSeldomAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logged)
		h := &health{log: slog.New(slog.NewTextHandler(log, nil))}
		const seconds, each = 35, 100
		for range seconds {
			for range each {
				h.failed(errors.New("no answer"), "unreached", "failed_open")
				h.answered() // some still do
			}
			time.Sleep(time.Second)
		}
		if n := len(log.lines("level=ERROR", "the store does not answer")); n != 4 {
			t.Errorf("%d failures in %d s made %d lines; want 4:\n%s", seconds*each, seconds, n, log)
		}
		if !strings.Contains(log.String(), "requests=1000") || !h.failing.Load() {
			t.Errorf("logged %s", log)
		}
		for range 20 {
			h.answered()
			time.Sleep(time.Second)
		}
		if n := len(log.lines("level=INFO", "the store answers again")); n != 1 || h.failing.Load() {
			t.Errorf("its end made %d lines:\n%s", n, log)
		}
		h.failed(errors.New("no answer"), "unreached", "failed_open")
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
		reasons := []string{"unreached", "timeout", "refused"}
		for second := range 10 {
			for i := range 100 {
				reason := reasons[i%min(second+1, len(reasons))]
				h.failed(errors.New("no answer"), reason, "failed_open")
			}
			for i, reason := range reasons {
				want := 0
				if second >= i {
					want = 1
				}
				if n := len(log.lines("level=ERROR", "reason="+reason)); n != want {
					t.Errorf("after %d s: %d lines say %s; want %d:\n%s", second, n, reason, want, log)
				}
			}
			time.Sleep(time.Second)
		}
		t.Log("counted: 1000 failures told in 3 lines")
	})
}

func TestStoreIsFoundBackWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logged)
		h := &health{log: slog.New(slog.NewTextHandler(log, nil))}
		var asked, up atomic.Int64
		down := errors.New("no answer")
		ctx, stop := context.WithCancel(t.Context())
		go h.watch(ctx, func(context.Context) error {
			if asked.Add(1); up.Load() == 0 {
				return down
			}
			return nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := asked.Load(); n > 0 {
			t.Errorf("asked %d times while nothing was wrong", n)
		}
		h.failed(down, "unreached", "failed_open")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := asked.Load(); n < 59 || n > 61 || !h.failing.Load() || log.lines("answers again") != nil {
			t.Errorf("asked %d times in a minute without an answer; logged %s", n, log)
		}
		up.Store(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if h.failing.Load() || len(log.lines("level=INFO", "the store answers again")) != 1 {
			t.Errorf("logged %s", log)
		}
		stop()
	})
}
