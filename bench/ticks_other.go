//go:build !linux

package main

import "time"

// startTicks returns a function that waits for the next tick, and one that ends the ticks.
func startTicks(every time.Duration) (await, stop func()) {
	return func() { time.Sleep(every) }, func() {}
}
