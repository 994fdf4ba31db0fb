package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// startTicks returns a function that waits for the next tick, and one that ends the ticks. The
// ticks come from a timer of the kernel: if nothing else runs, Go's own timers are up to 1 ms late.
func startTicks(every time.Duration) (await, stop func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err == nil {
		tick := unix.NsecToTimespec(every.Nanoseconds())
		err = unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: tick, Value: tick}, nil)
	}
	if err != nil {
		return func() { time.Sleep(every) }, func() {}
	}
	timer := os.NewFile(uintptr(fd), "timer")
	var count [8]byte
	return func() { _, _ = timer.Read(count[:]) }, func() { _ = timer.Close() }
}
