package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/memstore"
)

// A recorder is a store that records its calls, such as "draw 5". It takes some time for each, and
// grants all that is asked for, unless reply says otherwise.
type recorder struct {
	mu    sync.Mutex
	calls []string
	takes time.Duration
	reply func(c *penstock.Charge) (penstock.Decision, error)
}

func (r *recorder) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	var statuses []penstock.Status
	text := ""
	for i := range charges {
		text += fmt.Sprintf("%s %d ", charges[i].Mode, charges[i].Cost)
		statuses = append(statuses, penstock.Status{Granted: charges[i].Cost, Remaining: 1000, ResetAfter: time.Hour})
	}
	r.mu.Lock()
	r.calls = append(r.calls, text[:len(text)-1])
	r.mu.Unlock()
	if r.takes > 0 {
		select {
		case <-time.After(r.takes):
		case <-ctx.Done():
			return penstock.Decision{}, ctx.Err()
		}
	}
	if r.reply != nil {
		return r.reply(&charges[0])
	}
	return penstock.NewDecision(statuses), nil
}

func (r *recorder) recorded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func spend(cost int64, plans ...*penstock.Plan) (charges []penstock.Charge) {
	for _, plan := range plans {
		charges = append(charges, penstock.Charge{Key: "k", Plan: plan, Cost: cost})
	}
	return charges
}

// newLeaseOf returns a lease around a store, and a key with a block of 10 units of one limit.
func newLeaseOf(store penstock.Store) (*Store, *leasedKey, *pool) {
	l := New(store, Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
	k, p := lease(l, "k", l.now(), hourly("a"))
	return l, k, p
}

// busyLeaseOf returns a lease of a busy key that has no block.
func busyLeaseOf(store penstock.Store) (*Store, *leasedKey, *pool) {
	l, k, p := newLeaseOf(store)
	p.blocks[0], p.demand, k.counts = block{}, 40, counts{}
	return l, k, p
}

func TestWaitersOfADraw(t *testing.T) {
	p := &pool{blocks: [2]block{{left: 2}, {left: 3}}}
	before := &draw{waitersBefore: waiters{needs: 10}}
	if before.addWaiterLocked(p, penstock.MaxCost/2-9) != nil || before.addWaiterLocked(p, penstock.MaxCost/2-10) != &before.waitersBefore || before.waitersBefore.needs != penstock.MaxCost/2 {
		t.Errorf("before a draw is sent, its waiters need %d; want at most half of MaxCost", before.waitersBefore.needs)
	}
	after := &draw{isSent: true, blockUnits: 10, waitersAfter: waiters{needs: 1}}
	if after.addWaiterLocked(p, 15) != nil || after.addWaiterLocked(p, 14) != &after.waitersAfter || after.waitersAfter.needs != 15 {
		t.Errorf("after a draw is sent, its waiters need %d; want at most the 10 of the block and the 5 that are left", after.waitersAfter.needs)
	}
}

// A waiter gets what the draw brought, and the rest from the blocks.
func TestWaiterSpendsFromTheDrawAndTheBlocks(t *testing.T) {
	for _, row := range []struct{ cost, brought, left int64 }{{2, 0, 3}, {5, 0, 0}, {6, 2, 3}, {1, 1, 3}} {
		k, p := new(leasedKey), &pool{blocks: [2]block{{left: 3, expires: 1}}}
		w := &waiters{needs: 100, brought: 2}
		isSpent := w.spendLocked(k, p, 0, row.cost)
		if want := row.cost <= 5; isSpent != want || w.brought != row.brought || p.left() != row.left || w.needs != 100-row.cost {
			t.Errorf("of 2 units of a draw and 3 of a block, %d were spent: %v, with %d and %d left, and %d needed; want %v, with %d and %d", row.cost, isSpent, w.brought, p.left(), w.needs, want, row.brought, row.left)
		}
	}
}

func TestNextBlockIsDrawnInAdvance(t *testing.T) {
	for _, row := range []struct {
		pool pool
		now  time.Duration
		want bool
	}{
		{pool{blockSize: 100, blocks: [2]block{{left: 10}, {left: 20}}}, 0, true},
		{pool{blockSize: 100, blocks: [2]block{{left: 11}, {left: 20}}}, 0, false},
		{pool{blockSize: 100, draw: new(draw)}, 0, false},
		{pool{blockSize: 100, noPrefetchUntil: 5}, 4, false},
		{pool{blockSize: 100, noPrefetchUntil: 5}, 5, true},
	} {
		if got := row.pool.canPrefetch(row.now); got != row.want {
			t.Errorf("the next block of %+v is drawn at %d: %v; want %v", row.pool, row.now, got, row.want)
		}
	}
}

// Each condition of a draw is tried alone.
func TestConditionsOfADraw(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(l *Store, k *leasedKey, p *pool)
		cost   int64
		size   int64 // of the block; 0: no draw
	}{
		{"a busy key", nil, 1, 40},
		{"a Refund of a caller", func(_ *Store, k *leasedKey, _ *pool) { k.callerRefunds = 1 }, 1, 0},
		{"a pause", func(_ *Store, _ *leasedKey, p *pool) { p.bypassUntil = 1 }, 1, 0},
		{"the end of a pause", func(_ *Store, _ *leasedKey, p *pool) { p.bypassUntil = 0 }, 1, 40},
		{"an older block", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[0].left = 1 }, 1, 39},
		{"a newer block", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[1].left = 1 }, 1, 39},
		{"two blocks", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[0].left, p.blocks[1].left = 1, 1 }, 1, 0},
		{"two blocks and no cost", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[0].left, p.blocks[1].left = 2, 1 }, 0, 0},
		{"a full block", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[0].left = 40 }, 1, 0},
		{"a nearly full block", func(_ *Store, _ *leasedKey, p *pool) { p.blocks[0].left = 39 }, 1, 1},
		{"half a block", nil, 20, 40},
		{"more than half a block", nil, 21, 0},
		{"half of what is not on its way back", func(_ *Store, _ *leasedKey, p *pool) { p.returning = 10 }, 15, 30},
		{"more than half of what is not on its way back", func(_ *Store, _ *leasedKey, p *pool) { p.returning = 10 }, 16, 0},
		{"units in another pool", func(_ *Store, k *leasedKey, p *pool) {
			k.pools = append(k.pools, &pool{limits: p.limits, returning: 1})
		}, 1, 0},
		{"after Close", func(l *Store, _ *leasedKey, _ *pool) { l.isClosed.Store(true) }, 1, 0},
		{"little demand", func(_ *Store, _ *leasedKey, p *pool) { p.demand = 7.9 }, 1, 0},
		{"enough demand", func(_ *Store, _ *leasedKey, p *pool) { p.demand = 8 }, 1, 8},
		{"a small limit", func(l *Store, _ *leasedKey, p *pool) { l.options.Block = func(*penstock.Plan) int64 { return 2 } }, 1, 2},
		{"a limit of too many instances", func(l *Store, _ *leasedKey, p *pool) { l.options.Instances = func() int { return 25_000 } }, 0, 0},
		{"a large demand", func(_ *Store, _ *leasedKey, p *pool) { p.demand = 1e300 }, 1, 100},
		{"a slow store", func(_ *Store, _ *leasedKey, p *pool) { p.roundTrip = 250 * ms }, 1, 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{takes: ms}
			l := New(store, Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
			k, p := lease(l, "k", 0, hourly("a"))
			empty := block{expires: time.Hour, forgottenAt: []time.Duration{time.Hour}}
			p.blocks, p.demand = [2]block{empty, empty}, 40
			if row.change != nil {
				row.change(l, k, p)
			}
			k.mu.Lock()
			pending := l.drawLocked(t.Context(), k, p, 0, row.cost)
			var got int64
			if pending != nil {
				got = pending.blockUnits
			}
			if got != row.size || pending != p.draw {
				t.Errorf("%s: a block of %d units is drawn; want %d, and 0 for none", row.name, got, row.size)
			}
			k.mu.Unlock()
			if pending != nil {
				<-pending.done
			}
			synctest.Wait()
			p.blocks, p.returning = [2]block{}, 0
			if p.timer != nil {
				p.timer.Stop()
			}
		})
	}
}

// A draw brings the block that is needed when it is sent.
func TestDrawBringsTheLatestDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{}
		l, k, p := busyLeaseOf(store)
		k.mu.Lock()
		pending := l.drawLocked(t.Context(), k, p, l.now(), 1)
		p.demand = 80 // the draw waits for the lock
		k.mu.Unlock()
		<-pending.done
		if !slices.Equal(store.recorded(), []string{"draw 80"}) || p.blockSize != 80 || p.left() != 80 {
			t.Errorf("the calls are %q, and the pool is %+v; want a block of 80", store.recorded(), p)
		}
		p.demand = 3
		if got := l.blockSizeOf(p, l.now()); got != 0 {
			t.Errorf("with a demand of 3 units, a block has %d; want 0, for none", got)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A Refund returns only what is leased under the keys that it refunds.
func TestRefundLeavesOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{}
		l, _, p := newLeaseOf(store)
		plan := p.limits[0].plan
		for _, first := range []penstock.Charge{{Key: "another", Plan: plan, Mode: penstock.Refund}, {Key: "k", Mode: penstock.Refund}, {Key: "k", Mode: penstock.Reset}} {
			store.calls = nil
			if _, err := l.Decide(t.Context(), []penstock.Charge{first, {Key: "k", Plan: plan, Cost: 2}}); err != nil || !slices.Equal(store.recorded(), []string{first.Mode.String() + " 0 spend 2"}) || p.left() != 10 {
				t.Errorf("%v, after the calls %q, with %d units left; want that the leased units stay", err, store.recorded(), p.left())
			}
		}
	})
}

func decideOne(ctx context.Context, l *Store, charges []penstock.Charge) (penstock.Decision, error) {
	return l.Decide(ctx, charges)
}

// A caller that has left spends nothing.
func TestCallerWhoHasLeftSpendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k, p := newLeaseOf(&recorder{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for name, decide := range map[string]penstock.Store{"Decide": l, "a list": batches.Func(l.decide)} {
			if d, err := decide.Decide(ctx, spend(1, p.limits[0].plan)); err != context.Canceled || k.counts.spent != 0 {
				t.Errorf("%s of a caller who has left: %+v, %v, and %d units are spent; want context.Canceled, and 0", name, d, err, k.counts.spent)
			}
		}
	})
}

// A Spend of a busy key is measured. If the next block cannot be drawn, that is tried again after a
// sixteenth of a Life.
func TestSpendOfALeasedUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{}
		l, k, p := newLeaseOf(store)
		p.blockSize = 100
		time.Sleep(ms)
		d, err := l.Decide(t.Context(), spend(3, p.limits[0].plan))
		if err != nil || d.Source != penstock.FromLease || k.counts.spent != 3 || p.requested != 3 || p.lastUsed != ms || p.noPrefetchUntil != ms+DefaultLife/16 || len(store.recorded()) != 0 {
			t.Errorf("%+v, %v, with the pool %+v, after the calls %q; want 3 units spent without a call, and a pause of a sixteenth of a Life", d, err, p, store.recorded())
		}
		p.blockSize, p.noPrefetchUntil = 10, 0 // 7 of 10 units are left
		if _, err := l.Decide(t.Context(), spend(3, p.limits[0].plan)); err != nil || p.noPrefetchUntil != 0 {
			t.Errorf("%v, and the next draw waits until %v; want no pause, because no draw was tried", err, p.noPrefetchUntil)
		}
		p.demand = 1000
		if _, err := l.Decide(t.Context(), spend(1, p.limits[0].plan)); err != nil || p.noPrefetchUntil != 0 {
			t.Errorf("%v, and the next draw waits until %v; want no pause, because a draw is in flight", err, p.noPrefetchUntil)
		}
		if synctest.Wait(); !slices.Equal(store.recorded(), []string{"draw 97"}) {
			t.Errorf("the calls are %q; want a draw of 97 units beside the 3 that are left", store.recorded())
		}
		p.timer.Stop()
	})
}

// A key may be removed between its search and its lock.
func TestSpendOfARemovedKeyPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{}
		l, k, p := newLeaseOf(store)
		k.isGone = true
		if _, err := l.Decide(t.Context(), spend(3, p.limits[0].plan)); err != nil || !slices.Equal(store.recorded(), []string{"spend 3"}) || !k.mu.TryLock() {
			t.Errorf("%v, after the calls %q; want one call, and the key unlocked", err, store.recorded())
		}
	})
}

// The draw of a waiting caller has ended some time ago. Units of the draw count from then. Those of
// a block may have expired since.
func TestWaiterWakesUpLate(t *testing.T) {
	for _, row := range []struct {
		name    string
		pending draw
		source  penstock.Source
		reset   time.Duration
		calls   []string
	}{
		{"the draw brought its unit", draw{isSent: true, blockUnits: 10, waitersAfter: waiters{brought: 1}}, penstock.FromLease, time.Hour - time.Second, nil},
		{"its unit is in an expired block", draw{isSent: true, blockUnits: 10}, penstock.FromStore, time.Hour, []string{"spend 1"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{}
			l, k, p := newLeaseOf(store)
			row.pending.done = make(chan struct{})
			close(row.pending.done)
			row.pending.endedAt = time.Second
			p.draw, p.limits[0].emptyAt, p.limits[0].remaining = &row.pending, time.Hour, 100
			p.blocks[0].expires = 2 * time.Second
			time.Sleep(2 * time.Second)
			one := []*batches.Batch{{Charges: spend(1, p.limits[0].plan)}}
			k.mu.Lock()
			l.drawAndUnlock(t.Context(), k, p, l.now(), one)
			if d := one[0].Decision; one[0].Err != nil || d.Source != row.source || d.Status(0).ResetAfter != row.reset || !slices.Equal(store.recorded(), row.calls) || !k.mu.TryLock() {
				t.Errorf("%s: %+v, %v, after the calls %q; want a decision of %v with a ResetAfter of %v after %q", row.name, d, one[0].Err, store.recorded(), row.source, row.reset, row.calls)
			}
		})
	}
}

// A caller that waits for a draw may leave, or its time may end. The store is asked only in the
// second case.
func TestCallerLeavesADraw(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{takes: 200 * ms}
			l, k, p := busyLeaseOf(store)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			set := &deadline.Set{After: 100 * ms}
			if leaves {
				time.AfterFunc(50*ms, cancel)
			}
			began := time.Now()
			d, err := set.Within(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				return decideOne(ctx, l, charges)
			})).Decide(ctx, spend(1, p.limits[0].plan))
			took := time.Since(began)
			want, wantCalls, wantTook := context.DeadlineExceeded, []string{"draw 41", "spend 1"}, 100*ms
			if leaves {
				want, wantCalls, wantTook = context.Canceled, []string{"draw 41"}, 50*ms
			}
			if !errors.Is(err, want) || took != wantTook || !slices.Equal(store.recorded(), wantCalls) {
				t.Errorf("%+v, %v after %v and the calls %q; want %v after %v and %q", d, err, took, store.recorded(), want, wantTook, wantCalls)
			}
			time.Sleep(time.Second)
			if s := l.Stats(); s.Spent != 0 || s.Drawn != 41 || s.Expired != 1 || s.Returned != 40 {
				t.Errorf("the stats are %+v; want the unit of the caller expired, and the block returned", s)
			}
			if !k.mu.TryLock() {
				t.Error("the key is locked")
			}
		})
	}
}

// A denied draw answers callers of one unit. Others need more than the draw asked for.
func TestDeniedDraw(t *testing.T) {
	for cost, want := range map[int64][]string{1: {"draw 41"}, 2: {"draw 42", "spend 2"}} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{reply: func(*penstock.Charge) (penstock.Decision, error) {
				return penstock.Single(penstock.Status{RetryAfter: 7 * ms, Remaining: 3, ResetAfter: time.Hour}), nil
			}}
			l, k, p := busyLeaseOf(store)
			d, err := l.Decide(t.Context(), spend(cost, p.limits[0].plan))
			if err != nil || d.RetryAfter() != 7*ms || !slices.Equal(store.recorded(), want) {
				t.Errorf("a Spend of %d: %+v, %v, after the calls %q; want a denial after %q", cost, d, err, store.recorded(), want)
			}
			if s := l.Stats(); s.Draws != 1 || s.Drawn != 0 || p.limits[0].remaining != 3 || p.draw != nil || p.bypassUntil != DefaultLife/2 || !k.mu.TryLock() {
				t.Errorf("the stats are %+v, and the pool %+v; want one draw of nothing, and a pause of half a Life", s, p)
			}
		})
	}
}

// The error of a draw is that of its callers. One that is not of a store becomes a timeout.
func TestFailedDraw(t *testing.T) {
	errOther := errors.New("for the test")
	for _, row := range []struct {
		err  error
		want func(err error) bool
	}{
		{penstock.ErrUnavailable, func(err error) bool { return err == penstock.ErrUnavailable }},
		{penstock.ErrInvalid, func(err error) bool { return err == penstock.ErrInvalid }},
		{errOther, func(err error) bool {
			e := penstock.AsStoreError(err)
			return e != nil && e.Reason == penstock.ReasonTimeout
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{reply: func(*penstock.Charge) (penstock.Decision, error) { return penstock.Decision{}, row.err }}
			l, _, p := busyLeaseOf(store)
			if d, err := l.Decide(t.Context(), spend(1, p.limits[0].plan)); !row.want(err) || len(store.recorded()) != 1 || p.bypassUntil != DefaultLife/2 {
				t.Errorf("a draw that fails with %v: %+v, %v, after the calls %q; want its error", row.err, d, err, store.recorded())
			}
		})
	}
}

// Units of a fallback are lost: its counter is not that of the store.
func TestDrawByAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{reply: func(c *penstock.Charge) (penstock.Decision, error) {
			d := penstock.Single(penstock.Status{Granted: c.Cost})
			d.Source = penstock.FromFallback
			return d, nil
		}}
		l, _, p := busyLeaseOf(store)
		d, err := l.Decide(t.Context(), spend(1, p.limits[0].plan))
		if s := l.Stats(); err != nil || d.Source != penstock.FromFallback || s.Drawn != 41 || s.Lost != 41 || p.left() != 0 || p.bypassUntil != DefaultLife {
			t.Errorf("%+v, %v, with the stats %+v and the pool %+v; want a decision of the fallback, and all drawn units lost", d, err, s, p)
		}
	})
}

// A batch that a lease cannot answer goes to the store. If the store was short of it, the leased
// units are returned before.
func TestBatchPassesTheLease(t *testing.T) {
	for _, row := range []struct {
		name      string
		left      int64 // units of the block
		remaining int64 // by the last answer
		reply     penstock.Status
		source    penstock.Source
		err       error
		calls     []string
		bypass    time.Duration // the pause afterwards
	}{
		{"the store has enough", 10, 50, penstock.Status{Granted: 50, Remaining: 100}, penstock.FromStore, nil, []string{"spend 50"}, 0},
		{"the store has too little", 10, 49, penstock.Status{Granted: 50, Remaining: 100}, penstock.FromStore, nil, []string{"refund 10", "spend 50"}, 0},
		{"one unit is leased", 1, 49, penstock.Status{Granted: 50, Remaining: 100}, penstock.FromStore, nil, []string{"refund 1", "spend 50"}, 0},
		{"nothing is leased", 0, 49, penstock.Status{Granted: 50, Remaining: 100}, penstock.FromStore, nil, []string{"spend 50"}, 0},
		{"little is left", 0, 50, penstock.Status{Granted: 50, Remaining: minDraw - 1}, penstock.FromStore, nil, []string{"spend 50"}, DefaultLife / 2},
		{"a fallback answers", 0, 50, penstock.Status{Granted: 50, Remaining: 100}, penstock.FromFallback, nil, []string{"spend 50"}, DefaultLife},
		{"the store fails", 0, 50, penstock.Status{}, penstock.FromStore, penstock.ErrUnavailable, []string{"spend 50"}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := new(recorder)
			store.reply = func(c *penstock.Charge) (penstock.Decision, error) {
				if c.Mode == penstock.Refund {
					return penstock.Single(penstock.Status{Granted: c.Cost}), nil
				}
				d := penstock.Single(row.reply)
				d.Source = row.source
				return d, row.err
			}
			l, k, p := newLeaseOf(store)
			p.blocks[0].left, p.limits[0].remaining = row.left, row.remaining
			d, err := l.Decide(t.Context(), spend(50, p.limits[0].plan))
			if err != row.err || err == nil && d.Status(0).Granted != 50 || !slices.Equal(store.recorded(), row.calls) || p.bypassUntil != row.bypass {
				t.Errorf("%s: %+v, %v, after the calls %q, and with a pause until %v; want %q, and %v", row.name, d, err, store.recorded(), p.bypassUntil, row.calls, row.bypass)
			}
			remaining := row.reply.Remaining
			if row.err != nil || row.source != penstock.FromStore {
				remaining = row.remaining
			}
			if p.limits[0].remaining != remaining || !k.mu.TryLock() {
				t.Errorf("%s: by the last answer, %d units are left; want %d", row.name, p.limits[0].remaining, remaining)
			}
		})
	}
}

// The caller leaves, or its time ends, while its leased units are returned.
func TestCallerLeavesDuringARefund(t *testing.T) {
	for _, mode := range []penstock.Mode{penstock.Spend, penstock.Refund} {
		for _, leaves := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				store := &recorder{takes: 40 * ms}
				l, k, p := newLeaseOf(store)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				set := &deadline.Set{After: 20 * ms}
				want, calls := context.DeadlineExceeded, []string{"refund 10", mode.String() + " 50"}
				if leaves {
					time.AfterFunc(10*ms, cancel)
					want, calls = context.Canceled, []string{"refund 10"}
				}
				charges := spend(50, p.limits[0].plan)
				charges[0].Mode = mode
				d, err := set.Within(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
					return decideOne(ctx, l, charges)
				})).Decide(ctx, charges)
				if !errors.Is(err, want) || !slices.Equal(store.recorded(), calls) {
					t.Errorf("%s: %+v, %v, after the calls %q; want %v after %q", mode, d, err, store.recorded(), want, calls)
				}
				time.Sleep(time.Second)
				if s := l.Stats(); s.Returned != 10 || s.Live != 0 || k.callerRefunds != 0 || k.leaseRefunds != 0 {
					t.Errorf("%s: the stats are %+v, with %d refunds of callers; want 10 units returned, because a refund goes on without the caller", mode, s, k.callerRefunds)
				}
			})
		}
	}
}

// A Refund or Reset waits until no draw and no refund of its key is in flight.
func TestRefundWaitsForDrawsAndRefunds(t *testing.T) {
	for _, mode := range []penstock.Mode{penstock.Refund, penstock.Reset} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{takes: 10 * ms}
			l, k, p := busyLeaseOf(store)
			k.mu.Lock()
			l.drawLocked(t.Context(), k, p, l.now(), 0)
			k.mu.Unlock()
			synctest.Wait()
			charges := spend(1, p.limits[0].plan)
			charges[0].Mode = mode
			other := penstock.Charge{Key: "not leased", Plan: p.limits[0].plan, Mode: mode}
			began := time.Now()
			_, err := l.Decide(t.Context(), append(charges, other))
			if want := []string{"draw 40", "refund 40", fmt.Sprintf("%s 1 %s 0", mode, mode)}; err != nil || !slices.Equal(store.recorded(), want) || time.Since(began) != 30*ms {
				t.Errorf("%v after %v and the calls %q; want %q, one after the other", err, time.Since(began), store.recorded(), want)
			}
			if k.callerRefunds != 0 || k.refundsEnded != nil || p.left() != 0 {
				t.Errorf("afterwards, the key is %+v; want no refunds in flight", k)
			}
		})
	}
}

// A second Refund waits for the refund of leased units that the first has begun.
func TestRefundsWaitForOneRefundOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{takes: 10 * ms}
		l, _, p := newLeaseOf(store)
		charges := spend(1, p.limits[0].plan)
		charges[0].Mode = penstock.Refund
		for range 2 {
			go l.Decide(t.Context(), charges)
		}
		time.Sleep(5 * ms)
		if synctest.Wait(); !slices.Equal(store.recorded(), []string{"refund 10"}) {
			t.Errorf("the calls are %q; want the refund of the lease only", store.recorded())
		}
		time.Sleep(20 * ms)
		if synctest.Wait(); !slices.Equal(store.recorded(), []string{"refund 10", "refund 1", "refund 1"}) {
			t.Errorf("the calls are %q; want two more refunds, of the callers", store.recorded())
		}
	})
}

// A waiting Refund ends with its caller.
func TestWaitingRefundEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{takes: 100 * ms}
		l, k, p := busyLeaseOf(store)
		k.mu.Lock()
		l.drawLocked(t.Context(), k, p, l.now(), 0)
		k.mu.Unlock()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		charges := spend(1, p.limits[0].plan)
		charges[0].Mode = penstock.Refund
		began := time.Now()
		if _, err := l.Decide(ctx, charges); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*ms || len(store.recorded()) != 1 {
			t.Errorf("%v after %v and the calls %q; want the end of the caller's context after 10 ms", err, time.Since(began), store.recorded())
		}
		time.Sleep(2 * time.Second)
	})
}

// The result of a refund: what the store returned, or lost units.
func TestResultOfARefund(t *testing.T) {
	for name, row := range map[string]struct {
		granted                 int64
		source                  penstock.Source
		err                     error
		returned, expired, lost int64
	}{
		"all":               {granted: 10, returned: 10},
		"a part":            {granted: 7, returned: 7, expired: 3},
		"more than all":     {granted: 11, returned: 10},
		"less than nothing": {granted: -1, expired: 10},
		"an error":          {granted: 10, err: penstock.ErrUnavailable, lost: 10},
		"a fallback":        {granted: 10, source: penstock.FromFallback, lost: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{reply: func(*penstock.Charge) (penstock.Decision, error) {
				d := penstock.Single(penstock.Status{Granted: row.granted})
				d.Source = row.source
				return d, row.err
			}}
			l, k, _ := newLeaseOf(store)
			ended := make(chan struct{})
			k.refundsEnded = ended
			k.leaseRefunds = 1 // another refund is in flight
			k.mu.Lock()
			refunds := l.removeAllLocked(k)
			k.mu.Unlock()
			if len(refunds) != 1 || k.leaseRefunds != 2 || k.pools[0].returning != 10 {
				t.Fatalf("the refunds are %+v, and %d are in flight; want one, and 2", refunds, k.leaseRefunds)
			}
			if err := l.sendRefunds(t.Context(), k, refunds); err != nil {
				t.Error(err)
			}
			if s := l.Stats(); s.Returned != row.returned || s.Expired != row.expired || s.Lost != row.lost || s.Live != 0 || k.leaseRefunds != 1 || k.refundsEnded != ended {
				t.Errorf("%s: the stats are %+v; want %d returned, %d expired, %d lost, and the other refund still in flight", name, s, row.returned, row.expired, row.lost)
			}
			l.sendRefund(t.Context(), k, refund{pool: k.pools[0], charges: spend(1, hourly("a")), until: time.Second})
			select {
			case <-ended:
			default:
				t.Errorf("%s: after the last refund, its waiters still wait", name)
			}
			if k.refundsEnded != nil || k.leaseRefunds != 0 {
				t.Errorf("%s: %d refunds are in flight; want 0", name, k.leaseRefunds)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Errorf("%s: Close returned %v", name, err)
			}
		})
	}
}

// A refund has until the time at which the units may have drained.
func TestRefundEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{takes: time.Hour}
		l, k, _ := newLeaseOf(store)
		time.Sleep(100 * ms)
		k.mu.Lock()
		refunds := l.removeAllLocked(k)
		k.mu.Unlock()
		began := time.Now()
		if err := l.sendRefunds(t.Context(), k, refunds); err != nil || time.Since(began) != DefaultLife/16 {
			t.Errorf("%v after %v; want the refund to end after its time, %v", err, time.Since(began), DefaultLife/16)
		}
		if s := l.Stats(); s.Lost != 10 || s.Live != 0 {
			t.Errorf("the stats are %+v; want 10 units lost", s)
		}
	})
}

// After Close, Close does not wait for a refund that a caller still sends.
func TestRefundAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k, _ := newLeaseOf(&recorder{takes: ms})
		k.mu.Lock()
		refunds := l.removeAllLocked(k)
		k.mu.Unlock()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.sendRefunds(t.Context(), k, refunds); err != nil || l.Stats().Returned != 10 {
			t.Errorf("%v, with the stats %+v; want 10 units returned", err, l.Stats())
		}
	})
}

// A block is returned before it expires: early enough for a slow answer, but not in the first half
// of its life.
func TestLatestReturnOfABlock(t *testing.T) {
	for _, row := range []struct{ refundTime, want time.Duration }{{1, 118}, {24, 72}, {25, 70}, {26, 70}, {100, 70}} {
		b := &block{sentAt: 20, expires: 120, refundTime: row.refundTime}
		if got := b.latestReturn(); got != row.want {
			t.Errorf("a block from 20 to 120 whose refund takes %d is returned at %d; want %d", row.refundTime, got, row.want)
		}
	}
}

// What a refund returns of a block: of each limit what still counts in the store. A unit is
// returned only if it is of all limits.
func TestRefundOfABlock(t *testing.T) {
	bucket := penstock.PerSecond(10).MustCompile()
	for _, row := range []struct {
		name           string
		forgottenAt    []time.Duration // of a window and a bucket
		calls          []string
		units, expired int64
	}{
		{"all of both", []time.Duration{time.Hour, time.Hour}, []string{"refund 10", "refund 10"}, 10, 0},
		{"all of the window, 4 of the bucket", []time.Duration{time.Hour, 550 * ms}, []string{"refund 10", "refund 4"}, 4, 6},
		{"one of the bucket", []time.Duration{time.Hour, 250 * ms}, []string{"refund 10", "refund 1"}, 1, 9},
		{"nothing of the bucket", []time.Duration{time.Hour, 0}, []string{"refund 10"}, 0, 10},
		{"nothing of the window", []time.Duration{100 * ms, time.Hour}, []string{"refund 10"}, 0, 10},
		{"nothing", []time.Duration{0, 0}, nil, 0, 10},
	} {
		l := New(memstore.New(memstore.Options{}), Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
		k, p := lease(l, "k", 0, hourly("a"), bucket)
		p.blocks[0].forgottenAt, p.blocks[0].refundTime = row.forgottenAt, 100*ms
		refunds := l.removeBlockLocked(k, p, &p.blocks[0], 0, nil)
		var calls []string
		for _, r := range refunds {
			if r.until != 100*ms || r.units != row.units || r.pool != p {
				t.Errorf("%s: the refund is %+v; want one of %d units", row.name, r, row.units)
			}
			for _, c := range r.charges {
				calls = append(calls, fmt.Sprint(c.Mode, " ", c.Cost))
			}
		}
		if !slices.Equal(calls, row.calls) || k.counts.expired != row.expired || p.returning != row.units || p.left() != 0 || k.leaseRefunds != min(len(refunds), 1) {
			t.Errorf("%s: the refund is %q, %d expired, %d on their way back, %d refunds in flight; want %q, %d and %d", row.name, calls, k.counts.expired, p.returning, k.leaseRefunds, row.calls, row.expired, row.units)
		}
		if l.removeBlockLocked(k, p, &p.blocks[1], 0, nil) != nil {
			t.Errorf("%s: an empty block has a refund", row.name)
		}
	}
}

func TestGrantedByAllLimits(t *testing.T) {
	for _, row := range []struct {
		granted      []int64
		atMost, want int64
	}{{[]int64{5, 3, 4}, 9, 3}, {[]int64{5}, 4, 4}, {[]int64{5}, 5, 5}, {[]int64{-1}, 9, 0}, {[]int64{0}, 9, 0}} {
		var statuses []penstock.Status
		for _, n := range row.granted {
			statuses = append(statuses, penstock.Status{Granted: n})
		}
		d := penstock.NewDecision(statuses)
		if got := minGranted(&d, row.atMost); got != row.want {
			t.Errorf("of %d, %d are granted by all, and at most %d; want %d", row.granted, got, row.atMost, row.want)
		}
	}
}

// The limits of a batch were granted unequal numbers of units. The surplus is returned.
func TestSurplusOfADrawIsReturned(t *testing.T) {
	bucket := penstock.PerSecond(10).MustCompile()
	l := New(memstore.New(memstore.Options{}), Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
	k, p := lease(l, "k", 0, hourly("a"), bucket, hourly("c"))
	p.blocks[0], p.blockSize, k.counts = block{}, 100, counts{}
	reply := penstock.NewDecision([]penstock.Status{
		{Granted: 10, Remaining: 3, ResetAfter: time.Hour}, {Granted: 9, Remaining: 4, ResetAfter: 3 * time.Second}, {Granted: 8, Remaining: 5, ResetAfter: 500 * ms},
	})
	refunds := l.receiveLocked(k, p, &draw{}, &reply, 20, 100*ms, 120*ms)
	p.timer.Stop()
	if len(refunds) != 1 || k.leaseRefunds != 1 {
		t.Fatalf("the refunds are %+v, and %d in flight; want one", refunds, k.leaseRefunds)
	}
	r := refunds[0]
	if r.units != 0 || r.until != 120*ms+DefaultLife/2 || len(r.charges) != 2 || r.charges[0].Cost != 2 || r.charges[1].Cost != 1 || r.charges[1].Plan != bucket || r.charges[0].Mode != penstock.Refund || r.pool != p {
		t.Errorf("the refund is %+v; want 2 units of the first limit and 1 of the second", r)
	}
	if p.limits[0].remaining != 5 || p.limits[1].remaining != 5 || p.limits[2].remaining != 5 {
		t.Errorf("the limits are %+v; want that 5 units remain of each, with the surplus", p.limits)
	}
	b := p.blocks[0]
	// The surplus of the bucket would have drained last, in 100 ms for each unit.
	want := []time.Duration{100*ms + time.Hour, 3*time.Second - 1, 600 * ms}
	if b.left != 8 || b.sentAt != 100*ms || b.expires != 600*ms || !slices.Equal(b.forgottenAt, want) || b.refundTime != 40*ms {
		t.Errorf("the block is %+v; want 8 units until 600 ms, forgotten at %v, and a refund of twice the round trip", b, want)
	}
	if p.noPrefetchUntil != 120*ms+DefaultLife/16 || p.bypassUntil != 0 || p.roundTrip != 20*ms || k.counts.drawn != 8 {
		t.Errorf("the pool is %+v; want a pause of a sixteenth of a Life, and a round trip of 20 ms", p)
	}
}

// Which blocks a pool has after a draw of 40 units, of which room is for 50.
func TestBlocksAfterADraw(t *testing.T) {
	const now = 100 * ms
	live := func(left int64) block {
		return block{left: left, sentAt: 0, expires: time.Second, refundTime: ms, forgottenAt: []time.Duration{time.Hour}}
	}
	old := live(5)
	old.expires = now
	for _, row := range []struct {
		name     string
		blocks   [2]block
		granted  int64
		isClosed bool
		reset    time.Duration // of the window
		left     [2]int64
		refunds  []int64
		bypass   bool
		prefetch bool // the next block may be drawn in advance
	}{
		{name: "no block", granted: 40, left: [2]int64{40, 0}, prefetch: true},
		{name: "an older block", blocks: [2]block{live(5)}, granted: 40, left: [2]int64{5, 40}, prefetch: true},
		{name: "one unit in an older block", blocks: [2]block{live(1)}, granted: 40, left: [2]int64{1, 40}, prefetch: true},
		{name: "a newer block", blocks: [2]block{{}, live(5)}, granted: 40, left: [2]int64{5, 40}, prefetch: true},
		{name: "two blocks", blocks: [2]block{live(4), live(5)}, granted: 40, left: [2]int64{4, 5}, refunds: []int64{40}, prefetch: true},
		{name: "one unit in a newer block", blocks: [2]block{live(4), live(1)}, granted: 40, left: [2]int64{4, 1}, refunds: []int64{40}, prefetch: true},
		{name: "an expired block", blocks: [2]block{old}, granted: 40, left: [2]int64{40, 0}, refunds: []int64{5}, prefetch: true},
		{name: "an expired block and a live one", blocks: [2]block{old, live(4)}, granted: 40, left: [2]int64{4, 40}, refunds: []int64{5}, prefetch: true},
		{name: "after Close", granted: 40, isClosed: true, refunds: []int64{40}, prefetch: true},
		{name: "the window has ended", granted: 40, reset: now, prefetch: true},
		{name: "the window ends", granted: 40, reset: now + 1, left: [2]int64{40, 0}, prefetch: true},
		{name: "less than asked for", granted: 39, left: [2]int64{39, 0}},
		{name: "too little for a draw", granted: 7, left: [2]int64{7, 0}, bypass: true},
		{name: "just enough for a draw", granted: 8, left: [2]int64{8, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := New(memstore.New(memstore.Options{}), Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
			k, p := lease(l, "k", 0, hourly("a"))
			p.blocks, p.blockSize = row.blocks, 50
			l.isClosed.Store(row.isClosed)
			if row.reset == 0 {
				row.reset = time.Hour
			}
			reply := penstock.Single(penstock.Status{Granted: row.granted, ResetAfter: row.reset})
			k.mu.Lock()
			defer k.mu.Unlock()
			refunds := l.receiveLocked(k, p, &draw{blockUnits: 40}, &reply, 40, 0, now)
			if p.timer != nil {
				p.timer.Stop()
			}
			var units []int64
			for _, r := range refunds {
				units = append(units, r.units)
			}
			if left := [2]int64{p.blocks[0].left, p.blocks[1].left}; left != row.left || !slices.Equal(units, row.refunds) {
				t.Errorf("%s: %d units are left, and %d are returned; want %d and %d", row.name, left, units, row.left, row.refunds)
			}
			var bypass, pause time.Duration
			if row.bypass {
				bypass = now + DefaultLife/2
			}
			if !row.prefetch {
				pause = now + DefaultLife/16
			}
			if p.bypassUntil != bypass || p.noPrefetchUntil != pause {
				t.Errorf("%s: no draw until %v, and none in advance until %v; want %v and %v", row.name, p.bypassUntil, p.noPrefetchUntil, bypass, pause)
			}
		})
	}
}

// Waiters get units of the draw if there are enough for all of them, or more than the block has
// room for.
func TestUnitsOfADrawForItsWaiters(t *testing.T) {
	for _, row := range []struct{ needs, granted, brought, left, expired int64 }{
		{5, 45, 5, 40, 0}, {5, 5, 5, 0, 0}, {6, 5, 0, 5, 0}, {45, 41, 41, 0, 0}, {45, 40, 0, 40, 0}, {2, 45, 2, 40, 3},
	} {
		l := newStore(1)
		k, p := lease(l, "k", 0, hourly("a"))
		p.blocks[0], p.blockSize, p.returning, k.counts = block{}, 50, 10, counts{}
		reply := penstock.Single(penstock.Status{Granted: row.granted, ResetAfter: time.Hour})
		pending := &draw{waitersBefore: waiters{needs: row.needs}}
		l.receiveLocked(k, p, pending, &reply, 45, 0, ms)
		p.timer.Stop()
		if brought, c := pending.waitersBefore.brought, k.counts; brought != row.brought || p.left() != row.left || c.spent != row.brought || c.expired != row.expired || c.drawn != row.granted {
			t.Errorf("%d units for waiters that need %d, and a block of 40: %d for the waiters, %d left, and %+v; want %d, %d, and %d expired", row.granted, row.needs, brought, p.left(), c, row.brought, row.left, row.expired)
		}
	}
}

// The longer of a sixteenth of the block's life and two round trips is left for its refund.
func TestTimeForARefund(t *testing.T) {
	for answered, want := range map[time.Duration]time.Duration{100*ms + 31*ms: DefaultLife / 16, 100*ms + 32*ms: 64 * ms} {
		l := newStore(1)
		k, p := lease(l, "k", 0, hourly("a"))
		p.blocks[0], p.blockSize = block{}, 50
		reply := penstock.Single(penstock.Status{Granted: 40, ResetAfter: time.Hour})
		l.receiveLocked(k, p, &draw{}, &reply, 40, 100*ms, answered)
		p.timer.Stop()
		if b := p.blocks[0]; b.refundTime != want || b.expires != 100*ms+DefaultLife {
			t.Errorf("a draw from 100 ms to %v has the block %+v; want %v for its refund", answered, b, want)
		}
	}
}

// A timer returns blocks half a Life after the last request, and before they expire.
func TestTimerReturnsBlocks(t *testing.T) {
	for _, row := range []struct {
		name       string
		refundTime time.Duration
		lastUsed   time.Duration
		left       int64
		returnedAt time.Duration
	}{
		{"an idle key", 10 * ms, 0, 10, 500 * ms},
		{"a key that is used later", 10 * ms, 100 * ms, 10, 600 * ms},
		{"a block that expires", 10 * ms, 900 * ms, 10, 980 * ms},
		{"one unit", 10 * ms, 0, 1, 500 * ms},
		{"a slow store", 200 * ms, 200 * ms, 10, 600 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &recorder{}
			l, k, p := newLeaseOf(store)
			p.blocks[0].refundTime, p.blocks[0].left, p.lastUsed = row.refundTime, row.left, 0
			k.mu.Lock()
			l.setTimerLocked(k, p, 0)
			p.lastUsed = row.lastUsed // after the timer was set
			k.mu.Unlock()
			time.Sleep(row.returnedAt - 1)
			if synctest.Wait(); len(store.recorded()) != 0 || !k.mu.TryLock() {
				t.Fatalf("%s: before %v, the calls are %q; want none", row.name, row.returnedAt, store.recorded())
			}
			k.mu.Unlock()
			time.Sleep(time.Nanosecond)
			if synctest.Wait(); !slices.Equal(store.recorded(), []string{fmt.Sprint("refund ", row.left)}) || p.left() != 0 {
				t.Errorf("%s: at %v, the calls are %q; want the block returned", row.name, row.returnedAt, store.recorded())
			}
			if p.timer.Stop() {
				t.Errorf("%s: the timer runs without a block", row.name)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		store := &recorder{}
		l, k, p := newLeaseOf(store)
		k.mu.Lock()
		l.setTimerLocked(k, p, 0)
		p.blocks[1], p.lastUsed = p.blocks[0], 600*ms
		p.blocks[1].expires, p.blocks[1].left, p.blocks[1].refundTime = 3*time.Second, 1, 10*ms
		k.mu.Unlock()
		time.Sleep(900 * ms) // the first block is returned at 875 ms, and the second at 1100 ms
		if synctest.Wait(); !slices.Equal(store.recorded(), []string{"refund 10"}) || l.Stats().Live != 1 {
			t.Errorf("the calls are %q, and %d units are live; want the first block returned", store.recorded(), l.Stats().Live)
		}
		time.Sleep(200 * ms)
		if synctest.Wait(); !slices.Equal(store.recorded(), []string{"refund 10", "refund 1"}) {
			t.Errorf("the calls are %q; want both blocks returned", store.recorded())
		}
	})
}

// After Close, and once everything is removed, no timer of a pool runs.
func TestTimersEndWithTheUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k, p := newLeaseOf(&recorder{})
		k.mu.Lock()
		l.setTimerLocked(k, p, 0)
		l.removeAllLocked(k)
		k.mu.Unlock()
		if p.timer.Stop() {
			t.Error("the timer runs without a block; want it stopped")
		}
		l, k, p = newLeaseOf(&recorder{})
		l.isClosed.Store(true)
		l.returnDue(k, p)
		if p.left() != 10 || !k.mu.TryLock() {
			t.Errorf("after Close, the timer returned the block; want that it does nothing")
		}
	})
}

func TestScarceLimits(t *testing.T) {
	for remaining, want := range map[int64]bool{minDraw - 1: true, minDraw: false} {
		p := &pool{limits: []pooledLimit{{remaining: 100, decay: algorithm.DecayAtReset}, {remaining: remaining, decay: algorithm.DecayAtReset}}}
		if got := p.isNearlyEmpty(); got != want {
			t.Errorf("with 100 and %d units left, the pool is scarce: %v; want %v", remaining, got, want)
		}
	}
}
