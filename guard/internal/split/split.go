// Package split keeps one limit in several counters, so that several servers share its work.
package split

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard/internal/divide"
)

// New returns a store that splits limits. shards returns how many counters a limit has. 0 and 1
// mean one.
func New(next penstock.Store, shards func(*penstock.Plan) int) penstock.Store {
	s := &store{shards: shards, next: next}
	s.batches.New = func() any { return new(splitBatch) }
	return s
}

const maxParts = 32

type store struct {
	shards  func(*penstock.Plan) int
	next    penstock.Store
	parts   divide.Cache[*Parts]
	batches sync.Pool
}

func (s *store) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	first, parts := s.firstSplit(charges)
	if parts == nil {
		return s.next.Decide(ctx, charges)
	}
	if err := penstock.Check(charges); err != nil {
		return penstock.Decision{}, err
	}
	j := s.batches.Get().(*splitBatch)
	j.begin(s, charges, first, parts)
	d, err := j.decide(ctx)
	j.end()
	s.batches.Put(j)
	return d, err
}

func (s *store) firstSplit(charges []penstock.Charge) (int, *Parts) {
	for i := range charges {
		if p := s.partsOf(charges[i].Plan); p != nil {
			return i, p
		}
	}
	return 0, nil
}

// partsOf returns the parts of a limit, or nil if it is not split.
func (s *store) partsOf(plan *penstock.Plan) *Parts {
	if plan == nil {
		return nil // the store says what is wrong
	}
	n := s.shards(plan)
	if n <= 1 {
		return nil
	}
	return s.parts.Get(plan.Limit(), n, PartsOf)
}

// A splitBatch is a batch with a split charge while it is decided.
type splitBatch struct {
	next    penstock.Store
	charges []penstock.Charge
	states  []chargeState // of each charge
	source  penstock.Source

	batch       []penstock.Charge // the charges to send
	chargeIndex []int             // of each charge in batch, its index in charges
	shardIndex  []int             // of each charge in batch, its shard
}

// A chargeState is the progress of one charge.
type chargeState struct {
	parts  *Parts // nil: it is not split
	status penstock.Status

	strategy strategy
	start    int             // the first shard
	tried    int             // shards that have denied it
	retry    time.Duration   // the shortest RetryAfter of its denials
	soonest  int             // the shard of that RetryAfter
	sure     bool            // all shards together deny it
	left     [maxParts]int64 // remaining units of each shard, 0 if not known
	cost     [maxParts]int64 // for each shard, if all are called
}

// A strategy says which shards a charge is sent to.
type strategy uint8

const (
	oneShard        strategy = iota // at one shard, then at the next
	equally                         // at all, equal parts
	byRemaining                     // at all, as much as each has
	oneShardWaiting                 // at the shard with the shortest RetryAfter, with patience
)

func (j *splitBatch) begin(s *store, charges []penstock.Charge, first int, parts *Parts) {
	j.next, j.charges, j.source = s.next, charges, penstock.FromStore
	for len(j.states) < len(charges) {
		j.states = append(j.states, chargeState{})
	}
	for i := range charges {
		c, p := &charges[i], &j.states[i]
		p.parts, p.status = nil, penstock.Status{}
		if i == first {
			p.parts = parts
		} else if i > first {
			p.parts = s.partsOf(c.Plan)
		}
		if p.parts == nil {
			continue
		}
		p.start, p.tried, p.retry, p.strategy = p.parts.home(c), 0, penstock.Never, oneShard
		clear(p.left[:p.parts.N()])
		if c.Mode != penstock.Draw && c.Cost > p.parts.MinUnits {
			p.strategy = equally
			p.spreadEqually(c.Cost)
		}
	}
}

// end forgets what belongs to the caller.
func (j *splitBatch) end() {
	j.charges = nil
	j.clear()
	for i := range j.states {
		j.states[i].parts = nil
	}
}

func (j *splitBatch) decide(ctx context.Context) (penstock.Decision, error) {
	for i := range j.charges {
		if j.states[i].asks(&j.charges[i]) {
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
		if !j.states[i].settles(&j.charges[i]) {
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

func (p *chargeState) asks(c *penstock.Charge) bool {
	return p.parts != nil && (c.Mode == penstock.Peek || c.Cost == 0 && c.Mode != penstock.Reset)
}

func (p *chargeState) spends(c *penstock.Charge) bool {
	return p.parts != nil && c.Cost > 0 && (c.Mode == penstock.Spend || c.Mode == penstock.Draw)
}

func (p *chargeState) settles(c *penstock.Charge) bool {
	return p.parts != nil && !p.asks(c) && !p.spends(c)
}

// denied tells whether a charge was denied. Charges that settle do not count.
func (j *splitBatch) denied() bool {
	for i := range j.charges {
		p := &j.states[i]
		if (p.parts == nil || !p.settles(&j.charges[i])) && p.status.RetryAfter != 0 {
			return true
		}
	}
	return false
}

// decision is what the statuses make.
func (j *splitBatch) decision() (d penstock.Decision) {
	if len(j.charges) == 1 {
		d = penstock.Single(j.states[0].status)
	} else {
		statuses := make([]penstock.Status, len(j.charges))
		for i := range statuses {
			statuses[i] = j.states[i].status
		}
		d = penstock.NewDecision(statuses)
	}
	d.Source = j.source
	return d
}

// add adds to the batch a charge with another cost and mode at one of its shards.
func (j *splitBatch) add(i, shard int, mode penstock.Mode, cost int64) *penstock.Charge {
	j.batch = append(j.batch, j.charges[i])
	j.chargeIndex = append(j.chargeIndex, i)
	j.shardIndex = append(j.shardIndex, shard)
	c := &j.batch[len(j.batch)-1]
	c.Mode, c.Cost = mode, cost
	if p := j.states[i].parts; p != nil {
		c.Key, c.Plan = shardKey(c.Key, shard), p.plans[shard]
		if c.Patience > 0 {
			c.Patience = min(c.Patience, c.Plan.MaxPatience())
		}
	}
	return c
}

func (j *splitBatch) clear() {
	clear(j.batch)
	j.batch, j.chargeIndex, j.shardIndex = j.batch[:0], j.chargeIndex[:0], j.shardIndex[:0]
}

// send sends the added charges to the store.
func (j *splitBatch) send(ctx context.Context) (penstock.Decision, error) {
	if len(j.batch) > penstock.MaxCharges {
		return penstock.Decision{}, fmt.Errorf("%w: the batch needs %d shards of split limits at once; the most is %d: lower Settings.SplitInto",
			penstock.ErrInvalid, len(j.batch), penstock.MaxCharges)
	}
	d, err := j.next.Decide(ctx, j.batch)
	j.source = d.Source
	return d, err
}

// all sends one charge to all of its shards, at the costs of its state, and sums up their
// statuses.
func (j *splitBatch) all(ctx context.Context, i int, mode penstock.Mode) error {
	p := &j.states[i]
	j.clear()
	for shard := range p.parts.N() {
		j.add(i, shard, mode, p.cost[shard])
	}
	d, err := j.send(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	for shard := range p.parts.N() {
		p.sum(d.Status(shard), shard)
	}
	return nil
}

// sum adds the status of one shard.
func (p *chargeState) sum(s penstock.Status, shard int) {
	p.left[shard] = s.Remaining
	p.status.Granted += s.Granted
	p.status.Remaining += s.Remaining
	p.status.RetryAfter = max(p.status.RetryAfter, s.RetryAfter)
	p.status.ResetAfter = max(p.status.ResetAfter, s.ResetAfter)
	p.status.Wait = max(p.status.Wait, s.Wait)
}

// ask peeks at all shards. It sets the status that a Spend of the cost would get.
func (j *splitBatch) ask(ctx context.Context, i int, cost int64) error {
	p := &j.states[i]
	one := cost <= p.parts.MinUnits
	if one {
		for shard := range p.parts.N() {
			p.cost[shard] = cost
		}
	} else {
		p.spreadEqually(cost)
	}
	j.clear()
	for shard := range p.parts.N() {
		j.add(i, shard, penstock.Peek, p.cost[shard])
	}
	d, err := j.send(ctx)
	if err != nil {
		return err
	}
	p.status = penstock.Status{}
	first := d.Status(0)
	for shard := range p.parts.N() {
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

// together tells whether all shards together have the cost, and it may be taken from several. (A
// hold may not, because it must be found again.)
func (p *chargeState) together(cost int64) bool {
	return !p.parts.holds && p.sumLeft() >= cost
}

func (p *chargeState) sumLeft() (sum int64) {
	for _, left := range p.left[:p.parts.N()] {
		sum += left
	}
	return sum
}

// askTheRest answers a batch in which a Peek is denied. Its other charges become Peeks.
func (j *splitBatch) askTheRest(ctx context.Context) (penstock.Decision, error) {
	j.clear()
	for i := range j.charges {
		if j.states[i].parts == nil {
			mode, cost := penstock.Peek, asking(&j.charges[i])
			j.add(i, 0, mode, cost)
		}
	}
	if len(j.batch) > 0 {
		d, err := j.send(ctx)
		if err != nil {
			return d, err
		}
		for k, i := range j.chargeIndex {
			j.states[i].status = d.Status(k)
		}
	}
	for i := range j.charges {
		if p := &j.states[i]; p.parts != nil && !p.asks(&j.charges[i]) {
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

// spend makes the charges that are not split and those that spend, all or none. If the decision's
// deadline leaves no time for another call, the denials so far decide.
func (j *splitBatch) spend(ctx context.Context) error {
	var passed error
	deadline, limited := ctx.Deadline()
	var longest time.Duration // call so far
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
		if timely && j.tryNext() {
			continue
		}
		if passed != nil || !timely {
			return passed
		}
		return j.confirmDenied(ctx)
	}
}

// confirmDenied peeks at all shards of the charges that only some have denied. Another limit
// denies the batch anyway.
func (j *splitBatch) confirmDenied(ctx context.Context) error {
	for i := range j.charges {
		c, p := &j.charges[i], &j.states[i]
		if !p.spends(c) || p.status.RetryAfter == 0 || p.sure {
			continue
		}
		if err := j.ask(ctx, i, asking(c)); err != nil {
			return err
		}
	}
	return nil
}

func (j *splitBatch) addSpend(i int) {
	c, p := &j.charges[i], &j.states[i]
	switch {
	case p.parts == nil:
		j.add(i, 0, c.Mode, c.Cost)
	case !p.spends(c):
	case p.one(c):
		added := j.add(i, p.shard(), c.Mode, c.Cost)
		if p.strategy != oneShardWaiting {
			added.Patience = 0
		}
	default:
		for shard := range p.parts.N() {
			added := j.add(i, shard, c.Mode, p.cost[shard])
			if p.strategy != oneShardWaiting {
				added.Patience = 0
			}
		}
	}
}

// one tells whether the charge is sent to one shard.
func (p *chargeState) one(c *penstock.Charge) bool {
	return p.strategy == oneShard || p.strategy == oneShardWaiting && (c.Mode == penstock.Draw || c.Cost <= p.parts.MinUnits)
}

func (p *chargeState) shard() int { return (p.start + p.tried) % p.parts.N() }

// read stores the statuses of a decision.
func (j *splitBatch) read(d *penstock.Decision) {
	for k := 0; k < len(j.batch); {
		i := j.chargeIndex[k]
		p := &j.states[i]
		switch {
		case p.parts == nil:
			p.status = d.Status(k)
			k++
		case p.one(&j.charges[i]):
			p.readOne(d.Status(k), j.shardIndex[k], j.charges[i].Cost)
			k++
		default:
			p.status = penstock.Status{}
			for range p.parts.N() {
				p.sum(d.Status(k), j.shardIndex[k])
				k++
			}
			p.sure = p.strategy != equally || !p.together(j.charges[i].Cost)
			if p.strategy != byRemaining {
				p.retry = p.status.RetryAfter
			} else if p.status.RetryAfter != 0 {
				p.status.RetryAfter = p.retry
			}
		}
	}
}

func (p *chargeState) readOne(s penstock.Status, shard int, cost int64) {
	p.left[shard] = s.Remaining
	if s.RetryAfter != 0 {
		if s.RetryAfter < p.retry {
			p.retry, p.soonest = s.RetryAfter, shard
		}
		s.RetryAfter = p.retry
	}
	n := int64(p.parts.N())
	p.sure = false
	if s.RetryAfter != 0 && (p.tried == p.parts.N()-1 || p.strategy == oneShardWaiting) {
		p.sure = !p.together(cost)
		s.Remaining = p.sumLeft()
	} else {
		s.Remaining = max(s.Remaining, min(s.Remaining*n, p.parts.capacity-s.Granted))
	}
	p.status = s
}

// tryNext lets each denied charge try its next strategy. It returns false if a charge has none
// left.
func (j *splitBatch) tryNext() bool {
	for i := range j.charges {
		if p := &j.states[i]; (p.parts == nil || p.spends(&j.charges[i])) && p.status.RetryAfter != 0 && !p.tryNext(&j.charges[i]) {
			return false
		}
	}
	return true
}

func (p *chargeState) tryNext(c *penstock.Charge) bool {
	switch {
	case p.parts == nil || p.strategy == oneShardWaiting:
		return false
	case p.strategy == oneShard && p.tried < p.parts.N()-1:
		p.tried++
		return true
	case p.strategy != byRemaining && c.Mode == penstock.Spend && c.Cost > 1 && p.together(c.Cost):
		p.strategy = byRemaining
		p.spreadByRemaining(c.Cost)
		return true
	case c.Patience > 0 && p.retry != penstock.Never && p.parts.plans[0].Algorithm().CanBook():
		p.strategy = oneShardWaiting
		p.start, p.tried = p.soonest, 0
		p.spreadEqually(c.Cost)
		return true
	}
	return false
}

func isBreakerOpen(err error) bool {
	e := penstock.AsStoreError(err)
	return e != nil && e.Reason == penstock.ReasonBreakerOpen
}

// passOver moves a charge that is alone on to the next shard, if a breaker rejected the call.
func (j *splitBatch) passOver(err error) bool {
	p := &j.states[0]
	if len(j.charges) > 1 || p.strategy != oneShard || p.tried == p.parts.N()-1 || !isBreakerOpen(err) {
		return false
	}
	p.tried++
	return true
}

// settle makes a charge that is never denied.
func (j *splitBatch) settle(ctx context.Context, i int) error {
	c, p := &j.charges[i], &j.states[i]
	switch {
	case c.Mode == penstock.Reset:
		p.spreadEqually(c.Cost)
		return j.all(ctx, i, c.Mode)
	case p.parts.holds && c.Cost > p.parts.MinUnits:
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
	p.spreadByUse(c.Cost)
	return j.all(ctx, i, c.Mode)
}

// askOne sends one charge to its current shard.
func (j *splitBatch) askOne(ctx context.Context, i int, mode penstock.Mode, cost int64) (granted int64, err error) {
	p := &j.states[i]
	j.clear()
	j.add(i, p.shard(), mode, cost).Patience = 0
	d, err := j.send(ctx)
	if err == nil {
		granted = d.Status(0).Granted
		p.readOne(d.Status(0), p.shard(), cost)
	}
	return granted, err
}

// release refunds a hold. It searches the shards, beginning with the first of the hold.
func (j *splitBatch) release(ctx context.Context, i int) error {
	p, cost := &j.states[i], j.charges[i].Cost
	released := int64(0)
	for ; p.tried < p.parts.N() && released < cost; p.tried++ {
		granted, err := j.askOne(ctx, i, penstock.Refund, cost-released)
		if err != nil {
			return err
		}
		released += granted
	}
	p.status.Granted = released
	return nil
}

// force spends at one shard if it fits. Otherwise it takes what each shard has, and divides the
// rest as debt among all.
func (j *splitBatch) force(ctx context.Context, i int) error {
	p, cost := &j.states[i], j.charges[i].Cost
	if p.strategy == oneShard {
		if _, err := j.askOne(ctx, i, penstock.Spend, cost); err != nil || p.status.RetryAfter == 0 {
			return err
		}
	}
	if err := j.ask(ctx, i, 0); err != nil {
		return err
	}
	p.spreadByRemaining(cost)
	return j.all(ctx, i, penstock.Force)
}

// The costs of all shards.

func (p *chargeState) spreadEqually(cost int64) {
	for shard := range p.parts.N() {
		p.cost[shard] = partOf(cost, p.parts.N(), shard)
	}
}

// spreadByRemaining takes what each shard has, beginning with the first. The rest is divided
// equally.
func (p *chargeState) spreadByRemaining(cost int64) {
	p.spread(cost, func(shard int) int64 { return p.left[shard] })
}

// spreadByUse takes what each shard has in use.
func (p *chargeState) spreadByUse(cost int64) {
	p.spread(cost, func(shard int) int64 { return max(p.parts.unitsOf(shard)-p.left[shard], 0) })
}

func (p *chargeState) spread(cost int64, room func(shard int) int64) {
	n := p.parts.N()
	for k := range n {
		shard := (p.start + k) % n
		p.cost[shard] = min(cost, room(shard))
		cost -= p.cost[shard]
	}
	for shard := range n {
		p.cost[shard] += partOf(cost, n, shard)
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
	// The keys of which too little would be left end with their hash, and are longer than any other.
	sum := sha256.Sum256([]byte(key))
	return key[:penstock.MaxKey-len(sum)-len(suffix)] + string(sum[:]) + string(suffix[:])
}

// Parts are what a limit is split into.
type Parts struct {
	plans    []*penstock.Plan
	capacity int64 // of the whole: what can be used at once
	MinUnits int64 // of the smallest part
	holds    bool
}

// N returns how many parts there are.
func (p *Parts) N() int { return len(p.plans) }

// unitsOf returns the capacity of one part.
func (p *Parts) unitsOf(shard int) int64 { return partOf(p.capacity, p.N(), shard) }

// home returns the shard to call first.
func (p *Parts) home(c *penstock.Charge) int {
	if !p.holds {
		return rand.IntN(p.N())
	}
	const offset, prime = 2166136261, 16777619 // FNV-1a: every instance must find the same
	h := uint32(offset)
	for i := 0; i < len(c.Holder); i++ {
		h = (h ^ uint32(c.Holder[i])) * prime
	}
	return int(h % uint32(p.N()))
}

// partOf returns the i-th of n parts of a whole. The parts differ by at most 1, the larger first.
func partOf(whole int64, n, i int) int64 {
	p := whole / int64(n)
	if int64(i) < whole%int64(n) {
		p++
	}
	return p
}

// PartsOf splits a limit in n, or fewer where its units or its precision do not suffice. It
// returns nil if there is only one part.
func PartsOf(l penstock.Limit, n int) *Parts {
	plan, err := l.Compile()
	if err != nil || !plan.Algorithm().CanSplit() {
		return nil
	}
	capacity := plan.Capacity()
	most := capacity
	if l.Burst > 0 {
		most = min(most, l.Burst) // a part with none would have the default
	}
	for n = int(min(int64(n), most, maxParts)); n > 1; n-- {
		p := &Parts{capacity: capacity, MinUnits: capacity / int64(n), holds: plan.Algorithm().NeedsHolder()}
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
