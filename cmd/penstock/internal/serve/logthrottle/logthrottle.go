// Package logthrottle limits log lines that would otherwise be written for every request.
package logthrottle

import (
	"sync"
	"time"
)

// A Line is one kind of log line. It may be logged once in an interval, and counts how often it was
// skipped. Many goroutines may use it at the same time.
type Line struct {
	Every time.Duration // the interval; default: 1 s

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

// Log logs the line if it is due, with how many were skipped. log is a method of slog.Logger.
func (l *Line) Log(log func(text string, attributes ...any), text string, attributes ...any) {
	if skipped, isDue := l.Due(); isDue {
		log(text, append(attributes, "unlogged", skipped)...)
	}
}
