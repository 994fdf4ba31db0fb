// Package stated bounds the limits that callers send themselves. A store keeps the counter of such
// a limit for up to twice the time until it is whole again, so these bounds say when the store has
// forgotten all keys of a caller.
package stated

import (
	"math"
	"time"
)

// MaxPeriod is the longest period of a limit that a caller states, and the longest time until such
// a limit is whole again: a leap year.
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
