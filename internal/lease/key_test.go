package lease

import (
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

const ms = time.Millisecond

// newStore returns a lease whose blocks have up to 100 units, and whose limits have one counter.
func newStore(maxKeys int) *Store {
	return New(memstore.New(memstore.Options{}), Options{
		Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 0 }, MaxKeys: maxKeys,
	})
}

func hourly(name string) *penstock.Plan {
	return penstock.PerHour(100_000).WithName(name).With(penstock.FixedWindow).MustCompile()
}

// A key that is in use is kept. Idle keys make room.
func TestIdleKeysMakeRoom(t *testing.T) {
	l := newStore(2)
	text := []byte("a")
	a := l.trackKey(1, keyName{unsafe.String(&text[0], 1), "g"})
	a.callerRefunds, a.counts.drawn = 1, 7
	b := l.trackKey(1, keyName{"b", "g"})
	b.callerRefunds = 1
	if l.trackKey(1, keyName{"c", "g"}) != nil || l.keys.count.Load() != 2 || l.trackKey(1, keyName{"a", "g"}) != a {
		t.Errorf("a third key is tracked beside two that are in use, or one of those is not found; want at most %d", l.options.MaxKeys)
	}
	if unsafe.StringData(a.name.key) == &text[0] {
		t.Error("the name of a tracked key refers to memory of the caller; want a copy")
	}
	a.callerRefunds = 0
	l.keys.nextCell = 0
	c := l.trackKey(1, keyName{"c", "g"})
	if keys := l.keys.all(); c == nil || !a.isGone || b.isGone || !slices.Equal(keys, []*leasedKey{c, b}) || l.keys.count.Load() != 2 {
		t.Errorf("the idle key was not replaced by a new one: %+v; want that", keys)
	}
	if stats := l.Stats(); stats.Drawn != 7 || stats.Keys != 2 || l.removedKeys != 1 {
		t.Errorf("after the removal of a key, the stats are %+v, and %d keys were removed; want its 7 units still counted, and 1", stats, l.removedKeys)
	}
}

func TestKeyIsIdleWithoutPoolsInUse(t *testing.T) {
	for _, row := range []struct {
		name   string
		key    *leasedKey
		now    time.Duration
		isIdle bool
	}{
		{"no pools", &leasedKey{}, 0, true},
		{"a Refund of a caller", &leasedKey{callerRefunds: 1}, time.Hour, false},
		{"a refund of leased units", &leasedKey{leaseRefunds: 1}, time.Hour, false},
		{"a pool of two Lives ago", &leasedKey{pools: []*pool{{}}}, 2 * DefaultLife, true},
		{"a later pool", &leasedKey{pools: []*pool{{}}}, 2*DefaultLife - 1, false},
		{"a pool with units", &leasedKey{pools: []*pool{{}, {blocks: [2]block{{left: 1}}}}}, time.Hour, false},
	} {
		l := newStore(1)
		if got := row.key.markGoneIfIdle(l, row.now); got != row.isIdle || row.key.isGone != row.isIdle {
			t.Errorf("a key with %s is idle: %v, and gone: %v; want %v", row.name, got, row.key.isGone, row.isIdle)
		}
		if !l.mu.TryLock() || !row.key.mu.TryLock() {
			t.Fatal("a lock is held afterwards")
		}
		if row.key.markGoneIfIdle(l, time.Hour) {
			t.Errorf("a key whose lock is held is idle; want that it is in use")
		}
	}
}

// A key has one pool for each combination of limits, and at most four. Idle ones make room.
func TestPoolsOfAKey(t *testing.T) {
	l := newStore(1)
	k := new(leasedKey)
	poolOf := func(now time.Duration, plans ...*penstock.Plan) *pool { return k.poolLocked(l, nil, plans, now) }
	plans := []*penstock.Plan{hourly("a"), hourly("b"), hourly("c"), hourly("d"), hourly("e")}
	first := poolOf(5, plans[0])
	if len(first.limits) != 1 || &first.limits[0] != &first.single[0] || &k.pools[0] != &k.first[0] {
		t.Error("the first limit and the first pool are not in the memory that is meant for them")
	}
	if limit := first.limits[0]; first.measuredSince != 5 || first.lastUsed != 5 || limit.counters != 1 || limit.width != time.Hour || limit.decay != algorithm.DecayAtReset {
		t.Errorf("the new pool is %+v; want one that was used now, of a window with one counter", first)
	}
	if poolOf(6, plans[0]) != first || poolOf(6, hourly("a")) != first {
		t.Error("an equal limit has another pool; want the same")
	}
	both := poolOf(6, plans[0], plans[1])
	if both == first || len(both.limits) != 2 || both.hasPlans(plans[1:3]) || !both.hasPlans(plans[:2]) || both.hasPlans([]*penstock.Plan{plans[0], plans[2]}) {
		t.Error("two limits have no pool of their own")
	}
	second, third := poolOf(7, plans[1]), poolOf(8, plans[2])
	if len(k.pools) != maxPools || poolOf(8, plans[3]) != nil || poolOf(2*DefaultLife+4, plans[3]) != nil {
		t.Errorf("there are %d pools; want %d at most", len(k.pools), maxPools)
	}
	if poolOf(2*DefaultLife+7, plans[3]) == nil || len(k.pools) != 2 || k.pools[0] != third {
		t.Errorf("there are %d pools; want the new one, and the one that is not idle", len(k.pools))
	}
	if second == third {
		t.Error("two limits share a pool")
	}
	l.options.Block = func(*penstock.Plan) int64 { return MinBlock - 1 }
	if poolOf(9, plans[4]) != nil || poolOf(9, plans[2]) != third {
		t.Error("a limit that is not leased has a new pool, or its old one is gone")
	}
	l.options.Block, l.options.Counters = func(*penstock.Plan) int64 { return MinBlock }, func(*penstock.Plan) int { return 3 }
	if p := poolOf(9, plans[4]); p == nil || p.limits[0].counters != 3 {
		t.Errorf("a limit of the smallest block and three counters has the pool %+v", p)
	}
}

func TestUnitsOfALimitAreInOnePool(t *testing.T) {
	limitsOf := func(names ...string) (limits []pooledLimit) {
		for _, name := range names {
			limits = append(limits, pooledLimit{plan: hourly(name)})
		}
		return limits
	}
	for _, row := range []struct {
		name     string
		other    pool
		isShared bool
	}{
		{"units of another limit", pool{limits: limitsOf("c"), blocks: [2]block{{left: 1}}}, false},
		{"units of the limit", pool{limits: limitsOf("c", "b"), blocks: [2]block{{left: 1}}}, true},
		{"two units", pool{limits: limitsOf("b"), blocks: [2]block{{left: 1}, {left: 1}}}, true},
		{"units on their way back", pool{limits: limitsOf("b"), returning: 1}, true},
		{"a draw", pool{limits: limitsOf("b"), draw: new(draw)}, true},
		{"a draw and units", pool{limits: limitsOf("b"), draw: new(draw), returning: 1}, true},
		{"nothing", pool{limits: limitsOf("b")}, false},
	} {
		p := &pool{limits: limitsOf("a", "b"), blocks: [2]block{{left: 1}}, draw: new(draw)}
		k := &leasedKey{pools: []*pool{p, &row.other}}
		if got := k.isSharedLocked(p); got != row.isShared {
			t.Errorf("beside a pool with %s, another pool has units of the limit: %v; want %v", row.name, got, row.isShared)
		}
		if units := k.liveUnitsLocked(); units != 1+row.other.held() {
			t.Errorf("beside a pool with %s, %d units are live; want %d", row.name, units, 1+row.other.held())
		}
	}
}

// Demand is in units per half a Life. It is measured again every quarter of a Life.
func TestDemandIsMeasured(t *testing.T) {
	const life = 8 * time.Second
	p := &pool{measuredSince: time.Second}
	for _, row := range []struct {
		now    time.Duration
		demand float64 // before this request
	}{
		{1 * time.Second, 0}, {2 * time.Second, 0}, {3*time.Second - 1, 0},
		{3 * time.Second, 60}, // 3 requests of 10 units in 2 s
		{4 * time.Second, 60},
		{5 * time.Second, 50},                // the average of 60, and of 2 requests in 2 s
		{9 * time.Second, (50.0 + 10) / 2},   // one request in 4 s
		{17*time.Second - 1, (30.0 + 5) / 2}, // one request in nearly a Life
		{25*time.Second - 1, 5},              // one request in a Life: the demand before is forgotten
		{27*time.Second - 1, (5.0 + 20) / 2}, // one request in 2 s
	} {
		p.measureDemand(life, row.now, 10)
		if math.Abs(p.demand-row.demand) > 1e-6 || p.lastUsed != row.now {
			t.Errorf("after %v, the demand is %v, and the last request was at %v; want %v, and now", row.now, p.demand, p.lastUsed, row.demand)
		}
	}
}

func TestRoundTripIsThatOfTheSlowestOfTheLastAnswers(t *testing.T) {
	p := &pool{limits: make([]pooledLimit, 1)}
	for _, row := range []struct{ took, want time.Duration }{{100, 100}, {20, 80}, {80, 80}, {0, 60}, {61, 61}} {
		reply := penstock.Single(penstock.Status{})
		if p.updateRemaining(&reply, 1000, 1000+row.took); p.roundTrip != row.want {
			t.Errorf("after an answer in %d, the round trip is %d; want %d", row.took, p.roundTrip, row.want)
		}
	}
}

func TestAnswersSayWhatRemainsUntilWhen(t *testing.T) {
	limit := &pooledLimit{plan: hourly("a"), decay: algorithm.DecayAtReset}
	limit.updateRemaining(penstock.Status{Remaining: 7, ResetAfter: 1}, 10)
	if limit.remaining != 7 || limit.emptyAt != 11 || limit.windowEnd != 11 {
		t.Errorf("the limit is %+v; want 7 units, until 11", limit)
	}
	limit.updateRemaining(penstock.Status{Remaining: 9}, 20)
	if limit.remaining != 9 || limit.emptyAt != 11 || limit.windowEnd != 11 {
		t.Errorf("after an answer without a ResetAfter, the limit is %+v; want 9 units, until 11 as before", limit)
	}
	sliding := &pooledLimit{plan: penstock.PerMinute(10).With(penstock.SlidingWindow).MustCompile(), decay: algorithm.DecayAfterPeriod}
	sliding.updateRemaining(penstock.Status{ResetAfter: 100 * time.Second}, time.Second)
	if end := 41*time.Second - algorithm.MaxParts*time.Microsecond; sliding.emptyAt != 101*time.Second || sliding.windowEnd != end {
		t.Errorf("the sliding window is %+v; want its window to end at %v", sliding, end)
	}
}

func TestPoolIsShortOfACost(t *testing.T) {
	p := &pool{limits: []pooledLimit{{remaining: 9}, {remaining: 5}}}
	for cost, want := range map[int64]bool{5: false, 6: true} {
		if got := p.hasLessThan(cost); got != want {
			t.Errorf("with 9 and 5 units left, the pool is short of %d: %v; want %v", cost, got, want)
		}
	}
}

func TestOlderBlockIsSpentFirst(t *testing.T) {
	for _, row := range []struct {
		units, now  int64
		left        [2]int64 // wanted
		isSpendable bool
	}{
		{2, 0, [2]int64{1, 5}, true}, {6, 0, [2]int64{0, 2}, true}, {8, 0, [2]int64{0, 0}, true}, {9, 0, [2]int64{3, 5}, false},
		{4, 10, [2]int64{3, 1}, true}, {6, 10, [2]int64{3, 5}, false},
	} {
		k, p := new(leasedKey), &pool{blocks: [2]block{{left: 3, expires: 10}, {left: 5, expires: 20}}}
		isSpent := k.trySpendLocked(p, time.Duration(row.now), row.units)
		spent := int64(0)
		if row.isSpendable {
			spent = row.units
		}
		if left := [2]int64{p.blocks[0].left, p.blocks[1].left}; isSpent != row.isSpendable || left != row.left || k.counts.spent != spent {
			t.Errorf("%d units at %d: spent: %v, left %d, %d counted; want %v, %d and %d", row.units, row.now, isSpent, left, k.counts.spent, row.isSpendable, row.left, spent)
		}
	}
}

func TestDecisionsOfALease(t *testing.T) {
	p := &pool{blocks: [2]block{{left: 2}, {left: 3}}, limits: []pooledLimit{{remaining: 10, emptyAt: 5*ms + 700}, {remaining: 20, emptyAt: 1}}}
	for n, want := range map[int][]penstock.Status{
		1: {{Granted: 4, Remaining: 15, ResetAfter: 4 * ms}},
		2: {{Granted: 4, Remaining: 15, ResetAfter: 4 * ms}, {Granted: 4, Remaining: 25}},
	} {
		of := &pool{blocks: p.blocks, limits: p.limits[:n]}
		d := of.makeDecision(ms, 4)
		for i, s := range want {
			if d.Len() != n || !d.Allowed || d.Source != penstock.FromLease || d.Status(i) != s {
				t.Errorf("the decision on %d charges is %+v; want the statuses %+v, by the lease", n, d, want)
			}
		}
	}
}

func TestUnitsThatDrain(t *testing.T) {
	limit := &pooledLimit{plan: penstock.PerSecond(10).MustCompile(), counters: 2} // each counter drains 5 per second
	for d, want := range map[time.Duration]int64{-time.Second: 0, 0: 0, 199 * ms: 0, 201 * ms: 1, time.Second: 4, time.Second + 1: 5, 10*time.Second + 1: 50} {
		if got := limit.drainedUnits(d); got != want {
			t.Errorf("in %v, %d units drain; want %d, rounded down", d, got, want)
		}
	}
	if got := limit.drainTime(5); got != float64(time.Second) {
		t.Errorf("5 units drain in %v ns; want a second", got)
	}
	fast := &pooledLimit{plan: penstock.PerSecond(10_000_000_000).MustCompile(), counters: 1}
	if one, most := fast.drainedUnits(1), fast.drainedUnits(math.MaxInt64); one != 9 || most != penstock.MaxCost {
		t.Errorf("of 10 units per ns, %d drain in a ns, and %d in all time; want 9, and %d", one, most, int64(penstock.MaxCost))
	}
}

func TestUnitsThatCanBeReturned(t *testing.T) {
	bucket := pooledLimit{plan: penstock.PerSecond(10).MustCompile(), decay: algorithm.DecayContinuous, counters: 1}
	window := pooledLimit{plan: hourly("a"), decay: algorithm.DecayAtReset, counters: 1}
	for _, row := range []struct {
		limit      pooledLimit
		refundedAt time.Duration
		want       int64
	}{
		{window, time.Second - 1, 7}, {window, time.Second, 0}, {window, 2 * time.Second, 0},
		{bucket, 0, 7}, {bucket, 650 * ms, 3}, {bucket, time.Second, 0}, {bucket, 2 * time.Second, 0},
	} {
		if got := row.limit.returnable(7, time.Second, row.refundedAt); got != row.want {
			t.Errorf("of 7 units of %s that are forgotten after a second, %d can be returned at %v; want %d", row.limit.plan.Algorithm().Title(), got, row.refundedAt, row.want)
		}
	}
}
