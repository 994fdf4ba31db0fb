package service

import (
	"errors"
	"log/slog"
	"strings"
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
				h.failed(errors.New("no answer"), "error_open")
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
		h.failed(errors.New("no answer"), "error_open")
		if n := len(log.lines("level=ERROR")); n != 5 {
			t.Errorf("the next outage was not told at once:\n%s", log)
		}
		t.Logf("counted: %d failures told in 4 lines", seconds*each)
	})
}
