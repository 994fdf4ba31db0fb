package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/internal/lazy"
	"github.com/penstock/penstock/internal/panicked"
)

// A draw is a call to the store that is in flight. A draw requests a block, plus the costs of the
// callers that wait when the draw is sent. The store decides on those costs as it would without a
// lease. Callers that come later wait for a part of the block. The outcome is set before done is
// closed: an error, a denial, or neither.
type draw struct {
	done          chan struct{}
	isSent        bool
	blockUnits    int64         // units in advance
	waitersBefore waiters       // callers whose costs the draw requests
	waitersAfter  waiters       // callers that came after it was sent
	endedAt       time.Duration // when its answer arrived
	denial        penstock.Decision
	isDenied      bool
	err           error
}

// addWaiterLocked adds a caller to the waiters of the draw. It returns nil if the draw will bring
// too little for this caller.
func (pending *draw) addWaiterLocked(p *pool, cost int64) *waiters {
	w, most := &pending.waitersBefore, int64(penstock.MaxCost/2) // so that a draw with its block costs at most MaxCost
	if pending.isSent {
		w, most = &pending.waitersAfter, pending.blockUnits+p.left()
	}
	if cost > most-w.needs {
		return nil
	}
	w.needs += cost
	return w
}

// waiters are callers that wait for a draw. They are either the callers whose costs the draw
// requests, or those that came later and get a part of the block.
type waiters struct {
	needs   int64 // costs of those that still wait
	brought int64 // units that the draw brought for them, set when it has ended
}

// spendLocked ends a caller's wait. It spends units that the draw brought for it, and takes what is
// missing from the blocks. If there is not enough, it spends nothing.
func (w *waiters) spendLocked(k *leasedKey, p *pool, now time.Duration, cost int64) bool {
	fromDraw := min(w.brought, cost)
	isSpent := fromDraw == cost || k.trySpendLocked(p, now, cost-fromDraw)
	if isSpent {
		w.brought -= fromDraw
	}
	w.removeWaiterLocked(k, cost)
	return isSpent
}

// removeWaiterLocked ends a caller's wait. If the last caller leaves units that the draw brought,
// these stay charged and unspent, like a grant to a caller that has left.
func (w *waiters) removeWaiterLocked(k *leasedKey, cost int64) {
	if w.needs -= cost; w.needs == 0 {
		k.counts.spent -= w.brought
		k.counts.expired += w.brought
		w.brought = 0
	}
}

// prefetchPauses is how many pauses a lifetime has. If a draw in advance was not possible, or
// brought too little, the next draw is tried after a pause, and not with each request.
const prefetchPauses = 16

// canPrefetch reports whether the next block may be drawn in advance.
func (p *pool) canPrefetch(now time.Duration) bool {
	isLow := p.left()*10 <= p.blockSize*3 // at most 30 % of the last block is left
	return isLow && p.draw == nil && now >= p.noPrefetchUntil
}

// beginLeased decides a batch of a.key from what is leased. If the leased units do not suffice, it
// sets a.pool and leaves a.key.mu locked.
func (l *Store) beginLeased(ctx context.Context, b *batches.Batch, plans []*penstock.Plan, a *attempt) {
	if b.Err = deadline.CallerErr(ctx); b.Err != nil {
		a.isDecided = true
		return
	}
	k, cost := a.key, b.Charges[0].Cost
	k.mu.Lock()
	now := l.now() // after locking, which may take long
	p := k.poolLocked(l, b.Charges, plans, now)
	if p == nil {
		k.mu.Unlock()
		return
	}
	p.measureDemand(l.life, now, cost)
	if !k.trySpendLocked(p, now, cost) {
		a.pool, a.now = p, now
		return
	}
	b.Decision, a.isDecided = p.makeDecision(now, cost), true
	const noCost = 0 // no caller waits for this draw
	if p.canPrefetch(now) && l.drawLocked(ctx, k, p, now, noCost) == nil {
		p.noPrefetchUntil = now + l.life/prefetchPauses
	}
	k.mu.Unlock()
}

// drawAndUnlock decides a list of one batch for which too little is leased: it waits for a draw, or
// sends the batch to the store.
func (l *Store) drawAndUnlock(ctx context.Context, k *leasedKey, p *pool, now time.Duration, one []*batches.Batch) {
	b := one[0]
	cost := b.Charges[0].Cost
	pending := p.draw
	if pending == nil {
		pending = l.drawLocked(ctx, k, p, now, cost)
	}
	var own *waiters // those that the caller belongs to
	if pending != nil {
		own = pending.addWaiterLocked(p, cost)
	}
	if own == nil {
		l.passAndUnlock(ctx, k, p, now, one)
		return
	}
	k.mu.Unlock()

	if lazy.Await(ctx, pending.done, nil) != nil {
		k.mu.Lock()
		own.removeWaiterLocked(k, cost)
		k.mu.Unlock()
		l.decideLate(ctx, one)
		return
	}
	if b.Err = pending.err; b.Err != nil {
		return
	}
	if pending.isDenied && cost == 1 { // the RetryAfter of a denied Draw is that of one unit
		b.Decision = pending.denial
		return
	}
	k.mu.Lock()
	now = pending.endedAt
	if own.brought < cost {
		now = l.now()
	}
	if !own.spendLocked(k, p, now, cost) {
		l.passAndUnlock(ctx, k, p, now, one)
		return
	}
	b.Decision = p.makeDecision(now, cost)
	k.mu.Unlock()
}

// passAndUnlock sends a list of one batch to the store. If the store probably has too few units
// left, it first returns those that are held here.
func (l *Store) passAndUnlock(ctx context.Context, k *leasedKey, p *pool, now time.Duration, one []*batches.Batch) {
	b := one[0]
	var refunds []refund
	if p.hasLessThan(b.Charges[0].Cost) {
		refunds = l.removePoolLocked(k, p, now, nil)
	}
	k.mu.Unlock()
	if l.sendRefunds(ctx, k, refunds) != nil {
		l.decideLate(ctx, one)
		return
	}
	sent := l.now()
	l.next(ctx, one)
	if b.Err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if b.Decision.Source == penstock.FromStore {
		now := l.now()
		p.updateRemaining(&b.Decision, sent, now)
		if p.isNearlyEmpty() {
			p.bypassUntil = now + p.windowLeft(l.life/2, now)
		}
	} else {
		p.bypassUntil = l.now() + l.life // the answer came from a fallback, not from the store
	}
}

// decideLate returns the caller's error if the caller has left. Otherwise it calls the store, which
// reports the passed deadline.
func (l *Store) decideLate(ctx context.Context, one []*batches.Batch) {
	if one[0].Err = deadline.CallerErr(ctx); one[0].Err == nil {
		l.next(ctx, one)
	}
}

// drawLocked starts a draw that fills the pool up to a block. It returns nil if none may start, if
// so few units are not worth a draw, or if the block is too small for the cost.
func (l *Store) drawLocked(ctx context.Context, k *leasedKey, p *pool, now time.Duration, cost int64) *draw {
	hasFreeBlock := p.blocks[0].left == 0 || p.blocks[1].left == 0
	if k.callerRefunds > 0 || now < p.bypassUntil || !hasFreeBlock {
		return nil
	}
	block := l.blockSizeOf(p, now)
	size := block - p.held()
	isCostTooLarge := 2*cost > block-p.returning // more than half a block
	if block < MinBlock || size < 1 || isCostTooLarge || k.isSharedLocked(p) {
		return nil
	}
	if !l.startWork() {
		return nil // closed
	}
	pending := &draw{done: make(chan struct{}), blockUnits: size}
	p.draw, p.blockSize = pending, block
	go l.runDraw(deadline.Detach(ctx), k, p, pending)
	return pending
}

// blockSizeOf returns the size of a block that the pool draws now: the demand of half the time for
// which the block may be spent. It returns 0 if so few units are not worth a draw.
func (l *Store) blockSizeOf(p *pool, now time.Duration) int64 {
	demand := int64(min(p.demand*float64(p.spendableFor(l.life, now))/float64(l.life), penstock.MaxCost))
	most := int64(penstock.MaxCost)
	for i := range p.limits {
		most = min(most, l.options.LargestBlock(p.limits[i].plan))
	}
	if demand < min(most, minDraw) {
		return 0
	}
	return min(demand, most)
}

// runDraw calls the store and wakes the waiters.
func (l *Store) runDraw(ctx context.Context, k *leasedKey, p *pool, pending *draw) {
	defer l.work.Done()
	runtime.Gosched() // other callers can add themselves to waitersBefore until the draw is sent
	k.mu.Lock()
	pending.isSent = true
	p.blockSize = max(p.blockSize, l.blockSizeOf(p, l.now()))
	pending.blockUnits = p.blockSize - p.held() // held units may have been spent since the draw was begun
	size := pending.blockUnits + pending.waitersBefore.needs
	k.mu.Unlock()
	charges := make([]penstock.Charge, len(p.limits))
	for i := range charges {
		charges[i] = penstock.Charge{Key: k.name.key, Plan: p.limits[i].plan, Cost: size, Mode: penstock.Draw}
	}
	bounded, cancel := context.WithTimeout(ctx, l.life) // later, the answer is useless
	defer cancel()
	sent := l.now()
	d, err := panicked.Decide(bounded, l.next, charges)
	if err != nil && !errors.Is(err, penstock.ErrUnavailable) && !errors.Is(err, penstock.ErrInvalid) {
		err = penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("a draw of %d units within %v: %v", size, l.life, err))
	}

	k.mu.Lock()
	now := l.now()
	p.draw, pending.endedAt = nil, now
	k.counts.draws++
	var refunds []refund
	switch {
	case err != nil:
		pending.err = err
		p.bypassUntil = now + l.life/2
	case !d.Allowed:
		pending.denial, pending.isDenied = d, true
		p.updateRemaining(&d, sent, now)
		p.bypassUntil = now + p.windowLeft(l.life/2, now)
		if d.Source != penstock.FromStore {
			p.bypassUntil = now + l.life
		}
	case d.Source != penstock.FromStore: // the store has not counted the units, so they cannot be leased
		units := minGranted(&d, size)
		k.counts.drawn += units
		k.counts.lost += units
		p.bypassUntil = now + l.life
	default:
		refunds = l.receiveLocked(k, p, pending, &d, size, sent, now)
	}
	k.mu.Unlock()
	close(pending.done)
	for _, r := range refunds {
		l.sendRefund(ctx, k, r)
	}
}

// receiveLocked keeps the units of a draw. It returns refunds of units that came in unequal
// numbers, too late, or after Close.
func (l *Store) receiveLocked(
	k *leasedKey, p *pool, pending *draw, d *penstock.Decision, size int64, sent, now time.Duration,
) (refunds []refund) {
	units := minGranted(d, size)
	p.updateRoundTrip(now - sent)
	if units < size {
		p.noPrefetchUntil = now + l.life/prefetchPauses
	}
	if units < min(size, minDraw) { // the key is at its limit: a cached denial costs less
		p.bypassUntil = now + p.windowLeft(l.life/2, now)
	}
	room := p.blockSize - p.held()
	// The waiters get no units of the draw if there are too few for all of them, and the block has
	// room for all units. Then the waiters spend from the block. If the units are too few for any
	// waiter, the block keeps them, and none is lost.
	if units >= pending.waitersBefore.needs || units > room {
		pending.waitersBefore.brought = min(units, pending.waitersBefore.needs)
	}
	left := min(units-pending.waitersBefore.brought, room)
	b := block{left: left, sentAt: sent, expires: sent + l.life, forgottenAt: make([]time.Duration, len(p.limits))}
	k.counts.drawn += units
	k.counts.spent += pending.waitersBefore.brought
	k.counts.expired += units - pending.waitersBefore.brought - b.left // drawn for waiters that left before the answer came
	var extra []penstock.Charge
	for i := range p.limits {
		limit, s := &p.limits[i], d.Status(i)
		limit.updateRemaining(s, sent)
		b.forgottenAt[i] = sent + limit.chargeEnd(s)
		if limit.decay != algorithm.DecayContinuous {
			b.expires = min(b.expires, b.forgottenAt[i])
		}
		surplus := s.Granted - units // all limits of the batch spend equal numbers of units, so the surplus is returned
		if surplus <= 0 {
			continue
		}
		extra = append(extra, penstock.Charge{Key: k.name.key, Plan: limit.plan, Cost: surplus, Mode: penstock.Refund})
		limit.remaining += surplus
		if limit.decay == algorithm.DecayContinuous {
			b.forgottenAt[i] -= time.Duration(limit.drainTime(surplus)) + 1
		}
	}
	if extra != nil {
		k.leaseRefunds++
		refunds = append(refunds, refund{pool: p, charges: extra, until: now + l.life/2})
	}
	b.refundTime = max((b.expires-sent)/16, 2*p.roundTrip) // long enough for a slow answer, and a small part of the block's life
	for i := range p.blocks {
		if old := &p.blocks[i]; now >= old.expires {
			refunds = l.removeBlockLocked(k, p, old, now, refunds)
		}
	}
	if p.blocks[0].left == 0 {
		p.blocks[0], p.blocks[1] = p.blocks[1], block{}
	}
	if l.isClosed.Load() || now >= b.expires || p.blocks[1].left > 0 {
		return l.removeBlockLocked(k, p, &b, now, refunds)
	}
	free := &p.blocks[0]
	if free.left > 0 {
		free = &p.blocks[1]
	}
	*free = b
	if pending.waitersBefore.brought == pending.waitersBefore.needs {
		pending.waitersAfter.brought = min(pending.waitersAfter.needs, k.spendableLocked(p, now))
		k.spendLocked(p, now, pending.waitersAfter.brought)
	}
	l.setTimerLocked(k, p, now)
	return refunds
}

// setTimerLocked sets the timer to when a block of the pool is due, assuming no further requests.
func (l *Store) setTimerLocked(k *leasedKey, p *pool, now time.Duration) {
	due := now + l.life
	for i := range p.blocks {
		if p.blocks[i].left > 0 {
			due = min(due, p.blocks[i].latestReturn(), p.lastUsed+l.life/2)
		}
	}
	wait := max(due-now, 0)
	switch returnDue := func() { l.returnDue(k, p) }; {
	case p.timer != nil:
		p.timer.Reset(wait)
	case l.options.Clock != nil:
		p.timer = l.options.Clock.AfterFunc(wait, returnDue)
	default:
		p.timer = time.AfterFunc(wait, returnDue)
	}
}

// returnDue returns blocks that no request needs, and blocks that expire soon.
func (l *Store) returnDue(k *leasedKey, p *pool) {
	if !l.startWork() {
		return
	}
	defer l.work.Done()
	var refunds []refund
	k.mu.Lock()
	now := l.now()
	for i := range p.blocks {
		if b := &p.blocks[i]; now >= b.latestReturn() || now-p.lastUsed >= l.life/2 {
			refunds = l.removeBlockLocked(k, p, b, now, refunds)
		}
	}
	if p.left() > 0 {
		l.setTimerLocked(k, p, now)
	}
	k.mu.Unlock()
	for _, r := range refunds {
		l.sendRefund(context.Background(), k, r)
	}
}

// latestReturn is the latest time to begin the refund of a block. It is twice the block's
// refundTime before the block expires, but not in the first half of the block's life. If the store
// is too slow for a refund, the block is spent or expires.
func (b *block) latestReturn() time.Duration {
	return b.expires - min(2*b.refundTime, (b.expires-b.sentAt)/2)
}

// A refund returns units of a pool to the store.
type refund struct {
	pool    *pool
	charges []penstock.Charge
	units   int64         // of each limit
	until   time.Duration // after this time the units may have drained in the store already
}

// removeBlockLocked removes a block and appends its refund, if a part of it still counts in the
// store.
func (l *Store) removeBlockLocked(k *leasedKey, p *pool, b *block, now time.Duration, refunds []refund) []refund {
	if b.left == 0 {
		return refunds
	}
	r := refund{pool: p, units: b.left, until: now + b.refundTime}
	for i := range p.limits {
		limit := &p.limits[i]
		units := limit.returnable(b.left, b.forgottenAt[i], r.until)
		r.units = min(r.units, units)
		if units > 0 {
			r.charges = append(r.charges, penstock.Charge{Key: k.name.key, Plan: limit.plan, Cost: units, Mode: penstock.Refund})
		}
	}
	k.counts.expired += b.left - r.units
	p.returning += r.units
	b.left = 0
	if len(r.charges) == 0 {
		return refunds
	}
	k.leaseRefunds++
	return append(refunds, r)
}

func (l *Store) removePoolLocked(k *leasedKey, p *pool, now time.Duration, refunds []refund) []refund {
	for i := range p.blocks {
		refunds = l.removeBlockLocked(k, p, &p.blocks[i], now, refunds)
	}
	return refunds
}

func (l *Store) removeAllLocked(k *leasedKey) (refunds []refund) {
	now := l.now()
	for _, p := range k.pools {
		if p.timer != nil {
			p.timer.Stop()
		}
		refunds = l.removePoolLocked(k, p, now, refunds)
	}
	return refunds
}

// sendRefund sends a refund once. Without an answer, the units count as lost.
func (l *Store) sendRefund(ctx context.Context, k *leasedKey, r refund) {
	ctx, cancel := context.WithTimeout(ctx, r.until-l.now())
	defer cancel()
	d, err := panicked.Decide(ctx, l.next, r.charges)
	k.mu.Lock()
	defer k.mu.Unlock()
	r.pool.returning -= r.units
	if err != nil || d.Source != penstock.FromStore {
		k.counts.lost += r.units
	} else {
		returned := minGranted(&d, r.units)
		k.counts.returned += returned
		k.counts.expired += r.units - returned
	}
	if k.leaseRefunds--; k.leaseRefunds == 0 && k.refundsEnded != nil {
		close(k.refundsEnded)
		k.refundsEnded = nil
	}
}

// sendRefunds sends refunds, and waits for their answers until ctx ends. The refunds are sent even
// if ctx has ended.
func (l *Store) sendRefunds(ctx context.Context, k *leasedKey, refunds []refund) error {
	if len(refunds) == 0 {
		return nil
	}
	done := make(chan struct{})
	isTracked := l.startWork() // false if closed: then Close does not wait for the goroutine
	go func() {
		defer close(done)
		if isTracked {
			defer l.work.Done()
		}
		for _, r := range refunds {
			l.sendRefund(deadline.Detach(ctx), k, r)
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decideRefund sends a Refund or Reset to the store: a list of one batch. Before, it returns the
// units that are leased under its keys.
func (l *Store) decideRefund(ctx context.Context, one []*batches.Batch) {
	charges := one[0].Charges
	for i := range charges {
		c := &charges[i]
		if c.Mode != penstock.Refund && c.Mode != penstock.Reset || c.Plan == nil {
			continue
		}
		name := keyName{c.Key, c.Plan.Group()}
		k := l.keys.find(l.keys.hash(name), name)
		if k == nil {
			continue
		}
		k.mu.Lock()
		k.callerRefunds++
		k.mu.Unlock()
		defer func() {
			k.mu.Lock()
			k.callerRefunds--
			k.mu.Unlock()
		}()
		if l.returnUnused(ctx, k) != nil {
			l.decideLate(ctx, one)
			return
		}
	}
	l.next(ctx, one)
}

// returnUnused returns the leased units of a key, and waits until no draw and no refund of the key
// is in flight. Meanwhile nothing new is drawn.
func (l *Store) returnUnused(ctx context.Context, k *leasedKey) error {
	for {
		k.mu.Lock()
		wait := k.pendingDoneLocked()
		refunds := l.removeAllLocked(k)
		k.mu.Unlock()
		if wait == nil && len(refunds) == 0 {
			return nil
		}
		if err := l.sendRefunds(ctx, k, refunds); err != nil {
			return err
		}
		if wait == nil {
			continue
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pendingDoneLocked returns a channel that is closed when a draw or the refunds in flight have
// ended, or nil if there are none.
func (k *leasedKey) pendingDoneLocked() <-chan struct{} {
	for _, p := range k.pools {
		if p.draw != nil {
			return p.draw.done
		}
	}
	if k.leaseRefunds == 0 {
		return nil
	}
	if k.refundsEnded == nil {
		k.refundsEnded = make(chan struct{})
	}
	return k.refundsEnded
}

// minGranted returns the number of units that every charge of a batch was granted, or atMost if
// that is smaller.
func minGranted(d *penstock.Decision, atMost int64) int64 {
	for i := range d.Len() {
		atMost = min(atMost, d.Status(i).Granted)
	}
	return max(atMost, 0)
}
