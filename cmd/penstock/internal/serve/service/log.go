package service

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"strings"
	"sync"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
)

// serverLog makes the log of an http.Server. Clients can cause most of its lines whenever they
// like, so these are logged at debug level. A panic is logged as an error.
func serverLog(l *slog.Logger) *log.Logger { return log.New(serverLines{l}, "", 0) }

type serverLines struct{ log *slog.Logger }

func (w serverLines) Write(p []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(p, []byte("panic")) {
		level = slog.LevelError
	}
	w.log.Log(context.Background(), level, redact.Quoted(strings.TrimSpace(string(p))))
	return len(p), nil
}

// StandardLog returns a writer for log.SetOutput. It receives messages that the standard library
// logs by itself, such as one about an unsolicited response of the upstream.
func StandardLog(l *slog.Logger) io.Writer { return &standardLines{log: l} }

type standardLines struct {
	log  *slog.Logger
	line logthrottle.Line
}

func (w *standardLines) Write(p []byte) (int, error) {
	w.line.Log(w.log.Warn, "message of Go's standard library", "err", redact.Quoted(strings.TrimSpace(string(p))))
	return len(p), nil
}

func (s *service) logDenials(ctx context.Context) {
	run := s.denials.Log(s.Settings.DenialLog, s.Log, s.Settings.Identities(s.sharedSecret))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	s.onClose(running.Wait)
}
