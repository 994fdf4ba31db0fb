package guard

import (
	"cmp"
	"fmt"
	"math"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/guard/internal/split"
	"github.com/penstock/penstock/internal/lease"
)

// A Bound is the most that a limit admits in one situation.
type Bound struct {
	// When is the situation: "always", "leased", "split", "denials", "store fails", "store returns",
	// "store forgets" or "clock forward".
	When string

	// MaxExcess is how many units beyond the limit all instances together may admit under one key, in
	// any interval that the situation touches. math.MaxInt64: any number.
	MaxExcess int64

	// Text is the bound in words.
	Text string
}

// Bounds returns what Standard with these Options guarantees for a limit, one Bound for each
// situation that can occur. The first is what the limit itself admits: docs/algorithms.md has the
// formulas. Options.Instances must be the number of instances, even if Standard would count them.
func (o Options) Bounds(plan *penstock.Plan) []Bound {
	b := bounds{plan: plan, instances: max(int64(o.Instances), 1)}
	if o.Limits != nil {
		b.settings = o.Limits(plan)
	}
	if b.settings.OnFailure == FailDefault {
		b.settings.OnFailure = o.OnFailure
	}
	b.settings.DenyCacheTTL = cmp.Or(b.settings.DenyCacheTTL, o.DenyCacheTTL)
	leases := o.Lease.engine(o.Limits, func() int { return int(b.instances) })
	all := []Bound{{"always", 0, plan.Bound()}}
	if block := leases.LargestBlock(plan); block >= lease.MinBlock {
		all = append(all, b.leaseBound(leases, block))
	}
	if p := split.PartsOf(plan.Limit(), b.settings.SplitInto); p != nil {
		all = append(all, Bound{"split", 0, fmt.Sprintf("no more: each of %d counters has a part; if the limit was larger before, up to %s more until they have drained",
			p.Len(), units(plan.Capacity()-p.MinUnits))})
	}
	if o.DenyCacheTTL >= 0 && b.settings.DenyCacheTTL >= 0 && !plan.Algorithm().NeedsHolder() && !plan.CountsDenied() {
		all = append(all, b.denyCacheBound())
	}
	all = append(all, b.outageBounds()...)
	capacity := plan.Capacity()
	all = append(all,
		Bound{"store forgets", capacity, fmt.Sprintf("%s more each time the store loses data (a restart without persistence, a failover to a replica that lags)",
			units(capacity))})
	return append(all, b.clockForwardBound())
}

// noMoreOfOneInstance is the text of a bound if one instance admits nothing beyond the limit, but
// several instances may.
const noMoreOfOneInstance = "no more, with one instance"

type bounds struct {
	plan      *penstock.Plan
	settings  Settings
	instances int64 // the number of instances that share the limit
}

func (b *bounds) leaseBound(o lease.Options, block int64) Bound {
	over := o.Excess(b.plan)
	text := fmt.Sprintf("no more; each instance may hold up to %s unspent for %v", units(block), cmp.Or(o.Life, lease.DefaultLife))
	if over > 0 {
		held := ", which may be held unspent"
		if b.instances > 1 {
			held = fmt.Sprintf(" for each of %d instances, which may hold it unspent", b.instances)
		}
		text = fmt.Sprintf("%s more: a block of %d%s for %v", units(over), block, held, cmp.Or(o.Life, lease.DefaultLife))
	}
	text += fmt.Sprintf("; while traffic is below the limit, leases admit at least %.0f %% of what the store alone would admit", 100*LeaseUtilization)
	return Bound{"leased", over, text}
}

func (b *bounds) denyCacheBound() Bound {
	if b.instances == 1 {
		return Bound{"denials", 0, noMoreOfOneInstance}
	}
	return Bound{"denials", 0, fmt.Sprintf("no more; a refund by another instance is seen within %v", cmp.Or(b.settings.DenyCacheTTL, denyCacheTTL))}
}

// clockForwardBound returns the bound around a jump of the store's clock. The limit may admit its
// whole capacity right before the jump, and again right after it. Fixed windows may do so for one
// more window on each side.
func (b *bounds) clockForwardBound() Bound {
	const when = "clock forward"
	a, over := b.plan.Algorithm(), b.plan.Capacity()
	if a.NeedsHolder() {
		return Bound{when, over, "if the store's clock jumps ahead, slots end too early by the length of the jump; if it is set back, no more slots are lent, and slots end up to 5s late"}
	}
	if a.Decay() == algorithm.DecayAtReset {
		over *= 2
	}
	return Bound{when, over, fmt.Sprintf("%s more at most each time the store's clock jumps ahead; if it is set back, none, and units return up to 5s late", units(over))}
}

func (b *bounds) outageBounds() []Bound {
	const fails, returns = "store fails", "store returns"
	capacity := b.plan.Capacity()
	switch b.settings.OnFailure {
	case FailOpen:
		if b.settings.Ceiling == (penstock.Limit{}) {
			return []Bound{{fails, math.MaxInt64, "everything passes, and is not counted"}}
		}
		ceiling, err := b.settings.Ceiling.Compile()
		if err != nil {
			return []Bound{{fails, 0, "nothing passes: the ceiling is not valid"}}
		}
		return []Bound{{fails, math.MaxInt64, fmt.Sprintf("at each instance %s", ceiling.Bound())}}
	case FailClosed:
		return []Bound{{fails, 0, "nothing passes"}}
	}
	if b.plan.Algorithm().NeedsHolder() {
		over := b.capacityOfShares() - capacity + b.excessIfOneUsedAll()
		text := noMoreOfOneInstance
		if b.instances > 1 {
			text = fmt.Sprintf("%s more: %d instances with a share each, rounded up, besides the slots lent before", units(over), b.instances)
		}
		return []Bound{
			{fails, over, text},
			{returns, capacity, fmt.Sprintf("%s more, until the slots lent during the outage are renewed or released", units(capacity))},
		}
	}
	over, text := b.excessOfShares()
	late := ""
	if b.instances > 1 {
		late = ", and the last instance notices the end a second later"
	}
	return []Bound{
		{fails, over, text},
		{returns, b.excessAtReturn(), fmt.Sprintf("%s more around the end: what passed in the outage is not charged later%s", units(b.excessAtReturn()), late)},
	}
}

// excessOfShares returns how many units the shares of all instances admit beyond the limit, as a
// number and as the text of a Bound.
func (b *bounds) excessOfShares() (over int64, text string) {
	text, clocks := noMoreOfOneInstance, "its clock"
	if b.instances > 1 {
		clocks = "their clocks"
		rounding := b.capacityOfShares() - b.plan.Capacity()
		over = rounding + b.excessIfOneUsedAll()
		text = fmt.Sprintf("%d instances with a share each: %s more by rounding, and up to %d at the beginning if one of them had used the whole limit",
			b.instances, units(rounding), b.excessIfOneUsedAll())
	}
	if b.plan.Algorithm().WindowsDiffer() {
		over += b.plan.Capacity()
		text += fmt.Sprintf("; and up to %d if %s and the store's differ, since windows begin by the clock", b.plan.Capacity(), clocks)
	}
	return over, text
}

// excessAtReturn returns how many units the shares admit after the store is back, until all
// instances use it again: within a second.
func (b *bounds) excessAtReturn() int64 {
	l := b.plan.Limit()
	refill := float64(l.Count) / l.Period.Seconds() * float64(b.instances-1) / float64(b.instances) // of the shares of n-1 instances in a second
	return b.capacityOfShares() + int64(math.Ceil(min(refill, penstock.MaxCost)))
}

func (b *bounds) capacityOfShares() int64 {
	share := makeShare(b.plan.Limit(), int(b.instances))
	if share == nil {
		return 0 // such a limit is denied
	}
	return share.Capacity() * b.instances
}

// excessIfOneUsedAll returns how many units the shares of the others admit if one instance has
// used the whole limit.
func (b *bounds) excessIfOneUsedAll() int64 {
	return b.plan.Capacity() - ceil(b.plan.Capacity(), b.instances)
}

func units(n int64) string {
	if n == 1 {
		return "1 unit"
	}
	return fmt.Sprintf("%d units", n)
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
