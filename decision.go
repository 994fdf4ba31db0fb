package penstock

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// Never is the RetryAfter of a cost that can never fit because it is larger than the limit. It is
// longer than any other duration.
const Never time.Duration = math.MaxInt64

// A Decision is the result of a batch of charges. Stores make one with NewDecision or Single.
type Decision struct {
	// Allowed is true if every charge was granted. If it is false, no charge was made.
	Allowed bool

	// Source is who made the decision.
	Source Source

	// single is the status of a batch of one charge, and statuses has those of a larger batch. So the
	// most frequent decision needs no allocation.
	single   Status
	statuses []Status
}

// Single returns the decision on a batch of one charge with this status.
func Single(s Status) Decision {
	return Decision{Allowed: s.RetryAfter == 0, single: s}
}

// SetOutcome sets *d to the decision on one charge with this outcome. It does what Single and
// StatusOf do together, and is 25 ns faster.
func SetOutcome(d *Decision, o *algorithm.Outcome) {
	d.Allowed = o.RetryAfter == 0
	d.single.Granted = o.Granted
	d.single.Remaining = o.Remaining
	d.single.RetryAfter = retryAfter(o)
	d.single.ResetAfter = time.Duration(o.ResetAfter) * time.Microsecond
	d.single.Wait = time.Duration(o.Wait) * time.Microsecond
	d.single.Receipt = o.Receipt
}

// NewDecision returns the decision on a batch, with one status for each charge in the order of the
// batch. The Decision keeps the slice.
func NewDecision(statuses []Status) Decision {
	d := Decision{Allowed: true, statuses: statuses}
	for i := range statuses {
		d.Allowed = d.Allowed && statuses[i].RetryAfter == 0
	}
	return d
}

// Len returns the number of charges that were decided.
func (d Decision) Len() int {
	if d.statuses == nil {
		return 1
	}
	return len(d.statuses)
}

// Status returns the status of charge i of the batch.
func (d Decision) Status(i int) Status {
	if d.statuses == nil {
		return d.single
	}
	return d.statuses[i]
}

// A Status is the result of one charge. Its durations begin at the decision, and are exact to the
// microsecond. It has no points in time, because clocks differ.
type Status struct {
	// Granted is the number of units that were charged, or 0 if the batch was denied. For a Refund it
	// is the number of units that the counter has returned, rounded down.
	Granted int64

	// Remaining is the number of units that are left now.
	Remaining int64

	// RetryAfter is the time until this charge would be granted. It is 0 if this charge did not cause
	// a denial, and Never if the charge can never be granted. If the limit counts denied requests,
	// RetryAfter is also above 0 if the limit is full because it has counted this one.
	RetryAfter time.Duration

	// ResetAfter is the time until nothing is used any more, if no further request comes.
	ResetAfter time.Duration

	// Wait is how long the caller must wait before it goes ahead. It is at most the charge's Patience.
	Wait time.Duration

	// Receipt is for the Refund of a charge with IsRefundable; see Charge.Receipt. It is 0 if nothing
	// was charged. It means nothing to callers. Only the store that granted the charge knows it.
	Receipt int64
}

// A Source is who made a Decision.
type Source uint8

const (
	FromStore     Source = iota // the store itself: exact
	FromDenyCache               // a cached denial: exact, unless guard.Deny says otherwise
	FromLease                   // units that were drawn from the store in advance
	FromFallback                // the fallback local: a limiter in this process
	FromOpen                    // the fallback open: admitted without a limit
	FromClosed                  // the fallback closed: denied
)

var sourceNames = [...]string{"store", "deny_cache", "lease", "fallback", "open", "closed"}

func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// RetryAfter returns the time until the whole batch would be granted if no other request came
// first: the longest RetryAfter of its statuses. It is 0 if the batch was allowed.
func (d Decision) RetryAfter() time.Duration {
	return d.Status(d.Strictest()).RetryAfter
}

// Wait returns how long the caller must wait before it goes ahead: the longest Wait of the
// statuses.
func (d Decision) Wait() time.Duration {
	var wait time.Duration
	for i := range d.Len() {
		wait = max(wait, d.Status(i).Wait)
	}
	return wait
}

// Strictest returns the index of the status that matters most to the caller: the one with the
// longest RetryAfter. If several have it, the one with the least Remaining is the strictest.
func (d Decision) Strictest() int {
	if d.statuses == nil {
		return 0
	}
	return strictest(d.statuses)
}

func strictest(statuses []Status) int {
	found := 0
	for i := range statuses {
		if statuses[i].isStricterThan(statuses[found]) {
			found = i
		}
	}
	return found
}

func (s Status) isStricterThan(other Status) bool {
	if s.RetryAfter != other.RetryAfter {
		return s.RetryAfter > other.RetryAfter
	}
	return s.Remaining < other.Remaining
}

// Remaining returns how many units the strictest status has left.
func (d Decision) Remaining() int64 { return d.Status(d.Strictest()).Remaining }

// Granted returns the least Granted of the statuses: every charge was granted at least that many
// units.
func (d Decision) Granted() int64 {
	granted := d.Status(0).Granted
	for i := 1; i < d.Len(); i++ {
		granted = min(granted, d.Status(i).Granted)
	}
	return granted
}

// String writes the decision for logs: "allowed, 19 left" or "denied, retry after 50ms".
func (d Decision) String() string {
	if d.Allowed {
		return fmt.Sprintf("allowed, %d left", d.Remaining())
	}
	if d.RetryAfter() == Never {
		return "denied forever: the cost is larger than the limit"
	}
	return fmt.Sprintf("denied, retry after %v", d.RetryAfter())
}

// StatusOf converts the outcome of an algorithm to a Status.
func StatusOf(o *algorithm.Outcome) Status {
	return Status{
		Granted:    o.Granted,
		Remaining:  o.Remaining,
		RetryAfter: retryAfter(o),
		ResetAfter: time.Duration(o.ResetAfter) * time.Microsecond,
		Wait:       time.Duration(o.Wait) * time.Microsecond,
		Receipt:    o.Receipt,
	}
}

// retryAfter converts the RetryAfter of an outcome from µs to a duration.
func retryAfter(o *algorithm.Outcome) time.Duration {
	if o.RetryAfter == algorithm.Never {
		return Never
	}
	return time.Duration(o.RetryAfter) * time.Microsecond
}
