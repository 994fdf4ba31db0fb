// Package memory bounds the memory of requests in flight. A request takes an estimate of what it
// needs from the Budget of the process, and releases it when it has ended.
package memory

import (
	"math"
	"runtime/debug"
	"sync/atomic"
)

// A Budget is how many bytes all requests in flight may take together. Many goroutines may use it
// at the same time.
type Budget struct {
	size      int64
	onRefused func()
	taken     atomic.Int64
}

// New makes a Budget of size bytes. onRefused is called for each refused request. It must be quick.
func New(size int64, onRefused func()) *Budget {
	return &Budget{size: size, onRefused: onRefused}
}

// Size returns half of the memory limit of Go (GOMEMLIMIT), in bytes: the rest is for counters,
// connections and garbage. Without such a limit it returns unlimited.
func Size(unlimited int64) int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 { // a negative value changes nothing
		return limit / 2
	}
	return unlimited
}

// Size returns how many bytes all requests in flight may take together.
func (b *Budget) Size() int64 { return b.size }

// Take takes bytes. It returns false, and takes nothing, if so many are not left.
func (b *Budget) Take(bytes int64) bool {
	if b.taken.Add(bytes) > b.size {
		b.taken.Add(-bytes)
		return false
	}
	return true
}

// Add takes bytes that are in use already, also if so many are not left.
func (b *Budget) Add(bytes int64) { b.taken.Add(bytes) }

func (b *Budget) Release(bytes int64) { b.taken.Add(-bytes) }

// Refused reports that a request was refused because Take has returned false.
func (b *Budget) Refused() { b.onRefused() }

func (b *Budget) Taken() int64 { return b.taken.Load() }
