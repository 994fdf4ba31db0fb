package guard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
)

// A flight is a draw under way. It asks for a block, and for what those need who wait when it is
// sent: theirs is not drawn in advance, but decided by the store while they wait, as without a
// lease. Those who come later wait for a part of the block. Its outcome is set before done is
// closed: an error, a denial, or neither.
type flight struct {
	done   chan struct{}
	sent   bool
	block  int64 // units in advance
	early  party
	late   party
	over   time.Duration // when its answer was here
	denial penstock.Decision
	denied bool
	err    error
}

// boardLocked lets a caller wait for the flight. If that brings too little, there is no party for
// it.
func (f *flight) boardLocked(p *leasePool, cost int64) *party {
	w, most := &f.early, int64(penstock.MaxCost/2) // with a block it is still a cost
	if f.sent {
		w, most = &f.late, f.block+p.left()
	}
	if cost > most-w.needs {
		return nil
	}
	w.needs += cost
	return w
}

// A party are those who wait for a flight, for units of one origin.
type party struct {
	needs int64 // of those who have not gone
	share int64 // what is there for them, once the flight is over
}

// takeLocked lets a caller go, with its part if that is there, and with what is missing from the
// blocks; or with nothing.
func (w *party) takeLocked(k *leasedKey, p *leasePool, now time.Duration, cost int64, exact bool) bool {
	part := min(w.share, cost)
	taken := part == cost || k.takeLocked(p, now, cost-part, exact)
	if taken {
		w.share -= part
	}
	w.leaveLocked(k, cost)
	return taken
}

// leaveLocked lets a caller go. What the last leave behind is charged and not spent, as what a
// store grants to somebody who is gone.
func (w *party) leaveLocked(k *leasedKey, cost int64) {
	if w.needs -= cost; w.needs == 0 {
		k.counts.spent -= w.share
		k.counts.expired += w.share
		w.share = 0
	}
}

// spend answers a batch from what is leased, with a draw if need be, or lets it pass.
func (l *Lease) spend(ctx context.Context, k *leasedKey, charges []penstock.Charge, plans []*penstock.Plan) (d penstock.Decision, err error) {
	if err := callersErr(ctx); err != nil {
		return d, err
	}
	cost := charges[0].Cost
	k.mu.Lock()
	now := l.now() // not earlier: to get the lock may take long
	p := k.poolLocked(l, charges, plans, now)
	if p == nil {
		k.mu.Unlock()
		return l.next.Decide(ctx, charges)
	}
	p.note(l.life, now, cost)
	if k.takeLocked(p, now, cost, l.options.Exact) {
		d = p.answer(now, cost)
		if p.left()*10 <= p.block*3 && p.flight == nil && now >= p.quiet && l.drawLocked(ctx, k, p, now, 0) == nil {
			p.quiet = now + l.life/16
		}
		k.mu.Unlock()
		return d, nil
	}
	f := p.flight
	if f == nil {
		f = l.drawLocked(ctx, k, p, now, cost)
	}
	var mine *party
	if f != nil {
		mine = f.boardLocked(p, cost)
	}
	if mine == nil {
		return l.passAndUnlock(ctx, k, p, now, charges)
	}
	k.mu.Unlock()

	if !await(ctx, f.done) {
		k.mu.Lock()
		mine.leaveLocked(k, cost)
		k.mu.Unlock()
		return l.late(ctx, charges)
	}
	if f.err != nil {
		return d, f.err
	}
	if f.denied && cost == 1 {
		return f.denial, nil
	}
	k.mu.Lock()
	now = f.over
	if mine.share < cost {
		now = l.now()
	}
	if !mine.takeLocked(k, p, now, cost, l.options.Exact) {
		return l.passAndUnlock(ctx, k, p, now, charges)
	}
	d = p.answer(now, cost)
	k.mu.Unlock()
	return d, nil
}

// passAndUnlock lets the store decide a batch. If that has probably too little left, it first gets
// back what is here.
func (l *Lease) passAndUnlock(
	ctx context.Context, k *leasedKey, p *leasePool, now time.Duration, charges []penstock.Charge,
) (penstock.Decision, error) {
	held := p.left() > 0
	var refunds []refund
	if held && !l.options.Exact && p.short(charges[0].Cost) {
		refunds = l.emptyLocked(k, p, now, nil)
	}
	k.mu.Unlock()
	if l.giveBackFirst(ctx, k, refunds) != nil {
		return l.late(ctx, charges)
	}
	sent := l.now()
	d, err := l.next.Decide(ctx, charges)
	if err != nil {
		return d, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if d.Source == penstock.FromStore {
		now := l.now()
		p.hear(&d, sent, now)
		if p.scarce() {
			p.direct = now + p.rest(l.life/2, now)
		}
	} else {
		p.direct = l.now() + l.life // what somebody else would lend is not the store's
	}
	return d, nil
}

// late decides a batch for which the time is over: the caller has gone away, or the store below
// says that it is not asked any more.
func (l *Lease) late(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if err := callersErr(ctx); err != nil {
		return penstock.Decision{}, err
	}
	return l.next.Decide(ctx, charges)
}

// drawLocked starts a draw that brings what is held up to a block, if that is worth it and the
// block serves the cost.
func (l *Lease) drawLocked(ctx context.Context, k *leasedKey, p *leasePool, now time.Duration, cost int64) *flight {
	if k.unmaking > 0 || now < p.direct || p.blocks[0].left > 0 && p.blocks[1].left > 0 {
		return nil
	}
	block := l.blockOf(p, now)
	size := block - p.held()
	if block < leastBlock || size < 1 || 2*cost > block-p.coming || k.sharedLocked(p) || !l.begin() {
		return nil
	}
	f := &flight{done: make(chan struct{}), block: size}
	p.flight, p.block = f, block
	go l.draw(detach(ctx), k, p, f)
	return f
}

// blockOf is the size of a pool's block now: what is needed in half the time for which it may be
// spent, or 0 if that is not worth a draw.
func (l *Lease) blockOf(p *leasePool, now time.Duration) int64 {
	need := int64(min(p.demand*float64(p.lasts(l.life, now))/float64(l.life), penstock.MaxCost))
	most := int64(penstock.MaxCost)
	for i := range p.parts {
		most = min(most, l.options.largest(p.parts[i].plan))
	}
	if need < min(most, worthDraw) {
		return 0
	}
	return min(need, most)
}

// draw asks the store and tells those who wait.
func (l *Lease) draw(ctx context.Context, k *leasedKey, p *leasePool, f *flight) {
	defer l.work.Done()
	runtime.Gosched() // those who are about to ask come along
	k.mu.Lock()
	f.sent = true
	p.block = max(p.block, l.blockOf(p, l.now()))
	f.block = p.block - p.held() // what was there may be spent by now
	size := f.block + f.early.needs
	k.mu.Unlock()
	charges := make([]penstock.Charge, len(p.parts))
	for i := range charges {
		charges[i] = penstock.Charge{Key: k.name.key, Limit: p.parts[i].limit, Cost: size, Mode: penstock.Draw}
	}
	bounded, cancel := context.WithTimeout(ctx, l.life) // after which an answer is of no use
	defer cancel()
	sent := l.now()
	d, err := panicked.Decide(bounded, l.next, charges)
	if err != nil && !errors.Is(err, penstock.ErrUnavailable) && !errors.Is(err, penstock.ErrInvalid) {
		err = penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("a draw of %d units within %v: %v", size, l.life, err))
	}

	k.mu.Lock()
	now := l.now()
	p.flight, f.over = nil, now
	k.counts.draws++
	var refunds []refund
	switch {
	case err != nil:
		f.err = err
		p.direct = now + l.life/2
	case !d.Allowed:
		f.denial, f.denied = d, true
		p.hear(&d, sent, now)
		p.direct = now + p.rest(l.life/2, now)
		if d.Source != penstock.FromStore {
			p.direct = now + l.life
		}
	case d.Source != penstock.FromStore:
		units := least(&d, size)
		k.counts.drawn += units
		k.counts.lost += units
		p.direct = now + l.life
	default:
		refunds = l.receiveLocked(k, p, f, &d, size, sent, now)
	}
	k.mu.Unlock()
	close(f.done)
	for _, r := range refunds {
		l.giveBack(ctx, k, r)
	}
}

// receiveLocked keeps what a draw has brought. What it brought unequally, too late, or after Close,
// is to be given back.
func (l *Lease) receiveLocked(
	k *leasedKey, p *leasePool, f *flight, d *penstock.Decision, size int64, sent, now time.Duration,
) (refunds []refund) {
	units := least(d, size)
	p.took(now - sent)
	if units < size {
		p.quiet = now + l.life/16
	}
	if units < min(size, worthDraw) { // the key is at its limit: a denial that is remembered costs less
		p.direct = now + p.rest(l.life/2, now)
	}
	room := p.block - p.held()
	if units >= f.early.needs || units > room {
		f.early.share = min(units, f.early.needs)
	} // or else they look for it in the block, so that nothing is lost if it serves none of them
	b := leaseBlock{left: min(units-f.early.share, room), sent: sent, expires: sent + l.life, resets: make([]time.Duration, len(p.parts))}
	k.counts.drawn += units
	k.counts.spent += f.early.share
	k.counts.expired += units - f.early.share - b.left // of those who left meanwhile
	lasts, drained := b.expires, false
	var extra []penstock.Charge
	for i := range p.parts {
		part, s := &p.parts[i], d.Status(i)
		part.hear(s, sent)
		b.resets[i] = sent + part.end(s)
		if part.kind != drains {
			b.expires = min(b.expires, b.resets[i])
			lasts = min(lasts, b.expires)
		} else if l.options.Exact && b.resets[i] < lasts {
			lasts, drained = b.resets[i], true
		}
		more := s.Granted - units
		if more <= 0 || part.kind == drains && l.options.Exact {
			continue
		}
		extra = append(extra, penstock.Charge{Key: k.name.key, Limit: part.limit, Cost: more, Mode: penstock.Refund})
		part.left += more
		if part.kind == drains {
			b.resets[i] -= time.Duration(part.drain(more)) + 1
		}
	}
	if extra != nil {
		k.back++
		refunds = append(refunds, refund{pool: p, charges: extra, until: now + l.life/2})
	}
	if drained && p.demand*float64(lasts-now) < leastBlock*float64(l.life/2) { // such blocks are not worth it
		p.direct = now + l.life/2
	}
	b.travel = max((b.expires-sent)/16, 2*p.trip)
	for i := range p.blocks {
		if old := &p.blocks[i]; now >= old.expires {
			refunds = l.returnLocked(k, p, old, now, refunds)
		}
	}
	if p.blocks[0].left == 0 {
		p.blocks[0], p.blocks[1] = p.blocks[1], leaseBlock{}
	}
	if l.closed.Load() || now >= b.expires || p.blocks[1].left > 0 {
		return l.returnLocked(k, p, &b, now, refunds)
	}
	free := 0
	if p.blocks[0].left > 0 {
		free = 1
	}
	p.blocks[free] = b
	if f.early.share == f.early.needs {
		f.late.share = min(f.late.needs, k.spendableLocked(p, now, l.options.Exact))
		k.spendLocked(p, now, f.late.share)
	}
	l.armLocked(k, p, now)
	return refunds
}

// armLocked sets the timer to when something of the pool is due, if nobody asks until then.
func (l *Lease) armLocked(k *leasedKey, p *leasePool, now time.Duration) {
	due := now + l.life
	for i := range p.blocks {
		if p.blocks[i].left > 0 {
			due = min(due, p.blocks[i].due(), p.used+l.life/2)
		}
	}
	wait := max(due-now, 0)
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, func() { l.due(k, p) })
	} else {
		p.timer.Reset(wait)
	}
}

// due gives back what nobody needs, and what expires soon.
func (l *Lease) due(k *leasedKey, p *leasePool) {
	if !l.begin() {
		return
	}
	defer l.work.Done()
	var refunds []refund
	k.mu.Lock()
	now := l.now()
	for i := range p.blocks {
		if b := &p.blocks[i]; b.left > 0 && (now >= b.due() || now-p.used >= l.life/2) {
			refunds = l.returnLocked(k, p, b, now, refunds)
		}
	}
	if p.left() > 0 {
		l.armLocked(k, p, now)
	}
	k.mu.Unlock()
	for _, r := range refunds {
		l.giveBack(context.Background(), k, r)
	}
}

// due is the latest moment to begin to give a block back. If the store is too slow for that, the
// block is spent or expires.
func (b *leaseBlock) due() time.Duration { return b.expires - min(2*b.travel, (b.expires-b.sent)/2) }

// A refund gives units of a pool back.
type refund struct {
	pool    *leasePool
	charges []penstock.Charge
	units   int64         // of each limit
	until   time.Duration // afterwards it would not be right
}

// returnLocked takes a block away and appends its refund, if something of it still counts in the
// store.
func (l *Lease) returnLocked(k *leasedKey, p *leasePool, b *leaseBlock, now time.Duration, refunds []refund) []refund {
	if b.left == 0 {
		return refunds
	}
	r := refund{pool: p, units: b.left, until: now + b.travel}
	for i := range p.parts {
		part := &p.parts[i]
		units := part.returnable(b.left, b.resets[i], r.until, l.options.Exact)
		r.units = min(r.units, units)
		if units > 0 {
			r.charges = append(r.charges, penstock.Charge{Key: k.name.key, Limit: part.limit, Cost: units, Mode: penstock.Refund})
		}
	}
	k.counts.expired += b.left - r.units
	p.coming += r.units
	b.left = 0
	if len(r.charges) == 0 {
		return refunds
	}
	k.back++
	return append(refunds, r)
}

func (l *Lease) emptyLocked(k *leasedKey, p *leasePool, now time.Duration, refunds []refund) []refund {
	for i := range p.blocks {
		refunds = l.returnLocked(k, p, &p.blocks[i], now, refunds)
	}
	return refunds
}

// emptiedLocked are the refunds of all that is leased under a key.
func (l *Lease) emptiedLocked(k *leasedKey) (refunds []refund) {
	now := l.now()
	for _, p := range k.pools {
		if p.timer != nil {
			p.timer.Stop()
		}
		refunds = l.emptyLocked(k, p, now, refunds)
	}
	return refunds
}

// giveBack makes a refund. Without an answer the units are lost: it is not repeated.
func (l *Lease) giveBack(ctx context.Context, k *leasedKey, r refund) {
	ctx, cancel := context.WithTimeout(ctx, r.until-l.now())
	defer cancel()
	d, err := panicked.Decide(ctx, l.next, r.charges)
	k.mu.Lock()
	defer k.mu.Unlock()
	r.pool.coming -= r.units
	if err != nil || d.Source != penstock.FromStore {
		k.counts.lost += r.units
	} else {
		returned := least(&d, r.units)
		k.counts.returned += returned
		k.counts.expired += r.units - returned
	}
	if k.back--; k.back == 0 && k.settled != nil {
		close(k.settled)
		k.settled = nil
	}
}

// giveBackFirst makes refunds, and waits for them no longer than the caller does. They are made in
// any case.
func (l *Lease) giveBackFirst(ctx context.Context, k *leasedKey, refunds []refund) error {
	if len(refunds) == 0 {
		return nil
	}
	done := make(chan struct{})
	tracked := l.begin() // or else it is closed, and who closes it does not wait for this
	go func() {
		defer close(done)
		if tracked {
			defer l.work.Done()
		}
		for _, r := range refunds {
			l.giveBack(detach(ctx), k, r)
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forget lets a batch pass that takes back what was charged, once what is leased under its keys is
// back in the store.
func (l *Lease) forget(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	for i := range charges {
		c := &charges[i]
		if c.Mode != penstock.Refund && c.Mode != penstock.Reset {
			continue
		}
		group := c.Limit.Group
		if group == "" {
			group = c.Limit.Name
		}
		s := l.shard(c.Key)
		s.mu.RLock()
		k := s.keys[leaseName{c.Key, group}]
		s.mu.RUnlock()
		if k == nil {
			continue
		}
		k.mu.Lock()
		k.unmaking++
		k.mu.Unlock()
		defer func() {
			k.mu.Lock()
			k.unmaking--
			k.mu.Unlock()
		}()
		if l.settle(ctx, k) != nil {
			return l.late(ctx, charges)
		}
	}
	return l.next.Decide(ctx, charges)
}

// settle waits until nothing of a key is drawn, leased or on its way back. Nothing new is drawn
// meanwhile.
func (l *Lease) settle(ctx context.Context, k *leasedKey) error {
	for {
		k.mu.Lock()
		wait := k.underWayLocked()
		refunds := l.emptiedLocked(k)
		k.mu.Unlock()
		if wait == nil && len(refunds) == 0 {
			return nil
		}
		if err := l.giveBackFirst(ctx, k, refunds); err != nil {
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

// underWayLocked is closed when a draw or the refunds that are under way have ended. It is nil if
// there are none.
func (k *leasedKey) underWayLocked() <-chan struct{} {
	for _, p := range k.pools {
		if p.flight != nil {
			return p.flight.done
		}
	}
	if k.back == 0 {
		return nil
	}
	if k.settled == nil {
		k.settled = make(chan struct{})
	}
	return k.settled
}

// least is the number of units that every charge of a batch was granted, at most so many.
func least(d *penstock.Decision, atMost int64) int64 {
	for i := range d.Len() {
		atMost = min(atMost, d.Status(i).Granted)
	}
	return max(atMost, 0)
}
