package logsink

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

func TestLinesAreWrittenInOrderBeforeCloseReturns(t *testing.T) {
	var out bytes.Buffer
	s := New(&out)
	var want strings.Builder
	line := make([]byte, 0, 20)
	for i := range maxLines {
		line = fmt.Appendf(line[:0], "line %d\n", i) // reuses its buffer, like slog handlers
		want.Write(line)
		s.Write(line)
	}
	s.Close()
	if out.String() != want.String() || s.Lost() != 0 {
		t.Errorf("%d bytes were written and %d lines lost; want %d bytes", out.Len(), s.Lost(), want.Len())
	}
	if s.Write([]byte("late\n")); s.Lost() != 1 {
		t.Errorf("%d lines were lost; want the one after Close", s.Lost())
	}
}

// A stuckPipe is a pipe whose reader does not read.
type stuckPipe struct{ freed chan struct{} }

func (w stuckPipe) Write(p []byte) (int, error) {
	<-w.freed
	return len(p), nil
}

func TestStuckReaderDelaysNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipe := stuckPipe{make(chan struct{})}
		s := New(pipe)
		s.Write([]byte("the reader has this line\n"))
		synctest.Wait()
		for range maxLines + 7 {
			s.Write([]byte("line\n"))
		}
		if s.Lost() != 7 {
			t.Errorf("%d lines were lost; want 7", s.Lost())
		}
		s.Close() // takes a second of the test's clock
		close(pipe.freed)
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestLinesThatCannotBeWrittenAreCounted(t *testing.T) {
	s := New(brokenPipe{})
	for range 3 {
		s.Write([]byte("line\n"))
	}
	if s.Close(); s.Lost() != 3 {
		t.Errorf("%d lines were lost; want 3", s.Lost())
	}
}
