// Package divide caches the parts of divided limits.
package divide

import (
	"sync"

	"github.com/penstock/penstock"
)

// A Cache caches values made of a limit and a divisor. It has at most maxDivided entries, and
// empties itself when it is full. The zero value is empty.
type Cache[P any] struct {
	mu    sync.RWMutex
	known map[division]P
}

const maxDivided = 4096 // entries

type division struct {
	limit penstock.Limit
	n     int // the divisor
}

// Get returns the cached value of make for the limit and n. If no value is cached, Get calls make.
func (d *Cache[P]) Get(limit penstock.Limit, n int, make func(limit penstock.Limit, n int) P) P {
	key := division{limit, n}
	d.mu.RLock()
	p, ok := d.known[key]
	d.mu.RUnlock()
	if ok {
		return p
	}
	p = make(limit, n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxDivided {
		d.known = map[division]P{}
	}
	d.known[key] = p
	return p
}
