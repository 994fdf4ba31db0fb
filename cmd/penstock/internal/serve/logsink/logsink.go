// Package logsink writes log lines in the background. A caller never waits for the reader of the
// log, and gets no error if a line cannot be written.
package logsink

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// maxLines is how many lines may wait to be written. Further lines are lost.
const maxLines = 1024

// closeTimeout is how long Close waits until the queued lines are written.
const closeTimeout = time.Second

// A Sink is an io.Writer that gets one line with each Write. It is safe for concurrent use.
type Sink struct {
	to    io.Writer
	lost  atomic.Int64  // lines that were not written
	ended chan struct{} // closed when run has returned

	mu       sync.Mutex
	lines    chan []byte
	isClosed bool
}

// New makes a Sink. Close it after the last line.
func New(to io.Writer) *Sink {
	s := &Sink{to: to, lines: make(chan []byte, maxLines), ended: make(chan struct{})}
	go s.run()
	return s
}

func (s *Sink) run() {
	defer close(s.ended)
	for line := range s.lines {
		if _, err := s.to.Write(line); err != nil {
			s.lost.Add(1)
		}
	}
}

// Write queues a copy of a line. It never blocks and never fails.
func (s *Sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		s.lost.Add(1)
		return len(line), nil
	}
	select {
	case s.lines <- bytes.Clone(line):
	default:
		s.lost.Add(1)
	}
	return len(line), nil
}

// Lost returns how many lines were not written: the reader of the log is gone or too slow, or the
// disk is full.
func (s *Sink) Lost() int64 { return s.lost.Load() }

// Close returns when all lines are written, or after closeTimeout.
func (s *Sink) Close() {
	s.mu.Lock()
	if !s.isClosed {
		s.isClosed = true
		close(s.lines)
	}
	s.mu.Unlock()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
	}
}
