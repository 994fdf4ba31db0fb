package lease

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A leasedKey is the state of a key in a group.
type leasedKey struct {
	name keyName
	next atomic.Pointer[leasedKey] // in its keyCell

	mu            sync.Mutex
	isGone        bool // removed from the keyTable
	pools         []*pool
	first         [1]*pool // saves an allocation for a single pool
	counts        counts
	callerRefunds int           // Refunds and Resets by callers; while there are any, nothing is drawn
	leaseRefunds  int           // refunds of leased units that are in flight
	refundsEnded  chan struct{} // closed when leaseRefunds is 0; nil if no caller waits
}

// maxPools is the largest number of combinations of limits that are leased under one key.
const maxPools = 4

// counts are the fields of Stats with the same names, for one key or for several.
type counts struct{ draws, drawn, spent, returned, expired, lost int64 }

func (c *counts) add(other *counts) {
	c.draws += other.draws
	c.drawn += other.drawn
	c.spent += other.spent
	c.returned += other.returned
	c.expired += other.expired
	c.lost += other.lost
}

// A pool is what was drawn for one combination of limits, and the demand for it.
type pool struct {
	limits    []pooledLimit
	single    [1]pooledLimit // saves an allocation for a single limit
	blocks    [2]block       // the older first
	draw      *draw          // the draw in flight, or nil
	returning int64          // units of refunds in flight; they count as held
	timer     Timer          // calls returnDue

	// Demand, in units per half of the leases' lifetime.
	demand        float64
	isMeasured    bool          // demand is known
	requested     int64         // units of the present measurement
	measuredSince time.Duration // the beginning of the present measurement

	blockSize       int64         // of the last block that was worth drawing
	roundTrip       time.Duration // how long the store takes to answer: about the slowest of the last answers
	lastUsed        time.Duration // when the last request came
	bypassUntil     time.Duration // nothing is drawn before this time
	noPrefetchUntil time.Duration // nothing is drawn in advance before this time
}

type pooledLimit struct {
	plan  *penstock.Plan
	decay algorithm.Decay

	// counters is how many counters the store splits the limit into. A draw takes units from one of
	// them, which refills at an equal part of the limit's rate.
	counters int

	remaining int64         // units that remain in the store by its last answer
	emptyAt   time.Duration // when nothing is used in the store any more
	width     time.Duration // the length of a window, or of one sub-window; 0 for a bucket
	windowEnd time.Duration // by the store's last answer; 0: not known yet
}

// A block has the units of one draw that are not spent yet.
type block struct {
	left        int64
	sentAt      time.Duration // when its draw was sent, or a little earlier
	expires     time.Duration
	refundTime  time.Duration   // how long a refund of its units may be in flight
	forgottenAt []time.Duration // per limit: when the store has forgotten the units, because a bucket has drained or a window is over
}

// trackKey adds a key, unless there are too many. To make room, it also examines a few other keys
// and removes the idle ones.
func (l *Store) trackKey(hash uint64, name keyName) *leasedKey {
	now := l.now()
	l.keys.mu.Lock()
	defer l.keys.mu.Unlock()
	if k := l.keys.find(hash, name); k != nil {
		return k
	}
	l.keys.removeIfLocked(func(k *leasedKey) bool { return k.markGoneIfIdle(l, now) })
	if l.keys.count.Load() >= int64(l.options.MaxKeys) {
		return nil
	}
	k := &leasedKey{name: keyName{strings.Clone(name.key), strings.Clone(name.group)}}
	l.keys.addLocked(hash, k)
	return k
}

// markGoneIfIdle reports whether a key is idle. If so, it marks the key as gone.
func (k *leasedKey) markGoneIfIdle(l *Store, now time.Duration) bool {
	if !k.mu.TryLock() {
		return false
	}
	defer k.mu.Unlock()
	if k.callerRefunds > 0 || k.leaseRefunds > 0 {
		return false
	}
	for _, p := range k.pools {
		if !p.isIdle(now, 2*l.life) {
			return false
		}
	}
	k.isGone = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removedCounts.add(&k.counts)
	l.removedKeys++
	return true
}

func (k *leasedKey) liveUnitsLocked() (units int64) {
	for _, p := range k.pools {
		units += p.held()
	}
	return units
}

// poolLocked returns the pool of a combination of limits, or nil if they are not leased.
func (k *leasedKey) poolLocked(l *Store, charges []penstock.Charge, plans []*penstock.Plan, now time.Duration) *pool {
	if k.isGone {
		return nil
	}
	for _, p := range k.pools {
		if p.hasPlans(plans) {
			return p
		}
	}
	if l.largestBlock(plans) < MinBlock {
		return nil
	}
	if len(k.pools) == maxPools {
		k.pools = slices.DeleteFunc(k.pools, func(p *pool) bool { return p.isIdle(now, 2*l.life) })
		if len(k.pools) == maxPools {
			return nil
		}
	}
	p := &pool{measuredSince: now, lastUsed: now}
	p.limits = p.single[:0]
	for _, plan := range plans {
		p.limits = append(p.limits, pooledLimit{
			plan: plan, decay: plan.Algorithm().Decay(), counters: max(l.options.Counters(plan), 1), width: plan.Window(),
		})
	}
	if k.pools == nil {
		k.pools = k.first[:0]
	}
	k.pools = append(k.pools, p)
	return p
}

// isSharedLocked reports whether another pool holds units of one of p's limits.
func (k *leasedKey) isSharedLocked(p *pool) bool {
	for _, other := range k.pools {
		if other == p || other.held() == 0 && other.draw == nil {
			continue
		}
		for i := range p.limits {
			for j := range other.limits {
				if p.limits[i].plan.ID() == other.limits[j].plan.ID() {
					return true
				}
			}
		}
	}
	return false
}

func (p *pool) hasPlans(plans []*penstock.Plan) bool {
	if len(plans) != len(p.limits) {
		return false
	}
	for i, plan := range plans {
		if own := p.limits[i].plan; own != plan && (own.ID() != plan.ID() || !own.Equal(plan)) {
			return false
		}
	}
	return true
}

// isIdle reports whether nothing is held or in flight, and no request came for the time idleFor.
func (p *pool) isIdle(now, idleFor time.Duration) bool {
	return p.held() == 0 && p.draw == nil && now-p.lastUsed >= idleFor
}

// left returns the units that are not spent, expired ones included.
func (p *pool) left() int64 { return p.blocks[0].left + p.blocks[1].left }

// held returns the units that may still be spent or returned to the store.
func (p *pool) held() int64 { return p.left() + p.returning }

// measureDemand adds a request to the demand. The demand is computed every quarter of the leases'
// lifetime. It is the average of the new and the previous demand, unless the previous one is older
// than that lifetime.
func (p *pool) measureDemand(life, now time.Duration, cost int64) {
	if elapsed := now - p.measuredSince; elapsed >= life/4 {
		demand := float64(p.requested) * float64(life/2) / float64(elapsed)
		if p.isMeasured && elapsed < life {
			demand = (demand + p.demand) / 2
		}
		p.demand, p.isMeasured, p.requested, p.measuredSince = demand, true, 0, now
	}
	p.requested += cost
	p.lastUsed = now
}

// updateRemaining records the store's answer to a call that was sent at the given time.
func (p *pool) updateRemaining(d *penstock.Decision, sent, now time.Duration) {
	p.updateRoundTrip(now - sent)
	for i := range p.limits {
		p.limits[i].updateRemaining(d.Status(i), sent)
	}
}

func (limit *pooledLimit) updateRemaining(s penstock.Status, sent time.Duration) {
	limit.remaining = s.Remaining
	if s.ResetAfter > 0 {
		limit.emptyAt, limit.windowEnd = sent+s.ResetAfter, sent+limit.chargeEnd(s)
	}
}

// updateRoundTrip records how long an answer took. A time that is longer than roundTrip replaces
// it. After each shorter time, roundTrip falls by a quarter of the difference.
func (p *pool) updateRoundTrip(last time.Duration) { p.roundTrip = max(last, (3*p.roundTrip+last)/4) }

// windowLeft returns the time until the first of the limits' present windows ends, but at most the
// time longest. Windows are assumed to follow one another without gaps.
func (p *pool) windowLeft(longest, now time.Duration) time.Duration {
	for i := range p.limits {
		limit := &p.limits[i]
		if limit.width == 0 || limit.windowEnd == 0 {
			continue
		}
		rest := limit.windowEnd - now
		if rest <= 0 {
			rest = limit.width - (-rest)%limit.width
		}
		longest = min(longest, rest)
	}
	return longest
}

// spendableFor returns how long units that are drawn now may be spent after they arrive. Their time
// ends with the lease's lifetime, or with a window if that ends earlier.
func (p *pool) spendableFor(life, now time.Duration) time.Duration {
	return max(p.windowLeft(life, now)-2*p.roundTrip, 0) // the next answer may take longer
}

// isNearlyEmpty reports whether the store will have too little left for a draw when the draw
// arrives.
func (p *pool) isNearlyEmpty() bool {
	for i := range p.limits {
		limit := &p.limits[i]
		remaining := limit.remaining
		if limit.decay == algorithm.DecayContinuous {
			remaining += limit.drainedUnits(p.roundTrip)
		}
		if remaining < minDraw {
			return true
		}
	}
	return false
}

// hasLessThan reports whether the store had less than the cost left in its last answer.
func (p *pool) hasLessThan(cost int64) bool {
	for i := range p.limits {
		if p.limits[i].remaining < cost {
			return true
		}
	}
	return false
}

// trySpendLocked spends the whole cost, or nothing.
func (k *leasedKey) trySpendLocked(p *pool, now time.Duration, cost int64) bool {
	if k.spendableLocked(p, now) < cost {
		return false
	}
	k.spendLocked(p, now, cost)
	return true
}

func (k *leasedKey) spendableLocked(p *pool, now time.Duration) int64 {
	return p.blocks[0].spendable(now) + p.blocks[1].spendable(now)
}

// spendLocked spends units from the older block first. The units must be spendable.
func (k *leasedKey) spendLocked(p *pool, now time.Duration, units int64) {
	first := min(p.blocks[0].spendable(now), units)
	p.blocks[0].left -= first
	p.blocks[1].left -= units - first
	k.counts.spent += units
}

func (b *block) spendable(now time.Duration) int64 {
	if now >= b.expires {
		return 0
	}
	return b.left
}

func (p *pool) makeDecision(now time.Duration, cost int64) (d penstock.Decision) {
	left := p.left()
	if len(p.limits) == 1 {
		d = penstock.Single(p.limits[0].status(now, cost, left))
	} else {
		statuses := make([]penstock.Status, len(p.limits))
		for i := range p.limits {
			statuses[i] = p.limits[i].status(now, cost, left)
		}
		d = penstock.NewDecision(statuses)
	}
	d.Source = penstock.FromLease
	return d
}

func (limit *pooledLimit) status(now time.Duration, cost, left int64) penstock.Status {
	reset := max(limit.emptyAt-now, 0)
	return penstock.Status{Granted: cost, Remaining: left + limit.remaining, ResetAfter: reset - reset%time.Microsecond}
}

// drainedUnits returns how many units drain in the given time, rounded down.
func (limit *pooledLimit) drainedUnits(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	units := float64(d) / limit.drainTime(1) * (1 - 1e-12) // slightly less, because doubles are not exact
	return int64(min(units, penstock.MaxCost))
}

// drainTime returns how long the given units take to drain, in ns.
func (limit *pooledLimit) drainTime(units int64) float64 {
	return float64(units) / float64(limit.plan.Limit().Count) * float64(limit.plan.Limit().Period) * float64(limit.counters)
}

// chargeEnd returns when what the store has just charged stops counting, as the time since the call
// was sent. For a bucket, that is when the last unit has drained.
func (limit *pooledLimit) chargeEnd(s penstock.Status) time.Duration {
	if limit.decay == algorithm.DecayAfterPeriod {
		return s.ResetAfter - limit.plan.Limit().Period - algorithm.MaxParts*time.Microsecond // parts are rounded up to whole µs
	}
	return s.ResetAfter
}

// returnable returns how many of the units that are left still count in the store at the time
// refundedAt. forgottenAt is the time at which the store has forgotten all of them.
func (limit *pooledLimit) returnable(left int64, forgottenAt, refundedAt time.Duration) int64 {
	switch {
	case limit.decay != algorithm.DecayContinuous && refundedAt < forgottenAt:
		return left
	case limit.decay == algorithm.DecayContinuous:
		return min(left, limit.drainedUnits(forgottenAt-refundedAt))
	}
	return 0
}
