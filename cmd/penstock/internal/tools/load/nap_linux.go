package load

import (
	"syscall"
	"time"
)

// napLength is how long before the time of a request the timer ends. On Linux, Go's timers are up
// to 1 ms late.
const napLength = 1200 * time.Microsecond

// nap sleeps in a system call, which is less than 0.1 ms late.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&ts, nil) // a signal may end it early; a timer continues
}
