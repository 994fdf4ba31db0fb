package service

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/logsink"
	"github.com/penstock/penstock/cmd/penstock/internal/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// openAudit opens the audit file, if one is set. Its lines are written in the background.
func (s *service) openAudit() error {
	s.auditFile = io.Discard
	if s.Settings.AuditFile == "" {
		return nil
	}
	file, err := audit.Open(s.Settings.AuditFile)
	if err != nil {
		return fmt.Errorf("%w: audit-file (%s): %w", settings.ErrInvalid, s.Settings.Source("audit-file"), err)
	}
	sink := logsink.New(&reportedWriter{to: file, report: func(err error, missing int64) {
		s.Log.Error("the audit file cannot be written; its lines are only in this log", "err", err, "unlogged", missing)
	}})
	s.onClose(sink.Close)
	s.auditFile = sink
	return nil
}

// A reportedWriter writes to another writer and reports its errors, at most once a second.
type reportedWriter struct {
	to     io.Writer
	report func(err error, unreported int64)
	line   logthrottle.Line
}

func (w *reportedWriter) Write(line []byte) (int, error) {
	n, err := w.to.Write(line)
	if err != nil {
		if skipped, isDue := w.line.Due(); isDue {
			w.report(err, skipped)
		}
	}
	return n, err
}

// audit returns a function that records writes of the admin API in the log and in the audit file:
// each that succeeds, and at most one a second of those that are refused or fail.
func (s *service) audit() func(audit.Line) {
	line := &logthrottle.Line{Every: time.Second}
	return func(a audit.Line) {
		if a.Result == audit.OK {
			s.Log.Info("a key was reset by the admin API", a.Attributes()...)
		} else {
			skipped, isDue := line.Due()
			if a.Unlogged = skipped; !isDue && len(a.Limits) == 0 {
				return
			}
			s.Log.Warn("a reset by the admin API was refused or has failed", a.Attributes()...)
		}
		_, _ = s.auditFile.Write(a.JSON())
	}
}
