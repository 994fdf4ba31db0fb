package guard

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/penstock/penstock"
)

// A Bound says how much a limit admits at most in one situation.
type Bound struct {
	// When is the situation: "always", "leased", "split", "denials", "store fails", "store returns",
	// "store forgets" or "clock forward".
	When string

	// Over is how many units more than the limit itself all instances together may admit under one
	// key, in any interval that the situation touches. Unbounded: any number.
	Over int64

	// Text is the same in words.
	Text string
}

// Unbounded as Over says that there is no bound.
const Unbounded = math.MaxInt64

// Bounds are what Standard with these Options promises of a limit, one for each situation that
// there may be. What a limit itself admits is the first: docs/algorithms.md has the formulas. While
// Standard counts more instances than Options.Instances, put in that number.
//
// It is nil for a limit that is not valid.
func (o Options) Bounds(limit penstock.Limit) []Bound {
	plan, err := limit.Plan()
	if err != nil {
		return nil
	}
	b := bounds{plan: plan, n: max(int64(o.Instances), 1)}
	if o.Limits != nil {
		b.settings = o.Limits(&plan.Limit)
	}
	if b.settings.OnFailure == ByDefault {
		b.settings.OnFailure = o.OnFailure
	}
	if b.settings.DenyFor == 0 {
		b.settings.DenyFor = o.DenyFor
	}
	o.Lease.Limits, o.Lease.Instances = o.Limits, func() int { return int(b.n) }
	all := []Bound{{"always", 0, own(plan)}}
	if block := o.Lease.largest(plan); block >= leastBlock {
		all = append(all, b.leased(o.Lease, block))
	}
	if p := makeParts(plan.Limit, b.settings.Shards); p != nil {
		all = append(all, Bound{"split", 0, fmt.Sprintf("no more: each of %d counters has a part; if the limit was larger before, up to %s more until they have drained",
			len(p.limits), units(p.capacity-p.least))})
	}
	if o.DenyFor >= 0 && b.settings.DenyFor >= 0 && !plan.Limit.Algorithm.Holds {
		all = append(all, b.denials())
	}
	all = append(all, b.failing()...)
	capacity := plan.Capacity
	all = append(all,
		Bound{"store forgets", capacity, fmt.Sprintf("%s more each time the store loses data (a restart without persistence, a failover to a replica that lags)",
			units(capacity))})
	if !plan.Limit.Algorithm.Holds {
		all = append(all, Bound{"clock forward", capacity, fmt.Sprintf("%s more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late",
			units(capacity))})
	} else {
		all = append(all, Bound{"clock forward", capacity, "if the store's clock jumps ahead, slots end as much too early; if it is set back, none more, and slots end up to 5s late"})
	}
	return all
}

type bounds struct {
	plan     *penstock.Plan
	settings Settings
	n        int64 // instances
}

// own is what a limit itself admits.
func own(plan *penstock.Plan) string {
	l, a := &plan.Limit, plan.Limit.Algorithm
	_, rate, _ := strings.Cut(l.WithBurst(0).String(), ": ")
	rate, _, _ = strings.Cut(rate, " (")
	switch {
	case a.Is(penstock.TokenBucket):
		return fmt.Sprintf("%d at once, and %s", plan.Capacity, rate)
	case a.Is(penstock.LeakyBucket):
		return fmt.Sprintf("1 at once, and %s, evenly spaced; %d may wait", rate, l.Burst)
	case a.Is(penstock.Concurrency):
		return fmt.Sprintf("%d at a time", plan.Capacity)
	case a.At != nil:
		return fmt.Sprintf("%d in each calendar window, so up to %d around its end", l.Count, 2*l.Count)
	case a.Is(penstock.FixedWindow), a.Is(penstock.AnchoredWindow):
		return fmt.Sprintf("%s in each window, so up to %d around its end", rate, 2*l.Count)
	case a.Is(penstock.SlidingWindow):
		return fmt.Sprintf("%s by estimate, and less than %d in any such time", rate, 2*l.Count)
	case a.Is(penstock.SlidingLog), a.Is(penstock.SubWindow(1)):
		return rate + ", wherever that begins"
	}
	return fmt.Sprintf("%d at once, and what its algorithm %q says", plan.Capacity, a.Name)
}

func (b *bounds) leased(o LeaseOptions, block int64) Bound {
	over := o.Excess(b.plan.Limit)
	text := fmt.Sprintf("no more; each instance may hold up to %s unspent for %v", units(block), cmp.Or(o.Life, leaseLife))
	if over > 0 {
		text = fmt.Sprintf("%s more: a block of %d for each of %s, which may hold it unspent for %v", units(over), block, b.instances(), cmp.Or(o.Life, leaseLife))
	}
	text += fmt.Sprintf("; of traffic below the limit, at least %.0f %% of what the store alone would admit", 100*LeaseUtilization)
	return Bound{"leased", over, text}
}

func (b *bounds) denials() Bound {
	return Bound{"denials", 0, fmt.Sprintf("no more; a refund by another instance is seen within %v", cmp.Or(b.settings.DenyFor, denyFor))}
}

// failing says what holds while the store gives no answer, and when it does again.
func (b *bounds) failing() []Bound {
	const fails, returns = "store fails", "store returns"
	capacity := b.plan.Capacity
	switch b.settings.OnFailure {
	case Open:
		if b.settings.Ceiling == (penstock.Limit{}) {
			return []Bound{{fails, Unbounded, "everything passes, and is not counted"}}
		}
		ceiling, err := b.settings.Ceiling.Plan()
		if err != nil {
			return []Bound{{fails, 0, "nothing passes: the ceiling is not valid"}}
		}
		return []Bound{{fails, Unbounded, fmt.Sprintf("at each instance %s", own(ceiling))}}
	case Closed:
		return []Bound{{fails, 0, "nothing passes"}}
	}
	if b.plan.Limit.Algorithm.Holds {
		shares := b.shares() - capacity
		return []Bound{
			{fails, shares + b.uneven(), fmt.Sprintf("%s more: %s with a share each, rounded up, besides the slots lent before", units(shares+b.uneven()), b.instances())},
			{returns, capacity, fmt.Sprintf("%s more, until the slots lent during the outage are renewed or released", units(capacity))},
		}
	}
	over, text := b.sharing()
	return []Bound{
		{fails, over, text},
		{returns, b.returning(), fmt.Sprintf("%s more around the end: what passed in the outage is not charged later, and the last instance notices the end a second later",
			units(b.returning()))},
	}
}

// sharing is what the instances admit by their shares.
func (b *bounds) sharing() (over int64, text string) {
	text = "no more, with one instance"
	if b.n > 1 {
		rounding := b.shares() - b.plan.Capacity
		over = rounding + b.uneven()
		text = fmt.Sprintf("%s with a share each: %s more by rounding, and up to %d at the beginning if one of them had used the whole limit",
			b.instances(), units(rounding), b.uneven())
	}
	if a := b.plan.Limit.Algorithm; a.Is(penstock.FixedWindow) || a.Is(penstock.SlidingWindow) {
		over += b.plan.Capacity
		text += fmt.Sprintf("; and up to %d if their clocks and the store's differ, since windows begin by the clock", b.plan.Capacity)
	}
	return over, text
}

// returning is what the shares admit before all instances have found the store again, within a
// second.
func (b *bounds) returning() int64 {
	l := &b.plan.Limit
	second := float64(l.Count) / l.Period.Seconds() * float64(b.n-1) / float64(b.n)
	return b.shares() + int64(math.Ceil(min(second, penstock.MaxCost)))
}

// shares is the capacity of all shares together.
func (b *bounds) shares() int64 {
	share := makeShare(b.plan.Limit, int(b.n))
	if !share.ok {
		return 0 // which is closed
	}
	plan, err := share.limit.Plan()
	if err != nil {
		return 0
	}
	return plan.Capacity * b.n
}

// uneven is what the others may have left of their shares when one instance has used all of the
// limit.
func (b *bounds) uneven() int64 { return b.plan.Capacity - ceil(b.plan.Capacity, b.n) }

func (b *bounds) instances() string {
	if b.n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", b.n)
}

func units(n int64) string {
	if n == 1 {
		return "1 unit"
	}
	return fmt.Sprintf("%d units", n)
}
