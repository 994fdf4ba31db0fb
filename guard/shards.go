package guard

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// SplitOptions configure Split.
type SplitOptions struct {
	// Limits are the Settings of each limit, of which Shards matters here. It is called for every
	// charge, so it must be quick, and must say the same of all limits that share Name and Group.
	// Default: none is split.
	Limits func(*penstock.Limit) Settings
}

// Split keeps a limit with Settings.Shards = S in S counters under S keys, so that several servers
// can share the work of one hot key. Each counter has an S-th of the limit; the first ones have one
// unit more where it does not divide. Together they are the limit, so no more than it is ever
// admitted. S is 32 at most, and no more than the units that there are to divide.
//
// A Spend asks one shard at random, and where that denies, the others one after the other, so every
// unit can be had: a caller is denied when each shard has denied it. One call does while there is
// much left; a denial takes S. Where the context's deadline leaves no time for another call, a
// caller whom some shards have denied is denied, perhaps in vain. Put Deny inside too: then a shard
// that is known to be empty is not asked. A cost that no shard has, but all together have, is taken
// from several in one batch; where others spend meanwhile, it may be denied in vain.
//
// What else differs from a limit that is not split:
//
//   - Remaining of a Spend or Draw that was granted is an estimate: that of the shard that was
//     asked, times S. That of a Peek and of a denial is the sum of all. ResetAfter is that of the
//     shards that were asked last.
//   - RetryAfter is when the first shard will have the cost, if nobody else asks. The units of a
//     shard come back S times as slowly, so that may be up to S times as late; a TokenBucket that
//     is never idle has up to S-1 units less in use.
//   - A patient Spend is let in at once where any shard has room. Otherwise it waits at the shard
//     that will have room first. If it needs several, it waits for the last of them, and so uses
//     later what the others had for it sooner.
//   - Patient callers wait at several shards, so they keep no order.
//   - Draw takes what one shard has.
//   - Peek, Refund, Reset and a Force that does not fit are about all shards: S counters each. They
//     are not atomic with the rest of their batch: asked before it, or done after it was allowed.
//   - What is forced beyond the limit is owed by the shards that it fell to; the others go on.
//   - Concurrency: a hold begins at the shard that its Holder's hash names, and is found again from
//     there. If it was lent by another, and is renewed when its first shard has room again, then it
//     takes slots of both until Period later. A hold must not change its cost; one of more slots
//     than a shard has takes the same of each, or is denied.
//   - An AnchoredWindow begins at the first charge of each shard.
//   - A limit whose Shards change is another one, in part or whole: up to as much again is admitted
//     once.
//   - A limit that is lowered from A to B units, or that takes turns with a smaller one, denies at
//     each shard until that has drained below its part. A shard that has used less grants the rest
//     of its part, also where all together have used B. At once that is about √(B·S(1-1/S)/2π)
//     units more than without Split (7 where 150 become 50 in 8 shards), at most B - ⌊B/S⌋, and
//     with what was used before never more than A.
//   - Limits that use one counter must have the same number of Shards. A limit of fewer units than
//     Shards is split in fewer, and then the rates of both limits add up.
//
// In a batch of several charges the shard of each split one takes its place, all or nothing as
// ever; the batch is asked again, with other shards, while no other limit denies. The shards that a
// batch needs at once may be 64 at most; else the error wraps penstock.ErrInvalid.
//
// The shard of a breaker that is open is passed over, if the charge is alone. If then all others
// deny, the error is the breaker's.
//
// LeakyBucket is not split, since it lets out one at a time.
func Split(o SplitOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.Limits == nil {
			return next
		}
		s := &splitter{limits: o.Limits, next: next}
		s.jobs.New = func() any { return new(job) }
		return s
	}
}

const maxParts = 32

type splitter struct {
	limits func(*penstock.Limit) Settings
	next   penstock.Store
	parts  divided[*parts]
	jobs   sync.Pool
}

func (s *splitter) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	first, parts := s.firstSplit(charges)
	if parts == nil {
		return s.next.Decide(ctx, charges)
	}
	var plans [4]*penstock.Plan
	if _, err := penstock.Prepare(charges, plans[:0]); err != nil {
		return penstock.Decision{}, err
	}
	j := s.jobs.Get().(*job)
	j.begin(s, charges, first, parts)
	d, err := j.decide(ctx)
	j.end()
	s.jobs.Put(j)
	return d, err
}

func (s *splitter) firstSplit(charges []penstock.Charge) (int, *parts) {
	for i := range charges {
		if p := s.partsOf(&charges[i].Limit); p != nil {
			return i, p
		}
	}
	return 0, nil
}

// partsOf are the parts of a limit, or nil if it is not split.
func (s *splitter) partsOf(limit *penstock.Limit) *parts {
	n := s.limits(limit).Shards
	if n <= 1 {
		return nil
	}
	return s.parts.by(n, limit, makeParts)
}

// A job is a batch with a split charge while it is decided.
type job struct {
	next    penstock.Store
	charges []penstock.Charge
	pieces  []piece // of each charge
	source  penstock.Source

	batch []penstock.Charge // what the store is asked
	whose []int             // the charge that each of the batch is for
	where []int             // its shard
}

// A piece is what is known of one charge.
type piece struct {
	parts  *parts // nil: it is not split
	status penstock.Status

	way     way
	start   int             // the shard to ask first
	tried   int             // shards that have denied it
	retry   time.Duration   // by which its denial is answered
	soonest int             // the shard which that is of
	sure    bool            // that all shards together deny it
	left    [maxParts]int64 // of each shard, as far as known
	cost    [maxParts]int64 // of each shard, where it is about all
}

// A way is how a charge is made.
type way uint8

const (
	byOne     way = iota // by one shard, then the next
	evenly               // by all, the same of each
	byLeft               // by all, as much as each has
	byPatient            // as at first, and waiting
)

func (j *job) begin(s *splitter, charges []penstock.Charge, first int, parts *parts) {
	j.next, j.charges, j.source = s.next, charges, penstock.FromStore
	for len(j.pieces) < len(charges) {
		j.pieces = append(j.pieces, piece{})
	}
	for i := range charges {
		c, p := &charges[i], &j.pieces[i]
		p.parts, p.status = nil, penstock.Status{}
		if i == first {
			p.parts = parts
		} else if i > first {
			p.parts = s.partsOf(&c.Limit)
		}
		if p.parts == nil {
			continue
		}
		p.start, p.tried, p.retry, p.way = p.parts.home(c), 0, penstock.Never, byOne
		clear(p.left[:p.parts.n()])
		if c.Mode != penstock.Draw && c.Cost > p.parts.least {
			p.way = evenly
			p.evenly(c.Cost)
		}
	}
}

// end forgets what belongs to the caller.
func (j *job) end() {
	j.charges = nil
	j.clear()
	for i := range j.pieces {
		j.pieces[i].parts = nil
	}
}

func (j *job) decide(ctx context.Context) (penstock.Decision, error) {
	for i := range j.charges {
		if j.pieces[i].asks(&j.charges[i]) {
			if err := j.ask(ctx, i, j.charges[i].Cost); err != nil {
				return penstock.Decision{}, err
			}
		}
	}
	if j.denied() {
		return j.askTheRest(ctx)
	}
	if err := j.spend(ctx); err != nil {
		return penstock.Decision{}, err
	}
	denied := j.denied()
	for i := range j.charges {
		if !j.pieces[i].settles(&j.charges[i]) {
			continue
		}
		var err error
		if denied {
			err = j.ask(ctx, i, 0)
		} else {
			err = j.settle(ctx, i)
		}
		if err != nil {
			return penstock.Decision{}, err
		}
	}
	return j.decision(), nil
}

// Each split charge is of one of three kinds: it asks, spends or settles.

func (p *piece) asks(c *penstock.Charge) bool {
	return p.parts != nil && (c.Mode == penstock.Peek || c.Cost == 0 && c.Mode != penstock.Reset)
}

func (p *piece) spends(c *penstock.Charge) bool {
	return p.parts != nil && c.Cost > 0 && (c.Mode == penstock.Spend || c.Mode == penstock.Draw)
}

func (p *piece) settles(c *penstock.Charge) bool {
	return p.parts != nil && !p.asks(c) && !p.spends(c)
}

// denied tells whether a split charge that asks or spends was denied, or one that is not split.
func (j *job) denied() bool {
	for i := range j.charges {
		p := &j.pieces[i]
		if (p.parts == nil || !p.settles(&j.charges[i])) && p.status.RetryAfter != 0 {
			return true
		}
	}
	return false
}

// decision is what the statuses make.
func (j *job) decision() (d penstock.Decision) {
	if len(j.charges) == 1 {
		d = penstock.Single(j.pieces[0].status)
	} else {
		statuses := make([]penstock.Status, len(j.charges))
		for i := range statuses {
			statuses[i] = j.pieces[i].status
		}
		d = penstock.NewDecision(statuses)
	}
	d.Source = j.source
	return d
}

// add adds to the batch a charge with another cost and mode at one of its shards.
func (j *job) add(i, shard int, mode penstock.Mode, cost int64) *penstock.Charge {
	j.batch = append(j.batch, j.charges[i])
	j.whose = append(j.whose, i)
	j.where = append(j.where, shard)
	c := &j.batch[len(j.batch)-1]
	c.Mode, c.Cost = mode, cost
	if p := j.pieces[i].parts; p != nil {
		c.Key, c.Limit = shardKey(c.Key, shard), p.limits[shard]
		if c.Patience > 0 {
			plan, _ := c.Limit.Plan() // it is ready
			c.Patience = min(c.Patience, plan.MaxPatience())
		}
	}
	return c
}

func (j *job) clear() {
	clear(j.batch)
	j.batch, j.whose, j.where = j.batch[:0], j.whose[:0], j.where[:0]
}

// send asks the store what was added.
func (j *job) send(ctx context.Context) (penstock.Decision, error) {
	if len(j.batch) > penstock.MaxCharges {
		return penstock.Decision{}, fmt.Errorf("%w: the batch needs %d shards of split limits at once; the most is %d: lower Settings.Shards",
			penstock.ErrInvalid, len(j.batch), penstock.MaxCharges)
	}
	d, err := j.next.Decide(ctx, j.batch)
	j.source = d.Source
	return d, err
}

// all sends one charge to all of its shards, at the costs of its piece, and sums up what they say.
func (j *job) all(ctx context.Context, i int, mode penstock.Mode) error {
	p := &j.pieces[i]
	j.clear()
	for shard := range p.parts.n() {
		j.add(i, shard, mode, p.cost[shard])
	}
	d, err := j.send(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	for shard := range p.parts.n() {
		p.sum(d.Status(shard), shard)
	}
	return nil
}

// sum adds what one of all shards says.
func (p *piece) sum(s penstock.Status, shard int) {
	p.left[shard] = s.Remaining
	p.status.Granted += s.Granted
	p.status.Remaining += s.Remaining
	p.status.RetryAfter = max(p.status.RetryAfter, s.RetryAfter)
	p.status.ResetAfter = max(p.status.ResetAfter, s.ResetAfter)
	p.status.Wait = max(p.status.Wait, s.Wait)
}

// ask answers what a Spend of the cost would be answered.
func (j *job) ask(ctx context.Context, i int, cost int64) error {
	p := &j.pieces[i]
	one := cost <= p.parts.least
	if one {
		for shard := range p.parts.n() {
			p.cost[shard] = cost
		}
	} else {
		p.evenly(cost)
	}
	j.clear()
	for shard := range p.parts.n() {
		j.add(i, shard, penstock.Peek, p.cost[shard])
	}
	d, err := j.send(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	first := d.Status(0)
	for shard := range p.parts.n() {
		s := d.Status(shard)
		if p.sum(s, shard); s.RetryAfter < first.RetryAfter || s.RetryAfter == first.RetryAfter && s.Wait < first.Wait {
			first = s
		}
	}
	if one {
		p.status.RetryAfter, p.status.Wait = first.RetryAfter, first.Wait
	}
	if p.together(cost) {
		p.status.RetryAfter, p.status.Wait = 0, 0
	}
	return nil
}

// together tells whether all shards have the cost, if it can be taken from several as they have it.
// (A hold must be found again.)
func (p *piece) together(cost int64) bool {
	return !p.parts.holds && p.sumLeft() >= cost
}

func (p *piece) sumLeft() (sum int64) {
	for _, left := range p.left[:p.parts.n()] {
		sum += left
	}
	return sum
}

// askTheRest answers a batch in which a Peek is denied: what else there is only asks too.
func (j *job) askTheRest(ctx context.Context) (penstock.Decision, error) {
	j.clear()
	for i := range j.charges {
		if j.pieces[i].parts == nil {
			mode, cost := penstock.Peek, asking(&j.charges[i])
			j.add(i, 0, mode, cost)
		}
	}
	if len(j.batch) > 0 {
		d, err := j.send(ctx)
		if err != nil {
			return d, err
		}
		for k, i := range j.whose {
			j.pieces[i].status = d.Status(k)
		}
	}
	for i := range j.charges {
		if p := &j.pieces[i]; p.parts != nil && !p.asks(&j.charges[i]) {
			if err := j.ask(ctx, i, asking(&j.charges[i])); err != nil {
				return penstock.Decision{}, err
			}
		}
	}
	return j.decision(), nil
}

// asking is the cost by which a Peek answers what the charge would be answered.
func asking(c *penstock.Charge) int64 {
	switch c.Mode {
	case penstock.Spend, penstock.Peek:
		return c.Cost
	case penstock.Draw:
		return min(c.Cost, 1)
	}
	return 0
}

// spend makes the charges that are not split and those that spend, all or none. Where the
// decision's deadline leaves no time for another question, the denials until then stand.
func (j *job) spend(ctx context.Context) error {
	var passed error
	deadline, limited := ctx.Deadline()
	var longest time.Duration // that a question took
	for {
		var sent time.Time
		if limited {
			sent = time.Now()
		}
		j.clear()
		for i := range j.charges {
			j.addSpend(i)
		}
		if len(j.batch) == 0 {
			return nil
		}
		d, err := j.send(ctx)
		if err != nil {
			if !j.passOver(err) {
				return err
			}
			passed = err
			continue
		}
		j.read(&d)
		if d.Allowed {
			return nil
		}
		timely := true
		if limited {
			now := time.Now()
			longest = max(longest, now.Sub(sent))
			timely = deadline.Sub(now) > 2*longest // the next may take longer
		}
		if timely && j.turn() {
			continue
		}
		if passed != nil || !timely {
			return passed
		}
		return j.makeSure(ctx)
	}
}

// makeSure asks all shards of the charges that were denied by some, while another limit denies the
// batch anyway.
func (j *job) makeSure(ctx context.Context) error {
	for i := range j.charges {
		c, p := &j.charges[i], &j.pieces[i]
		if !p.spends(c) || p.status.RetryAfter == 0 || p.sure {
			continue
		}
		if err := j.ask(ctx, i, asking(c)); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) addSpend(i int) {
	c, p := &j.charges[i], &j.pieces[i]
	switch {
	case p.parts == nil:
		j.add(i, 0, c.Mode, c.Cost)
	case !p.spends(c):
	case p.one(c):
		added := j.add(i, p.shard(), c.Mode, c.Cost)
		if p.way != byPatient {
			added.Patience = 0
		}
	default:
		for shard := range p.parts.n() {
			added := j.add(i, shard, c.Mode, p.cost[shard])
			if p.way != byPatient {
				added.Patience = 0
			}
		}
	}
}

// one tells whether one shard is asked.
func (p *piece) one(c *penstock.Charge) bool {
	return p.way == byOne || p.way == byPatient && (c.Mode == penstock.Draw || c.Cost <= p.parts.least)
}

func (p *piece) shard() int { return (p.start + p.tried) % p.parts.n() }

// read notes what the store said.
func (j *job) read(d *penstock.Decision) {
	for k := 0; k < len(j.batch); {
		i := j.whose[k]
		p := &j.pieces[i]
		switch {
		case p.parts == nil:
			p.status = d.Status(k)
			k++
		case p.one(&j.charges[i]):
			p.readOne(d.Status(k), j.where[k], j.charges[i].Cost)
			k++
		default:
			p.status = penstock.Status{}
			for range p.parts.n() {
				p.sum(d.Status(k), j.where[k])
				k++
			}
			p.sure = p.way != evenly || !p.together(j.charges[i].Cost)
			if p.way != byLeft {
				p.retry = p.status.RetryAfter
			} else if p.status.RetryAfter != 0 {
				p.status.RetryAfter = p.retry
			}
		}
	}
}

func (p *piece) readOne(s penstock.Status, shard int, cost int64) {
	p.left[shard] = s.Remaining
	if s.RetryAfter != 0 {
		if s.RetryAfter < p.retry {
			p.retry, p.soonest = s.RetryAfter, shard
		}
		s.RetryAfter = p.retry
	}
	n := int64(p.parts.n())
	p.sure = false
	if s.RetryAfter != 0 && (p.tried == p.parts.n()-1 || p.way == byPatient) {
		p.sure = !p.together(cost)
		s.Remaining = p.sumLeft()
	} else {
		s.Remaining = max(s.Remaining, min(s.Remaining*n, p.parts.capacity-s.Granted))
	}
	p.status = s
}

// turn has each charge that was denied try something else, and tells whether all can.
func (j *job) turn() bool {
	for i := range j.charges {
		if p := &j.pieces[i]; (p.parts == nil || p.spends(&j.charges[i])) && p.status.RetryAfter != 0 && !p.turn(&j.charges[i]) {
			return false
		}
	}
	return true
}

func (p *piece) turn(c *penstock.Charge) bool {
	switch {
	case p.parts == nil || p.way == byPatient:
		return false
	case p.way == byOne && p.tried < p.parts.n()-1:
		p.tried++
		return true
	case p.way != byLeft && c.Mode == penstock.Spend && c.Cost > 1 && p.together(c.Cost):
		p.way = byLeft
		p.byLeft(c.Cost)
		return true
	case c.Patience > 0 && p.retry != penstock.Never && p.parts.limits[0].Algorithm.Bookable:
		p.way = byPatient
		p.start, p.tried = p.soonest, 0
		p.evenly(c.Cost)
		return true
	}
	return false
}

func isBreakerOpen(err error) bool {
	e := penstock.AsStoreError(err)
	return e != nil && e.Reason == penstock.ReasonBreakerOpen
}

// passOver has a charge that is alone go on to the next shard if a breaker has kept it from being
// asked.
func (j *job) passOver(err error) bool {
	p := &j.pieces[0]
	if len(j.charges) > 1 || p.way != byOne || p.tried == p.parts.n()-1 || !isBreakerOpen(err) {
		return false
	}
	p.tried++
	return true
}

// settle makes a charge that is never denied.
func (j *job) settle(ctx context.Context, i int) error {
	c, p := &j.charges[i], &j.pieces[i]
	switch {
	case c.Mode == penstock.Reset:
		p.evenly(c.Cost)
		return j.all(ctx, i, c.Mode)
	case p.parts.holds && c.Cost > p.parts.least:
		return j.all(ctx, i, c.Mode) // as it was acquired
	case p.parts.holds && c.Mode == penstock.Refund:
		return j.release(ctx, i)
	case p.parts.holds:
		_, err := j.askOne(ctx, i, c.Mode, c.Cost)
		return err
	case c.Mode == penstock.Force:
		return j.force(ctx, i)
	}
	if err := j.ask(ctx, i, 0); err != nil {
		return err
	}
	p.byUse(c.Cost)
	return j.all(ctx, i, c.Mode)
}

// askOne sends one charge to the shard whose turn it is.
func (j *job) askOne(ctx context.Context, i int, mode penstock.Mode, cost int64) (granted int64, err error) {
	p := &j.pieces[i]
	j.clear()
	j.add(i, p.shard(), mode, cost).Patience = 0
	d, err := j.send(ctx)
	if err == nil {
		granted = d.Status(0).Granted
		p.readOne(d.Status(0), p.shard(), cost)
	}
	return granted, err
}

// release looks for a hold from its first shard on.
func (j *job) release(ctx context.Context, i int) error {
	p, cost := &j.pieces[i], j.charges[i].Cost
	released := int64(0)
	for ; p.tried < p.parts.n() && released < cost; p.tried++ {
		granted, err := j.askOne(ctx, i, penstock.Refund, cost-released)
		if err != nil {
			return err
		}
		released += granted
	}
	p.status.Granted = released
	return nil
}

// force spends where it fits, and else takes what each shard has and lets all owe the rest.
func (j *job) force(ctx context.Context, i int) error {
	p, cost := &j.pieces[i], j.charges[i].Cost
	if p.way == byOne {
		if _, err := j.askOne(ctx, i, penstock.Spend, cost); err != nil || p.status.RetryAfter == 0 {
			return err
		}
	}
	if err := j.ask(ctx, i, 0); err != nil {
		return err
	}
	p.byLeft(cost)
	return j.all(ctx, i, penstock.Force)
}

// The costs of all shards.

func (p *piece) evenly(cost int64) {
	for shard := range p.parts.n() {
		p.cost[shard] = part(cost, p.parts.n(), shard)
	}
}

// byLeft takes what each shard has, beginning with the first to ask; what is beyond that is taken
// evenly.
func (p *piece) byLeft(cost int64) { p.by(cost, func(shard int) int64 { return p.left[shard] }) }

// byUse takes what each shard has in use.
func (p *piece) byUse(cost int64) {
	p.by(cost, func(shard int) int64 { return max(p.parts.units(shard)-p.left[shard], 0) })
}

func (p *piece) by(cost int64, room func(shard int) int64) {
	n := p.parts.n()
	for k := range n {
		shard := (p.start + k) % n
		p.cost[shard] = min(cost, room(shard))
		cost -= p.cost[shard]
	}
	for shard := range n {
		p.cost[shard] += part(cost, n, shard)
	}
}

// shardKey is the key of a shard. No two keys of one split limit have one in common: what is added
// is of one length.
func shardKey(key string, shard int) string {
	const digits = "0123456789"
	suffix := [...]byte{'~', digits[shard/10], digits[shard%10]}
	if len(key) < penstock.MaxKey-len(suffix) {
		return key + string(suffix[:])
	}
	// The keys of which too little would be left end with their hash, and are longer than any other.
	sum := sha256.Sum256([]byte(key))
	return key[:penstock.MaxKey-len(sum)-len(suffix)] + string(sum[:]) + string(suffix[:])
}

// parts are what a limit is split into.
type parts struct {
	limits   []penstock.Limit
	capacity int64 // of the whole: what can be used at once
	least    int64 // of a part
	holds    bool
}

func (p *parts) n() int { return len(p.limits) }

// units are the capacity of one part.
func (p *parts) units(shard int) int64 { return part(p.capacity, p.n(), shard) }

// home is the shard to ask first.
func (p *parts) home(c *penstock.Charge) int {
	if !p.holds {
		return rand.IntN(p.n())
	}
	const offset, prime = 2166136261, 16777619 // FNV-1a: every instance must find the same
	h := uint32(offset)
	for i := 0; i < len(c.Holder); i++ {
		h = (h ^ uint32(c.Holder[i])) * prime
	}
	return int(h % uint32(p.n()))
}

// part is the i-th of n parts of a whole: as equal as whole numbers can be, the larger first.
func part(whole int64, n, i int) int64 {
	p := whole / int64(n)
	if int64(i) < whole%int64(n) {
		p++
	}
	return p
}

// makeParts splits a limit in n, or fewer where its units or its precision do not suffice. It is
// nil if there is but one.
func makeParts(limit penstock.Limit, n int) *parts {
	plan, err := limit.Plan()
	if err != nil {
		return nil // the store says what is wrong
	}
	l := plan.Limit.WithName(plan.Limit.Name) // without its plan
	if l.Algorithm.Is(penstock.LeakyBucket) {
		return nil
	}
	if l.Burst == 0 && (l.Algorithm.Is(penstock.TokenBucket) || l.Algorithm.Is(penstock.Concurrency)) {
		l.Burst = l.Count
	}
	capacity := plan.Capacity
	most := capacity
	if l.Burst > 0 {
		most = min(most, l.Burst) // a part with none would have the default
	}
	for n = int(min(int64(n), most, maxParts)); n > 1; n-- {
		p := &parts{capacity: capacity, least: capacity / int64(n), holds: l.Algorithm.Holds}
		for i := range n {
			if ready, ok := onePart(l, n, i); ok {
				p.limits = append(p.limits, ready)
			}
		}
		if len(p.limits) == n {
			return p
		}
	}
	return nil
}

func onePart(l penstock.Limit, n, i int) (penstock.Limit, bool) {
	l.Burst = part(l.Burst, n, i)
	if l.Algorithm.Is(penstock.TokenBucket) && l.Period <= math.MaxInt64/time.Duration(n) {
		equal := l
		equal.Period *= time.Duration(n) // the rate of each is the same, and they add up exactly
		if ready, err := equal.Ready(); err == nil {
			return ready, true
		}
	}
	if l.Algorithm.Holds {
		l.Count = max(l.Count/int64(n), 1) // it is the Burst that counts
	} else {
		l.Count = part(l.Count, n, i)
	}
	ready, err := l.Ready()
	return ready, err == nil
}
