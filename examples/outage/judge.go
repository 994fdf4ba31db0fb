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
	deadline = 25 * time.Millisecond
	slack    = 5 * time.Millisecond
	soon     = time.Second
)

// An outage begins with a fault. Then Redis returns, and later all gates decide by it again.
type outage struct {
	flush                 bool // nothing but what Redis knew is lost
	fault, returned, back time.Time
}

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

// fromShares is what all gates together let through by their shares in any time that is so long: each of them may round its burst up.
func fromShares(d time.Duration) int64 { return inTime(d) + gates - 1 }

// bound is how much of what was admitted in a second a policy lets through: while decisions are Redis', and while there is no Redis, what each allows; in
// between, some gates or requests may have one and some the other.
func bound(policy string, outages []outage, c count) most {
	d := c.to.Sub(c.from)
	redis, alone, lost := true, false, int64(0)
	for _, o := range outages {
		before := !o.back.IsZero() && c.from.After(o.back)
		after := c.to.Before(o.fault)
		switch {
		case before || after:
		case o.flush:
			lost++
		default:
			alone = true
			redis = c.from.Before(o.fault) || !o.returned.IsZero() && c.to.After(o.returned)
		}
	}
	m := most{}
	if redis {
		m.units = inTime(d) + lost*burst
	}
	if alone {
		switch policy {
		case "open":
			m.any = true
		case "local":
			m.units += fromShares(d)
		}
	}
	return m
}

// total is how much a policy lets through in all: at the end of an outage Redis' bucket is full again, and until all gates have found it, they
// go on by their shares too.
func total(policy string, outages []outage, d time.Duration) most {
	m := most{units: inTime(d)}
	for _, o := range outages {
		m.units += burst
		switch {
		case o.flush:
		case policy == "open":
			m.any = true
		case policy == "local":
			m.units += fromShares(o.back.Sub(o.returned)) - burst
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

// p99 is how long 99 % of decisions took at most, in seconds: by the gates' histograms, within a bucket in proportion.
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
