package core

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
)

// failingServer is a guard.Server whose heartbeats fail.
type failingServer struct{ err error }

func (failingServer) Node([]penstock.Charge) string { return "" }
func (s failingServer) Heartbeat(context.Context, string, time.Duration) (int, error) {
	return 0, s.err
}

func TestRejectedHeartbeatsAreLogged(t *testing.T) {
	denied := penstock.NewStoreError(penstock.ReasonPermissionDenied, errors.New("NOPERM"))
	denied.IsStoreFault, denied.Hint = false, "+zadd" // as redisstore reports a single missing right
	for _, c := range []struct {
		err  error
		want string // a part of the log line; "": there is no line
	}{
		{denied, "needs=+zadd"},
		{penstock.NewStoreError(penstock.ReasonCorrupt, errors.New("WRONGTYPE")), "WRONGTYPE"},
		{penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("down")), ""},
		{penstock.NewStoreError(penstock.ReasonTimeout, context.DeadlineExceeded), ""},
		{context.Canceled, ""},
		{nil, ""},
	} {
		log := new(logbuffer.Buffer)
		r := &instanceReporter{Server: failingServer{c.err}, losses: func() int64 { return 0 }, core: newCore(complete(Options{Log: log.Logger()})), line: logthrottle.Line{Every: time.Minute}}
		for range 3 {
			if _, err := r.Heartbeat(t.Context(), "i", time.Second); err != c.err {
				t.Errorf("Heartbeat returned %v; want %v", err, c.err)
			}
		}
		wantLines := 0
		if c.want != "" {
			wantLines = 1
		}
		text := log.String()
		if n := strings.Count(text, "this instance is not counted"); n != wantLines || !strings.Contains(text, c.want) {
			t.Errorf("heartbeats fail with %v: the log is %q; want %d lines, with %q", c.err, text, wantLines, c.want)
		}
	}
}

func TestEachLossOfKeysIsLoggedOnce(t *testing.T) {
	log, losses := new(logbuffer.Buffer), int64(0)
	r := &instanceReporter{Server: failingServer{}, losses: func() int64 { return losses }, core: newCore(complete(Options{Log: log.Logger()}))}
	for want, n := range []int64{0, 1, 2} {
		losses = n
		for range 2 {
			if _, err := r.Heartbeat(t.Context(), "i", time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(log.Lines("level=WARN", "the store has lost its keys", "event=keys_lost")); got != want {
			t.Errorf("after %d losses, %d lines are logged; want %d: %s", n, got, want, log)
		}
	}
}
