package guard

import (
	"cmp"
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/internal/lazy"
)

// DenyOptions configure Deny. The zero value is useful.
type DenyOptions struct {
	// MaxAge is the longest time for which a denial is cached. A Refund, Reset or Force that bypasses
	// this guard, such as one by another instance, may be noticed only then. Default: 1 s.
	MaxAge time.Duration
}

// Deny caches denials of the store and repeats them. So requests of a key over its limit do not
// reach the store, at any request rate.
//
// A denial is cached for MaxAge at most, and only while no request of the limit can be granted. As
// long as none is granted, nobody changes the counter. So the cache knows what the store would
// return: it counts Remaining, RetryAfter and ResetAfter down. If all requests of the limit have
// one cost, the denial ends at RetryAfter. Otherwise it ends when the smallest cost fits.
// RetryAfter counts from before the request was sent, and is shortened by 0.1 % and 2 µs because
// clocks differ. Decisions of the cache have the Source FromDenyCache.
//
// The guard of Standard also learns from grants: when a grant takes the last tokens of a bucket,
// the next request would be denied, and this denial is cached. So the store decides few requests
// besides those that it grants.
//
// A denial of a TokenBucket answers requests of any cost and Patience. That of another algorithm
// answers requests of the same cost and Patience.
//
// The cache learns the smallest cost and the longest Patience of each limit from the requests of
// this instance. Until it has seen 64 requests, it takes the smallest cost to be 1.
//
// A cached denial is correct: the store would deny too, because other charges only take units away.
// The exceptions below end when the denial is MaxAge old:
//
//   - Units are returned without this guard. Another instance sends a Refund or Reset, a batch over
//     several slots of a Cluster fails, or a Lease returns units that it did not spend.
//   - A Refund or Reset through this guard takes effect in the store although its answer was lost.
//   - The store loses data, or its clock jumps ahead.
//   - A limit with another Count or Period shares the counter, as tiers do. When that limit grants
//     a request, used units return at its rate.
//
// When a Refund, Reset or Force through this guard has been answered, older denials of its counters
// are no longer used. (A Force takes units even if the limit denies, so RetryAfter grows.)
//
// The numbers of a cached denial have these exceptions, which end with the denial:
//
//   - RetryAfter is too long by at most the time that the answer was in flight, or 1 µs too short.
//   - RetryAfter is too short if another instance has used Force, or has granted a request of
//     another tier that uses the counter, or one of a smaller cost or a longer Patience than any
//     request here.
//   - Remaining of a SlidingWindow, SlidingLog or SubWindow does not count units that have come
//     back since, but are too few for the request.
//   - RetryAfter of a split limit is that of the answer.
//
// A cached denial answers only for a limit with the same numbers. If several limits of one name use
// one counter, as tiers do, a denial of one does not deny another.
//
// A cached denial answers a batch with the same limits and keys in the same order. A charge that
// was denied there is answered as above. Each other charge must cost at most as much as there, and
// have at least as much Patience. Its status is as old as the denial, so its limit may deny now
// too.
//
// Some batches are always sent to the store: batches of more than 8 charges, and batches with a
// Force, Refund or Reset. So are batches that a Concurrency limit denied, because its slots may be
// released at any time. Batches with a limit that counts denied requests are sent too, so that they
// are counted. Only denials of the store itself are cached.
//
// When a denial ends, the first request is sent to the store. Requests that come before the store
// has replied wait for that reply, until their contexts end. If the reply denies these requests
// too, they get it. If it does not, they are sent to the store.
//
// At most 65,536 denials are cached. If there are more, the denial that ends first is removed.
func Deny(o DenyOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		return newDenyCache(next, denyOptions{MaxAge: o.MaxAge})
	}
}

// denyOptions are DenyOptions and those that only Standard sets.
type denyOptions struct {
	MaxAge time.Duration

	// MaxEntries is the largest number of cached denials, rounded up to a power of two of at least 8.
	// If there are more, the denial that ends first is removed, and the next request for it is sent to
	// the store. A denial takes about 190 bytes, and 110 more for each charge beyond the first. It
	// also keeps the plans of its limits in memory. Default: 65,536.
	MaxEntries int

	// Limits returns the Settings of a limit. Their DenyCacheTTL replaces MaxAge. Limits is called
	// for each denial that is cached, and several goroutines may call it at the same time. nil:
	// all limits have the zero Settings.
	Limits func(*penstock.Plan) Settings

	// Grants derives denials from grants too. When a grant takes the last tokens of a TokenBucket, the
	// answer shows how long there will be no tokens. The store's Remaining and ResetAfter must be
	// exact, as those of redisstore and memstore are. Those of a Split are not exact, so Limits must
	// say which limits are split. Grants by a Lease are not used.
	Grants bool
}

type denyCache struct {
	listDecider
	next               batches.Func
	maxAge             time.Duration
	limits             func(*penstock.Plan) Settings
	canLearnFromGrants bool          // denyOptions.Grants
	deadlines          *deadline.Set // of decisions that the cache does not answer; nil: they have none here
	start              time.Time     // now counts from here
	table              *denials
	demands            *demands
	waited             atomic.Int64 // requests that waited for the answer to another
}

// newDenyCache makes a denyCache around a store. It starts no goroutine and needs no Close.
func newDenyCache(next penstock.Store, o denyOptions) *denyCache {
	if o.MaxAge <= 0 {
		o.MaxAge = denyCacheTTL
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 65_536
	}
	d := &denyCache{
		next: batches.Of(next), maxAge: o.MaxAge, limits: o.Limits, canLearnFromGrants: o.Grants,
		start: time.Now(), table: newDenials(o.MaxEntries), demands: new(demands),
	}
	d.listDecider = batches.NewListDecider(d, d.decide)
	return d
}

// Decide implements penstock.Store.
func (d *denyCache) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	b := batches.Batch{Charges: charges} // on the stack: a cached denial takes no memory from a pool
	var query [1]denyQuery
	next := d.lookUp(ctx, &query[0], &b)
	if next == isDecided {
		return b.Decision, b.Err
	}
	return batches.Func(func(ctx context.Context, one []*batches.Batch) { d.take(ctx, next, query[:], one) }).Decide(ctx, charges)
}

func (d *denyCache) decide(ctx context.Context, list []*batches.Batch) {
	if len(list) > 1 {
		d.decideSeveral(ctx, list)
		return
	}
	var query [1]denyQuery
	d.take(ctx, d.lookUp(ctx, &query[0], list[0]), query[:], list)
}

// take takes the step that a look-up has returned, for a list of one batch.
func (d *denyCache) take(ctx context.Context, next step, query []denyQuery, one []*batches.Batch) {
	switch next {
	case toSend:
		d.send(ctx, query, one)
	case toRefresh:
		d.refreshOnce(ctx, query, one)
	}
}

// decideSeveral decides the batches that have to be sent to the store as one list. Batches that may
// have to wait for another request are decided alone.
func (d *denyCache) decideSeveral(ctx context.Context, list []*batches.Batch) {
	var refreshed []*batches.Batch
	sent, queries := make([]*batches.Batch, 0, len(list)), make([]denyQuery, 0, len(list)) // of the same length
	now := d.now()
	for _, b := range list {
		q := denyQuery{sentAt: now}
		switch d.lookUp(ctx, &q, b) {
		case toSend:
			sent, queries = append(sent, b), append(queries, q)
		case toRefresh:
			refreshed = append(refreshed, b)
		}
	}
	send := func(ctx context.Context, sent []*batches.Batch) { d.send(ctx, queries, sent) }
	batches.Divide(ctx, batches.Of(d), refreshed, send, sent)
}

// A step is what is to be done after a look-up.
type step uint8

const (
	isDecided step = iota // nothing
	toSend                // send the batch to the store
	toRefresh             // call refreshOnce, because the cached denial has ended
)

// lookUp decides a batch if its cached denial or its context does, and prepares its query
// otherwise.
func (d *denyCache) lookUp(ctx context.Context, q *denyQuery, b *batches.Batch) step {
	if b.Err = penstock.Check(b.Charges); b.Err != nil {
		return isDecided
	}
	d.demands.learn(b.Charges)
	q.route = routeOf(b.Charges)
	if q.route != cacheable {
		return toSend
	}
	d.prepare(q, b.Charges)
	if q.known == nil || !q.known.covers(q, b.Charges, d.demands) {
		return toSend
	}
	if q.sentAt >= q.known.validUntil {
		return toRefresh
	}
	if b.Err = ctx.Err(); b.Err != nil {
		return isDecided
	}
	if !q.known.answer(q.sentAt, b.Charges, &b.Decision) {
		return toSend
	}
	return isDecided
}

// send sends a list to the store, and caches denials. If a Refund, Reset or Force changes counters,
// it drops their denials before the caller gets the answer, even if that is an error.
func (d *denyCache) send(ctx context.Context, queries []denyQuery, list []*batches.Batch) {
	if d.deadlines != nil {
		bounded, isOwn := d.deadlineOf(ctx, &queries[0])
		if isOwn {
			defer bounded.End()
		}
		ctx = bounded
	}
	defer d.forgetChanged(queries, list) // also after a panic
	d.next(ctx, list)
	for i, b := range list {
		if queries[i].route == cacheable {
			d.learn(&queries[i], b.Charges, &b.Decision, b.Err)
		}
	}
}

func (d *denyCache) forgetChanged(queries []denyQuery, list []*batches.Batch) {
	for i, b := range list {
		if queries[i].route == changing {
			d.table.forget(b.Charges)
		}
	}
}

// deadlineOf returns the deadline of a decision. If there is none yet, it makes one: then isOwn is
// true, and the caller must end it.
func (d *denyCache) deadlineOf(ctx context.Context, q *denyQuery) (bounded *deadline.Context, isOwn bool) {
	if q.sentAt == 0 { // the clock was not read
		return d.deadlines.Of(ctx)
	}
	return d.deadlines.OfSince(ctx, d.start.Add(time.Duration(q.sentAt)))
}

// A denyQuery is what a look-up of a batch needs, taken before the batch is sent to the store.
type denyQuery struct {
	key     denialKey
	version uint64 // sum of the counters' versions; Refund, Reset and Force change it
	sentAt  int64  // no later than when the batch is sent, in ns of the cache's clock; 0: prepare reads the clock
	route   route
	known   *denial // with this key, or nil
}

func (d *denyCache) prepare(q *denyQuery, charges []penstock.Charge) {
	q.key, q.version = d.table.keyOf(charges)
	q.known = d.table.find(q.key)
	if q.sentAt == 0 {
		q.sentAt = d.now()
	}
}

// learn caches a decision that is a denial. It also caches a grant after which the same batch would
// be denied. A grant drops an older denial of the same counters. There is one if another limit
// shares them, as tiers do.
func (d *denyCache) learn(q *denyQuery, charges []penstock.Charge, decision *penstock.Decision, err error) {
	if err == nil && q.known != nil && hasGranted(decision) {
		d.table.remove(q.known)
	}
	switch {
	case err != nil || decision.Source != penstock.FromStore:
	case !decision.Allowed:
		d.remember(q, charges, decision)
	case d.canLearnFromGrants && len(charges) == 1:
		if status, isDenied := d.denialAfterGrant(&charges[0], decision.Status(0)); isDenied {
			denial := penstock.Single(status)
			d.remember(q, charges, &denial)
		}
	}
}

func hasGranted(d *penstock.Decision) bool {
	for i := range d.Len() {
		if d.Status(i).Granted > 0 {
			return true
		}
	}
	return false
}

// denialAfterGrant returns the status that the same charge would get right after its grant, if that
// is known and is a denial.
func (d *denyCache) denialAfterGrant(c *penstock.Charge, granted penstock.Status) (status penstock.Status, isDenied bool) {
	if c.MinCost() <= granted.Remaining || patienceOf(c) > 0 {
		return status, false
	}
	retryAfter := retryAfterAnswer(c.Plan, c.MinCost(), granted)
	if retryAfter <= 0 || d.settingsOf(c.Plan).SplitInto > 1 {
		return status, false
	}
	return penstock.Status{Remaining: granted.Remaining, RetryAfter: retryAfter, ResetAfter: granted.ResetAfter}, true
}

// refreshOnce decides a list of one batch whose denial has ended. The first such request is sent to
// the store. The others wait for its answer.
func (d *denyCache) refreshOnce(ctx context.Context, query []denyQuery, one []*batches.Batch) {
	ended, b := query[0].known, one[0]
	if d.deadlines != nil {
		bounded, isOwn := d.deadlineOf(ctx, &query[0])
		if isOwn {
			defer bounded.End()
		}
		ctx = bounded
	}
	answered, isFirst := ended.claim()
	if isFirst {
		defer close(answered)
		defer d.table.remove(ended)
		d.send(ctx, query, one)
		return
	}
	d.waited.Add(1)
	if lazy.Await(ctx, answered, nil) != nil {
		if b.Err = deadline.CallerErr(ctx); b.Err == nil {
			d.send(ctx, query, one) // the deadline has passed, so a Fallback below answers
		}
		return
	}
	q := &query[0]
	q.sentAt = 0 // prepare reads the clock again
	d.prepare(q, b.Charges)
	known := q.known
	isCovered := known != nil && q.sentAt < known.validUntil && known.covers(q, b.Charges, d.demands)
	if !isCovered || !known.answer(q.sentAt, b.Charges, &b.Decision) {
		d.send(ctx, query, one)
	}
}

// remember caches the denial of a batch, unless the denial may end at any time.
func (d *denyCache) remember(q *denyQuery, charges []penstock.Charge, decision *penstock.Decision) {
	if decision.Len() != len(charges) {
		return
	}
	const noEnd = math.MaxInt64
	e := &denial{key: q.key, version: q.version, validUntil: noEnd, answeredAt: d.now()}
	e.charges = e.single[:0]
	for i := range charges {
		plan, status := charges[i].Plan, decision.Status(i)
		p := deniedCharge{plan: plan, cost: charges[i].MinCost(), patience: patienceOf(&charges[i]), status: status}
		if status.RetryAfter > 0 {
			own := d.settingsOf(plan)
			age := d.maxAgeOf(own)
			if plan.Algorithm().NeedsHolder() || age < 0 {
				return
			}
			p.demand = d.demands.of(plan)
			if own.Lease > 0 {
				p.demand.minCost = 1 // leases draw what there is
			}
			if own.SplitInto <= 1 {
				p.answersAllCosts = retryAfterAnswer(plan, plan.Capacity(), status) > 0
				endsAtNextUnit := p.answersAllCosts && p.demand.minCost <= status.Remaining+1
				p.isRefilling = plan.Algorithm().RefillsSteadily() && !endsAtNextUnit
			}
			e.validUntil = min(e.validUntil, q.sentAt+int64(min(age, safeFor(p.quietFor()))))
		}
		e.charges = append(e.charges, p)
	}
	if e.validUntil > e.answeredAt && e.validUntil < noEnd {
		d.table.put(e, q, charges, d.demands)
	}
}

// safeFor returns the time for which a denial with this RetryAfter certainly holds. The clocks of
// this process and of the store may differ by 0.1 %, and each is read in whole µs.
func safeFor(retryAfter time.Duration) time.Duration {
	return retryAfter - retryAfter/1000 - 2*time.Microsecond
}

func (d *denyCache) settingsOf(plan *penstock.Plan) (s Settings) {
	if d.limits != nil {
		s = d.limits(plan)
	}
	return s
}

func (d *denyCache) maxAgeOf(s Settings) time.Duration {
	return min(cmp.Or(s.DenyCacheTTL, d.maxAge), maxDuration)
}

// denyCacheTTL is the default of MaxAge.
const denyCacheTTL = time.Second

// maxDuration bounds MaxAge, so that adding it to a time does not overflow.
const maxDuration time.Duration = 1 << 61

// now is the time since the cache was made, by the monotonic clock, in ns.
func (d *denyCache) now() int64 { return int64(time.Since(d.start)) }

// A route says what a denyCache does with a batch.
type route uint8

const (
	passThrough route = iota // send it to the store, and look up nothing
	cacheable                // a cached denial may answer
	changing                 // send it to the store, and drop the denials of its keys
)

const maxCachedCharges = 8

func routeOf(charges []penstock.Charge) route {
	to := passThrough
	if len(charges) <= maxCachedCharges {
		to = cacheable
	}
	for i := range charges {
		c, a := &charges[i], charges[i].Plan.Algorithm()
		if c.Plan.CountsDenied() {
			to = passThrough
		}
		switch c.Mode {
		case penstock.Spend, penstock.Peek:
		case penstock.Draw:
			if c.Patience > 0 && a.CanBook() { // algorithms differ in how they treat the patience of a Draw
				to = passThrough
			}
		case penstock.Refund, penstock.Reset, penstock.Force:
			if !a.NeedsHolder() {
				return changing
			}
			to = passThrough
		default:
			to = passThrough
		}
	}
	return to
}
