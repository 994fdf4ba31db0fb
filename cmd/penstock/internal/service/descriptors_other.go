//go:build !unix

package service

import "math"

// descriptors returns how many file descriptors this process may open: the limit is not known.
func descriptors() int64 { return math.MaxInt32 }
