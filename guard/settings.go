package guard

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Settings are the guards' options for one limit. The zero value takes all defaults from the
// Options of each guard.
type Settings struct {
	// OnFailure is how the limit's charges are decided while the store does not answer. Default:
	// FallbackOptions.OnFailure.
	OnFailure FailureMode

	// Ceiling bounds a FailOpen limit while the store does not answer. Each process allows each key
	// this much; the number of instances does not matter. The Ceiling gets the Name and Group of the
	// limit. Default (the zero Limit): no bound.
	Ceiling penstock.Limit

	// Lease is the largest number of units that an instance holds in advance under one key. Default:
	// 0, no lease.
	Lease int64

	// SplitInto is the number of counters that the limit is split into. 0 and 1 both mean one counter.
	// Default: 0.
	SplitInto int

	// DenyCacheTTL is the longest time for which a denial is cached. Below 0: denials are not cached.
	// Default: DenyOptions.MaxAge.
	DenyCacheTTL time.Duration
}

// A FailureMode says how charges are decided while the store does not answer.
type FailureMode uint8

// The failure modes.
const (
	FailDefault FailureMode = iota // the OnFailure of the guard's Options
	FailOpen                       // grant, and do not count
	FailClosed                     // deny
	FailLocal                      // decide in this process, by its share of the limit
)

var failureNames = [...]string{"default", "open", "closed", "local"}

func (f FailureMode) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return fmt.Sprintf("FailureMode(%d)", uint8(f))
}
