package service

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
)

// The field "unlogged" of a line counts the refused resets before it that have no line.
func TestRefusedResetsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &service{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, auditFile: new(auditFile)}
		write := s.audit()
		refused, changed := audit.Line{ID: "refused"}, audit.Line{ID: "changed", Limits: audit.Changes{{}}}
		write(refused)
		write(refused) // within the same second, so it has no line
		write(changed)
		if n := strings.Count(log.String(), "id=changed"); n != 1 {
			t.Errorf("a failed reset that changed a limit has %d lines; want 1", n)
		}
		time.Sleep(time.Second)
		write(refused)
		if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) != 3 || !strings.Contains(lines[2], "unlogged=1") {
			t.Errorf("the log is\n%s\nwant 3 lines, the last with unlogged=1", &log)
		}
	})
}
