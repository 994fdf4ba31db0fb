package guard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// DenyOptions of a DenyCache. The zero value is useful.
type DenyOptions struct {
	// MaxAge is how long a denial is remembered at most, and so how late it can be noticed that units
	// came back by another way than time or this guard. Default: 1 s.
	MaxAge time.Duration

	// MaxEntries is how many denials are remembered at most, rounded up to a power of two of at least
	// 8. Beyond, the one that ends first is forgotten, which costs a question. Each takes about 160
	// bytes, 80 more per charge beyond the first, and the plan of a limit that was not made Ready.
	// Default: 65,536.
	MaxEntries int

	// Limits says what is different for a limit: its Settings' DenyFor is its MaxAge. Default:
	// nothing. It is called for each denial that is remembered, by many goroutines at once.
	Limits func(*penstock.Limit) Settings

	// Grants has denials remembered that follow from grants too: who takes the last tokens of a
	// TokenBucket tells how long there are none. It needs a store whose Remaining and ResetAfter
	// are exact, as those of redisstore and memstore are. Those of a Split are not, so Limits must
	// say which limits have Shards. For a limit with a Lease, only grants by the store count.
	// Default: false; Standard sets it.
	Grants bool
}

// Deny remembers denials. See [DenyCache], which it puts around a store.
func Deny(o DenyOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store { return NewDenyCache(next, o) }
}

// A DenyCache answers by itself what the store has just denied. Who is over a limit then costs the
// store nothing, however often it comes.
//
// A denial is remembered until the charge may be granted: until its RetryAfter, counted from before
// the question was sent and shortened by 0.1 % and 2 µs for clocks that differ, and for MaxAge at
// most. Until then whoever asks for as much or more, with as little patience or less, is denied;
// who asks for less asks the store. Decisions that the cache made are FromDenyCache. With Grants,
// who takes the last tokens of a bucket is followed by a denial that no one has asked for: a key
// over its limit then costs the store little more than what it grants.
//
// The verdict is exact: the store would deny too, since other charges only take units away. The
// exceptions end with the denial's age, MaxAge at most after they happened: units given back by
// others (a Refund, a Reset, a batch over several slots of a Cluster that failed, a lease below
// this guard) or after the answer was lost, lost state, a clock of the store that leaps ahead, and
// a limit of another rate or Period that shares the counter: what was used then comes back at that
// limit's rate once it grants. A Refund or Reset through this guard is obeyed at once: what comes
// after its answer is not denied by what was known before.
//
// The numbers are those of the store's answer, with RetryAfter and ResetAfter counted down. So
// RetryAfter is never too long by more than the answer was under way, but for the exceptions above;
// it is too short where others have spent meanwhile, or where more is asked than was denied. Never
// is Never: what exceeds its limit is not told to come back.
//
// A remembered denial is for one limit with its numbers. If several limits of one name use one
// counter, as tiers do, a denial of one does not deny another.
//
// A batch is denied if its charges are those of a remembered one: the same limits and keys in the
// same order, those that were denied asking for as much or more, the others for as much or less.
// What its statuses say of the others was so when the store was asked; by now they may stand in the
// way too. Batches of more than 8 charges are always asked, as are those that were denied by a
// Concurrency limit, whose slots may be released at any time, or with a Force, Refund or Reset
// among them. Denials that did not come from the store itself are not remembered.
//
// When a denial ends, the first to come asks the store. Those that come before its answer wait for
// it, no longer than their contexts; then they are answered by it if it denies them, or ask too.
type DenyCache struct {
	next      penstock.Store
	maxAge    time.Duration
	limits    func(*penstock.Limit) Settings
	grants    bool
	deadlines *deadlines // of a decision that waits for another's; nil: only its caller's own
	start     time.Time
	table     *denials
	waited    atomic.Int64
}

// NewDenyCache makes a DenyCache around a store. It starts no goroutine and needs no Close.
func NewDenyCache(next penstock.Store, o DenyOptions) *DenyCache {
	if o.MaxAge <= 0 {
		o.MaxAge = denyFor
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 65_536
	}
	return &DenyCache{next: next, maxAge: o.MaxAge, limits: o.Limits, grants: o.Grants, start: time.Now(), table: newDenials(o.MaxEntries)}
}

// Decide implements penstock.Store.
func (d *DenyCache) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	var buf [4]*penstock.Plan
	plans, err := penstock.Prepare(charges, buf[:0])
	if err != nil {
		return penstock.Decision{}, err
	}
	switch lotOf(charges, plans) {
	case frees:
		return d.free(ctx, charges, plans)
	case passes:
		return d.next.Decide(ctx, charges)
	}
	q := question{plans: plans}
	d.prepare(&q, charges)
	known := d.table.find(q.key)
	if known == nil || !known.covers(&q, charges) {
		return d.ask(ctx, &q, charges)
	}
	if q.sent >= known.until {
		return d.askOnce(ctx, &q, charges, known)
	}
	if err := ctx.Err(); err != nil {
		return penstock.Decision{}, err
	}
	return known.answer(q.sent), nil
}

// Forget forgets all denials, those that are being answered included.
func (d *DenyCache) Forget() { d.table.clear() }

// DenyStats tell how a DenyCache fares. What it answered is counted by the Source of its decisions.
type DenyStats struct {
	Entries    int64 // denials that are remembered, ended ones included
	Remembered int64 // denials that ever were
	Evicted    int64 // denials that had to go before they ended, for others
	Waited     int64 // questions that waited for another's answer
}

// Stats tells how the cache fares.
func (d *DenyCache) Stats() DenyStats {
	t := d.table
	return DenyStats{Entries: t.entries.Load(), Remembered: t.remembered.Load(), Evicted: t.evicted.Load(), Waited: d.waited.Load()}
}

// A question is a batch on its way to the store.
type question struct {
	plans   []*penstock.Plan
	key     denialKey
	version uint64 // of the counters, before the question was sent: Refund and Reset change it
	sent    int64  // no later than when the question was sent, in ns of the cache's clock
}

func (d *DenyCache) prepare(q *question, charges []penstock.Charge) {
	q.key, q.version = d.table.name(charges, q.plans)
	q.sent = d.now()
}

func (d *DenyCache) ask(ctx context.Context, q *question, charges []penstock.Charge) (penstock.Decision, error) {
	decision, err := d.next.Decide(ctx, charges)
	switch {
	case err != nil || decision.Source != penstock.FromStore:
	case !decision.Allowed:
		d.remember(q, charges, &decision)
	case d.grants && len(charges) == 1:
		if status, denied := d.again(q.plans[0], &charges[0], decision.Status(0)); denied {
			again := penstock.Single(status)
			d.remember(q, charges, &again)
		}
	}
	return decision, err
}

// again is what the charge that was granted would be answered at the same moment, if that is known
// and is a denial.
func (d *DenyCache) again(plan *penstock.Plan, c *penstock.Charge, granted penstock.Status) (status penstock.Status, denied bool) {
	a := plan.Limit.Algorithm
	if a.Again == nil || need(c) <= granted.Remaining || patience(c, plan) > 0 {
		return status, false
	}
	if d.limits != nil {
		if s := d.limits(&plan.Limit); s.Shards > 1 {
			return status, false
		}
	}
	retry := a.Again(plan.Params(0), need(c), granted.Remaining, granted.ResetAfter.Microseconds())
	return penstock.Status{
		Remaining:  granted.Remaining,
		RetryAfter: time.Duration(retry) * time.Microsecond,
		ResetAfter: granted.ResetAfter,
	}, retry > 0
}

// askOnce asks for all who come while the answer is under way.
func (d *DenyCache) askOnce(ctx context.Context, q *question, charges []penstock.Charge, ended *denial) (penstock.Decision, error) {
	if d.deadlines != nil {
		bounded, own := d.deadlines.deadlineOf(ctx)
		if own {
			defer bounded.end()
		}
		ctx = bounded
	}
	answered, first := ended.turn()
	if first {
		defer close(answered)
		defer d.table.remove(ended)
		return d.ask(ctx, q, charges)
	}
	d.waited.Add(1)
	if !await(ctx, answered) {
		if err := callersErr(ctx); err != nil {
			return penstock.Decision{}, err
		}
		return d.ask(ctx, q, charges) // for which there is no time left: a Fallback answers
	}
	d.prepare(q, charges)
	if known := d.table.find(q.key); known != nil && q.sent < known.until && known.covers(q, charges) {
		return known.answer(q.sent), nil
	}
	return d.ask(ctx, q, charges)
}

// free passes on what gives units back. Whatever becomes of it, what was known of its counters is
// forgotten before the caller is told.
func (d *DenyCache) free(ctx context.Context, charges []penstock.Charge, plans []*penstock.Plan) (penstock.Decision, error) {
	defer d.table.forget(charges, plans)
	return d.next.Decide(ctx, charges)
}

func (d *DenyCache) remember(q *question, charges []penstock.Charge, decision *penstock.Decision) {
	if decision.Len() != len(charges) {
		return
	}
	const noEnd = 1<<63 - 1
	e := &denial{key: q.key, version: q.version, until: noEnd, answered: d.now()}
	e.parts = e.single[:0]
	for i := range charges {
		plan, status := q.plans[i], decision.Status(i)
		p := deniedCharge{plan: plan, cost: need(&charges[i]), patience: patience(&charges[i], plan), status: status}
		if status.RetryAfter > 0 {
			age := d.maxAgeOf(plan)
			if plan.Limit.Algorithm.Holds || age < 0 {
				return
			}
			e.until = min(e.until, q.sent+int64(min(age, stable(status.RetryAfter))))
			p.most = mostFor(plan, status)
		}
		e.parts = append(e.parts, p)
	}
	if e.until > e.answered && e.until < noEnd {
		d.table.put(e, q, charges)
	}
}

// stable is for how long a denial holds at least, the clocks of this process and of the store
// differing by 0.1 % and each being read in whole µs.
func stable(retryAfter time.Duration) time.Duration {
	return retryAfter - retryAfter/1000 - 2*time.Microsecond
}

func (d *DenyCache) maxAgeOf(plan *penstock.Plan) time.Duration {
	age := d.maxAge
	if d.limits != nil {
		if own := d.limits(&plan.Limit).DenyFor; own != 0 {
			age = own
		}
	}
	return min(age, longest)
}

// denyFor is how long a denial is remembered at most, if nobody says.
const denyFor = time.Second

// longest is a time after which nothing is remembered, and that can be added to one.
const longest time.Duration = 1 << 61

// now is the time by a clock that no one can set, in ns.
func (d *DenyCache) now() int64 { return int64(time.Since(d.start)) }

// A lot says what becomes of a batch.
type lot uint8

const (
	passes lot = iota // to the store, whatever is known
	asks              // only what may be denied: it may be answered here
	frees             // gives units back
)

// maxRemembered is the most charges of a batch whose denial is remembered.
const maxRemembered = 8

func lotOf(charges []penstock.Charge, plans []*penstock.Plan) lot {
	lot := passes
	if len(charges) <= maxRemembered {
		lot = asks
	}
	for i := range charges {
		c, a := &charges[i], plans[i].Limit.Algorithm
		switch c.Mode {
		case penstock.Spend, penstock.Peek:
		case penstock.Draw:
			if c.Patience > 0 && a.Bookable { // what patience means to a Draw, algorithms decide
				lot = passes
			}
		case penstock.Refund, penstock.Reset:
			if !a.Holds {
				return frees
			}
			lot = passes
		default:
			lot = passes
		}
	}
	return lot
}
