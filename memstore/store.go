// Package memstore keeps the state of limits in this process: for one instance, for tests and
// replay, and for when there is no Redis. Its answers are those of package redisstore.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// Options of a Store. The zero value is useful.
type Options struct {
	// Now is the clock. Default: the wall clock, whose steps are followed within a second. A clock for
	// tests or replay may stand still, jump or step back, from 1970 to 2112; charges at other times
	// are refused with ErrInvalid.
	Now func() time.Time

	// Shards is how many locks share the keys, rounded up to a power of two. Default: 256.
	Shards int

	// Linger is how much longer than needed idle state is kept. Default: 0. A clock that steps back,
	// in tests and in replay, finds what it left behind.
	Linger time.Duration

	// MaxKeys is how many counters may be live at once. Default: 10 million, which take up to 1 GB. A
	// live counter is never evicted, since that would give its quota anew: at the cap, charges that
	// need a new counter get an error that wraps ErrUnavailable, and all others are decided as ever.
	MaxKeys int
}

// A Store is a penstock.Store in memory. It starts no goroutine and needs no Close: idle state is
// swept, a little with every decision.
type Store struct {
	given   func() time.Time // the clock of Options, or nil
	clock   *clock
	seeds   [2]maphash.Seed
	shards  []shard
	keys    atomic.Int64
	maxKeys int64
	linger  int64 // µs

	searched atomic.Int64 // when reclaim last found nothing
}

// New makes a Store.
func New(o Options) *Store {
	if o.Shards <= 0 {
		o.Shards = 256
	}
	shards := 1
	for shards < o.Shards {
		shards *= 2
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 10_000_000
	}
	return &Store{
		given:   o.Now,
		clock:   newClock(),
		seeds:   [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		shards:  make([]shard, shards),
		maxKeys: int64(o.MaxKeys),
		linger:  o.Linger.Microseconds(),
	}
}

// Len is how many counters there are: the live ones, and idle ones that have not been swept yet.
func (s *Store) Len() int { return int(s.keys.Load()) }

// Decide implements penstock.Store. If ctx's deadline has passed, the error wraps ErrUnavailable,
// as with a store on a network. It never blocks on anything but a shard's lock, so it does not
// watch ctx.
func (s *Store) Decide(ctx context.Context, charges []penstock.Charge) (d penstock.Decision, err error) {
	var buf [4]*penstock.Plan
	plans, err := penstock.Prepare(charges, buf[:0])
	if err != nil {
		return penstock.Decision{}, err
	}
	if err := ctx.Err(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = penstock.NewStoreError(penstock.ReasonLate, err)
		}
		return penstock.Decision{}, err
	}
	now := s.now()
	if s.given != nil {
		if err := algorithm.CheckTime(now); err != nil {
			return penstock.Decision{}, fmt.Errorf("%w: memstore: Options.Now: %w", penstock.ErrInvalid, err)
		}
	}
	if len(charges) == 1 {
		err = s.decideOne(&charges[0], plans[0], now, &d)
		return d, err
	}
	return s.decideAll(charges, plans, now)
}

// now is the time in µs.
func (s *Store) now() int64 {
	if s.given != nil {
		return s.given().UnixMicro()
	}
	return s.clock.now()
}

func (s *Store) decideOne(c *penstock.Charge, plan *penstock.Plan, now int64, d *penstock.Decision) error {
	h := s.hash(c.Key, plan)
	shard := &s.shards[s.shardOf(h)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	t := shard.tableLocked(plan.Limit.Algorithm)
	if now%sweepEvery == 0 {
		s.sweepLocked(t, now)
	}

	params := plan.Params(now)
	c.Ask(&t.ask)
	cell := t.find(h)
	t.cells.Step(cell, params, &t.ask, now, cell != fresh, &t.out)
	if cell == fresh && t.out.OK() && t.out.Keep > 0 {
		s.sweepLocked(t, now)
		if !s.addLocked(t, h, &cell, now) {
			return s.full()
		}
		t.cells.Step(cell, params, &t.ask, now, true, &t.out)
	}
	s.keepLocked(t, cell, &t.out, now)
	d.Answer(&t.out)
	return nil
}

// decideAll asks every charge first, and makes them only if all are granted.
func (s *Store) decideAll(charges []penstock.Charge, plans []*penstock.Plan, now int64) (penstock.Decision, error) {
	questions := make([]question, len(charges))
	for i := range charges {
		h := s.hash(charges[i].Key, plans[i])
		questions[i] = question{plan: plans[i], params: plans[i].Params(now), hash: h, shard: s.shardOf(h)}
		charges[i].Ask(&questions[i].ask)
	}
	unlock := s.lock(questions)
	defer unlock()
	for i := range questions { // first, since it removes counters
		q := &questions[i]
		q.table = s.shards[q.shard].tableLocked(q.plan.Limit.Algorithm)
		s.sweepLocked(q.table, now)
	}

	statuses := make([]penstock.Status, len(charges))
	for i := range questions {
		q := &questions[i]
		q.cell = q.table.find(q.hash)
		out := &q.table.out
		q.table.cells.Step(q.cell, q.params, &q.ask, now, false, out)
		if !out.OK() {
			s.keepLocked(q.table, q.cell, out, now)
		}
		q.keep = out.Keep
		statuses[i] = penstock.StatusOf(out)
	}
	decision := penstock.NewDecision(statuses)
	if decision.Allowed {
		if err := s.commitLocked(questions, statuses, now); err != nil {
			return penstock.Decision{}, err
		}
		return decision, nil
	}
	for i := range questions {
		if q := &questions[i]; statuses[i].RetryAfter == 0 {
			q.ask = algorithm.Ask{Mode: algorithm.Peek, Holder: q.ask.Holder}
			q.table.cells.Step(q.cell, q.params, &q.ask, now, false, &q.table.out)
			s.keepLocked(q.table, q.cell, &q.table.out, now)
			statuses[i] = penstock.StatusOf(&q.table.out)
		}
	}
	return decision, nil
}

// commitLocked makes the charges. All new counters are added before the first charge is made, so
// that a full store makes none.
func (s *Store) commitLocked(questions []question, statuses []penstock.Status, now int64) error {
	for i := range questions {
		q := &questions[i]
		if q.cell != fresh || q.keep <= 0 {
			continue
		}
		if !s.addLocked(q.table, q.hash, &q.cell, now) {
			for _, earlier := range questions[:i] {
				if earlier.added {
					s.removeLocked(earlier.table, earlier.cell)
				}
			}
			return s.full()
		}
		q.added = true
	}
	for i := range questions {
		q := &questions[i]
		out := &q.table.out
		q.table.cells.Step(q.cell, q.params, &q.ask, now, q.cell != fresh, out)
		s.keepLocked(q.table, q.cell, out, now)
		statuses[i] = penstock.StatusOf(out)
	}
	return nil
}

// lock takes the shards of a batch in the order of their numbers, so that no two batches wait for
// each other.
func (s *Store) lock(questions []question) (unlock func()) {
	order := make([]int, 0, len(questions))
	for i := range questions {
		order = insert(order, questions[i].shard)
	}
	for _, i := range order {
		s.shards[i].mu.Lock()
	}
	return func() {
		for _, i := range order {
			s.shards[i].mu.Unlock()
		}
	}
}

// insert puts n into a sorted slice, once.
func insert(sorted []int, n int) []int {
	at := len(sorted)
	for at > 0 && sorted[at-1] >= n {
		at--
	}
	if at < len(sorted) && sorted[at] == n {
		return sorted
	}
	sorted = append(sorted, 0)
	copy(sorted[at+1:], sorted[at:])
	sorted[at] = n
	return sorted
}

func (s *Store) hash(key string, plan *penstock.Plan) hash {
	return hash{maphash.String(s.seeds[0], key) ^ plan.ID[0], maphash.String(s.seeds[1], key) ^ plan.ID[1]}
}

func (s *Store) shardOf(h hash) int { return int(h.high & uint64(len(s.shards)-1)) }

// addLocked makes a counter for h, unless the store is full.
func (s *Store) addLocked(t *table, h hash, cell *uint32, now int64) bool {
	if s.keys.Add(1) > s.maxKeys && !s.reclaim(now) {
		s.keys.Add(-1)
		return false
	}
	*cell = t.add(h)
	return true
}

// reclaim removes counters whose state has become fresh from other shards, until the store is no
// longer full. Its caller holds locks, so it skips shards that are locked. If it finds nothing, it
// pauses like a sweep.
func (s *Store) reclaim(now int64) bool {
	if last := s.searched.Load(); now >= last && now < last+fullPause {
		return false
	}
	for i := range s.shards {
		shard := &s.shards[i]
		if !shard.mu.TryLock() {
			continue
		}
		for _, t := range shard.tables {
			s.sweepLocked(t, now)
		}
		shard.mu.Unlock()
		if s.keys.Load() <= s.maxKeys {
			return true
		}
	}
	s.searched.Store(now)
	return false
}

func (s *Store) full() error {
	return penstock.NewStoreError(penstock.ReasonOutOfMemory, fmt.Errorf("memstore is full: %d counters are live; raise Options.MaxKeys", s.maxKeys))
}

func (s *Store) removeLocked(t *table, cell uint32) {
	t.remove(cell)
	s.keys.Add(-1)
}

// keepLocked notes how long a counter's state must be kept: as long as the limit that asks needs
// it, and never shorter than another limit needed it. One that equals a fresh state is not kept at
// all.
func (s *Store) keepLocked(t *table, cell uint32, out *algorithm.Outcome, now int64) {
	if cell == fresh {
		return
	}
	if out.Keep == 0 {
		s.removeLocked(t, cell)
		return
	}
	c := &t.counters[cell]
	c.expires = max(c.expires, now+max(out.Keep, out.ResetAfter)+s.linger)
}

// sweepLocked looks at the next two counters and removes those whose state has become fresh; at all
// of them, now and then, when the store is full. It is called before each new counter, so garbage
// dies faster than a flood of new keys makes it.
func (s *Store) sweepLocked(t *table, now int64) {
	n := 2
	if s.keys.Load() >= s.maxKeys && (now >= t.swept+fullPause || now < t.swept) {
		n, t.swept = len(t.counters), now
	}
	for range n {
		t.cursor++
		if t.cursor >= uint32(len(t.counters)) {
			t.cursor = 0 // the fresh cell: it has no counter
		}
		if c := t.counters[t.cursor]; c.expires != 0 && c.expires <= now {
			s.removeLocked(t, t.cursor)
		}
	}
}

// sweepEvery says in how many decisions on one charge garbage is swept, on average, where no
// counter is added.
const sweepEvery = 8

// fullPause is how many µs lie between two sweeps of a whole table.
const fullPause = 100_000

// A question is a charge on its way through decideAll.
type question struct {
	ask    algorithm.Ask
	plan   *penstock.Plan
	params *algorithm.Params
	hash   hash
	shard  int
	table  *table
	cell   uint32
	keep   int64
	added  bool
}

type shard struct {
	mu     sync.Mutex
	tables []*table
	_      [64 - 32]byte // a cache line each
}
