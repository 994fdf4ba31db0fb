package guard

import (
	"math"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// shares remember the n-th parts of limits, ready for use: up to maxShares of one n, and then they start anew. The zero value is empty.
type shares struct {
	mu    sync.RWMutex
	n     int
	known map[penstock.Limit]share
}

const maxShares = 4096

type share struct {
	limit penstock.Limit
	ok    bool
}

// of is the n-th part of a limit, or false if it is none that can be computed with.
func (s *shares) of(limit *penstock.Limit, n int) (penstock.Limit, bool) {
	s.mu.RLock()
	known, ok := s.known[*limit]
	ok = ok && s.n == n
	s.mu.RUnlock()
	if ok {
		return known.limit, known.ok
	}
	made := makeShare(*limit, n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n != n || len(s.known) >= maxShares {
		s.n, s.known = n, make(map[penstock.Limit]share)
	}
	s.known[*limit] = made
	return made.limit, made.ok
}

func makeShare(limit penstock.Limit, n int) share {
	if n == 1 {
		return tryShare(limit)
	}
	l := limit.WithName(limit.Name) // without its plan
	algorithm := l.Algorithm
	if algorithm == nil {
		algorithm = penstock.TokenBucket
	}
	switch parts := int64(n); {
	case algorithm.Is(penstock.TokenBucket):
		if l.Burst == 0 {
			l.Burst = l.Count
		}
		l.Burst = ceil(l.Burst, parts)
		return slower(l, parts)
	case algorithm.Is(penstock.LeakyBucket):
		l.Burst = ceil(l.Burst+1, parts) - 1 // one leaves while Burst wait
		return slower(l, parts)
	default:
		l.Count, l.Burst = ceil(l.Count, parts), ceil(l.Burst, parts)
		return tryShare(l)
	}
}

// slower is the limit at an n-th of its rate: exactly, or if that is too fine to compute with, rounded up. If its burst is too large
// for the new rate, it is lowered.
func slower(l penstock.Limit, n int64) share {
	if l.Period <= math.MaxInt64/time.Duration(n) {
		exact := l
		exact.Period *= time.Duration(n)
		if s := tryShare(exact); s.ok {
			return s
		}
	}
	l.Count = ceil(l.Count, n)
	s := tryShare(l)
	for !s.ok && l.Burst > 1 {
		l.Burst /= 2
		s = tryShare(l)
	}
	return s
}

func tryShare(l penstock.Limit) share {
	ready, err := l.Ready()
	return share{ready, err == nil}
}

// ceil is a/b rounded up.
func ceil(a, b int64) int64 { return (a + b - 1) / b }
