// Package memstore keeps the state of limits in the memory of this process. It is for a single
// instance, for tests and replay, and for the time while Redis gives no answer. The package gives
// the same answers as package redisstore.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/lazy"
)

// Options of a Store. The zero value is useful.
type Options struct {
	// Now is the clock. A clock for tests or replay may stop, jump or step back, but must stay between
	// the years 1970 and 2112. Beyond these, Decide returns ErrInvalid. Default: the wall clock, whose
	// steps the store follows within a second.
	//
	// Only the counters follow Now. Waiting, penstock.Reservation.Delay and deadlines of contexts use
	// the wall clock. In a bubble of testing/synctest, all of them follow the bubble's clock, without
	// Now.
	Now func() time.Time

	// Locks is how many locks the counters are divided among, rounded up to a power of two.
	// Default: 256.
	Locks int

	// Linger is how much longer the store keeps state that is no longer needed. Default: 0. Use it in
	// tests and replay if the clock steps back: then the state of the earlier time still exists.
	Linger time.Duration

	// MaxCounters is how many live counters the store may hold. Default: 10 million, which need about
	// 1 GB. A counter belongs to one key and one limit. Larger counters count as several: one of a
	// SubWindow as 6, and one of a SlidingLog or of Concurrency as 8. The store never evicts a live
	// counter, because that would reset its quota. When the store is full, charges that need a new
	// counter return an error that wraps ErrUnavailable. All other charges are decided as usual.
	MaxCounters int
}

// A Store is a penstock.Store in memory. It starts no goroutine and needs no Close: the decisions
// themselves remove counters that are no longer needed, a few at a time.
type Store struct {
	listDecider
	optionsNow   func() time.Time // Options.Now, or nil
	clock        *clock
	hashSeeds    [2]maphash.Seed // of the two halves of a hash
	stripes      []stripe
	counters     atomic.Int64 // how many counters there are, including those that are no longer needed
	weight       atomic.Int64 // of these counters; see table.weight
	maxWeight    int64        // Options.MaxCounters
	lingerMicros int64

	reclaimFailedAt atomic.Int64 // when reclaim failed last, in µs since the epoch
}

// A listDecider lets other packages of this module have lists of batches decided. The name is
// unexported, so that the documentation of Store does not show it.
type listDecider = batches.ListDecider

// New makes a Store.
func New(o Options) *Store {
	if o.Locks <= 0 {
		o.Locks = 256
	}
	stripes := 1
	for stripes < o.Locks {
		stripes *= 2
	}
	if o.MaxCounters <= 0 {
		o.MaxCounters = 10_000_000
	}
	s := &Store{
		optionsNow:   o.Now,
		clock:        newClock(),
		hashSeeds:    [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		stripes:      make([]stripe, stripes),
		maxWeight:    int64(o.MaxCounters),
		lingerMicros: o.Linger.Microseconds(),
	}
	s.listDecider = batches.NewListDecider(s, s.decideList)
	return s
}

// Len returns the number of counters, including those that are no longer needed but not removed
// yet.
func (s *Store) Len() int { return int(s.counters.Load()) }

// Decide implements penstock.Store. If ctx's deadline has passed, the error wraps ErrUnavailable,
// as with a store on a network. Decide blocks only on the locks of stripes, so it checks ctx only
// once.
func (s *Store) Decide(ctx context.Context, charges []penstock.Charge) (d penstock.Decision, err error) {
	if err := penstock.Check(charges); err != nil {
		return penstock.Decision{}, err
	}
	now, err := s.begin(ctx)
	if err != nil {
		return penstock.Decision{}, err
	}
	if len(charges) == 1 {
		err = s.decideOne(&charges[0], now, &d)
		return d, err
	}
	return s.decideAll(charges, now)
}

// decideList decides one batch after another: that is faster than a goroutine for each.
func (s *Store) decideList(ctx context.Context, list []*batches.Batch) {
	for _, b := range list {
		b.Decision, b.Err = s.Decide(ctx, b.Charges)
	}
}

// begin returns the time in µs since the epoch. It returns an error if ctx has ended or Options.Now
// is wrong.
func (s *Store) begin(ctx context.Context) (now int64, err error) {
	if s.optionsNow == nil {
		micros, base, since := s.clock.now()
		now, err = micros, lazy.Err(ctx, base, since)
	} else if err = ctx.Err(); err == nil {
		now = s.optionsNow().UnixMicro()
		if err := algorithm.CheckTime(now); err != nil {
			return 0, fmt.Errorf("%w: memstore: Options.Now: %w", penstock.ErrInvalid, err)
		}
	}
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = penstock.NewStoreError(penstock.ReasonLate, err)
	}
	return now, err
}

// decideOne decides a batch of one charge, and writes the decision to *d.
func (s *Store) decideOne(c *penstock.Charge, now int64, d *penstock.Decision) error {
	plan := c.Plan
	h := s.hash(c.Key, plan)
	stripe := &s.stripes[s.stripeOf(h)]
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	t := stripe.tableLocked(plan.Algorithm())
	if now%sweepEvery == 0 {
		s.sweepLocked(t, now, largeSweep)
	}

	params := plan.Params(now)
	c.Request(&t.request)
	cell := t.find(h)
	canCommit := cell != freshCell // the state of freshCell must not change
	t.states.Step(cell, params, &t.request, now, canCommit, &t.outcome)
	needsCounter := t.outcome.Keep > 0
	if cell == freshCell && needsCounter {
		s.sweepLocked(t, now, smallSweep)
		if !s.addLocked(t, h, &cell, now) {
			return s.errFull()
		}
		t.states.Step(cell, params, &t.request, now, commit, &t.outcome)
	}
	s.keepLocked(t, cell, &t.outcome, now)
	if !t.outcome.OK() && c.CountsDenial() {
		s.sweepLocked(t, now, smallSweep)
		s.countLocked(&pendingCharge{request: t.request, params: params, hash: h, table: t, cell: t.find(h)}, now)
	}
	penstock.SetOutcome(d, &t.outcome)
	return nil
}

// These are values for the parameter commit of Step: whether Step stores the new state if the
// charge is granted.
const (
	dryRun = false
	commit = true
)

// decideAll first decides every charge without making it. If all are granted, it makes them.
func (s *Store) decideAll(charges []penstock.Charge, now int64) (penstock.Decision, error) {
	pending := make([]pendingCharge, len(charges))
	for i := range charges {
		plan := charges[i].Plan
		h := s.hash(charges[i].Key, plan)
		pending[i] = pendingCharge{plan: plan, params: plan.Params(now), hash: h, stripeIndex: s.stripeOf(h)}
		charges[i].Request(&pending[i].request)
	}
	unlock := s.lock(pending)
	defer unlock()
	for i := range pending { // sweep before the first find, because a sweep may remove the counter found
		p := &pending[i]
		p.table = s.stripes[p.stripeIndex].tableLocked(p.plan.Algorithm())
		s.sweepLocked(p.table, now, smallSweep)
	}

	statuses := make([]penstock.Status, len(charges))
	for i := range pending {
		p := &pending[i]
		p.cell = p.table.find(p.hash)
		out := &p.table.outcome
		p.table.states.Step(p.cell, p.params, &p.request, now, dryRun, out)
		if !out.OK() {
			if p.cell == freshCell && out.Keep > 0 && s.addLocked(p.table, p.hash, &p.cell, now) { // the denial has a state
				p.table.states.Step(p.cell, p.params, &p.request, now, commit, out)
			}
			s.keepLocked(p.table, p.cell, out, now)
		}
		p.keep = out.Keep
		statuses[i] = penstock.StatusOf(out)
	}
	decision := penstock.NewDecision(statuses)
	if decision.Allowed {
		if err := s.commitLocked(pending, statuses, now); err != nil {
			return penstock.Decision{}, err
		}
		return decision, nil
	}
	// The charges that fit are not made either. Their statuses become those of a Peek.
	for i := range pending {
		p := &pending[i]
		if charges[i].CountsDenial() {
			s.countLocked(p, now)
			statuses[i] = penstock.StatusOf(&p.table.outcome)
		} else if statuses[i].RetryAfter == 0 {
			p.request = algorithm.Request{Mode: algorithm.Peek, Holder: p.request.Holder}
			p.table.states.Step(p.cell, p.params, &p.request, now, dryRun, &p.table.outcome)
			s.keepLocked(p.table, p.cell, &p.table.outcome, now)
			statuses[i] = penstock.StatusOf(&p.table.outcome)
		}
	}
	return decision, nil
}

// countLocked counts a charge of a denied batch, and writes the outcome of a Peek to the table's
// outcome. If the store is full, a charge that needs a new counter is not counted.
func (s *Store) countLocked(p *pendingCharge, now int64) {
	t, request := p.table, p.request
	p.request = algorithm.Request{Mode: algorithm.Attempt, Cost: request.Cost}
	if p.cell == freshCell {
		t.states.Step(p.cell, p.params, &p.request, now, dryRun, &t.outcome)
		if t.outcome.Keep > 0 {
			s.addLocked(t, p.hash, &p.cell, now)
		}
	}
	if p.cell != freshCell {
		t.states.Step(p.cell, p.params, &p.request, now, commit, &t.outcome)
		s.keepLocked(t, p.cell, &t.outcome, now)
	}
	p.request = algorithm.Request{Mode: algorithm.Peek, Cost: request.Cost, Patience: request.Patience}
	t.states.Step(p.cell, p.params, &p.request, now, dryRun, &t.outcome)
	s.keepLocked(t, p.cell, &t.outcome, now)
	t.outcome.Wait = 0 // nobody waits for a turn in a denied batch
}

// commitLocked makes the charges. It adds all new counters first, so that it makes no charge if the
// store is full.
func (s *Store) commitLocked(pending []pendingCharge, statuses []penstock.Status, now int64) error {
	for i := range pending {
		p := &pending[i]
		needsCounter := p.cell == freshCell && p.keep > 0
		if !needsCounter {
			continue
		}
		if !s.addLocked(p.table, p.hash, &p.cell, now) {
			for _, earlier := range pending[:i] {
				if earlier.isAdded {
					s.removeLocked(earlier.table, earlier.cell)
				}
			}
			return s.errFull()
		}
		p.isAdded = true
	}
	for i := range pending {
		p := &pending[i]
		out := &p.table.outcome
		canCommit := p.cell != freshCell // the state of freshCell must not change
		p.table.states.Step(p.cell, p.params, &p.request, now, canCommit, out)
		s.keepLocked(p.table, p.cell, out, now)
		statuses[i] = penstock.StatusOf(out)
	}
	return nil
}

// lock locks the stripes of a batch, each once, in the order of their indices. So two batches
// cannot deadlock.
func (s *Store) lock(pending []pendingCharge) (unlock func()) {
	order := make([]int, 0, len(pending))
	for i := range pending {
		if at, isListed := slices.BinarySearch(order, pending[i].stripeIndex); !isListed {
			order = slices.Insert(order, at, pending[i].stripeIndex)
		}
	}
	for _, i := range order {
		s.stripes[i].mu.Lock()
	}
	return func() {
		for _, i := range order {
			s.stripes[i].mu.Unlock()
		}
	}
}

// hash returns the hash of the counter for a key and a limit. Each half combines a seeded hash of
// the key and half of the limit's ID.
func (s *Store) hash(key string, plan *penstock.Plan) hash {
	return hash{maphash.String(s.hashSeeds[0], key) ^ plan.ID()[0], maphash.String(s.hashSeeds[1], key) ^ plan.ID()[1]}
}

func (s *Store) stripeOf(h hash) int { return int(h.high & uint64(len(s.stripes)-1)) }

// addLocked adds a counter for h, and writes its cell to *cell. It returns false if the store is
// full.
func (s *Store) addLocked(t *table, h hash, cell *uint32, now int64) bool {
	if s.weight.Add(t.weight) > s.maxWeight && !s.reclaim(now) {
		s.weight.Add(-t.weight)
		return false
	}
	s.counters.Add(1)
	*cell = t.add(h)
	return true
}

// reclaim removes counters that are no longer needed, in other stripes, until the store has room.
// It returns false if the store is still full. The caller of reclaim holds locks, so reclaim skips
// stripes that are locked. After a failure, further calls return false immediately for
// pauseMicrosWhenFull.
func (s *Store) reclaim(now int64) bool {
	if last := s.reclaimFailedAt.Load(); now >= last && now < last+pauseMicrosWhenFull {
		return false
	}
	for i := range s.stripes {
		stripe := &s.stripes[i]
		if !stripe.mu.TryLock() {
			continue
		}
		for _, t := range stripe.tables {
			s.sweepLocked(t, now, smallSweep)
		}
		stripe.mu.Unlock()
		if s.weight.Load() <= s.maxWeight {
			return true
		}
	}
	s.reclaimFailedAt.Store(now)
	return false
}

func (s *Store) errFull() error {
	return penstock.NewStoreError(penstock.ReasonOutOfMemory, fmt.Errorf("memstore is full: %d counters are live; raise Options.MaxCounters", s.Len()))
}

func (s *Store) removeLocked(t *table, cell uint32) {
	t.remove(cell)
	s.counters.Add(-1)
	s.weight.Add(-t.weight)
}

// keepLocked sets how long a counter is kept: until the latest time at which any of the limits that
// use it needs its state. If the state equals that of a new counter, keepLocked removes the
// counter.
func (s *Store) keepLocked(t *table, cell uint32, out *algorithm.Outcome, now int64) {
	if cell == freshCell {
		return
	}
	if out.Keep == 0 {
		s.removeLocked(t, cell)
		return
	}
	c := &t.counters[cell]
	c.expiresAt = max(c.expiresAt, now+max(out.Keep, out.ResetAfter)+s.lingerMicros)
}

// sweepLocked checks the next n counters and removes those that are no longer needed. If the store
// is full, it checks all counters of the table instead, at most once in pauseMicrosWhenFull.
func (s *Store) sweepLocked(t *table, now int64, n int) {
	isFull := s.weight.Load() >= s.maxWeight
	isSweptRecently := now >= t.lastFullSweep && now < t.lastFullSweep+pauseMicrosWhenFull
	if isFull && !isSweptRecently {
		n, t.lastFullSweep = len(t.counters), now
	}
	cell := t.sweepCursor
	for range n {
		cell++
		if int(cell) >= len(t.counters) {
			cell = 0 // it has no counter
		}
		if at := t.counters[cell].expiresAt; at != 0 && at <= now {
			s.removeLocked(t, cell)
		}
	}
	t.sweepCursor = cell
}

// A decision on one charge sweeps largeSweep counters if its time in µs is a multiple of
// sweepEvery. On average that is one decision of 32. The counters are beside each other in memory,
// so this takes less time than to check one counter in every fourth decision.
const (
	sweepEvery = 32
	largeSweep = 8
)

// smallSweep is how many counters are checked before each new counter, and for each charge of a
// larger batch. smallSweep is above 1, so counters are removed faster than a flood of new keys adds
// them.
const smallSweep = 2

// pauseMicrosWhenFull is the least time between two sweeps of a whole table, and from a reclaim
// that failed to the next one: 100 ms.
const pauseMicrosWhenFull = 100_000

// A pendingCharge is a charge that decideAll has not decided yet.
type pendingCharge struct {
	request     algorithm.Request
	plan        *penstock.Plan
	params      *algorithm.Params
	hash        hash
	stripeIndex int
	table       *table
	cell        uint32
	keep        int64 // Outcome.Keep of the charge, if the batch is granted
	isAdded     bool  // the counter is new, so it must be removed if the store is full
}

// A stripe is the counters of one lock.
type stripe struct {
	mu     sync.Mutex
	tables []*table
	_      [64 - 32]byte // mu and tables take 32 bytes; each stripe has a cache line of 64
}
