// Package seldom thins out lines that would be logged for every request while something is wrong.
package seldom

import (
	"sync"
	"time"
)

// A Line is of one text, so that what was held back is of that text too. It is due once in an
// interval. It may be asked by many goroutines at once.
type Line struct {
	Every time.Duration // default: 1 s

	mu   sync.Mutex
	next time.Time
	held int64
}

// Due tells whether the line may be logged now, and how many were held back since it last was.
func (l *Line) Due() (held int64, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.held++
		return 0, false
	}
	held, l.held = l.held, 0
	every := l.Every
	if every <= 0 {
		every = time.Second
	}
	l.next = now.Add(every)
	return held, true
}
