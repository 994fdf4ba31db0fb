package guard

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// Settings say how one limit is guarded. The zero value is what the Options of a guard say for all.
type Settings struct {
	// OnFailure says what happens to the limit's charges while the store gives no answer. Default:
	// FallbackOptions.OnFailure.
	OnFailure Failure

	// Ceiling bounds an Open limit while the store gives no answer: each key may have this much from
	// this process, whatever the number of instances. Its Name and Group are those of the limit.
	// Default (the zero Limit): none.
	Ceiling penstock.Limit

	// Lease is how many units may be drawn in advance at once, at most. Default: 0, none ever.
	Lease int64

	// Shards is in how many counters the limit is split. Default: 0, which is one, as is 1.
	Shards int

	// DenyFor is how long a denial may be remembered at most. Default: what the deny cache's Options
	// say; below 0: never.
	DenyFor time.Duration
}

// A Failure says what happens to charges while the store gives no answer.
type Failure uint8

// The ways to fail.
const (
	ByDefault Failure = iota // as the guard's Options say
	Open                     // granted as asked, and not counted
	Closed                   // denied
	Local                    // decided in this process, by its share of the limit
)

var failureNames = [...]string{"default", "open", "closed", "local"}

func (f Failure) String() string {
	if int(f) < len(failureNames) {
		return failureNames[f]
	}
	return fmt.Sprintf("failure(%d)", uint8(f))
}
