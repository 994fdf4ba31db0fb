package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// The limits of outage.yaml, and the load.
const (
	instances = 2
	rate      = 200                    // requests per second, for each fallback
	burst     = 20                     // requests, for each fallback
	requested = 400                    // requests per second that are sent to the limit of each fallback
	deadline  = 250 * time.Millisecond // of a decision
	slack     = 100 * time.Millisecond // the p99 of decisions may exceed the deadline by this time
	recovery  = time.Second            // the longest time from the return of Redis until it makes all decisions
)

// A bound is the largest number of requests that may pass.
type bound struct {
	units       int64
	isUnlimited bool // every request may pass
}

func (b bound) String() string {
	if b.isUnlimited {
		return "any"
	}
	return fmt.Sprint(b.units)
}

// bucketAdmits returns how many requests the bucket of outage.yaml admits at most in any period of
// length d.
func bucketAdmits(d time.Duration) int64 { return burst + int64(math.Floor(rate*d.Seconds())) }

// sharesAdmit returns how many requests the shares of all instances admit together at most in a
// period of length d. Each instance may round its burst up.
func sharesAdmit(d time.Duration) int64 { return bucketAdmits(d) + instances - 1 }

// An interval records what happened in one second.
type interval struct {
	hasStore    bool // Redis decided, or a cached denial by Redis was repeated
	hasFallback bool // a fallback decided
	wasReset    bool // Redis has lost its data, or its bucket has had time to fill
}

// boundOf returns how many requests may pass a limit with this fallback in the interval. They are
// what Redis may admit in that time, plus what the fallback may admit. Both parts count if both
// made decisions, at different instances or for different requests.
func (i interval) boundOf(fallback string, c count) bound {
	b, d := bound{}, c.to.Sub(c.from)
	if i.hasStore {
		b.units = bucketAdmits(d)
		if i.wasReset {
			b.units += burst
		}
	}
	if i.hasFallback {
		switch fallback {
		case "open":
			b.isUnlimited = true
		case "local":
			b.units += sharesAdmit(d)
		}
	}
	return b
}

// totalBound returns how many requests may pass a limit with this fallback in all seconds. The
// result is the sum of
//
//   - what one limit admits in that time;
//   - one burst for each interval in which the bucket in Redis was reset or could fill, or in which
//     both Redis and a fallback decided;
//   - what the fallback admits, in intervals in which both decided.
//
// If the fallback "open" decided, any number may pass.
func totalBound(fallback string, seconds []interval, d time.Duration) bound {
	b := bound{units: bucketAdmits(d)}
	for _, i := range seconds {
		if i.wasReset || i.hasStore && i.hasFallback {
			b.units += burst
		}
		switch {
		case !i.hasFallback:
		case fallback == "open":
			b.isUnlimited = true
		case fallback == "local" && i.hasStore:
			b.units += sharesAdmit(time.Second)
		}
	}
	return b
}

// fallbackDecisions returns how many decisions fallbacks made.
func (c counters) fallbackDecisions() int64 {
	return c.sources["fallback"] + c.sources["open"] + c.sources["closed"]
}

// sourceCounts lists how many decisions came from each source.
func (c counters) sourceCounts() (text string) {
	for _, source := range []string{"store", "deny_cache", "fallback", "open", "closed"} {
		if n := c.sources[source]; n > 0 {
			text += fmt.Sprintf("%s %d  ", source, n)
		}
	}
	return text
}

// p99 returns the 99th percentile of the time of decisions, in seconds. The percentile is
// interpolated within a bucket of the histogram.
func (c counters) p99() float64 {
	lower, countBelow := 0., int64(0) // of the bucket
	rank := 0.99 * float64(c.latencies[math.Inf(1)])
	for _, upper := range slices.Sorted(maps.Keys(c.latencies)) {
		n := c.latencies[upper]
		if float64(n) >= rank && n > countBelow {
			if math.IsInf(upper, 1) {
				return math.Inf(1)
			}
			return lower + (upper-lower)*(rank-float64(countBelow))/float64(n-countBelow)
		}
		lower, countBelow = upper, n
	}
	return 0
}

// heading is above the rows that check prints.
const heading = "                 open         closed          local   decided by                                                         p99\n"
