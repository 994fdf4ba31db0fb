// Package logbuffer keeps a log in memory, for tests.
package logbuffer

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// A Buffer is a log. Its zero value is ready for use, by many goroutines at the same time.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *Buffer) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Lines returns the lines that contain all of the words.
func (b *Buffer) Lines(words ...string) (found []string) {
line:
	for line := range strings.Lines(b.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue line
			}
		}
		found = append(found, line)
	}
	return found
}
