package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard"
)

// check checks the admitted units against the bounds of the algorithms and of the guards.
func (h *history) check(sc *scenario) {
	maxInstances := sc.maxInstances()
	for _, g := range h.admissionSets(sc) {
		limit, slack, credits := g.guarded.limit, int64(0), h.creditsOf(g)
		isLocal := g.guarded.settings.OnFailure == guard.FailLocal
		isQueue := limit.Algorithm().Name() == penstock.LeakyBucket.Name()
		switch {
		case g.instanceID == storeUnits:
			slack = sc.leaseExcess(g.guarded, maxInstances, len(credits) > 0)
		case isLocal && isQueue && g.hasChanged:
			continue // a waiter that was admitted by the old share may exceed the new one
		case isLocal:
			limit = share(limit.Limit(), g.knownInstances).MustCompile()
		default:
			limit = g.guarded.settings.Ceiling.MustCompile()
		}
		var worst worstCase
		if limit.Algorithm().NeedsHolder() {
			worst = h.checkHolds(g, limit.Limit(), credits)
		} else {
			worst = checkBound(limit.Limit(), g.admitted, credits, slack)
		}
		kind := limit.Algorithm().Name()
		if g.instanceID != storeUnits {
			kind += " in an outage"
		} else if slack > 0 {
			kind += " with leases"
		}
		h.utilization[kind] = max(h.utilization[kind], worst.reached/worst.bound)
		if worst.reached > worst.bound {
			const traced = 40 // admissions
			h.problems = append(h.problems, fmt.Sprintf("bound, at %v: %.3f units of %v were admitted for key %q at %s; the bound is %.3f\n%s", worst.at, worst.reached,
				&g.guarded.limit, g.key, g.where(), worst.bound, h.trace(g.guarded, g.key, worst.at, traced)))
		}
	}
}

// storeUnits is the instance number for units that any instance admitted from the store.
const storeUnits = -1

// An admissionSet has the admissions that share one bound: the admissions of all instances from the
// store, or those of one instance without the store.
type admissionSet struct {
	guarded        *guardedLimit
	key            string
	instanceID     int
	knownInstances int  // smallest number of instances that this instance counted
	hasChanged     bool // whether that number changed
	admitted       []admission
}

// where describes the instances of the set, for messages.
func (g *admissionSet) where() string {
	if g.instanceID == storeUnits {
		return "all instances"
	}
	return fmt.Sprintf("instance %d, which counted %d instances", g.instanceID, g.knownInstances)
}

// admissionSets divides the admissions into sets. It reports an admission that no source may make.
func (h *history) admissionSets(sc *scenario) (sets []*admissionSet) {
	type setID struct {
		guarded    *guardedLimit
		key        string
		instanceID int
	}
	setsByID := make(map[setID]*admissionSet)
	for _, a := range h.admitted {
		if a.key == wildKey {
			continue
		}
		id := setID{guarded: a.guarded, key: a.key, instanceID: a.instanceID}
		switch s := a.guarded.settings; {
		case a.source == penstock.FromStore || a.source == penstock.FromLease:
			id.instanceID = storeUnits
		case s.OnFailure == guard.FailClosed:
			h.problems = append(h.problems, "bound: a closed limit admitted "+a.String())
			continue
		case s.OnFailure == guard.FailOpen && s.Ceiling.Count == 0:
			continue // without bound
		case a.clock%a.guarded.limit.Limit().Period.Microseconds() == 0:
			continue // at the edge of a window: the instance's clock may differ by 1 µs, so its window is unknown
		}
		g := setsByID[id]
		if g == nil {
			g = &admissionSet{guarded: a.guarded, key: a.key, instanceID: id.instanceID, knownInstances: a.knownInstances}
			setsByID[id] = g
			sets = append(sets, g)
		}
		g.hasChanged = g.hasChanged || g.knownInstances != a.knownInstances
		g.knownInstances = min(g.knownInstances, a.knownInstances)
		g.admitted = append(g.admitted, a)
	}
	for _, g := range sets {
		slices.SortStableFunc(g.admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
	}
	return sets
}

// creditsOf returns the credits that apply to a set of admissions. The units of a split limit are
// under other keys, so each credit of its limit applies.
func (h *history) creditsOf(g *admissionSet) (applying []credit) {
	for _, c := range h.credits {
		switch {
		case c.instanceID != g.instanceID:
		case c.limit != "" && c.limit != g.guarded.limit.Name():
		case c.keys != nil && !c.keys(g.key) && g.guarded.settings.SplitInto < 2:
		default:
			applying = append(applying, c)
		}
	}
	return applying
}

// maxInstances returns the largest number of instances that may run at one time.
func (sc *scenario) maxInstances() int {
	n := sc.instances
	for _, f := range sc.faults {
		if f.kind == instanceJoins {
			n++
		}
	}
	return n
}

// leaseExcess returns how many units leases may admit beyond the algorithm's bound. For a bucket it
// is the size of a lease, once for each instance. For other algorithms it is 0 unless the store has
// lost its data while instances had leases.
func (sc *scenario) leaseExcess(guarded *guardedLimit, instances int, hasLostData bool) int64 {
	l := guarded.limit
	capacity, hasExcess := l.Limit().Count, hasLostData
	if l.Algorithm().Name() == penstock.TokenBucket.Name() {
		capacity, hasExcess = l.Limit().Burst, true
	}
	lease := min(guarded.settings.Lease, capacity/4/int64(max(sc.configured, 1))) // all leases together have at most a quarter
	canLease := l.Algorithm().Decay() != algorithm.DecayUnknown
	if lease < 2 || !canLease || !hasExcess {
		return 0
	}
	return int64(instances) * lease
}

// share returns the n-th part of a limit, rounded up as in guard.Fallback.
func share(l penstock.Limit, n int) penstock.Limit {
	parts := int64(n)
	part := func(units int64) int64 { return (units + parts - 1) / parts }
	switch {
	case l.Algorithm.RefillsSteadily():
		l.Burst = part(l.Burst)
		l.Period *= time.Duration(n)
	default:
		l.Count, l.Burst = part(l.Count), part(l.Burst)
	}
	return l
}

// A worstCase is the interval in which the admitted units were closest to their bound.
type worstCase struct {
	reached, bound float64 // units
	at             time.Duration
}

// worseOf returns the case that is closer to its bound, or further beyond it.
func worseOf(a, b worstCase) worstCase {
	if b.reached*a.bound > a.reached*b.bound {
		return b
	}
	return a
}

// checkBound checks admissions, sorted by time, against the bound of a limit's algorithm plus slack
// units. All intervals are checked in one pass. Credits are subtracted from the intervals that
// contain them.
func checkBound(l penstock.Limit, admitted []admission, credits []credit, slack int64) worstCase {
	n, extra := l.Count, float64(slack)
	windowOf := func(a *admission) int64 { return a.clock / l.Period.Microseconds() }
	within := func(d time.Duration) func(first, a *admission) bool {
		d -= 2 * time.Microsecond // the algorithms round to microseconds
		return func(first, a *admission) bool { return a.at-first.at < d }
	}
	switch {
	case l.Algorithm.Name() == penstock.TokenBucket.Name():
		return checkBucket(l, float64(l.Burst), admitted, credits, extra)
	case l.Algorithm.Name() == penstock.LeakyBucket.Name():
		return checkBucket(l, 1, admitted, credits, extra)
	case l.Algorithm.Name() == penstock.SlidingWindow.Name() && slices.ContainsFunc(credits, func(c credit) bool { return c.step < 0 }):
		return checkWindows(admitted, credits, 2*float64(n)+extra, within(l.Period)) // its windows are no longer aligned
	case l.Algorithm == penstock.FixedWindow, l.Algorithm.Name() == penstock.SlidingWindow.Name():
		return checkWindows(admitted, credits, float64(n)+extra, func(first, a *admission) bool { return windowOf(first) == windowOf(a) })
	case l.Algorithm == penstock.AnchoredWindow: // a period can touch two windows, and two periods three
		return worseOf(checkWindows(admitted, credits, 2*float64(n)+extra, within(l.Period)),
			checkWindows(admitted, credits, 3*float64(n)+extra, within(2*l.Period)))
	default: // a log or sub-windows
		return checkWindows(admitted, credits, float64(n)+extra, within(l.Period))
	}
}

// checkBucket adds the admissions to a bucket that leaks at the limit's rate. The highest level of
// the bucket is the largest number of units that any interval had beyond the rate.
func checkBucket(l penstock.Limit, burst float64, admitted []admission, credits []credit, slack float64) worstCase {
	rate := float64(l.Count) / float64(l.Period)
	tolerance := 1e-6 + 3*rate*float64(time.Microsecond) // of floats, and of times that are rounded to microseconds
	worst, level, last := worstCase{bound: burst + slack + tolerance}, 0.0, time.Duration(0)
	var creditedBefore time.Duration // charges before this time are credited
	for i := range admitted {
		a := &admitted[i]
		for len(credits) > 0 && credits[0].creditedFrom() <= a.at {
			c := credits[0]
			credits = credits[1:]
			c.at = c.creditedFrom()
			level, last = max(0, level-rate*float64(c.at-last)), c.at
			switch {
			case c.step != 0: // a jump forward refills the bucket; a jump back changes nothing
				level, creditedBefore = max(0, level-rate*float64(max(c.step, 0))), c.at
			case c.units > 0 && (c.until > 0 || l.Algorithm.Name() != penstock.LeakyBucket.Name()):
				level = max(0, level-float64(c.units))
				creditedBefore = c.at
			default: // all units are credited; a leaky bucket starts empty after a failover
				level, creditedBefore = 0, c.at
			}
		}
		if a.charged < creditedBefore && a.at > a.charged {
			continue // a booking whose charge was credited before its turn came
		}
		level, last = max(0, level-rate*float64(a.at-last))+float64(a.units), a.at
		worst = worseOf(worst, worstCase{reached: level - pendingCredit(credits, a.at), bound: worst.bound, at: a.at})
	}
	return worst
}

// creditedFrom returns the time from which the credit is subtracted.
func (c *credit) creditedFrom() time.Duration { return max(c.at, c.until) }

// pendingCredit returns how many units may be admitted now because of credits that are not
// subtracted yet.
func pendingCredit(credits []credit, now time.Duration) (units float64) {
	for _, c := range credits {
		if c.until > 0 && c.at <= now {
			units += float64(c.units)
		}
	}
	return units
}

// checkWindows sums up the admissions of each window. isTogether returns true if two admissions are
// in one window.
func checkWindows(admitted []admission, credits []credit, bound float64, isTogether func(first, a *admission) bool) worstCase {
	worst := worstCase{bound: bound}
	sum, first := int64(0), 0            // units in the window that ends at admission i; index of its first admission
	left := make([]int64, len(admitted)) // the units of each admission that are not credited
	for i := range admitted {
		a := &admitted[i]
		for len(credits) > 0 && credits[0].creditedFrom() <= a.at {
			c := credits[0]
			credits = credits[1:]
			isAll := c.units == 0
			units := c.units
			for j := i - 1; j >= first && (units > 0 || isAll); j-- { // the newest first
				credited := left[j]
				if !isAll {
					credited = min(credited, units)
				}
				left[j], units, sum = left[j]-credited, units-credited, sum-credited
			}
		}
		left[i] = a.units
		sum += a.units
		for first < i && !isTogether(&admitted[first], a) {
			sum -= left[first]
			first++
		}
		worst = worseOf(worst, worstCase{reached: float64(sum) - pendingCredit(credits, a.at), bound: bound, at: a.at})
	}
	return worst
}

// checkHolds sums up the holds that last at the same time.
func (h *history) checkHolds(g *admissionSet, l penstock.Limit, credits []credit) worstCase {
	released := make(map[string]time.Duration)
	for _, r := range h.released {
		if at, known := released[r.holder]; !known || r.at < at {
			released[r.holder] = r.at
		}
	}
	worst := worstCase{bound: float64(l.Burst)}
	for i := range g.admitted {
		a, sum := &g.admitted[i], int64(0)
		for j := range i + 1 {
			held := &g.admitted[j]
			hasEnded := held.at+l.Period <= a.at
			if at, isReleased := released[held.holder]; isReleased && at <= a.at {
				hasEnded = true
			}
			for _, c := range credits {
				isCredited := held.at <= c.at && c.at <= a.at
				hasEnded = hasEnded || isCredited
			}
			if !hasEnded {
				sum += held.units
			}
		}
		worst = worseOf(worst, worstCase{reached: float64(sum), bound: worst.bound, at: a.at})
	}
	return worst
}
