package core

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/logbuffer"
	"github.com/penstock/penstock/cmd/penstock/internal/logthrottle"
)

// refusingServer is a guard.Server whose heartbeats fail.
type refusingServer struct{ err error }

func (refusingServer) Node([]penstock.Charge) string { return "" }
func (s refusingServer) Heartbeat(context.Context, string, time.Duration) (int, error) {
	return 0, s.err
}

func TestRefusedHeartbeatsAreLogged(t *testing.T) {
	denied := penstock.NewStoreError(penstock.ReasonPermissionDenied, errors.New("NOPERM"))
	denied.IsStoreFault, denied.Hint = false, "+zadd" // as redisstore reports a single missing right
	for _, c := range []struct {
		err  error
		want string // in the log; "" for no line
	}{
		{denied, "needs=+zadd"},
		{penstock.NewStoreError(penstock.ReasonCorrupt, errors.New("WRONGTYPE")), "WRONGTYPE"},
		{penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("down")), ""},
		{penstock.NewStoreError(penstock.ReasonTimeout, context.DeadlineExceeded), ""},
		{context.Canceled, ""},
		{nil, ""},
	} {
		log := new(logbuffer.Buffer)
		r := &instanceReporter{Server: refusingServer{c.err}, core: newCore(Options{Log: log.Logger()}), line: logthrottle.Line{Every: time.Minute}}
		for range 3 {
			if _, err := r.Heartbeat(t.Context(), "i", time.Second); err != c.err {
				t.Errorf("Heartbeat returned %v; want %v", err, c.err)
			}
		}
		if text := log.String(); strings.Count(text, "this instance is not counted") != min(len(c.want), 1) || !strings.Contains(text, c.want) {
			t.Errorf("%v: the log has %q, want one line with %q", c.err, text, c.want)
		}
	}
}
