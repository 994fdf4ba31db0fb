//go:build !linux

package main

// pin does nothing: the benchmarks bind processes to cores only on Linux.
func pin(pid, core int) {}
