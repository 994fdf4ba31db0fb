//go:build unix

package load

import (
	"syscall"
	"time"
)

// processTime returns the processor time of this process, or 0 if it is not known.
func processTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
