package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// What outage.yaml says, and what is asked for.
const (
	gates    = 2
	rate     = 200 // a second, of each policy
	burst    = 20
	asked    = 400 // a second, of each policy
	deadline = 250 * time.Millisecond
	slack    = 100 * time.Millisecond
	soon     = time.Second
)

// A limit of what may pass.
type most struct {
	units int64
	any   bool // whatever is asked for
}

func (m most) String() string {
	if m.any {
		return "any"
	}
	return fmt.Sprint(m.units)
}

// inTime is what the bucket of outage.yaml lets through in any time that is so long.
func inTime(d time.Duration) int64 { return burst + int64(math.Floor(rate*d.Seconds())) }

// fromShares is what all gates together let through by their shares in any time that is so long:
// each of them may round its burst up.
func fromShares(d time.Duration) int64 { return inTime(d) + gates - 1 }

// A second is what was seen in one.
type second struct {
	store   bool // Redis decided, or a denial of it that was remembered
	without bool // it was decided without Redis
	lost    bool // Redis has lost what it knew, or its bucket has had time to fill
}

// bound is how much of what was admitted a policy lets through in a second: what Redis admits in
// that time, and what the policy lets through without it. Where both decided, at one gate or for
// one request the one and elsewhere the other, both may have admitted what they may.
func (s second) bound(policy string, c count) most {
	m, d := most{}, c.to.Sub(c.from)
	if s.store {
		m.units = inTime(d)
		if s.lost {
			m.units += burst
		}
	}
	if s.without {
		switch policy {
		case "open":
			m.any = true
		case "local":
			m.units += fromShares(d)
		}
	}
	return m
}

// total is how much a policy lets through in all: what one limit admits in that time; a burst more
// wherever Redis' bucket has had time to fill, or is lost; and in the seconds in which some decided
// by Redis and some without, what the policy lets through without it.
func total(policy string, seconds []second, d time.Duration) most {
	m := most{units: inTime(d)}
	for _, s := range seconds {
		if s.lost || s.store && s.without {
			m.units += burst
		}
		switch {
		case !s.without:
		case policy == "open":
			m.any = true
		case policy == "local" && s.store:
			m.units += fromShares(time.Second)
		}
	}
	return m
}

// without is how many were decided without Redis, for its lack.
func (m measures) without() int64 {
	return m.sources["fallback"] + m.sources["open"] + m.sources["closed"]
}

// shares tell who decided.
func (m measures) shares() (text string) {
	for _, source := range []string{"store", "deny_cache", "fallback", "open", "closed"} {
		if n := m.sources[source]; n > 0 {
			text += fmt.Sprintf("%s %d  ", source, n)
		}
	}
	return text
}

// p99 is how long 99 % of decisions took at most, in seconds: by the gates' histograms, within a
// bucket in proportion.
func (m measures) p99() float64 {
	least, below := 0., int64(0)
	rank := 0.99 * float64(m.within[math.Inf(1)])
	for _, most := range slices.Sorted(maps.Keys(m.within)) {
		n := m.within[most]
		if float64(n) >= rank && n > below {
			if math.IsInf(most, 1) {
				return math.Inf(1)
			}
			return least + (most-least)*(rank-float64(below))/float64(n-below)
		}
		least, below = most, n
	}
	return 0
}

const heading = "                 open         closed          local   decided by                                                         p99\n"
