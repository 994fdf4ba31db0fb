// Package cache keeps results that take a few microseconds to compute.
package cache

import "sync"

// A Cache has at most Max results, by their keys. When it is full, it drops an arbitrary one. A
// Cache with a Max is ready for use.
type Cache[K comparable, V any] struct {
	Max int

	mu      sync.RWMutex
	results map[K]V
}

// Get returns the result for a key. If there is none yet, Get computes it, and keeps it if there is
// no error.
func (c *Cache[K, V]) Get(key K, compute func(K) (V, error)) (V, error) {
	c.mu.RLock()
	result, isKnown := c.results[key]
	c.mu.RUnlock()
	if isKnown {
		return result, nil
	}
	result, err := compute(key)
	if err != nil {
		return result, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.results == nil {
		c.results = make(map[K]V)
	}
	for dropped := range c.results { // in any order
		if len(c.results) < c.Max {
			break
		}
		delete(c.results, dropped)
	}
	c.results[key] = result
	return result, nil
}

func (c *Cache[K, V]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.results)
}
