//go:build unix

package service

import (
	"math"
	"syscall"
)

// descriptors is how many this process may open. The Go runtime has raised the limit as far as it
// may.
func descriptors() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxInt32
	}
	return int64(min(uint64(limit.Cur), math.MaxInt32))
}
