//go:build !linux

package main

// pin does nothing where processes cannot be bound to a core.
func pin(pid, core int) {}
