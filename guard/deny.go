package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard/internal/deadline"
	"github.com/penstock/penstock/internal/many"
)

// DenyOptions of a DenyCache. The zero value is useful.
type DenyOptions struct {
	// MaxAge is the longest time for which a denial is cached. A Refund or Reset that does not pass
	// through this guard may stay unnoticed for as long. Default: 1 s.
	MaxAge time.Duration

	// MaxEntries is the largest number of cached denials, rounded up to a power of two of at least
	// 8. A new denial replaces the one that ends first, which costs one more call to the store. A
	// denial takes about 160 bytes, 80 more for each charge beyond the first, and the plan that it
	// keeps alive. Default: 65,536.
	MaxEntries int

	// Limits returns the Settings of a limit. Their DenyCacheTTL replaces MaxAge. Limits is called
	// for each denial that is cached, and several goroutines may call it at the same time. Default:
	// all limits have the zero Settings.
	Limits func(*penstock.Plan) Settings

	// Grants derives denials from grants too. When a grant takes the last tokens of a TokenBucket, the
	// answer shows how long there will be no tokens. The store's Remaining and ResetAfter must be
	// exact, as those of redisstore and memstore are. Those of a Split are not exact, so Limits must
	// say which limits are split. Grants by a Lease are not used. Default: false; Standard sets it.
	Grants bool
}

// Deny puts a [DenyCache] around a store.
func Deny(o DenyOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return NewDenyCache(next, o) }
}

// A DenyCache caches denials of the store and repeats them. So requests of a key over its limit do
// not reach the store, at any request rate.
//
// A denial is cached until its RetryAfter, and for MaxAge at most. RetryAfter counts from before
// the request was sent, and is shortened by 0.1 % and 2 µs because clocks differ. While a denial is
// cached, a request is denied if it needs at least as much, and has at most as much Patience. A
// request that needs less is sent to the store. Decisions of the cache have the Source
// FromDenyCache. With Grants, a grant of a bucket's last tokens is cached as a denial of the next
// request. So the store decides few requests besides those that it grants.
//
// A cached denial is correct: the store would deny too, because other charges only take units away.
// The exceptions below end when the denial is MaxAge old:
//
//   - Others return units: by a Refund, a Reset, a failed batch over several slots of a Cluster, or
//     a lease below this guard.
//   - A Refund or Reset through this guard takes effect in the store although its answer was lost.
//   - The store loses data, or its clock jumps ahead.
//   - A limit of another rate or Period shares the counter. Once it grants, used units return at
//     its rate.
//
// Once a Refund or Reset through this guard is answered, no older denial is used for its counters.
//
// The statuses are those of the store's answer, with RetryAfter and ResetAfter counted down. Apart
// from the exceptions above, RetryAfter is too long by at most the time that the answer was in
// flight. RetryAfter is too short if others have spent since the denial, or if the request needs
// more than the denied one. A RetryAfter of Never stays Never.
//
// A cached denial answers only for a limit with the same numbers. If several limits of one name use
// one counter, as tiers do, a denial of one does not deny another.
//
// A batch is denied by a cached batch with the same limits and keys in the same order. Compared
// with the cached batch, the charges that were denied there must not need less, and the others must
// not need more. The statuses of the others are as old as the denial, so those limits may deny now
// too.
//
// Some batches are always sent to the store: batches of more than 8 charges, and batches with a
// Force, Refund or Reset. So are batches that a Concurrency limit denied, because its slots may be
// released at any time. Only denials of the store itself are cached.
//
// When a denial ends, the first request is sent to the store. Requests that come before the store
// has replied wait for that reply, until their contexts end. If the reply denies these requests
// too, they get it. If it does not, they are sent to the store.
type DenyCache struct {
	next               penstock.Store
	maxAge             time.Duration
	limits             func(*penstock.Plan) Settings
	canLearnFromGrants bool          // DenyOptions.Grants
	deadlines          *deadline.Set // bounds the wait for another request's answer; nil: the caller's context does
	start              time.Time     // now counts from here
	table              *denials
	waited             atomic.Int64 // DenyStats.Waited
}

// NewDenyCache makes a DenyCache around a store. It starts no goroutine and needs no Close.
func NewDenyCache(next penstock.Store, o DenyOptions) *DenyCache {
	if o.MaxAge <= 0 {
		o.MaxAge = denyCacheTTL
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 65_536
	}
	return &DenyCache{next: next, maxAge: o.MaxAge, limits: o.Limits, canLearnFromGrants: o.Grants, start: time.Now(), table: newDenials(o.MaxEntries)}
}

// Decide implements penstock.Store.
func (d *DenyCache) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	if err := penstock.Check(charges); err != nil {
		return penstock.Decision{}, err
	}
	switch routeOf(charges) {
	case refunding:
		return d.refund(ctx, charges)
	case passThrough:
		return d.next.Decide(ctx, charges)
	}
	var q denyQuery
	d.prepare(&q, charges)
	known := d.table.find(q.key)
	if known == nil || !known.covers(&q, charges) {
		return d.decide(ctx, &q, charges)
	}
	if q.sentAt >= known.validUntil {
		return d.refreshOnce(ctx, &q, charges, known)
	}
	if err := ctx.Err(); err != nil {
		return penstock.Decision{}, err
	}
	return known.answer(q.sentAt), nil
}

// DecideMany decides independent batches.
func (d *DenyCache) DecideMany(ctx context.Context, calls []*many.Call) {
	sent := d.now()
	var alone []*many.Call
	together, queries := make([]*many.Call, 0, len(calls)), make([]denyQuery, 0, len(calls)) // of the same length
	for _, c := range calls {
		if c.Err = penstock.Check(c.Charges); c.Err != nil {
			continue
		}
		switch routeOf(c.Charges) {
		case refunding:
			alone = append(alone, c)
			continue
		case passThrough:
			together, queries = append(together, c), append(queries, denyQuery{sentAt: notLookedUp})
			continue
		}
		q := denyQuery{sentAt: sent}
		q.key, q.version = d.table.keyOf(c.Charges)
		switch known := d.table.find(q.key); {
		case known == nil || !known.covers(&q, c.Charges):
			together, queries = append(together, c), append(queries, q)
		case q.sentAt >= known.validUntil:
			alone = append(alone, c) // it may have to wait for another request
		default:
			if c.Err = ctx.Err(); c.Err == nil {
				c.Decision = known.answer(q.sentAt)
			}
		}
	}
	many.DecideDivided(ctx, d, alone, func(ctx context.Context, calls []*many.Call) {
		many.Decide(ctx, d.next, calls)
		for i, c := range calls {
			if q := &queries[i]; q.sentAt != notLookedUp {
				d.learn(q, c.Charges, &c.Decision, c.Err)
			}
		}
	}, together)
}

// notLookedUp is denyQuery.sentAt of a batch that was not looked up in the cache.
const notLookedUp = -1

// DenyStats are counts of a DenyCache. To count its answers, count decisions with the Source
// FromDenyCache.
type DenyStats struct {
	Entries    int64 // denials in the cache now, including those that have ended
	Remembered int64 // denials that were stored since the start
	Evicted    int64 // denials that were replaced by others before they ended
	Waited     int64 // requests that waited for the answer to another
}

// Stats returns the counts until now.
func (d *DenyCache) Stats() DenyStats {
	t := d.table
	return DenyStats{Entries: t.entries.Load(), Remembered: t.remembered.Load(), Evicted: t.evicted.Load(), Waited: d.waited.Load()}
}

// A denyQuery is what a look-up of a batch needs, taken before the batch is sent to the store.
type denyQuery struct {
	key     denialKey
	version uint64 // sum of the counters' versions; Refund and Reset change it
	sentAt  int64  // no later than when the batch is sent, in ns of the cache's clock
}

// prepare sets what a look-up of the batch needs.
func (d *DenyCache) prepare(q *denyQuery, charges []penstock.Charge) {
	q.key, q.version = d.table.keyOf(charges)
	q.sentAt = d.now()
}

func (d *DenyCache) decide(ctx context.Context, q *denyQuery, charges []penstock.Charge) (penstock.Decision, error) {
	decision, err := d.next.Decide(ctx, charges)
	d.learn(q, charges, &decision, err)
	return decision, err
}

// learn caches a decision that is a denial. It also caches a grant after which the same batch would
// be denied.
func (d *DenyCache) learn(q *denyQuery, charges []penstock.Charge, decision *penstock.Decision, err error) {
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

// denialAfterGrant returns the status that the same charge would get right after its grant, if that
// is known and is a denial.
func (d *DenyCache) denialAfterGrant(c *penstock.Charge, granted penstock.Status) (status penstock.Status, isDenied bool) {
	if c.MinCost() <= granted.Remaining || patienceOf(c) > 0 {
		return status, false
	}
	retry := c.Plan.Algorithm().RetryAfterGrant(c.Plan.Params(0), c.MinCost(), granted.Remaining, granted.ResetAfter.Microseconds())
	if retry <= 0 {
		return status, false
	}
	if isSplit := d.limits != nil && d.limits(c.Plan).SplitInto > 1; isSplit {
		return status, false
	}
	return penstock.Status{
		Remaining:  granted.Remaining,
		RetryAfter: time.Duration(retry) * time.Microsecond,
		ResetAfter: granted.ResetAfter,
	}, true
}

// refreshOnce sends the first request after a denial has ended to the store. The others wait for
// its answer.
func (d *DenyCache) refreshOnce(ctx context.Context, q *denyQuery, charges []penstock.Charge, ended *denial) (penstock.Decision, error) {
	if d.deadlines != nil {
		bounded, isOwn := d.deadlines.Of(ctx)
		if isOwn {
			defer bounded.End()
		}
		ctx = bounded
	}
	answered, isFirst := ended.claim()
	if isFirst {
		defer close(answered)
		defer d.table.remove(ended)
		return d.decide(ctx, q, charges)
	}
	d.waited.Add(1)
	if !deadline.Await(ctx, answered) {
		if err := deadline.CallerErr(ctx); err != nil {
			return penstock.Decision{}, err
		}
		return d.decide(ctx, q, charges) // the deadline has passed, so a Fallback below answers
	}
	d.prepare(q, charges)
	if known := d.table.find(q.key); known != nil && q.sentAt < known.validUntil && known.covers(q, charges) {
		return known.answer(q.sentAt), nil
	}
	return d.decide(ctx, q, charges)
}

// refund passes a Refund or Reset to the store. It drops the denials of the charged counters before
// the caller gets the answer, even if the answer is an error.
func (d *DenyCache) refund(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	defer d.table.forget(charges)
	return d.next.Decide(ctx, charges)
}

func (d *DenyCache) remember(q *denyQuery, charges []penstock.Charge, decision *penstock.Decision) {
	if decision.Len() != len(charges) {
		return
	}
	const noEnd = 1<<63 - 1
	e := &denial{key: q.key, version: q.version, validUntil: noEnd, answeredAt: d.now()}
	e.charges = e.single[:0]
	for i := range charges {
		plan, status := charges[i].Plan, decision.Status(i)
		p := deniedCharge{plan: plan, cost: charges[i].MinCost(), patience: patienceOf(&charges[i]), status: status}
		if status.RetryAfter > 0 {
			age := d.maxAgeOf(plan)
			if plan.Algorithm().NeedsHolder() || age < 0 {
				return
			}
			e.validUntil = min(e.validUntil, q.sentAt+int64(min(age, safeFor(status.RetryAfter))))
			p.maxCost = maxCostFor(plan, status)
		}
		e.charges = append(e.charges, p)
	}
	if e.validUntil > e.answeredAt && e.validUntil < noEnd {
		d.table.put(e, q, charges)
	}
}

// safeFor returns the time for which a denial with this RetryAfter certainly holds. The clocks of
// this process and of the store may differ by 0.1 %, and each is read in whole µs.
func safeFor(retryAfter time.Duration) time.Duration {
	return retryAfter - retryAfter/1000 - 2*time.Microsecond
}

func (d *DenyCache) maxAgeOf(plan *penstock.Plan) time.Duration {
	age := d.maxAge
	if d.limits != nil {
		if own := d.limits(plan).DenyCacheTTL; own != 0 {
			age = own
		}
	}
	return min(age, maxDuration)
}

// denyCacheTTL is the default of MaxAge.
const denyCacheTTL = time.Second

// maxDuration bounds MaxAge, so that adding it to a time does not overflow.
const maxDuration time.Duration = 1 << 61

// now is the time since the cache was made, by the monotonic clock, in ns.
func (d *DenyCache) now() int64 { return int64(time.Since(d.start)) }

// A route says what a DenyCache does with a batch.
type route uint8

const (
	passThrough route = iota // send it to the store, and look up nothing
	cacheable                // a cached denial may answer
	refunding                // send it to the store, and drop the denials of its keys
)

// maxCachedCharges is the largest number of charges in a batch whose denial is cached.
const maxCachedCharges = 8

func routeOf(charges []penstock.Charge) route {
	to := passThrough
	if len(charges) <= maxCachedCharges {
		to = cacheable
	}
	for i := range charges {
		c, a := &charges[i], charges[i].Plan.Algorithm()
		switch c.Mode {
		case penstock.Spend, penstock.Peek:
		case penstock.Draw:
			if c.Patience > 0 && a.CanBook() { // algorithms differ in how they treat the patience of a Draw
				to = passThrough
			}
		case penstock.Refund, penstock.Reset:
			if !a.NeedsHolder() {
				return refunding
			}
			to = passThrough
		default:
			to = passThrough
		}
	}
	return to
}
