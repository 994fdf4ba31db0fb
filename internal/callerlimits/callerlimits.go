// Package callerlimits bounds caller limits: those that a caller sends with its request. A store
// keeps the counter of a limit for up to twice the time in which the limit refills. So these bounds
// say when the store has forgotten all keys of a caller.
package callerlimits

import (
	"math"
	"time"
)

// MaxPeriod is the longest period of a caller limit, and the longest time in which it refills: a
// leap year.
const MaxPeriod = 366 * 24 * time.Hour

// MaxBurst returns the largest burst that count per period refills within MaxPeriod. Both must be
// above 0.
func MaxBurst(count int64, period time.Duration) int64 {
	largest := float64(count) * (float64(MaxPeriod) / float64(period))
	if largest >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(largest)
}
