//go:build !linux

package main

// The benchmarks bind processes to cores only on Linux.

func pin(pid, core int) {}

func unpin(pid int) {}
