package guard

import (
	"math"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// divided remembers what n-th parts were made of limits, ready for use: up to maxDivided of them,
// and then it starts anew. The zero value is empty.
type divided[P any] struct {
	mu    sync.RWMutex
	known map[division]P
}

const maxDivided = 4096

type division struct {
	limit penstock.Limit
	n     int
}

// by is the limit divided by n, which make does if it is not known.
func (d *divided[P]) by(n int, limit *penstock.Limit, make func(limit penstock.Limit, n int) P) P {
	of := division{*limit, n}
	d.mu.RLock()
	p, ok := d.known[of]
	d.mu.RUnlock()
	if ok {
		return p
	}
	p = make(*limit, n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxDivided {
		d.known = map[division]P{}
	}
	d.known[of] = p
	return p
}

// A share is the part of a limit that one instance has, or !ok if it is none that can be computed
// with.
type share struct {
	limit penstock.Limit
	ok    bool
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

// slower is the limit at an n-th of its rate: exactly, or if that is too fine to compute with,
// rounded up. If its burst is too large for the new rate, it is lowered.
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
