package penstock

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// Never as a RetryAfter says that the cost cannot fit at any time: it is larger than the limit. It
// is longer than any other duration.
const Never time.Duration = math.MaxInt64

// A Decision answers a batch of charges. Stores make one with NewDecision or Single.
type Decision struct {
	// Allowed says that every charge was granted. If it is false, none was made.
	Allowed bool

	// Source says who answered.
	Source Source

	// A single status stands in the Decision itself, so that the most frequent answer needs no
	// allocation.
	single Status
	batch  []Status
	_      [8]byte // makes the size a multiple of 16, as it is copied: 5 ns per decision
}

// Single is the decision on one charge.
func Single(s Status) Decision {
	return Decision{Allowed: s.RetryAfter == 0, single: s}
}

// Answer makes d the decision on one charge, by its algorithm's outcome. It is Single for stores
// that count nanoseconds.
func (d *Decision) Answer(o *algorithm.Outcome) {
	d.Allowed = o.RetryAfter == 0
	d.single.Granted = o.Granted
	d.single.Remaining = o.Remaining
	d.single.RetryAfter = retryAfter(o)
	d.single.ResetAfter = time.Duration(o.ResetAfter) * time.Microsecond
	d.single.Wait = time.Duration(o.Wait) * time.Microsecond
}

// NewDecision is the decision on the charges that statuses answer, in their order. The slice is
// kept.
func NewDecision(statuses []Status) Decision {
	d := Decision{Allowed: true, batch: statuses}
	for i := range statuses {
		d.Allowed = d.Allowed && statuses[i].RetryAfter == 0
	}
	return d
}

// Len is the number of charges that were decided.
func (d *Decision) Len() int {
	if d.batch == nil {
		return 1
	}
	return len(d.batch)
}

// Status answers charge i of the batch.
func (d *Decision) Status(i int) Status {
	if d.batch == nil {
		return d.single
	}
	return d.batch[i]
}

// A Status answers one charge. Durations count from the decision and never name a moment, because
// clocks differ. They are exact to the microsecond.
type Status struct {
	Granted    int64         // units taken; whole units given back by Refund, which may give back a fraction more; 0 in a batch that was denied
	Remaining  int64         // units that are left now
	RetryAfter time.Duration // 0: this charge did not stand in the way. Otherwise when it would be granted, or Never
	ResetAfter time.Duration // until nothing is used any more, if nobody asks again
	Wait       time.Duration // how long the caller must wait before it goes ahead; above 0 only where it said it would
}

// Source says who answered a batch.
type Source uint8

const (
	FromStore     Source = iota // the store itself: exact
	FromDenyCache               // a remembered denial: exact
	FromLease                   // quota drawn in advance
	FromFallback                // a local limiter, the store being unavailable
	FromOpen                    // nobody: admitted because the store is unavailable
	FromClosed                  // nobody: denied because the store is unavailable
)

var sourceNames = [...]string{"store", "deny_cache", "lease", "fallback", "open", "closed"}

func (s Source) String() string { return sourceNames[s] }

// RetryAfter is when the whole batch would be granted if nobody else asked: the longest of its
// statuses'. It is 0 if the batch was allowed.
func (d *Decision) RetryAfter() time.Duration {
	return d.Status(d.Strictest()).RetryAfter
}

// Wait is how long the caller must wait before it goes ahead: the longest of the statuses' Waits.
func (d *Decision) Wait() time.Duration {
	var wait time.Duration
	for i := range d.Len() {
		wait = max(wait, d.Status(i).Wait)
	}
	return wait
}

// Strictest is the index of the status that matters most to the caller: the one that denies for
// longest, or the one with the least remaining.
func (d *Decision) Strictest() int {
	strictest := 0
	for i := 1; i < d.Len(); i++ {
		if d.Status(i).stricter(d.Status(strictest)) {
			strictest = i
		}
	}
	return strictest
}

func (s Status) stricter(than Status) bool {
	if s.RetryAfter != than.RetryAfter {
		return s.RetryAfter > than.RetryAfter
	}
	return s.Remaining < than.Remaining
}

// Remaining is how many units the strictest status has left.
func (d *Decision) Remaining() int64 { return d.Status(d.Strictest()).Remaining }

// String writes the decision for logs: "allowed, 19 left" or "denied, retry after 50ms".
func (d Decision) String() string {
	if d.Allowed {
		return fmt.Sprintf("allowed, %d left", d.Remaining())
	}
	if d.RetryAfter() == Never {
		return "denied for ever: the cost is larger than the limit"
	}
	return fmt.Sprintf("denied, retry after %v", d.RetryAfter())
}

// StatusOf is an algorithm's outcome as a Status.
func StatusOf(o *algorithm.Outcome) Status {
	return Status{
		Granted:    o.Granted,
		Remaining:  o.Remaining,
		RetryAfter: retryAfter(o),
		ResetAfter: time.Duration(o.ResetAfter) * time.Microsecond,
		Wait:       time.Duration(o.Wait) * time.Microsecond,
	}
}

func retryAfter(o *algorithm.Outcome) time.Duration {
	if o.RetryAfter == algorithm.Never {
		return Never
	}
	return time.Duration(o.RetryAfter) * time.Microsecond
}
