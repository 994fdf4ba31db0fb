// Package divide caches the parts of divided limits.
package divide

import (
	"sync"

	"github.com/penstock/penstock"
)

// A Cache caches values made of a limit and a divisor. It has at most maxEntries entries, and
// empties itself when it is full. The zero value is empty.
type Cache[P any] struct {
	mu      sync.RWMutex
	entries map[division]P
}

const maxEntries = 4096

type division struct {
	limit   penstock.Limit
	divisor int
}

// Get returns the value of a limit and a divisor. If it is not cached, Get computes and caches it.
func (c *Cache[P]) Get(limit penstock.Limit, divisor int, compute func(limit penstock.Limit, divisor int) P) P {
	key := division{limit, divisor}
	c.mu.RLock()
	p, ok := c.entries[key]
	c.mu.RUnlock()
	if ok {
		return p
	}
	p = compute(limit, divisor)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxEntries {
		c.entries = map[division]P{}
	}
	c.entries[key] = p
	return p
}
