// Package logthrottle limits log lines that would otherwise be written for every request.
package logthrottle

import (
	"sync"
	"time"
)

// A Line is a log line of one text that is due once per interval. It counts the lines that it
// skips. It may be used by many goroutines at once.
type Line struct {
	Every time.Duration // default: 1 s

	mu      sync.Mutex
	next    time.Time
	skipped int64
}

// Due returns whether the line may be logged now, and how many were skipped since the last one.
func (l *Line) Due() (skipped int64, isDue bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.skipped++
		return 0, false
	}
	skipped, l.skipped = l.skipped, 0
	every := l.Every
	if every <= 0 {
		every = time.Second
	}
	l.next = now.Add(every)
	return skipped, true
}
