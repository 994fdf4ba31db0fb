//go:build race

package memstore_test

const race = true // sync.Pool forgets at random then, so that allocations cannot be counted
