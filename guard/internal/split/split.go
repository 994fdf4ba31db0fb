// Package split keeps one limit in several counters, so that several servers share its work.
package split

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/cache"
)

// New returns a store that splits limits. shardsOf returns how many counters a limit has. 0 and 1
// mean one.
func New(next penstock.Store, shardsOf func(*penstock.Plan) int) penstock.Store {
	s := &store{shardsOf: shardsOf, next: batches.Of(next), parts: cache.Cache[division, *Parts]{Max: 4096}}
	s.pool.New = func() any { return new(splitBatch) }
	s.several = batches.Alone(s.isSplit, s.decide, s.next)
	return batches.Func(s.decide)
}

const maxParts = 32 // of a limit

type store struct {
	shardsOf func(*penstock.Plan) int
	next     batches.Func
	several  batches.Func // decides lists of several batches
	parts    cache.Cache[division, *Parts]
	pool     sync.Pool // of *splitBatch
}

func (s *store) isSplit(b *batches.Batch) bool {
	_, parts := s.firstSplit(b.Charges)
	return parts != nil
}

func (s *store) decide(ctx context.Context, list []*batches.Batch) {
	if len(list) > 1 {
		s.several(ctx, list)
		return
	}
	b := list[0]
	first, parts := s.firstSplit(b.Charges)
	if parts == nil {
		s.next(ctx, list)
		return
	}
	if b.Err = penstock.Check(b.Charges); b.Err != nil {
		return
	}
	split := s.pool.Get().(*splitBatch)
	split.begin(s, b.Charges, first, parts)
	b.Decision, b.Err = split.decide(ctx)
	split.end()
	s.pool.Put(split)
}

// firstSplit returns the index and the parts of the first charge whose limit is split. The parts
// are nil if there is none.
func (s *store) firstSplit(charges []penstock.Charge) (int, *Parts) {
	for i := range charges {
		if p := s.partsOf(charges[i].Plan); p != nil {
			return i, p
		}
	}
	return 0, nil
}

func (s *store) partsOf(plan *penstock.Plan) *Parts {
	if plan == nil {
		return nil // the store returns the error
	}
	n := s.shardsOf(plan)
	if n <= 1 {
		return nil
	}
	parts, _ := s.parts.Get(division{plan.Limit(), n}, func(d division) (*Parts, error) { return PartsOf(d.limit, d.n), nil })
	return parts
}

type division struct {
	limit penstock.Limit
	n     int
}

// A splitBatch is a batch with a split charge while it is decided.
type splitBatch struct {
	next    batches.Func
	charges []penstock.Charge
	states  []chargeState // one for each charge
	source  penstock.Source

	// isLastTry is true while the charges are sent for the last time. Only then does a denial count
	// for limits that count denied requests, so that it counts once.
	isLastTry bool

	outgoing    []penstock.Charge // the charges of the next call
	chargeIndex []int             // for each outgoing charge, its index in charges
	shardIndex  []int             // for each outgoing charge, its shard
}

type chargeState struct {
	parts  *Parts // nil: it is not split
	status penstock.Status

	strategy      strategy
	firstIndex    int             // of the first shard that is called
	tried         int             // the number of shards that have denied it
	shortestRetry time.Duration   // the shortest RetryAfter of its denials
	soonestShard  int             // the shard of that RetryAfter
	isConfirmed   bool            // all shards together deny it
	receipt       int64           // the receipt that the shards get, for an exact Refund
	grantingShard int             // the shard that gave the receipt of the status; allShards: all gave one
	remaining     [maxParts]int64 // remaining units of each shard, 0 if not known
	shardCosts    [maxParts]int64 // the cost for each shard, if all are called
}

// A strategy says which shards a charge is sent to.
type strategy uint8

const (
	oneShard        strategy = iota // to one shard, then to the next
	equally                         // to all shards, equal parts
	byRemaining                     // to all shards, as much as each has
	oneShardWaiting                 // to the shard with the shortest RetryAfter, with patience
)

// begin prepares b for a batch. firstSplit is the index of the first charge whose limit is split.
// parts are the parts of this limit.
func (b *splitBatch) begin(s *store, charges []penstock.Charge, firstSplit int, parts *Parts) {
	b.next, b.charges, b.source, b.isLastTry = s.next, charges, penstock.FromStore, false
	for len(b.states) < len(charges) {
		b.states = append(b.states, chargeState{})
	}
	for i := range charges {
		c, p := &charges[i], &b.states[i]
		p.parts, p.status = nil, penstock.Status{}
		if i == firstSplit {
			p.parts = parts
		} else if i > firstSplit {
			p.parts = s.partsOf(c.Plan)
		}
		if p.parts == nil {
			continue
		}
		p.firstIndex, p.tried, p.shortestRetry, p.strategy = p.parts.firstShard(c), 0, penstock.Never, oneShard
		clear(p.remaining[:p.parts.Len()])
		if c.Receipt != 0 {
			p.readReceipt(c.Receipt)
		}
		if c.Mode != penstock.Draw && c.Cost > p.parts.MinUnits {
			p.strategy = equally
			p.spreadEqually(c.Cost)
		}
	}
}

// end drops the references to the caller's values.
func (b *splitBatch) end() {
	b.charges = nil
	b.clearBatch()
	for i := range b.states {
		b.states[i].parts = nil
	}
}

func (b *splitBatch) decide(ctx context.Context) (penstock.Decision, error) {
	for i := range b.charges {
		if b.states[i].isPeek(&b.charges[i]) {
			if err := b.peekShards(ctx, i, b.charges[i].Cost); err != nil {
				return penstock.Decision{}, err
			}
		}
	}
	if b.isDenied() {
		return b.peekOthers(ctx)
	}
	if err := b.spendCharges(ctx); err != nil {
		return penstock.Decision{}, err
	}
	isDenied := b.isDenied()
	for i := range b.charges {
		if !b.states[i].isSettlement(&b.charges[i]) {
			continue
		}
		var err error
		if isDenied {
			err = b.peekShards(ctx, i, 0)
		} else {
			err = b.settleCharge(ctx, i)
		}
		if err != nil {
			return penstock.Decision{}, err
		}
	}
	return b.makeDecision(), nil
}

// Each split charge is of one of three kinds: a peek, a spend or a settlement. A settlement is
// never denied.

func (p *chargeState) isPeek(c *penstock.Charge) bool {
	return p.parts != nil && (c.Mode == penstock.Peek || c.Cost == 0 && c.Mode != penstock.Reset)
}

func (p *chargeState) isSpend(c *penstock.Charge) bool {
	return p.parts != nil && c.Cost > 0 && (c.Mode == penstock.Spend || c.Mode == penstock.Draw)
}

func (p *chargeState) isSettlement(c *penstock.Charge) bool {
	return p.parts != nil && !p.isPeek(c) && !p.isSpend(c)
}

// isDenied reports whether a charge was denied. Settlements are not charged yet.
func (b *splitBatch) isDenied() bool {
	for i := range b.charges {
		p := &b.states[i]
		if !p.isSettlement(&b.charges[i]) && p.status.RetryAfter != 0 {
			return true
		}
	}
	return false
}

func (b *splitBatch) makeDecision() (d penstock.Decision) {
	for i := range b.charges {
		b.states[i].writeReceipt()
	}
	if len(b.charges) == 1 {
		d = penstock.Single(b.states[0].status)
	} else {
		statuses := make([]penstock.Status, len(b.charges))
		for i := range statuses {
			statuses[i] = b.states[i].status
		}
		d = penstock.NewDecision(statuses)
	}
	d.Source = b.source
	return d
}

// addCharge adds charge i to the outgoing batch, with this mode and cost, at one of its shards. The
// shard does not matter for a charge that is not split.
func (b *splitBatch) addCharge(i, shard int, mode penstock.Mode, cost int64) *penstock.Charge {
	b.outgoing = append(b.outgoing, b.charges[i])
	b.chargeIndex = append(b.chargeIndex, i)
	b.shardIndex = append(b.shardIndex, shard)
	c := &b.outgoing[len(b.outgoing)-1]
	c.Mode, c.Cost = mode, cost
	if p := b.states[i].parts; p != nil {
		c.Key, c.Plan = shardKey(c.Key, shard), p.plans[shard]
		if c.Receipt != 0 {
			c.Receipt = b.states[i].receipt
		}
		if c.Patience > 0 {
			c.Patience = min(c.Patience, c.Plan.MaxPatience())
		}
	}
	return c
}

func (b *splitBatch) clearBatch() {
	clear(b.outgoing)
	b.outgoing, b.chargeIndex, b.shardIndex = b.outgoing[:0], b.chargeIndex[:0], b.shardIndex[:0]
}

func (b *splitBatch) sendBatch(ctx context.Context) (penstock.Decision, error) {
	if len(b.outgoing) > penstock.MaxCharges {
		return penstock.Decision{}, fmt.Errorf("%w: the batch needs %d shards of split limits, and may have at most %d: lower Settings.SplitInto",
			penstock.ErrInvalid, len(b.outgoing), penstock.MaxCharges)
	}
	d, err := b.next.Decide(ctx, b.outgoing)
	b.source = d.Source
	return d, err
}

// chargeAllShards sends one charge to all of its shards, at the costs of its state, and sums up
// their statuses.
func (b *splitBatch) chargeAllShards(ctx context.Context, i int, mode penstock.Mode) error {
	p := &b.states[i]
	b.clearBatch()
	for shard := range p.parts.Len() {
		b.addCharge(i, shard, mode, p.shardCosts[shard])
	}
	d, err := b.sendBatch(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	for shard := range p.parts.Len() {
		p.addStatus(d.Status(shard), shard)
	}
	return nil
}

func (p *chargeState) addStatus(s penstock.Status, shard int) {
	p.remaining[shard] = s.Remaining
	p.status.Granted += s.Granted
	p.status.Remaining += s.Remaining
	p.status.RetryAfter = max(p.status.RetryAfter, s.RetryAfter)
	p.status.ResetAfter = max(p.status.ResetAfter, s.ResetAfter)
	p.status.Wait = max(p.status.Wait, s.Wait)
	p.status.Receipt, p.grantingShard = max(p.status.Receipt, s.Receipt), allShards
}

// A receipt of a split charge has a bit that marks it, the receipt of a shard, and the shard. If
// all shards have granted a part of the cost, it has the last of their receipts.
const (
	splitReceipt = 1 << 59
	allShards    = 63 // in place of a shard
	shardBits    = 6
)

// writeReceipt puts the shard into the receipt of the status.
func (p *chargeState) writeReceipt() {
	if p.parts != nil && p.status.Receipt != 0 {
		p.status.Receipt = splitReceipt | p.status.Receipt<<shardBits | int64(p.grantingShard)
	}
}

// readReceipt reads the receipt of a Refund. A receipt that was made before the limit was split
// returns nothing.
func (p *chargeState) readReceipt(receipt int64) {
	const ofNoCharge = 1
	shard := int(receipt & (1<<shardBits - 1))
	isShard := shard < p.parts.Len() || shard == allShards
	if receipt&splitReceipt == 0 || !isShard {
		p.receipt, p.grantingShard = ofNoCharge, p.firstIndex
		return
	}
	p.receipt, p.grantingShard = (receipt&^splitReceipt)>>shardBits, shard
	if shard != allShards {
		p.firstIndex = shard
	}
}

// peekShards peeks at all shards, and sets the status that a Spend of the cost would get.
func (b *splitBatch) peekShards(ctx context.Context, i int, cost int64) error {
	p := &b.states[i]
	fitsOneShard := cost <= p.parts.MinUnits
	if fitsOneShard {
		for shard := range p.parts.Len() {
			p.shardCosts[shard] = cost
		}
	} else {
		p.spreadEqually(cost)
	}
	b.clearBatch()
	for shard := range p.parts.Len() {
		b.addCharge(i, shard, penstock.Peek, p.shardCosts[shard])
	}
	d, err := b.sendBatch(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	soonest := d.Status(0)
	for shard := range p.parts.Len() {
		s := d.Status(shard)
		p.addStatus(s, shard)
		if cmp.Or(cmp.Compare(s.RetryAfter, soonest.RetryAfter), cmp.Compare(s.Wait, soonest.Wait)) < 0 {
			soonest = s
		}
	}
	if fitsOneShard {
		p.status.RetryAfter, p.status.Wait = soonest.RetryAfter, soonest.Wait
	}
	if p.canGrantTogether(cost) {
		p.status.RetryAfter, p.status.Wait = 0, 0
	}
	return nil
}

// canGrantTogether reports whether all shards together have the cost left, and may grant parts of
// it. (A hold must be in one shard, so that later calls find it.)
func (p *chargeState) canGrantTogether(cost int64) bool {
	return !p.parts.hasHolds && p.sumRemaining() >= cost
}

func (p *chargeState) sumRemaining() (sum int64) {
	for _, left := range p.remaining[:p.parts.Len()] {
		sum += left
	}
	return sum
}

// peekOthers decides a batch in which a Peek is denied. All other charges of the batch become
// Peeks.
func (b *splitBatch) peekOthers(ctx context.Context) (penstock.Decision, error) {
	b.clearBatch()
	for i := range b.charges {
		if b.states[i].parts == nil {
			mode, cost := penstock.Peek, peekCost(&b.charges[i])
			b.addCharge(i, 0, mode, cost)
		}
	}
	if len(b.outgoing) > 0 {
		d, err := b.sendBatch(ctx)
		if err != nil {
			return d, err
		}
		for k, i := range b.chargeIndex {
			b.states[i].status = d.Status(k)
		}
	}
	for i := range b.charges {
		if p := &b.states[i]; p.parts != nil && !p.isPeek(&b.charges[i]) {
			if err := b.peekShards(ctx, i, peekCost(&b.charges[i])); err != nil {
				return penstock.Decision{}, err
			}
		}
	}
	return b.makeDecision(), nil
}

// peekCost returns the cost of a Peek that gets the same status as the charge.
func peekCost(c *penstock.Charge) int64 {
	switch c.Mode {
	case penstock.Spend, penstock.Peek:
		return c.Cost
	case penstock.Draw:
		return min(c.Cost, 1)
	}
	return 0
}

// spendCharges makes the charges that are not split, and the split ones that spend, all or none. If
// the decision's deadline leaves no time for another call, the denials so far decide.
func (b *splitBatch) spendCharges(ctx context.Context) error {
	var breakerErr error
	deadline, hasDeadline := ctx.Deadline()
	var longest time.Duration // the longest call so far
	for {
		var sent time.Time
		if hasDeadline {
			sent = time.Now()
		}
		b.clearBatch()
		for i := range b.charges {
			b.addSpend(i)
		}
		if len(b.outgoing) == 0 {
			return nil
		}
		d, err := b.sendBatch(ctx)
		if err != nil {
			if !b.skipShard(err) {
				return err
			}
			breakerErr = err
			continue
		}
		b.readStatuses(&d)
		if d.Allowed {
			return nil
		}
		hasTime := true
		if hasDeadline {
			now := time.Now()
			longest = max(longest, now.Sub(sent))
			hasTime = deadline.Sub(now) > 2*longest // the next call may take longer than the others
		}
		if hasTime && !b.isLastTry && b.tryNext() {
			continue
		}
		if breakerErr != nil || !hasTime {
			return breakerErr
		}
		countsDenial := func(c penstock.Charge) bool { return c.CountsDenial() } // its limit is not split
		if !b.isLastTry && slices.ContainsFunc(b.charges, countsDenial) {
			b.isLastTry = true
			continue
		}
		return b.confirmDenied(ctx)
	}
}

// confirmDenied peeks at all shards of each charge that was denied by only some of its shards. The
// batch stays denied, because another limit denies it.
func (b *splitBatch) confirmDenied(ctx context.Context) error {
	for i := range b.charges {
		c, p := &b.charges[i], &b.states[i]
		if !p.isSpend(c) || p.status.RetryAfter == 0 || p.isConfirmed {
			continue
		}
		if err := b.peekShards(ctx, i, peekCost(c)); err != nil {
			return err
		}
	}
	return nil
}

// addSpend adds charge i to the outgoing batch, unless it is a split charge of another kind.
func (b *splitBatch) addSpend(i int) {
	c, p := &b.charges[i], &b.states[i]
	addTo := func(shard int, cost int64) {
		added := b.addCharge(i, shard, c.Mode, cost)
		if p.strategy != oneShardWaiting {
			added.Patience = 0
		}
	}
	switch {
	case p.parts == nil:
		added := b.addCharge(i, 0, c.Mode, c.Cost)
		added.IsFreeIfDenied = c.IsFreeIfDenied || !b.isLastTry
	case !p.isSpend(c):
	case p.usesOneShard(c):
		addTo(p.currentShard(), c.Cost)
	default:
		for shard := range p.parts.Len() {
			addTo(shard, p.shardCosts[shard])
		}
	}
}

func (p *chargeState) usesOneShard(c *penstock.Charge) bool {
	return p.strategy == oneShard || p.strategy == oneShardWaiting && (c.Mode == penstock.Draw || c.Cost <= p.parts.MinUnits)
}

func (p *chargeState) currentShard() int { return (p.firstIndex + p.tried) % p.parts.Len() }

func (b *splitBatch) readStatuses(d *penstock.Decision) {
	for k := 0; k < len(b.outgoing); {
		i := b.chargeIndex[k]
		p := &b.states[i]
		switch {
		case p.parts == nil:
			p.status = d.Status(k)
			k++
		case p.usesOneShard(&b.charges[i]):
			p.readStatus(d.Status(k), b.shardIndex[k], b.charges[i].Cost)
			k++
		default:
			p.status = penstock.Status{}
			for range p.parts.Len() {
				p.addStatus(d.Status(k), b.shardIndex[k])
				k++
			}
			p.isConfirmed = p.strategy != equally || !p.canGrantTogether(b.charges[i].Cost)
			if p.strategy != byRemaining {
				p.shortestRetry = p.status.RetryAfter
			} else if p.status.RetryAfter != 0 {
				p.status.RetryAfter = p.shortestRetry
			}
		}
	}
}

// readStatus stores the status of a charge that was sent to one shard. In this status, RetryAfter
// becomes the shortest of the denials so far, and Remaining an estimate for all shards.
func (p *chargeState) readStatus(s penstock.Status, shard int, cost int64) {
	p.remaining[shard], p.grantingShard = s.Remaining, shard
	if s.RetryAfter != 0 {
		if s.RetryAfter < p.shortestRetry {
			p.shortestRetry, p.soonestShard = s.RetryAfter, shard
		}
		s.RetryAfter = p.shortestRetry
	}
	n := int64(p.parts.Len())
	p.isConfirmed = false
	if s.RetryAfter != 0 && (p.tried == p.parts.Len()-1 || p.strategy == oneShardWaiting) {
		p.isConfirmed = !p.canGrantTogether(cost)
		s.Remaining = p.sumRemaining()
	} else {
		s.Remaining = max(s.Remaining, min(s.Remaining*n, p.parts.capacity-s.Granted))
	}
	p.status = s
}

// tryNext lets each denied charge try its next strategy. It returns false if a charge has no
// strategy left.
func (b *splitBatch) tryNext() bool {
	for i := range b.charges {
		c, p := &b.charges[i], &b.states[i]
		isInBatch := p.parts == nil || p.isSpend(c)
		isDenied := p.status.RetryAfter != 0
		if isInBatch && isDenied && !p.tryNext(c) {
			return false
		}
	}
	return true
}

// tryNext moves a denied charge on to its next shard or strategy, or returns false if none is left.
func (p *chargeState) tryNext(c *penstock.Charge) bool {
	switch {
	case p.parts == nil || p.strategy == oneShardWaiting:
		return false
	case p.strategy == oneShard && p.tried < p.parts.Len()-1:
		p.tried++
		return true
	case p.strategy != byRemaining && c.Mode == penstock.Spend && c.Cost > 1 && p.canGrantTogether(c.Cost):
		p.strategy = byRemaining
		p.spreadByRemaining(c.Cost)
		return true
	case c.Patience > 0 && p.shortestRetry != penstock.Never && c.Plan.Algorithm().CanBook():
		p.strategy = oneShardWaiting
		p.firstIndex, p.tried = p.soonestShard, 0
		p.spreadEqually(c.Cost)
		return true
	}
	return false
}

// skipShard moves a charge that is alone in its batch on to its next shard, if a breaker rejected
// the call. hasMoved is true if it did.
func (b *splitBatch) skipShard(err error) (hasMoved bool) {
	e := penstock.AsStoreError(err)
	if len(b.charges) > 1 || e == nil || e.Reason != penstock.ReasonBreakerOpen {
		return false
	}
	p := &b.states[0]
	if isLastShard := p.tried == p.parts.Len()-1; isLastShard || p.strategy != oneShard {
		return false
	}
	p.tried++
	return true
}

// settleCharge makes a charge that is never denied.
func (b *splitBatch) settleCharge(ctx context.Context, i int) error {
	c, p := &b.charges[i], &b.states[i]
	switch {
	case c.Mode == penstock.Reset:
		p.spreadEqually(c.Cost)
		return b.chargeAllShards(ctx, i, c.Mode)
	case p.parts.hasHolds && c.Cost > p.parts.MinUnits:
		return b.chargeAllShards(ctx, i, c.Mode) // in the same parts as it was acquired
	case p.parts.hasHolds && c.Mode == penstock.Refund:
		return b.releaseHold(ctx, i)
	case p.parts.hasHolds:
		_, err := b.chargeOneShard(ctx, i, c.Mode, c.Cost)
		return err
	case c.Mode == penstock.Force:
		return b.forceCharge(ctx, i)
	}
	if c.Receipt != 0 {
		return b.refundExactly(ctx, i)
	}
	// A Refund without a receipt goes to the shards that have units in use.
	if err := b.peekShards(ctx, i, 0); err != nil {
		return err
	}
	p.spread(c.Cost, func(shard int) int64 { return max(p.parts.unitsOf(shard)-p.remaining[shard], 0) })
	return b.chargeAllShards(ctx, i, c.Mode)
}

func (b *splitBatch) chargeOneShard(ctx context.Context, i int, mode penstock.Mode, cost int64) (granted int64, err error) {
	p := &b.states[i]
	b.clearBatch()
	b.addCharge(i, p.currentShard(), mode, cost).Patience = 0
	d, err := b.sendBatch(ctx)
	if err == nil {
		granted = d.Status(0).Granted
		p.readStatus(d.Status(0), p.currentShard(), cost)
	}
	return granted, err
}

// releaseHold refunds a hold. It searches for the hold in all shards, beginning with the first
// shard of the hold.
func (b *splitBatch) releaseHold(ctx context.Context, i int) error {
	p, cost := &b.states[i], b.charges[i].Cost
	released := int64(0)
	for ; p.tried < p.parts.Len() && released < cost; p.tried++ {
		granted, err := b.chargeOneShard(ctx, i, penstock.Refund, cost-released)
		if err != nil {
			return err
		}
		released += granted
	}
	p.status.Granted = released
	return nil
}

// refundExactly makes a Refund with a receipt. If all shards have granted parts of the cost, each
// first returns an equal part. Then each returns what the others could not. A bucket's Granted is
// rounded down, so for buckets it does not say what the others could not return.
func (b *splitBatch) refundExactly(ctx context.Context, i int) error {
	c, p := &b.charges[i], &b.states[i]
	if p.grantingShard != allShards {
		_, err := b.chargeOneShard(ctx, i, c.Mode, c.Cost)
		return err
	}
	p.spreadEqually(c.Cost)
	if err := b.chargeAllShards(ctx, i, c.Mode); err != nil || c.Plan.Algorithm().RefillsSteadily() {
		return err
	}
	returned, last := p.status.Granted, p.status
	for ; p.tried < p.parts.Len() && returned < c.Cost; p.tried++ {
		granted, err := b.chargeOneShard(ctx, i, c.Mode, c.Cost-returned)
		if err != nil {
			return err
		}
		returned += granted
	}
	p.status = last
	p.status.Remaining += returned - last.Granted
	p.status.Granted = returned
	return nil
}

// forceCharge spends the cost at one shard if it fits there. If it does not fit, forceCharge takes
// what each shard has, and divides the rest as debt among all shards.
func (b *splitBatch) forceCharge(ctx context.Context, i int) error {
	p, cost := &b.states[i], b.charges[i].Cost
	if p.strategy == oneShard {
		if _, err := b.chargeOneShard(ctx, i, penstock.Spend, cost); err != nil || p.status.RetryAfter == 0 {
			return err
		}
	}
	if err := b.peekShards(ctx, i, 0); err != nil {
		return err
	}
	p.spreadByRemaining(cost)
	return b.chargeAllShards(ctx, i, penstock.Force)
}

// The next functions set the costs of a charge at all its shards.

func (p *chargeState) spreadEqually(cost int64) {
	for shard := range p.parts.Len() {
		p.shardCosts[shard] = partOf(cost, p.parts.Len(), shard)
	}
}

// spreadByRemaining takes what each shard has left.
func (p *chargeState) spreadByRemaining(cost int64) {
	p.spread(cost, func(shard int) int64 { return p.remaining[shard] })
}

// spread takes from each shard what available returns, beginning with the first. The rest is
// divided equally.
func (p *chargeState) spread(cost int64, available func(shard int) int64) {
	n := p.parts.Len()
	for k := range n {
		shard := (p.firstIndex + k) % n
		p.shardCosts[shard] = min(cost, available(shard))
		cost -= p.shardCosts[shard]
	}
	for shard := range n {
		p.shardCosts[shard] += partOf(cost, n, shard)
	}
}

// shardKey returns the key of a shard. All suffixes have one length, so no two keys of a split
// limit share a shard key.
func shardKey(key string, shard int) string {
	const digits = "0123456789"
	suffix := [...]byte{'~', digits[shard/10], digits[shard%10]}
	if len(key) < penstock.MaxKey-len(suffix) {
		return key + string(suffix[:])
	}
	// A key that is too long for a suffix is truncated, and its hash comes before the suffix. The
	// result has MaxKey bytes, so it differs from the shard keys of shorter keys.
	sum := sha256.Sum256([]byte(key))
	return key[:penstock.MaxKey-len(sum)-len(suffix)] + string(sum[:]) + string(suffix[:])
}

type Parts struct {
	plans    []*penstock.Plan
	capacity int64 // units of the whole limit
	MinUnits int64 // units of the smallest part
	hasHolds bool
}

func (p *Parts) Len() int { return len(p.plans) }

func (p *Parts) unitsOf(shard int) int64 { return partOf(p.capacity, p.Len(), shard) }

func (p *Parts) firstShard(c *penstock.Charge) int {
	if !p.hasHolds {
		return rand.IntN(p.Len())
	}
	const offset, prime = 2166136261, 16777619 // FNV-1a with 32 bits; all instances must find the same shard
	h := uint32(offset)
	for i := 0; i < len(c.Holder); i++ {
		h = (h ^ uint32(c.Holder[i])) * prime
	}
	return int(h % uint32(p.Len()))
}

// partOf returns the i-th of n parts of a whole. The parts differ by at most 1, and the larger ones
// come first.
func partOf(whole int64, n, i int) int64 {
	p := whole / int64(n)
	if int64(i) < whole%int64(n) {
		p++
	}
	return p
}

// PartsOf splits a limit into n parts, or fewer if its units or its precision do not suffice. It
// returns nil if the limit has only one part. A limit that counts denied requests has only one,
// because each part that denies a request would count it.
func PartsOf(l penstock.Limit, n int) *Parts {
	plan, err := l.Compile()
	if err != nil || plan.CountsDenied() {
		return nil
	}
	capacity := plan.Capacity()
	most := capacity
	if l.Burst > 0 {
		most = min(most, l.Burst) // a part whose Burst is 0 would have the default Burst
	}
	for n = int(min(int64(n), most, maxParts)); n > 1; n-- {
		p := &Parts{capacity: capacity, MinUnits: capacity / int64(n), hasHolds: plan.Algorithm().NeedsHolder()}
		for i := range n {
			if part := plan.Part(n, i); part != nil {
				p.plans = append(p.plans, part)
			}
		}
		if len(p.plans) == n {
			return p
		}
	}
	return nil
}
