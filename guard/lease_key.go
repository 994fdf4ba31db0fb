package guard

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A leasedKey is what is known here of a key in a group.
type leasedKey struct {
	name leaseName

	mu       sync.Mutex
	gone     bool // swept: no longer in its shard
	pools    []*leasePool
	first    [1]*leasePool // saves an allocation for a single pool
	counts   leaseCounts
	unmaking int           // Refunds and Resets under way: nothing is drawn
	back     int           // refunds under way
	settled  chan struct{} // closed when there are none any more; nil if nobody waits
}

// maxPools is how many combinations of limits are told apart under one key.
const maxPools = 4

type leaseCounts struct{ draws, drawn, spent, returned, expired, lost int64 }

func (c *leaseCounts) add(other *leaseCounts) {
	c.draws += other.draws
	c.drawn += other.drawn
	c.spent += other.spent
	c.returned += other.returned
	c.expired += other.expired
	c.lost += other.lost
}

// A leasePool is what was drawn for one combination of limits, and the demand for it.
type leasePool struct {
	parts  []leasePart
	one    [1]leasePart  // saves an allocation for a single limit
	blocks [2]leaseBlock // the older first
	flight *flight       // the draw under way
	coming int64         // units on their way back: they count as held
	timer  *time.Timer

	// Demand, in units per half a Life.
	demand float64
	known  bool
	asked  int64         // since
	since  time.Duration // the demand is measured anew

	block  int64         // the last that was worth drawing
	trip   time.Duration // how long the store takes to answer: about the slowest of the last answers
	used   time.Duration // when somebody last asked
	direct time.Duration // until then nothing is drawn
	quiet  time.Duration // until then nothing is drawn in advance
}

// A leasePart is one of a pool's limits.
type leasePart struct {
	plan  *penstock.Plan
	limit penstock.Limit // ready
	kind  forgets
	parts int           // counters that the limit is split in: what was drawn drains from one, by its part of the rate
	left  int64         // in the store, when it last said so
	reset time.Duration // when nothing is used there any more
	width time.Duration // of a window, or of a SubWindow's part; 0 of a bucket
	edge  time.Duration // when one of them ends, as the store last said; 0: it has not said yet
}

// A leaseBlock is what one draw has brought and is not spent yet.
type leaseBlock struct {
	left    int64
	sent    time.Duration // before it was asked for
	expires time.Duration
	travel  time.Duration   // how long a refund of it may be on its way
	resets  []time.Duration // per limit: when the store has forgotten it: a bucket has drained, a window is over
}

// forgets says how an algorithm forgets what was charged.
type forgets uint8

const (
	never   forgets = iota // in a way that leases do not know: it is not leased
	drains                 // unit by unit, in the order of the charges
	atReset                // all at once, when the window ends
	after                  // the running window, or part, ends a Period before the reset
)

func forgetting(a *algorithm.Algorithm) forgets {
	switch {
	case a.Is(penstock.TokenBucket):
		return drains
	case a.Is(penstock.FixedWindow):
		return atReset
	case a.Is(penstock.SlidingWindow), a.Is(subWindow):
		return after
	}
	return never
}

var subWindow = penstock.SubWindow(1)

// widthOf is how long a window lasts, or a SubWindow's part: what was drawn in it must be spent in
// it. It is 0 for a bucket.
func widthOf(plan *penstock.Plan) time.Duration {
	switch forgetting(plan.Limit.Algorithm) {
	case atReset:
		return plan.Limit.Period
	case after:
		return time.Duration(plan.Params(0)[1]) * time.Microsecond
	}
	return 0
}

// track begins to watch a key, unless there are too many. It sweeps a little, so that keys that are
// idle make room.
func (l *Lease) track(s *leaseShard, name leaseName) *leasedKey {
	now := l.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[name]; k != nil {
		return k
	}
	looked := 0
	for other, k := range s.keys {
		if k.sweep(l, now) {
			delete(s.keys, other)
			l.keys.Add(-1)
		}
		if looked++; looked == 4 {
			break
		}
	}
	if l.keys.Add(1) > int64(l.options.MaxKeys) {
		l.keys.Add(-1)
		return nil
	}
	name.key, name.group = strings.Clone(name.key), strings.Clone(name.group)
	k := &leasedKey{name: name}
	s.keys[name] = k
	return k
}

// sweep gives a key up if it is idle.
func (k *leasedKey) sweep(l *Lease, now time.Duration) bool {
	if !k.mu.TryLock() {
		return false
	}
	defer k.mu.Unlock()
	if k.unmaking > 0 || k.back > 0 {
		return false
	}
	for _, p := range k.pools {
		if !p.idle(now, 2*l.life) {
			return false
		}
	}
	k.gone = true
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone.add(&k.counts)
	l.swept++
	return true
}

func (k *leasedKey) liveLocked() (units int64) {
	for _, p := range k.pools {
		units += p.held()
	}
	return units
}

// poolLocked is the pool of a combination of limits. It is nil if they are not to be leased.
func (k *leasedKey) poolLocked(l *Lease, charges []penstock.Charge, plans []*penstock.Plan, now time.Duration) *leasePool {
	if k.gone {
		return nil
	}
	for _, p := range k.pools {
		if p.isOf(plans) {
			return p
		}
	}
	if !l.worthwhile(plans) {
		return nil
	}
	if len(k.pools) == maxPools {
		k.pools = slices.DeleteFunc(k.pools, func(p *leasePool) bool { return p.idle(now, 2*l.life) })
		if len(k.pools) == maxPools {
			return nil
		}
	}
	p := &leasePool{since: now, used: now}
	p.parts = p.one[:0]
	for i, plan := range plans {
		limit, err := charges[i].Limit.Ready()
		if err != nil {
			return nil
		}
		p.parts = append(p.parts, leasePart{
			plan: plan, limit: limit, kind: forgetting(limit.Algorithm), parts: max(l.options.Limits(&limit).Shards, 1), width: widthOf(plan),
		})
	}
	if k.pools == nil {
		k.pools = k.first[:0]
	}
	k.pools = append(k.pools, p)
	return p
}

// sharedLocked tells whether another pool holds units of one of p's limits.
func (k *leasedKey) sharedLocked(p *leasePool) bool {
	for _, other := range k.pools {
		if other == p || other.held() == 0 && other.flight == nil {
			continue
		}
		for i := range p.parts {
			for j := range other.parts {
				if p.parts[i].plan.ID == other.parts[j].plan.ID {
					return true
				}
			}
		}
	}
	return false
}

func (p *leasePool) isOf(plans []*penstock.Plan) bool {
	if len(plans) != len(p.parts) {
		return false
	}
	for i, plan := range plans {
		if mine := p.parts[i].plan; mine != plan && mine.Limit != plan.Limit {
			return false
		}
	}
	return true
}

// idle tells whether nothing is held or under way, and nobody has asked for so long.
func (p *leasePool) idle(now, long time.Duration) bool {
	return p.held() == 0 && p.flight == nil && now-p.used >= long
}

// left is what has not been spent, whether or not it may still be.
func (p *leasePool) left() int64 { return p.blocks[0].left + p.blocks[1].left }

// held is what the store may get back, or see spent, at any time.
func (p *leasePool) held() int64 { return p.left() + p.coming }

// note measures the demand: every quarter of a Life anew, and blended with what it was unless that
// is long ago.
func (p *leasePool) note(life, now time.Duration, cost int64) {
	if elapsed := now - p.since; elapsed >= life/4 {
		demand := float64(p.asked) * float64(life/2) / float64(elapsed)
		if p.known && elapsed < life {
			demand = (demand + p.demand) / 2
		}
		p.demand, p.known, p.asked, p.since = demand, true, 0, now
	}
	p.asked += cost
	p.used = now
}

// hear notes what the store has answered, and when it was asked.
func (p *leasePool) hear(d *penstock.Decision, sent, now time.Duration) {
	p.took(now - sent)
	for i := range p.parts {
		p.parts[i].hear(d.Status(i), sent)
	}
}

func (part *leasePart) hear(s penstock.Status, sent time.Duration) {
	part.left = s.Remaining
	if s.ResetAfter > 0 {
		part.reset, part.edge = sent+s.ResetAfter, sent+part.end(s)
	}
}

// took notes how long an answer was on its way.
func (p *leasePool) took(trip time.Duration) { p.trip = max(trip, (3*p.trip+trip)/4) }

// rest is for how long the present windows of all limits still last, at most. It assumes that
// windows follow one another without gaps.
func (p *leasePool) rest(most, now time.Duration) time.Duration {
	for i := range p.parts {
		part := &p.parts[i]
		if part.width == 0 || part.edge == 0 {
			continue
		}
		rest := part.edge - now
		if rest <= 0 {
			rest = part.width - (-rest)%part.width
		}
		most = min(most, rest)
	}
	return most
}

// lasts is for how long units that are drawn now may be spent after they have arrived: for a Life,
// or until a window ends.
func (p *leasePool) lasts(life, now time.Duration) time.Duration {
	return max(p.rest(life, now)-2*p.trip, 0) // the next answer may take longer
}

// scarce tells whether the store has too little left for a draw, and will have when it is asked.
func (p *leasePool) scarce() bool {
	for i := range p.parts {
		part := &p.parts[i]
		left := part.left
		if part.kind == drains {
			left += part.flow(p.trip)
		}
		if left < worthDraw {
			return true
		}
	}
	return false
}

// short tells whether the store had less than the cost left when it last said so.
func (p *leasePool) short(cost int64) bool {
	for i := range p.parts {
		if p.parts[i].left < cost {
			return true
		}
	}
	return false
}

// takeLocked spends the cost or nothing.
func (k *leasedKey) takeLocked(p *leasePool, now time.Duration, cost int64, exact bool) bool {
	if k.spendableLocked(p, now, exact) < cost {
		return false
	}
	k.spendLocked(p, now, cost)
	return true
}

// spendableLocked is how much may be spent now.
func (k *leasedKey) spendableLocked(p *leasePool, now time.Duration, exact bool) int64 {
	if exact {
		k.counts.expired += p.drain(now)
	}
	return p.blocks[0].spendable(now) + p.blocks[1].spendable(now)
}

// spendLocked spends units that may be spent, from the older block first.
func (k *leasedKey) spendLocked(p *leasePool, now time.Duration, units int64) {
	first := min(p.blocks[0].spendable(now), units)
	p.blocks[0].left -= first
	p.blocks[1].left -= units - first
	k.counts.spent += units
}

// spendable is how much of a block may be spent now.
func (b *leaseBlock) spendable(now time.Duration) int64 {
	if now >= b.expires {
		return 0
	}
	return b.left
}

// drain takes off the blocks what has drained in the store, and tells how much. The first units
// drain first, so the last are left.
func (p *leasePool) drain(now time.Duration) (gone int64) {
	for j := range p.blocks {
		b := &p.blocks[j]
		if b.left == 0 {
			continue
		}
		for i := range p.parts {
			if part := &p.parts[i]; part.kind == drains {
				left := min(b.left, part.flow(b.resets[i]-now-time.Microsecond)) // the reset was rounded up
				gone += b.left - left
				b.left = left
			}
		}
	}
	return gone
}

// answer is the decision on a batch that was answered here.
func (p *leasePool) answer(now time.Duration, cost int64) (d penstock.Decision) {
	left := p.left()
	if len(p.parts) == 1 {
		d = penstock.Single(p.parts[0].status(now, cost, left))
	} else {
		statuses := make([]penstock.Status, len(p.parts))
		for i := range p.parts {
			statuses[i] = p.parts[i].status(now, cost, left)
		}
		d = penstock.NewDecision(statuses)
	}
	d.Source = penstock.FromLease
	return d
}

func (part *leasePart) status(now time.Duration, cost, left int64) penstock.Status {
	reset := max(part.reset-now, 0)
	return penstock.Status{Granted: cost, Remaining: left + part.left, ResetAfter: reset - reset%time.Microsecond}
}

// flow is how many units drain in so long, rounded down.
func (part *leasePart) flow(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	units := float64(d) / part.drain(1) * (1 - 1e-12)
	return int64(min(units, penstock.MaxCost))
}

// drain is how long so many units take to drain, in ns.
func (part *leasePart) drain(units int64) float64 {
	return float64(units) / float64(part.limit.Count) * float64(part.limit.Period) * float64(part.parts)
}

// end is when the store forgets what it has just charged, after the question was sent; of a bucket,
// the last of it.
func (part *leasePart) end(s penstock.Status) time.Duration {
	if part.kind == after {
		return s.ResetAfter - part.limit.Period - algorithm.MaxParts*time.Microsecond // parts are rounded up to whole µs
	}
	return s.ResetAfter
}

// returnable is how many of the units that are left count in the store for so long.
func (part *leasePart) returnable(left int64, reset, until time.Duration, exact bool) int64 {
	switch {
	case part.kind != drains && until < reset:
		return left
	case part.kind == drains && !exact:
		return min(left, part.flow(reset-until))
	}
	return 0
}
