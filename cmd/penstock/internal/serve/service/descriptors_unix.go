//go:build unix

package service

import (
	"math"
	"syscall"
)

// descriptors returns how many file descriptors this process may open. The Go runtime has already
// raised the soft limit.
func descriptors() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int64(min(uint64(limit.Cur), math.MaxInt32))
}
