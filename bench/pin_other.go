//go:build !linux

package main

// pin does nothing: only Linux can bind a process to a core.
func pin(pid, core int) {}
