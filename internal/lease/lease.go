// Package lease draws units of busy keys in blocks.
package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
)

type Options struct {
	// Block returns the largest block that may be drawn of a limit; 0: none.
	Block func(*penstock.Plan) int64

	// Counters returns how many counters the store below splits a limit into. 0 and 1 mean one.
	Counters func(*penstock.Plan) int

	// Life is the longest time for which drawn units may be spent. Default: DefaultLife.
	Life time.Duration

	// Instances returns how many instances share the limits now. Default: one.
	Instances func() int

	// MaxKeys is the largest number of keys that are leased or measured. Default: 10,000.
	MaxKeys int

	// Clock is that of a simulation. It moves only between calls of the Store, so that the same calls
	// have the same answers in each run. Default: the wall clock.
	Clock Clock
}

type Clock interface {
	Now() time.Time
	AfterFunc(time.Duration, func()) Timer
}

// A Timer calls a function once, like that of time.AfterFunc.
type Timer interface {
	Stop() bool
	Reset(time.Duration) bool
}

// A Store draws units in blocks and spends them locally. See guard.LeaseOptions.
type Store struct {
	batches.ListDecider
	options  Options
	next     batches.Func
	several  batches.Func // decides lists of several batches
	start    time.Time    // the origin of all times
	life     time.Duration
	keys     *keyTable
	isClosed atomic.Bool

	mu            sync.Mutex
	work          sync.WaitGroup // background goroutines; none starts once closed
	removedCounts counts         // the counts of removed keys
	removedKeys   int64          // how many keys were removed
}

// DefaultLife is the default of Options.Life.
const DefaultLife = time.Second

func New(store penstock.Store, o Options) *Store {
	if o.Life <= 0 {
		o.Life = DefaultLife
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 10_000
	}
	l := &Store{options: o, next: batches.Of(store), start: time.Now(), life: o.Life, keys: newKeyTable(o.MaxKeys)}
	if o.Clock != nil {
		l.start, l.keys.hasEqualHashes = o.Clock.Now(), true
	}
	l.ListDecider, l.several = batches.NewListDecider(l, l.decide), batches.Alone(l.isDecidedAlone, l.decide, l.next)
	return l
}

// Decide implements penstock.Store. Its batch is on the stack, so a decision of a lease takes no
// memory from a pool.
func (l *Store) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	var planBuffer [4]*penstock.Plan
	b := batches.Batch{Charges: charges}
	var a attempt
	if l.begin(ctx, &b, planBuffer[:0], &a); a.isDecided {
		return b.Decision, b.Err
	}
	return batches.Func(func(ctx context.Context, one []*batches.Batch) { l.finish(ctx, &a, one) }).Decide(ctx, charges)
}

func (l *Store) decide(ctx context.Context, list []*batches.Batch) {
	if len(list) > 1 {
		l.several(ctx, list)
		return
	}
	var planBuffer [4]*penstock.Plan
	var a attempt
	if l.begin(ctx, list[0], planBuffer[:0], &a); !a.isDecided {
		l.finish(ctx, &a, list)
	}
}

// An attempt is the state of a batch between begin and finish.
type attempt struct {
	isDecided bool
	route     route
	key       *leasedKey
	pool      *pool // of key, whose mu is locked; nil: no lease may answer the batch
	now       time.Duration
}

// begin decides a batch if enough is leased. plans is memory for the plans of its limits.
func (l *Store) begin(ctx context.Context, b *batches.Batch, plans []*penstock.Plan, a *attempt) {
	plans, a.route, a.key = l.routeAndKey(b.Charges, plans)
	if a.key != nil {
		l.beginLeased(ctx, b, plans, a)
	}
}

// finish decides a list of one batch that begin has not decided.
func (l *Store) finish(ctx context.Context, a *attempt, one []*batches.Batch) {
	switch {
	case a.route == refunding:
		l.decideRefund(ctx, one)
	case a.pool != nil:
		l.drawAndUnlock(ctx, a.key, a.pool, a.now, one)
	default:
		l.next(ctx, one)
	}
}

// isDecidedAlone reports whether a lease may answer a batch, or must return units before it.
func (l *Store) isDecidedAlone(b *batches.Batch) bool {
	var planBuffer [4]*penstock.Plan
	_, route, k := l.routeAndKey(b.Charges, planBuffer[:0])
	return route == refunding || k != nil
}

// routeAndKey returns the route of a batch. If a lease may answer it, routeAndKey also returns the
// plans of its limits, which it appends to plans, and its leasedKey.
func (l *Store) routeAndKey(charges []penstock.Charge, plans []*penstock.Plan) ([]*penstock.Plan, route, *leasedKey) {
	if l.options.Block == nil || l.isClosed.Load() {
		return nil, passThrough, nil
	}
	plans, route := routeOf(charges, plans)
	if route != spending {
		return nil, route, nil
	}
	return plans, route, l.findKey(charges[0].Key, plans, charges[0].Cost)
}

// Close returns what is leased, and waits for draws that are in flight. After Close, all batches go
// to the store. If the context ends first, Close returns its error.
func (l *Store) Close(ctx context.Context) error {
	l.mu.Lock()
	l.isClosed.Store(true)
	l.mu.Unlock()
	var all sync.WaitGroup
	inFlight := make(chan struct{}, closeConcurrency)
	for _, k := range l.keys.all() {
		k.mu.Lock()
		pending := l.removeAllLocked(k)
		k.mu.Unlock()
		for _, r := range pending {
			inFlight <- struct{}{}
			all.Go(func() {
				l.sendRefund(ctx, k, r)
				<-inFlight
			})
		}
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		l.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const closeConcurrency = 32

// Stats count units, as guard.LeaseStats does.
type Stats struct {
	Keys  int   // keys that are leased or measured now
	Draws int64 // calls to the store, answered or not

	Drawn, Spent, Returned, Expired, Lost, Live int64
}

// Stats returns the counts until now. It reads the counts again if a key was removed while it read
// them.
func (l *Store) Stats() Stats {
	const maxTries = 10 // then the counts may be slightly wrong
	for tries := 1; ; tries++ {
		s, removedBefore := l.stats()
		l.mu.Lock()
		isConsistent := removedBefore == l.removedKeys
		l.mu.Unlock()
		if isConsistent || tries == maxTries {
			return s
		}
	}
}

// stats returns the counts, and how many keys had been removed when it began. The counts are right
// if no key was removed while stats ran.
func (l *Store) stats() (s Stats, removedBefore int64) {
	l.mu.Lock()
	sum, removedBefore := l.removedCounts, l.removedKeys
	l.mu.Unlock()
	for _, k := range l.keys.all() {
		k.mu.Lock()
		sum.add(&k.counts)
		s.Live += k.liveUnitsLocked()
		k.mu.Unlock()
		s.Keys++
	}
	s.Draws, s.Drawn, s.Spent = sum.draws, sum.drawn, sum.spent
	s.Returned, s.Expired, s.Lost = sum.returned, sum.expired, sum.lost
	return s, removedBefore
}

// Excess returns the number of units beyond the limit that all instances may admit together, under
// one key and in any interval. For a TokenBucket that is the largest block times the number of
// instances. For other algorithms it is 0. See guard.LeaseOptions.
func (o Options) Excess(plan *penstock.Plan) int64 {
	if plan.Algorithm().Decay() != algorithm.DecayContinuous { // units of a window are spent in that window, or lost
		return 0
	}
	largest := o.LargestBlock(plan)
	if largest < MinBlock {
		return 0
	}
	return largest * int64(o.instances())
}

const (
	MinBlock = 2 // units of the smallest block: a limit that allows less is not leased
	minDraw  = 8 // units of the smallest draw: fewer cost more than requests that go to the store
)

// LargestBlock returns the largest block of a limit. It is at most Options.Block, and at most a
// quarter of the limit's Capacity, divided by the number of instances. So the blocks of all
// instances together are at most a quarter of the Capacity. A limit whose block is below MinBlock
// is not leased. The block of a limit that counts denied requests is 0.
func (o Options) LargestBlock(plan *penstock.Plan) int64 {
	if o.Block == nil || plan.Algorithm().Decay() == algorithm.DecayUnknown || plan.CountsDenied() {
		return 0
	}
	largest := o.Block(plan)
	if largest < MinBlock {
		return 0
	}
	return min(largest, plan.Capacity()/4/int64(o.instances()))
}

func (o Options) instances() int {
	if o.Instances == nil {
		return 1
	}
	return max(o.Instances(), 1)
}

// now is the time since the start, by the monotonic clock or that of a simulation.
func (l *Store) now() time.Duration {
	if l.options.Clock != nil {
		return l.options.Clock.Now().Sub(l.start)
	}
	return time.Since(l.start)
}

// Wait waits until no draw and no refund is in flight. No goroutine may call the Store meanwhile.
func (l *Store) Wait() { l.work.Wait() }

// startWork reports whether a background goroutine may start. If so, the goroutine must call
// l.work.Done at its end.
func (l *Store) startWork() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed.Load() {
		return false
	}
	l.work.Add(1)
	return true
}

// A route says what a lease does with a batch.
type route uint8

const (
	passThrough route = iota // the store decides it, and nothing else is needed
	spending                 // a lease may answer it
	refunding                // a Refund or Reset: return what is leased first
)

// routeOf returns a batch's route. For a batch that spends, it appends the plans of its limits to
// plans.
func routeOf(charges []penstock.Charge, plans []*penstock.Plan) ([]*penstock.Plan, route) {
	for i := range charges {
		if m := charges[i].Mode; m == penstock.Refund || m == penstock.Reset {
			return nil, refunding
		}
	}
	if len(charges) == 0 || len(charges) > penstock.MaxCharges {
		return nil, passThrough
	}
	first := &charges[0]
	if first.Cost < 1 || first.Cost > penstock.MaxCost || len(first.Key) > penstock.MaxKey {
		return nil, passThrough
	}
	for i := range charges {
		c := &charges[i]
		isPlainSpend := c.Mode == penstock.Spend && c.Patience == 0 && c.Holder == "" && !c.IsRefundable
		isLikeFirst := c.Cost == first.Cost && c.Key == first.Key
		if !isPlainSpend || !isLikeFirst {
			return nil, passThrough
		}
		plan := c.Plan
		if plan == nil || i > 0 && plan.Group() != plans[0].Group() {
			return nil, passThrough
		}
		for _, other := range plans {
			if other.Tag() == plan.Tag() {
				return nil, passThrough // the store returns the error
			}
		}
		plans = append(plans, plan)
	}
	return plans, spending
}

// findKey returns the leasedKey of a batch that spends, or nil if the key is not leased. A key is
// leased once it has been seen twice within one or two Lives, and its requests have taken enough
// units for two draws. With fewer in a Life, no draw would be worth its cost.
func (l *Store) findKey(key string, plans []*penstock.Plan, cost int64) *leasedKey {
	name := keyName{key, plans[0].Group()}
	hash := l.keys.hash(name)
	if k := l.keys.find(hash, name); k != nil {
		return k
	}
	most := l.largestBlock(plans)
	if most < MinBlock {
		return nil
	}
	before := l.keys.cell(hash).addRequest(hash, cost, l.life, l.now())
	if before == 0 || before+cost < 2*min(most, minDraw) {
		return nil
	}
	return l.trackKey(hash, name)
}

// largestBlock returns the largest block that each of the limits allows. Limits with less than
// MinBlock are not leased.
func (l *Store) largestBlock(plans []*penstock.Plan) int64 {
	most := int64(penstock.MaxCost)
	for _, plan := range plans {
		most = min(most, l.options.LargestBlock(plan))
	}
	return most
}
