package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// judge holds what was admitted against what the algorithms and the guards state.
func (b *book) judge(p *plan) {
	most := p.most()
	for _, g := range b.groups(p) {
		limit, slack, pardons := g.policy.limit, int64(0), b.pardonsOf(g)
		switch {
		case g.inst == together:
			slack = p.excess(g.policy, most, len(pardons) > 0)
		case g.policy.settings.OnFailure == guard.Local && g.changed && limit.Algorithm.Is(penstock.LeakyBucket):
			continue // those who wait when the share changes were told when to go by the old one
		case g.policy.settings.OnFailure == guard.Local:
			limit = share(limit, g.counted)
		default:
			limit = g.policy.settings.Ceiling
		}
		var v verdict
		if limit.Algorithm.Holds {
			v = b.checkHolds(g, limit, pardons)
		} else {
			v = check(limit, g.admitted, pardons, slack)
		}
		kind := limit.Algorithm.Name
		if g.inst != together {
			kind += " in an outage"
		} else if slack > 0 {
			kind += " with leases"
		}
		b.judged[kind] = max(b.judged[kind], v.reached/v.bound)
		if v.reached > v.bound {
			b.problems = append(b.problems, fmt.Sprintf("bound, at %v: %.3f units of %v under %q at %s; the bound is %.3f\n%s", v.at, v.reached,
				&g.policy.limit, g.key, g.where(), v.bound, b.trace(g.policy, g.key, v.at, 40)))
		}
	}
}

// together is the number of no instance: what was admitted out of the store's units.
const together = -1

// A group is what must keep one bound: what all instances admitted of what the store has, or what
// one of them admitted by itself.
type group struct {
	policy   *policy
	key      string
	inst     int
	counted  int // the fewest instances that this one knew of
	changed  bool
	admitted []admission
}

func (g *group) where() string {
	if g.inst == together {
		return "all instances"
	}
	return fmt.Sprintf("instance %d, of %d", g.inst, g.counted)
}

func (b *book) groups(p *plan) (groups []*group) {
	type name struct {
		policy *policy
		key    string
		inst   int
	}
	known := make(map[name]*group)
	for _, a := range b.admitted {
		if a.key == "wild" {
			continue
		}
		n := name{a.policy, a.key, a.inst}
		switch s := a.policy.settings; {
		case a.source == penstock.FromStore || a.source == penstock.FromLease:
			n.inst = together
		case s.OnFailure == guard.Closed:
			b.problems = append(b.problems, "bound: a closed limit admitted "+a.String())
			continue
		case s.OnFailure == guard.Open && s.Ceiling.Count == 0:
			continue // without bound
		case a.clock%a.policy.limit.Period.Microseconds() == 0:
			continue // the instance's clock may differ by 1 µs: in which window it was is not known
		}
		g := known[n]
		if g == nil {
			g = &group{policy: a.policy, key: a.key, inst: n.inst, counted: a.counted}
			known[n] = g
			groups = append(groups, g)
		}
		g.changed = g.changed || g.counted != a.counted
		g.counted = min(g.counted, a.counted)
		g.admitted = append(g.admitted, a)
	}
	for _, g := range groups {
		slices.SortStableFunc(g.admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
	}
	return groups
}

func (b *book) pardonsOf(g *group) (of []pardon) {
	for _, p := range b.pardons {
		switch {
		case p.inst != g.inst:
		case p.limit != "" && p.limit != g.policy.limit.Name:
		case p.keys != nil && !p.keys(g.key) && g.policy.settings.Shards < 2:
		default:
			of = append(of, p)
		}
	}
	return of
}

// most is how many instances there are at once, at most.
func (p *plan) most() int {
	n := p.instances
	for _, f := range p.faults {
		if f.kind == joins {
			n++
		}
	}
	return n
}

// excess is what leases may admit beyond the algorithm's bound: n·b, of buckets; elsewhere only
// what they hold when the store forgets.
func (p *plan) excess(policy *policy, instances int, forgot bool) int64 {
	l := policy.limit
	size := l.Count
	if l.Algorithm.Is(penstock.TokenBucket) {
		size = l.Burst
		forgot = forgot || !p.exact
	}
	b := min(policy.settings.Lease, size/4/int64(max(p.floor, 1)))
	leased := l.Algorithm.Is(penstock.TokenBucket) || l.Algorithm.Is(penstock.FixedWindow) || l.Algorithm.Is(penstock.SlidingWindow) ||
		l.Algorithm.Is(penstock.SubWindow(1))
	if b < 2 || !leased || !forgot {
		return 0
	}
	return int64(instances) * b
}

// share is the n-th part of a limit, rounded up as guard.Fallback says.
func share(l penstock.Limit, n int) penstock.Limit {
	parts := int64(n)
	up := func(a int64) int64 { return (a + parts - 1) / parts }
	switch {
	case l.Algorithm.Is(penstock.TokenBucket), l.Algorithm.Is(penstock.LeakyBucket):
		l.Burst = up(l.Burst)
		l.Period *= time.Duration(n)
	default:
		l.Count, l.Burst = up(l.Count), up(l.Burst)
	}
	return l
}

// A verdict is how much was admitted at once, in the interval in which that was most, and how much
// may be.
type verdict struct {
	reached, bound float64
	at             time.Duration
}

// worse is the verdict that is nearer to its bound.
func worse(a, b verdict) verdict {
	if b.reached*a.bound > a.reached*b.bound {
		return b
	}
	return a
}

// check holds admissions, in order, against the bound of a limit's algorithm and slack units more.
// It is about all intervals at once: what is pardoned is taken off those that contain the pardon.
func check(l penstock.Limit, admitted []admission, pardons []pardon, slack int64) verdict {
	n, extra := l.Count, float64(slack)
	period := func(a *admission) int64 { return a.clock / l.Period.Microseconds() }
	long := func(d time.Duration) func(first, a *admission) bool {
		d -= 2 * time.Microsecond // the algorithms count in whole ones
		return func(first, a *admission) bool { return a.at-first.at < d }
	}
	switch {
	case l.Algorithm.Is(penstock.TokenBucket):
		return pour(l, float64(l.Burst), admitted, pardons, extra)
	case l.Algorithm.Is(penstock.LeakyBucket):
		return pour(l, 1, admitted, pardons, extra)
	case l.Algorithm.Is(penstock.SlidingWindow) && slices.ContainsFunc(pardons, func(p pardon) bool { return p.step < 0 }):
		return within(admitted, pardons, 2*float64(n)+extra, long(l.Period)) // its windows are not aligned any more
	case l.Algorithm == penstock.FixedWindow, l.Algorithm.Is(penstock.SlidingWindow):
		return within(admitted, pardons, float64(n)+extra, func(first, a *admission) bool { return period(first) == period(a) })
	case l.Algorithm == penstock.AnchoredWindow:
		return worse(within(admitted, pardons, 2*float64(n)+extra, long(l.Period)),
			within(admitted, pardons, 3*float64(n)+extra, long(2*l.Period)))
	default: // a log, or sub-windows
		return within(admitted, pardons, float64(n)+extra, long(l.Period))
	}
}

// pour lets admissions flow through a bucket that leaks at the limit's rate: its level is the most
// that any interval has had beyond the rate.
func pour(l penstock.Limit, burst float64, admitted []admission, pardons []pardon, slack float64) verdict {
	rate := float64(l.Count) / float64(l.Period)
	tolerance := 1e-6 + 3*rate*float64(time.Microsecond)
	v, level, last := verdict{bound: burst + slack + tolerance}, 0.0, time.Duration(0)
	var booked time.Duration // what was charged before this is forgiven
	for i := range admitted {
		a := &admitted[i]
		for len(pardons) > 0 && pardons[0].forgiven() <= a.at {
			p := pardons[0]
			pardons = pardons[1:]
			p.at = p.forgiven()
			level, last = max(0, level-rate*float64(p.at-last)), p.at
			switch {
			case p.step != 0:
				level, booked = max(0, level-rate*float64(max(p.step, 0))), p.at
			case p.units > 0 && (p.until > 0 || !l.Algorithm.Is(penstock.LeakyBucket)): // a queue that goes back begins anew
				level = max(0, level-float64(p.units))
				booked = p.at
			default:
				level, booked = 0, p.at
			}
		}
		if a.charged < booked && a.at > a.charged {
			continue
		}
		level, last = max(0, level-rate*float64(a.at-last))+float64(a.units), a.at
		v = worse(v, verdict{level - allowed(pardons, a.at), v.bound, a.at})
	}
	return v
}

// forgiven is from when on.
func (p *pardon) forgiven() time.Duration { return max(p.at, p.until) }

// allowed is what will be forgiven and may be admitted by now.
func allowed(pardons []pardon, now time.Duration) (units float64) {
	for _, p := range pardons {
		if p.until > 0 && p.at <= now {
			units += float64(p.units)
		}
	}
	return units
}

// within sums up what was admitted from each admission to those that are together with it.
func within(admitted []admission, pardons []pardon, bound float64, together func(first, a *admission) bool) verdict {
	v := verdict{bound: bound}
	sum, first := int64(0), 0
	left := make([]int64, len(admitted))
	for i := range admitted {
		a := &admitted[i]
		for len(pardons) > 0 && pardons[0].forgiven() <= a.at {
			p := pardons[0]
			pardons = pardons[1:]
			units := p.units
			for j := i - 1; j >= first && (units > 0 || p.units == 0); j-- { // the youngest first
				off := left[j]
				if p.units > 0 {
					off = min(off, units)
				}
				left[j], units, sum = left[j]-off, units-off, sum-off
			}
		}
		left[i] = a.units
		sum += a.units
		for first < i && !together(&admitted[first], a) {
			sum -= left[first]
			first++
		}
		v = worse(v, verdict{float64(sum) - allowed(pardons, a.at), bound, a.at})
	}
	return v
}

// checkHolds sums up the holds that last.
func (b *book) checkHolds(g *group, l penstock.Limit, pardons []pardon) verdict {
	released := make(map[string]time.Duration)
	for _, r := range b.released {
		if at, known := released[r.holder]; !known || r.at < at {
			released[r.holder] = r.at
		}
	}
	v := verdict{bound: float64(l.Burst)}
	for i := range g.admitted {
		a, sum := &g.admitted[i], int64(0)
		for j := range i + 1 {
			h := &g.admitted[j]
			ended := h.at+l.Period <= a.at
			if at, known := released[h.holder]; known && at <= a.at {
				ended = true
			}
			for _, p := range pardons {
				ended = ended || h.at <= p.at && p.at <= a.at
			}
			if !ended {
				sum += h.units
			}
		}
		v = worse(v, verdict{float64(sum), v.bound, a.at})
	}
	return v
}
