package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/memstore"
)

func TestDefaultsOfALease(t *testing.T) {
	for _, row := range []struct {
		given, want Options
	}{
		{Options{}, Options{Life: time.Second, MaxKeys: 10_000}},
		{Options{Life: -1, MaxKeys: -1}, Options{Life: time.Second, MaxKeys: 10_000}},
		{Options{Life: 1, MaxKeys: 1}, Options{Life: 1, MaxKeys: 1}},
	} {
		if l := New(memstore.New(memstore.Options{}), row.given); l.life != row.want.Life || l.options.MaxKeys != row.want.MaxKeys {
			t.Errorf("with Life %v and MaxKeys %d, they are %v and %d; want %v and %d", row.given.Life, row.given.MaxKeys, l.life, l.options.MaxKeys, row.want.Life, row.want.MaxKeys)
		}
	}
}

// The blocks of all instances have at most a quarter of the Capacity. Only a bucket may admit them
// beyond its limit.
func TestLargestBlocks(t *testing.T) {
	bucket, window := penstock.PerHour(800).MustCompile(), hourly("w")
	counting := penstock.Limit{Name: "c", Count: 800, Period: time.Hour, ShouldCountDenied: true}.MustCompile()
	log := penstock.PerHour(800).With(penstock.SlidingLog).MustCompile() // cannot be leased
	upTo := func(units int64) func(*penstock.Plan) int64 {
		return func(*penstock.Plan) int64 { return units }
	}
	instances := func(n int) func() int { return func() int { return n } }
	for _, row := range []struct {
		name          string
		options       Options
		plan          *penstock.Plan
		block, excess int64
	}{
		{"no Block", Options{}, bucket, 0, 0},
		{"a small Block", Options{Block: upTo(100)}, bucket, 100, 100},
		{"a large Block", Options{Block: upTo(1000)}, bucket, 200, 200},
		{"a large Block of two instances", Options{Block: upTo(1000), Instances: instances(2)}, bucket, 100, 200},
		{"a small Block of two instances", Options{Block: upTo(3), Instances: instances(2)}, bucket, 3, 6},
		{"an unknown number of instances", Options{Block: upTo(1000), Instances: instances(0)}, bucket, 200, 200},
		{"many instances", Options{Block: upTo(1000), Instances: instances(150)}, bucket, 1, 0},
		{"the smallest Block", Options{Block: upTo(2)}, bucket, 2, 2},
		{"too small a Block", Options{Block: upTo(1)}, bucket, 0, 0},
		{"a window", Options{Block: upTo(100)}, window, 100, 0},
		{"a limit that counts denials", Options{Block: upTo(100)}, counting, 0, 0},
		{"an algorithm that cannot be leased", Options{Block: upTo(100)}, log, 0, 0},
	} {
		if block, excess := row.options.LargestBlock(row.plan), row.options.Excess(row.plan); block != row.block || excess != row.excess {
			t.Errorf("%s: the largest block has %d units, and the excess is %d; want %d and %d", row.name, block, excess, row.block, row.excess)
		}
		l := New(memstore.New(memstore.Options{}), row.options)
		if got := l.largestBlock([]*penstock.Plan{row.plan, penstock.PerHour(1_000_000).MustCompile()}); got != row.block {
			t.Errorf("%s: with a larger limit, the largest block is %d; want %d", row.name, got, row.block)
		}
	}
}

// A lease answers only Spends of one cost under one key, of limits of one group.
func TestShapesOfBatches(t *testing.T) {
	of := func(name, group string) *penstock.Plan {
		limit := penstock.PerDay(100).WithName(name)
		limit.Group = group
		return limit.MustCompile()
	}
	spend := func(changes ...func(c *penstock.Charge)) penstock.Charge {
		c := penstock.Charge{Key: "k", Plan: of("a", "g"), Cost: 2}
		for _, change := range changes {
			change(&c)
		}
		return c
	}
	second := spend(func(c *penstock.Charge) { c.Plan = of("b", "g") })
	with := func(change func(c *penstock.Charge)) []penstock.Charge {
		return []penstock.Charge{spend(), spend(func(c *penstock.Charge) { c.Plan = second.Plan }, change)}
	}
	for _, row := range []struct {
		name    string
		charges []penstock.Charge
		want    route
	}{
		{"one Spend", []penstock.Charge{spend()}, spending},
		{"two Spends", []penstock.Charge{spend(), second}, spending},
		{"a long key", []penstock.Charge{spend(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey) })}, spending},
		{"too long a key", []penstock.Charge{spend(func(c *penstock.Charge) { c.Key = strings.Repeat("k", penstock.MaxKey+1) })}, passThrough},
		{"patience", []penstock.Charge{spend(func(c *penstock.Charge) { c.Patience = 1 })}, passThrough},
		{"a holder", []penstock.Charge{spend(func(c *penstock.Charge) { c.Holder = "h" })}, passThrough},
		{"a refundable Spend", []penstock.Charge{spend(func(c *penstock.Charge) { c.IsRefundable = true })}, passThrough},
		{"a Draw", []penstock.Charge{spend(func(c *penstock.Charge) { c.Mode = penstock.Draw })}, passThrough},
		{"no limit", []penstock.Charge{{Key: "k", Cost: 1}}, passThrough},
		{"a second without a limit", with(func(c *penstock.Charge) { c.Plan = nil }), passThrough},
		{"another cost", with(func(c *penstock.Charge) { c.Cost = 3 }), passThrough},
		{"another key", with(func(c *penstock.Charge) { c.Key = "l" }), passThrough},
		{"another group", with(func(c *penstock.Charge) { c.Plan = of("b", "h") }), passThrough},
		{"the same limit", with(func(c *penstock.Charge) { c.Plan = of("a", "g") }), passThrough},
		{"a second with patience", with(func(c *penstock.Charge) { c.Patience = 1 }), passThrough},
		{"a Refund", with(func(c *penstock.Charge) { c.Mode = penstock.Refund }), refunding},
		{"a Reset", with(func(c *penstock.Charge) { c.Mode = penstock.Reset }), refunding},
	} {
		if plans, got := routeOf(row.charges, nil); got != row.want || got == spending && len(plans) != len(row.charges) {
			t.Errorf("%s has the route %d, and %d limits; want %d", row.name, got, len(plans), row.want)
		}
	}
}

// A key is tracked from its second request, when its requests have taken as many units as two of
// the smallest draws. A tracked key is found even if its limit can no longer be leased, so that its
// units are spent.
func TestKeysThatAreLeased(t *testing.T) {
	for _, row := range []struct {
		block, cost int64
		requests    int // from this one on, the key is tracked
	}{{100, 1, 16}, {100, 3, 6}, {100, 8, 2}, {100, 50, 2}, {5, 1, 10}, {MinBlock, 1, 4}} {
		l := newStore(10)
		l.options.Block = func(*penstock.Plan) int64 { return row.block }
		for n := 1; n <= row.requests; n++ {
			if k := l.findKey("k", []*penstock.Plan{hourly("a")}, row.cost); (k != nil) != (n == row.requests) {
				t.Errorf("with a block of %d, request %d of cost %d found the key: %v; want it from request %d", row.block, n, row.cost, k != nil, row.requests)
			}
		}
	}
	l := newStore(10)
	plans := []*penstock.Plan{hourly("a")}
	l.findKey("k", plans, minDraw)
	k := l.findKey("k", plans, minDraw)
	if k == nil || k != l.findKey("k", plans, 1) || l.findKey("another", plans, minDraw) != nil {
		t.Error("a tracked key was not found again, or another was tracked with its first request")
	}
	l.options.Block = func(*penstock.Plan) int64 { return MinBlock - 1 }
	if l.findKey("k", plans, 1) != k || l.findKey("never leased", plans, minDraw) != nil || l.findKey("never leased", plans, minDraw) != nil {
		t.Error("without a Block, the tracked key is not found, or a new key is tracked")
	}
}

// Without a Block, and after Close, batches go to the store as they are.
func TestBatchesPassWithoutALease(t *testing.T) {
	refund := []penstock.Charge{{Key: "k", Plan: hourly("a"), Cost: 1, Mode: penstock.Refund}}
	without := New(memstore.New(memstore.Options{}), Options{})
	closed := newStore(10)
	if _, route, _ := closed.routeAndKey(refund, nil); route != refunding {
		t.Errorf("before Close, a Refund has the route %d; want %d", route, refunding)
	}
	if err := closed.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for name, l := range map[string]*Store{"without a Block": without, "after Close": closed} {
		if _, route, k := l.routeAndKey(refund, nil); route != passThrough || k != nil {
			t.Errorf("%s, a Refund has the route %d; want %d", name, route, passThrough)
		}
		if l.startWork() != (name != "after Close") {
			t.Errorf("%s, work in the background starts, or does not: want it only before Close", name)
		} else if name != "after Close" {
			l.work.Done()
		}
	}
}

// The batches of a list are decided as if each came alone. Those that a lease cannot answer go on
// as one list.
func TestListsOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lists []int // how many batches each list of the store had
		memory := batches.Of(memstore.New(memstore.Options{}))
		l := New(batches.Func(func(ctx context.Context, list []*batches.Batch) {
			mu.Lock()
			lists = append(lists, len(list))
			mu.Unlock()
			memory(ctx, list)
		}), Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
		plan := hourly("a")
		batch := func(key string, mode penstock.Mode) *batches.Batch {
			return &batches.Batch{Charges: []penstock.Charge{{Key: key, Plan: plan, Cost: 1, Mode: mode}}}
		}
		decide := func(list ...*batches.Batch) []int {
			lists = nil
			l.decide(t.Context(), list)
			for i, b := range list {
				if b.Err != nil || !b.Decision.Allowed || b.Decision.Len() != 1 {
					t.Errorf("batch %d of %d: %+v, %v; want it allowed", i, len(list), b.Decision, b.Err)
				}
			}
			slices.Sort(lists)
			return lists
		}
		lease(l, "k", l.now(), plan)
		for _, row := range []struct {
			list []*batches.Batch
			want []int
		}{
			{[]*batches.Batch{batch("k", penstock.Spend)}, nil},
			{[]*batches.Batch{batch("x", penstock.Peek)}, []int{1}},
			{[]*batches.Batch{batch("x", penstock.Peek), batch("y", penstock.Peek)}, []int{2}},
			{[]*batches.Batch{batch("k", penstock.Spend), batch("x", penstock.Peek)}, []int{1}},
			{[]*batches.Batch{batch("k", penstock.Spend), batch("x", penstock.Peek), batch("y", penstock.Peek)}, []int{2}},
			{[]*batches.Batch{batch("x", penstock.Refund), batch("x", penstock.Peek), batch("y", penstock.Peek)}, []int{1, 2}},
		} {
			if got := decide(row.list...); !slices.Equal(got, row.want) {
				t.Errorf("a list of %d batches became calls of %d batches; want %d", len(row.list), got, row.want)
			}
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// lease puts a block of 10 units of each limit under a key.
func lease(l *Store, key string, now time.Duration, plans ...*penstock.Plan) (*leasedKey, *pool) {
	name := keyName{key, plans[0].Group()}
	k := l.trackKey(l.keys.hash(name), name)
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.poolLocked(l, nil, plans, now)
	p.blocks[0] = block{left: 10, sentAt: now, expires: now + l.life, refundTime: l.life / 16}
	for range plans {
		p.blocks[0].forgottenAt = append(p.blocks[0].forgottenAt, now+time.Hour)
	}
	k.counts.drawn += 10
	return k, p
}

// Close returns what is leased, with at most 32 refunds in flight.
func TestCloseReturnsAllUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 40
		var mu sync.Mutex
		inFlight, most, returned := 0, 0, int64(0)
		l := New(penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			mu.Lock()
			inFlight, returned = inFlight+1, returned+charges[0].Cost
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(ms)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return penstock.Single(penstock.Status{Granted: charges[0].Cost}), nil
		}), Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
		for i := range keys {
			lease(l, fmt.Sprint(i), l.now(), hourly("a"))
		}
		if s := l.Stats(); s.Keys != keys || s.Live != 10*keys || s.Drawn != 10*keys {
			t.Errorf("before Close, the stats are %+v; want %d keys with 10 units each", s, keys)
		}
		if err := l.Close(t.Context()); err != nil || most != 32 || returned != 10*keys {
			t.Errorf("Close returned %v, with %d refunds in flight and %d units returned; want 32, and %d units", err, most, returned, 10*keys)
		}
		if s := l.Stats(); s.Live != 0 || s.Returned != 10*keys {
			t.Errorf("after Close, the stats are %+v; want all units returned", s)
		}
	})
}

// Close waits for a draw in flight, but not longer than its context.
func TestCloseWaitsForDraws(t *testing.T) {
	for _, waits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l, k, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				time.Sleep(100 * ms)
				return penstock.Single(penstock.Status{Granted: charges[0].Cost, ResetAfter: time.Hour}), nil
			}))
			k.mu.Lock()
			l.drawLocked(t.Context(), k, p, l.now(), 0)
			k.mu.Unlock()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			if waits {
				ctx = t.Context()
			}
			began := time.Now()
			err := l.Close(ctx)
			took := time.Since(began)
			if waits && (err != nil || took != 200*ms) || !waits && (!errors.Is(err, context.DeadlineExceeded) || took != 50*ms) { // a draw, and its refund
				t.Errorf("Close returned %v after %v; want it to wait for the draw: %v", err, took, waits)
			}
			time.Sleep(time.Second)
			if s := l.Stats(); s.Draws != 1 || s.Returned != 100 || s.Live != 0 {
				t.Errorf("in the end, the stats are %+v; want one draw, whose 100 units are returned", s)
			}
		})
	}
}
