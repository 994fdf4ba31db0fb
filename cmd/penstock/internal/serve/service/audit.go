package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logsink"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// An auditFile appends audit lines in the background. Without a file, it discards them.
type auditFile struct {
	to   *audit.File // nil: no file is set
	sink *logsink.Sink

	mu  sync.Mutex
	err error // of the latest line
}

func (s *service) openAudit() error {
	s.auditFile = new(auditFile)
	if s.Settings.AuditFile == "" {
		return nil
	}
	file, err := audit.Open(s.Settings.AuditFile)
	if err != nil {
		return fmt.Errorf("%w: audit-file (%s): %w", settings.ErrInvalid, s.Settings.Source("audit-file"), err)
	}
	s.auditFile.to = file
	throttle := &logthrottle.Line{Every: time.Second}
	s.auditFile.sink = logsink.New(writerFunc(func(line []byte) (int, error) {
		n, err := s.auditFile.append(line)
		if err != nil {
			throttle.Log(s.Log.Error, "the audit file cannot be written; its lines are only in this log", "err", err)
		}
		return n, err
	}))
	s.onClose(s.auditFile.sink.Close)
	return nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(line []byte) (int, error) { return f(line) }

// write queues a line. It never blocks.
func (f *auditFile) write(line []byte) {
	if f.to != nil {
		_, _ = f.sink.Write(line)
	}
}

func (f *auditFile) append(line []byte) (int, error) {
	n, err := f.to.Write(line)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	return n, err
}

// writeIntent appends the line of a reset that follows. It returns when the line is on the disk.
func (f *auditFile) writeIntent(line audit.Line) error {
	if f.to == nil {
		return nil
	}
	_, err := f.append(line.JSON())
	return err
}

// health is the check of /readyz. It reports whether the latest line was written. It does
// not touch the file, which may be on a slow disk. Requests need no audit, so the service is always
// ready.
func (f *auditFile) health(context.Context) (admin.State, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return admin.OK, "cannot be written, so no key is reset: " + f.err.Error()
	}
	return admin.OK, ""
}

// audit returns a function that records writes of the admin API in the log and in the audit file.
// It records each write that succeeds or has changed a limit, and at most one other write a second.
func (s *service) audit() func(audit.Line) {
	throttle := &logthrottle.Line{Every: time.Second}
	return func(line audit.Line) {
		isEvent := line.Result == audit.OK || len(line.Limits) > 0
		if !isEvent {
			skipped, isDue := throttle.Due()
			if !isDue {
				return
			}
			line.Unlogged = skipped
		}
		attributes := line.Attributes()
		if isEvent {
			attributes = append(attributes, activity.EventAttribute, activity.KeyReset)
		}
		if line.Result == audit.OK {
			s.Log.Info("a key was reset by the admin API", attributes...)
		} else {
			s.Log.Warn("a reset by the admin API was refused or has failed", attributes...)
		}
		s.auditFile.write(line.JSON())
	}
}
