package guard

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// LeaseOptions configure NewLease. Without Limits nothing is leased.
type LeaseOptions struct {
	// Limits are the Settings of each limit, of which Lease matters here. It is called for every
	// decision that is not answered locally, and must not use the Lease. Default: none has any.
	Limits func(*penstock.Limit) Settings

	// Life is how long what was drawn may be spent, at most. Default: 1 s.
	Life time.Duration

	// Instances is how many instances share the limits now. It is called for every draw. Default: one.
	Instances func() int

	// MaxKeys is how many keys may be leased, or watched for whether they are worth it; the others
	// pass. Default: 10,000, which take up to 10 MB. Keys that were seen only once do not count.
	MaxKeys int

	// Exact admits not one unit beyond the limits. See Lease for its price.
	Exact bool
}

// A Lease draws quota of busy keys in blocks and spends it here, so that most decisions need no
// store. It is a Store around a store, and must be closed.
//
// Leased are batches of which every charge is a Spend, without Patience and Holder, of the same
// cost, under one Key and Group, of limits with Settings.Lease of 2 or more; the algorithm must be
// TokenBucket, SlidingWindow, SubWindow, or one of the windows that do not slide. Everything else
// passes unchanged, and cannot see what is leased: a Peek counts it as used. A Refund or a Reset of
// a key gives what is leased under it back first, so keys that are often refunded gain nothing. An
// answer from a lease has the Source FromLease; its Remaining is what is here, and what the store
// had left when it was last asked.
//
// A block is what the key needs here in half of the time for which it may be spent: a Life, or the
// rest of the window (of a SubWindow's part), less the time that the store takes to answer. It is
// at most Settings.Lease, and at most a quarter of the Burst (TokenBucket) or Count, divided by the
// number of instances. Below 2, nothing is leased. A key is watched from its second request within
// a Life or two. Its requests go to the store until its demand has been measured for a quarter of a
// Life.
//
// A draw costs more than a request that goes to the store. So nothing is drawn for a key that needs
// fewer than 4 units in that time (or fewer than its limit allows to draw), nor for a request of
// more than half a block. If the store has fewer than 4 units left, nothing is drawn for half a
// Life: a Deny cache saves those requests.
//
// When 30 % of a block is left, the next draw starts; a caller waits for one only if not enough is
// left. A draw asks for a block, and for as much as those need who wait when it is sent; who comes
// later waits for a part of the block, and not behind more callers than it serves. At most one draw
// per key and combination of limits is under way. A limit that is charged in several combinations
// under a key is leased for one of them at a time.
//
// What is left is given back when nobody has asked for half a Life, shortly before it expires, and
// by Close; but only as far as it still counts in the store: a window's units in their window, and
// of a bucket's as many as have not drained yet. A draw that fails is its callers' error. What a
// store says that is not FromStore is not kept. An instance that dies loses at most a block per
// key.
//
// # The bound
//
// Let b be the largest block, and n the number of instances. A lease is counted, by the monotonic
// clock, from before it was asked for, and whoever spends looks at the clock: after a pause (a
// stopped process, a slow reply) nothing is left to be spent. Hence:
//
//   - FixedWindow, AnchoredWindow, CalendarWindow, SlidingWindow and SubWindow: the algorithm's own
//     bound, as without leases. What was drawn in a window, or a SubWindow's part, is spent in it
//     or not at all.
//   - TokenBucket with rate r: in any interval w at most Burst + r·w + n·b. Where nothing is given
//     back also at most Burst + r·(w+Life). With the right number of instances, n·b is at most a
//     quarter of the Burst. LeaseOptions.Excess computes it.
//   - TokenBucket with Exact: Burst + r·w, as without leases. A unit that was drawn may be spent
//     only as long as it counts in the bucket: the bucket drains in the order in which it was
//     charged, and what has drained is not there any more. No reserve is needed, and the number of
//     instances does not matter. The price: in a bucket that is almost unused, a block drains
//     before much of it is spent, so a key gains little until its bucket is in use; and buckets get
//     nothing back, since that would make the units of others drain sooner.
//
// If several limits of one Name and Group are used for a key (tiers, or old and new limits during a
// reload), only one of them holds units at an instance at a time, and b is the largest block of
// any. If their rates or Periods differ, Exact and the windows too admit up to n·b more, since
// units drawn under one limit may drain sooner under another.
//
// # The utilization
//
// Units that lie unspent at one instance are missing at another: at most n·b at a time, for at most
// Life. Of traffic below the limit the instances together admit at least LeaseUtilization of what
// the store alone would admit of the same requests, for each algorithm, while the store answers. (A
// SubWindow of n parts admits Count in n+1 parts in the long run, with and without leases.)
//
// These hold apart from what others do to the store: a Reset elsewhere, or a Refund elsewhere of
// what was spent, adds what it forgives, and up to n·b that are given back later; so does a store
// that loses its state or whose clock leaps. If an answer to a draw is lost, its units are lost.
// What is given back and reaches the store only after its sender has given up, as a server that
// hung gets it, adds what it forgives: a block at most. Clocks that stand still while the machine
// is suspended do not count that time.
type Lease struct {
	options LeaseOptions
	next    penstock.Store
	start   time.Time // from which all times count
	life    time.Duration
	seed    maphash.Seed
	shards  [leaseShards]leaseShard
	keys    atomic.Int64
	closed  atomic.Bool

	mu    sync.Mutex
	work  sync.WaitGroup // what runs in the background; nothing is added once closed
	gone  leaseCounts    // of keys that were swept
	swept int64          // how many keys were
}

const (
	leaseShards = 64
	leaseLife   = time.Second // if nobody says
)

type leaseShard struct {
	mu   sync.RWMutex
	keys map[leaseName]*leasedKey
	once [64]atomic.Uint64 // hashes of keys that were seen once; most are never seen again
}

// again tells whether a key of this hash was seen before, within the last Life or so. It can be
// wrong: keys with nearly the same hash are not told apart.
func (s *leaseShard) again(hash uint64, life, now time.Duration) bool {
	const times = 1<<16 - 1
	time := uint64(now/life) & times
	place := &s.once[hash/leaseShards%uint64(len(s.once))]
	old, seen := place.Load(), hash&^times|time
	if old == seen || old == hash&^times|(time-1)&times {
		return true
	}
	place.Store(seen)
	return false
}

type leaseName struct{ key, group string }

// NewLease puts a Lease around store.
func NewLease(store penstock.Store, o LeaseOptions) *Lease {
	if o.Life <= 0 {
		o.Life = leaseLife
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 10_000
	}
	l := &Lease{options: o, next: store, start: time.Now(), life: o.Life, seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i].keys = make(map[leaseName]*leasedKey)
	}
	return l
}

// Decide implements penstock.Store.
func (l *Lease) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if l.options.Limits == nil || l.closed.Load() {
		return l.next.Decide(ctx, charges)
	}
	var few [4]*penstock.Plan
	plans, shape := shapeOf(charges, few[:0])
	switch shape {
	case unmakes:
		return l.forget(ctx, charges)
	case spends:
		if k := l.find(charges[0].Key, plans); k != nil {
			return l.spend(ctx, k, charges, plans)
		}
	}
	return l.next.Decide(ctx, charges)
}

// Close gives back what is leased, and waits for draws that are under way. Afterwards all batches
// pass. Its error is the context's, if that ends first.
func (l *Lease) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closed.Store(true)
	l.mu.Unlock()
	var all sync.WaitGroup
	room := make(chan struct{}, closeAtOnce)
	for _, k := range l.all() {
		k.mu.Lock()
		refunds := l.emptiedLocked(k)
		k.mu.Unlock()
		for _, r := range refunds {
			room <- struct{}{}
			all.Go(func() {
				l.giveBack(ctx, k, r)
				<-room
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

// closeAtOnce is how many keys Close gives back at once.
const closeAtOnce = 32

// LeaseUtilization is the least share of the traffic below a limit that is admitted with leases, of
// what the store alone would admit.
const LeaseUtilization = 0.97

// LeaseStats count units, of all keys since the start. Drawn = Spent + Returned + Expired + Lost +
// Live.
type LeaseStats struct {
	Keys     int   // that are leased or watched now
	Draws    int64 // questions to the store, answered or not
	Drawn    int64 // units that draws are known to have brought, the same number of each limit of a batch
	Spent    int64 // locally
	Returned int64 // to the store
	Expired  int64 // unspent; they count in the store until its limit forgets them
	Lost     int64 // returned without an answer, or drawn from elsewhere than the store
	Live     int64 // now here, or on their way back
}

// Stats are the counts until now.
func (l *Lease) Stats() LeaseStats {
	for tries := 1; ; tries++ {
		s, swept := l.stats()
		l.mu.Lock()
		same := swept == l.swept
		l.mu.Unlock()
		if same || tries == 10 {
			return s
		}
	}
}

// stats are right if no key was swept meanwhile: if swept is what it was before.
func (l *Lease) stats() (s LeaseStats, swept int64) {
	l.mu.Lock()
	sum, swept := l.gone, l.swept
	l.mu.Unlock()
	for _, k := range l.all() {
		k.mu.Lock()
		sum.add(&k.counts)
		s.Live += k.liveLocked()
		k.mu.Unlock()
		s.Keys++
	}
	s.Draws, s.Drawn, s.Spent = sum.draws, sum.drawn, sum.spent
	s.Returned, s.Expired, s.Lost = sum.returned, sum.expired, sum.lost
	return s, swept
}

// Excess is how many units more than the limit alone all instances together may admit under a key,
// in any interval: n·b for a TokenBucket, 0 elsewhere. See Lease.
func (o LeaseOptions) Excess(limit penstock.Limit) int64 {
	plan, err := limit.Plan()
	if err != nil || o.Exact || !plan.Limit.Algorithm.Is(penstock.TokenBucket) {
		return 0
	}
	b := o.largest(plan)
	if b < leastBlock {
		return 0
	}
	return b * int64(o.instances())
}

const (
	leastBlock = 2 // the smallest block: a limit that allows less is not leased
	worthDraw  = 4 // the fewest units for which one draw is cheaper than asking for each
)

// largest is the largest block of a limit; below leastBlock it is not leased.
func (o *LeaseOptions) largest(plan *penstock.Plan) int64 {
	if o.Limits == nil || forgetting(plan.Limit.Algorithm) == never {
		return 0
	}
	lease := o.Limits(&plan.Limit).Lease
	if lease < leastBlock {
		return 0
	}
	return min(lease, plan.Capacity/4/int64(o.instances()))
}

func (o *LeaseOptions) instances() int {
	if o.Instances == nil {
		return 1
	}
	return max(o.Instances(), 1)
}

// now is the time since the start, by the monotonic clock.
func (l *Lease) now() time.Duration { return time.Since(l.start) }

// begin tells whether something may be started in the background. If so, l.work.Done must be called
// at its end.
func (l *Lease) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	l.work.Add(1)
	return true
}

// A shape says what is to be done with a batch.
type shape uint8

const (
	unleased shape = iota
	spends         // may be answered by a lease
	unmakes        // takes back what was charged
)

// shapeOf finds a batch's shape and, if it spends, appends the plans of its limits to plans.
func shapeOf(charges []penstock.Charge, plans []*penstock.Plan) ([]*penstock.Plan, shape) {
	for i := range charges {
		if m := charges[i].Mode; m == penstock.Refund || m == penstock.Reset {
			return nil, unmakes
		}
	}
	if len(charges) == 0 || len(charges) > penstock.MaxCharges {
		return nil, unleased
	}
	first := &charges[0]
	if first.Cost < 1 || first.Cost > penstock.MaxCost || len(first.Key) > penstock.MaxKey {
		return nil, unleased
	}
	for i := range charges {
		c := &charges[i]
		if c.Mode != penstock.Spend || c.Patience != 0 || c.Holder != "" || c.Cost != first.Cost || i > 0 && c.Key != first.Key {
			return nil, unleased
		}
		plan, err := c.Limit.Plan()
		if err != nil || i > 0 && plan.Limit.Group != plans[0].Limit.Group {
			return nil, unleased
		}
		for _, other := range plans {
			if other.Tag == plan.Tag {
				return nil, unleased // the store says what is wrong
			}
		}
		plans = append(plans, plan)
	}
	return plans, spends
}

// find is the key of a batch that spends, or nil if it is not leased.
func (l *Lease) find(key string, plans []*penstock.Plan) *leasedKey {
	name := leaseName{key, plans[0].Limit.Group}
	hash := maphash.String(l.seed, key)
	s := &l.shards[hash%leaseShards]
	s.mu.RLock()
	k := s.keys[name]
	s.mu.RUnlock()
	if k != nil || !l.worthwhile(plans) || !s.again(hash, l.life, l.now()) {
		return k
	}
	return l.track(s, name)
}

func (l *Lease) shard(key string) *leaseShard {
	return &l.shards[maphash.String(l.seed, key)%leaseShards]
}

// worthwhile tells whether all of the limits may be leased.
func (l *Lease) worthwhile(plans []*penstock.Plan) bool {
	for _, plan := range plans {
		if l.options.largest(plan) < leastBlock {
			return false
		}
	}
	return true
}

func (l *Lease) all() []*leasedKey {
	var all []*leasedKey
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.RLock()
		for _, k := range s.keys {
			all = append(all, k)
		}
		s.mu.RUnlock()
	}
	return all
}
