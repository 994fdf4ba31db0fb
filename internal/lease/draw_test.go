package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

// leasedOf returns a lease of up to 100 units, and the pool of a busy key.
func leasedOf(t *testing.T, store penstock.Store) (*Store, *leasedKey, *pool) {
	limit, err := penstock.PerDay(100_000).With(penstock.FixedWindow).Compile()
	if err != nil {
		t.Fatal(err)
	}
	l := New(store, Options{Block: func(*penstock.Plan) int64 { return 100 }, Counters: func(*penstock.Plan) int { return 1 }})
	plans := []*penstock.Plan{limit}
	l.findKey("k", plans, minDraw) // a key is tracked from its second request, if that suffices for a draw
	k := l.findKey("k", plans, minDraw)
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.poolLocked(l, []penstock.Charge{{Key: "k", Plan: limit, Cost: 1}}, plans, 0)
	p.demand, p.isMeasured = 1000, true
	return l, k, p
}

func TestRemovedKeyGetsNoPool(t *testing.T) {
	l, k, p := leasedOf(t, memstore.New(memstore.Options{}))
	plans := []*penstock.Plan{p.limits[0].plan}
	charges := []penstock.Charge{{Key: "k", Plan: plans[0], Cost: 1}}
	if !k.markGoneIfIdle(l, time.Hour) {
		t.Fatal("the key was not idle; want it removed")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.poolLocked(l, charges, plans, time.Hour) != nil {
		t.Error("a removed key has a pool; want none")
	}
}

// A process that was stopped may use its lease before a timer has run.
func TestStoppedInstanceSpendsNothingOld(t *testing.T) {
	l, k, p := leasedOf(t, memstore.New(memstore.Options{}))
	k.mu.Lock()
	defer k.mu.Unlock()
	p.blockSize = 50
	reply := penstock.Single(penstock.Status{Granted: 50, ResetAfter: time.Hour})
	if refunds := l.receiveLocked(k, p, &draw{blockUnits: 50}, &reply, 50, 0, time.Millisecond); refunds != nil {
		t.Fatalf("receiveLocked returned the refunds %+v; want none", refunds)
	}
	p.timer.Stop()
	for _, row := range []struct {
		now      time.Duration
		canSpend bool
	}{
		{now: time.Millisecond, canSpend: true},
		{now: l.life - time.Nanosecond, canSpend: true},
		{now: l.life},
		{now: time.Hour},
	} {
		if isSpent := k.trySpendLocked(p, row.now, 1); isSpent != row.canSpend {
			t.Errorf("%v after the draw, a unit was spent: %v; want %v", row.now, isSpent, row.canSpend)
		}
	}
}

// A draw brings the block, and one unit for each caller that waits when the draw is sent. The draw
// reserves units of the block for callers that come later. Units of callers that leave are not
// spent.
func TestDrawBringsUnitsForWaitingCallersBesidesTheBlock(t *testing.T) {
	const early, late = 40, 100
	for _, row := range []struct {
		name                    string
		grants                  int64         // the most units that the store grants
		takes                   time.Duration // how long the draw takes
		earlyLeave, lateLeave   int           // callers who leave
		drawn, left             int64         // units afterwards
		earlyServed, lateServed int           // callers who get a unit
		expired                 int64         // units
	}{
		{name: "all", grants: 1000, drawn: 140, earlyServed: 40, lateServed: 100},
		{name: "some late callers have left", grants: 1000, lateLeave: 30, drawn: 140, left: 30, earlyServed: 40, lateServed: 70},
		{name: "some early callers have left", grants: 1000, earlyLeave: 10, lateLeave: 5, drawn: 140, left: 5, earlyServed: 30, lateServed: 95, expired: 10},
		{name: "little is granted", grants: 20, drawn: 20, left: 20, earlyServed: 20},
		{name: "a little more is granted", grants: 60, drawn: 60, earlyServed: 40, lateServed: 20},
		{name: "nothing is granted"},
		{name: "the answer comes late", grants: 1000, takes: 2 * time.Second, drawn: 140, earlyServed: 40},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requested, canAnswer := int64(0), make(chan struct{})
				l, k, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
					if charges[0].Mode != penstock.Draw {
						return penstock.Single(penstock.Status{Granted: charges[0].Cost}), nil
					}
					requested = charges[0].Cost
					<-canAnswer
					time.Sleep(row.takes)
					s := penstock.Status{Granted: min(requested, row.grants), ResetAfter: time.Hour}
					if s.Granted == 0 {
						s.RetryAfter = time.Second
					}
					return penstock.Single(s), nil
				}))
				k.mu.Lock()
				pending := l.drawLocked(t.Context(), k, p, l.now(), 1)
				for range early {
					if pending.addWaiterLocked(p, 1) != &pending.waitersBefore {
						t.Fatal("a caller that came before the draw was sent is not among waitersBefore")
					}
				}
				k.mu.Unlock()
				synctest.Wait()
				k.mu.Lock()
				for range late {
					if pending.addWaiterLocked(p, 1) != &pending.waitersAfter {
						t.Fatal("a caller that came after the draw was sent is not among waitersAfter")
					}
				}
				if pending.addWaiterLocked(p, 1) != nil {
					t.Error("addWaiterLocked accepted a caller although the block has no units left; want nil")
				}
				for range row.earlyLeave {
					pending.waitersBefore.removeWaiterLocked(k, 1)
				}
				for range row.lateLeave {
					pending.waitersAfter.removeWaiterLocked(k, 1)
				}
				k.mu.Unlock()
				close(canAnswer)
				<-pending.done
				synctest.Wait()

				k.mu.Lock()
				const block = 100
				if requested != early+block || k.counts.drawn != row.drawn || p.left() != row.left {
					t.Errorf("%d units were requested and %d drawn, and %d are left; want %d, %d and %d", requested, k.counts.drawn, p.left(), early+block, row.drawn, row.left)
				}
				serve := func(group *waiters, n int) (taken int) {
					for range n {
						if group.spendLocked(k, p, l.now(), 1) {
							taken++
						}
					}
					return taken
				}
				earlyServed, lateServed := serve(&pending.waitersBefore, early-row.earlyLeave), serve(&pending.waitersAfter, late-row.lateLeave)
				if earlyServed != row.earlyServed || lateServed != row.lateServed {
					t.Errorf("%d early and %d late callers got a unit; want %d and %d", earlyServed, lateServed, row.earlyServed, row.lateServed)
				}
				if k.counts.expired != row.expired {
					t.Errorf("%d units have expired; want %d", k.counts.expired, row.expired)
				}
				k.mu.Unlock()
				checkUnits(t, l)
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
				checkUnits(t, l)
			})
		})
	}
}

// Seven units were requested for waiting callers, and the draw brought six. Units of callers that
// leave after the draw has ended expire.
func TestUnitsOfCallersThatLeftExpire(t *testing.T) {
	l, k, p := leasedOf(t, memstore.New(memstore.Options{}))
	k.mu.Lock()
	p.blockSize = 3
	pending := &draw{blockUnits: 3, waitersBefore: waiters{needs: 7}}
	reply := penstock.Single(penstock.Status{Granted: 6, ResetAfter: time.Hour})
	l.receiveLocked(k, p, pending, &reply, 10, 0, time.Millisecond)
	p.timer.Stop()
	if pending.waitersBefore.spendLocked(k, p, 0, 1); pending.waitersBefore.brought != 5 || k.counts.spent != 6 {
		t.Errorf("after one caller took 1 of 6 units, the waiters are %+v and the counts %+v; want a share of 5, and 6 spent", pending.waitersBefore, k.counts)
	}
	pending.waitersBefore.removeWaiterLocked(k, 2)
	if pending.waitersBefore.spendLocked(k, p, 0, 4); pending.waitersBefore.brought != 0 || k.counts.spent != 5 || k.counts.expired != 1 {
		t.Errorf("after another caller left and the last took 4, the waiters are %+v and the counts %+v; want a share of 0, 5 spent and 1 expired", pending.waitersBefore, k.counts)
	}
	k.mu.Unlock()
	checkUnits(t, l)
}

// Windows follow one another without gaps, also after the last one that an answer has named.
func TestTimeLeftOfTheWindow(t *testing.T) {
	const width, end = 10 * time.Second, 15 * time.Second
	for now, want := range map[time.Duration]time.Duration{
		12 * time.Second:   3 * time.Second,
		14 * time.Second:   time.Second,
		15*time.Second - 1: 1,
		15 * time.Second:   10 * time.Second,
		17 * time.Second:   8 * time.Second,
		25 * time.Second:   10 * time.Second,
		47 * time.Second:   8 * time.Second,
	} {
		p := &pool{limits: []pooledLimit{{windowEnd: time.Second}, {width: width}, {width: width, windowEnd: end}}} // a bucket, and a window of unknown end
		if got := p.windowLeft(time.Minute, now); got != want {
			t.Errorf("at %v, %v of the window are left; want %v", now, got, want)
		}
		if got := p.windowLeft(time.Millisecond, now); got != min(want, time.Millisecond) {
			t.Errorf("at %v, at most 1 ms is asked for, and %v are left; want %v", now, got, min(want, time.Millisecond))
		}
		// The answer may take two round trips, and units that arrive later cannot be spent.
		p.roundTrip = 2 * time.Second
		if got := p.spendableFor(time.Minute, now); got != max(want-4*time.Second, 0) {
			t.Errorf("at %v, with a round trip of 2 s, units may be spent for %v; want %v", now, got, max(want-4*time.Second, 0))
		}
	}
}

// A pool is idle if nothing is held or in flight, and no request has come for a while.
func TestPoolIsIdleWithoutUnitsAndDraws(t *testing.T) {
	for _, row := range []struct {
		pool   pool
		isIdle bool
	}{
		{pool{lastUsed: 2 * time.Second}, true},
		{pool{lastUsed: 2*time.Second + 1}, false},
		{pool{blocks: [2]block{{left: 1}, {}}}, false},
		{pool{blocks: [2]block{{}, {left: 1}}}, false},
		{pool{returning: 1}, false},
		{pool{draw: new(draw)}, false},
	} {
		if got := row.pool.isIdle(5*time.Second, 3*time.Second); got != row.isIdle {
			t.Errorf("the pool %+v is idle: %v; want %v", row.pool, got, row.isIdle)
		}
	}
}

// A caller that waits for a draw gets the times of the moment when the draw has ended.
func TestTimesCountFromTheEndOfADraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			time.Sleep(100 * time.Millisecond)
			return penstock.Single(penstock.Status{Granted: charges[0].Cost, Remaining: 1000, ResetAfter: time.Hour}), nil
		}))
		d, err := l.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p.limits[0].plan, Cost: 1}})
		if want := time.Hour - 100*time.Millisecond; err != nil || d.Source != penstock.FromLease || d.Status(0).ResetAfter != want {
			t.Errorf("the decision is %+v, %v; want one of the lease, with a ResetAfter of %v", d, err, want)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Units may be spent between the beginning of a draw and its call. The draw brings them too, so
// that the block is full afterwards.
func TestDrawFillsTheBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			return penstock.Single(penstock.Status{Granted: charges[0].Cost, Remaining: 1000, ResetAfter: time.Hour}), nil
		}))
		spend := func(units int) {
			for range units {
				if !k.trySpendLocked(p, l.now(), 1) {
					t.Fatal("no unit is left to spend")
				}
			}
		}
		k.mu.Lock()
		first := l.drawLocked(t.Context(), k, p, l.now(), 0)
		k.mu.Unlock()
		<-first.done
		k.mu.Lock()
		full := p.left()
		spend(int(full) - 10)
		second := l.drawLocked(t.Context(), k, p, l.now(), 0)
		spend(5) // the draw waits for the lock
		k.mu.Unlock()
		<-second.done
		k.mu.Lock()
		if got := p.left(); full < 20 || got != full {
			t.Errorf("after the second draw, %d units are left; want a full block of %d", got, full)
		}
		k.mu.Unlock()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// While a Refund of a caller is in flight, nothing is drawn for its key, and the key is kept.
func TestNothingIsDrawnDuringARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		canAnswer := make(chan struct{})
		l, k, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Refund {
				<-canAnswer
			}
			return penstock.Single(penstock.Status{Granted: charges[0].Cost, Remaining: 1000, ResetAfter: time.Hour}), nil
		}))
		canDraw := func() bool {
			k.mu.Lock()
			pending := l.drawLocked(t.Context(), k, p, l.now(), 0)
			k.mu.Unlock()
			if pending != nil {
				<-pending.done
			}
			return pending != nil
		}
		go l.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p.limits[0].plan, Cost: 1, Mode: penstock.Refund}})
		if synctest.Wait(); canDraw() {
			t.Error("a block was drawn while a Refund is in flight; want nothing drawn")
		}
		if k.markGoneIfIdle(l, time.Hour) {
			t.Error("the key is idle while a Refund is in flight; want that it is kept")
		}
		close(canAnswer)
		if synctest.Wait(); !canDraw() {
			t.Error("nothing was drawn after the Refund; want a block")
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// After a draw that brought nothing to spend, nothing is drawn for half a Life. If the answer came
// from a fallback, nothing is drawn for a Life.
func TestNothingIsDrawnSoonAfterADrawThatFailed(t *testing.T) {
	granted, denied := penstock.Status{Granted: 1000, ResetAfter: time.Hour}, penstock.Status{RetryAfter: time.Second, ResetAfter: time.Hour}
	for name, row := range map[string]struct {
		status penstock.Status
		source penstock.Source
		err    error
		want   time.Duration
	}{
		"an error":               {err: penstock.ErrUnavailable, want: DefaultLife / 2},
		"a denial":               {status: denied, want: DefaultLife / 2},
		"a denial by a fallback": {status: denied, source: penstock.FromFallback, want: DefaultLife},
		"a grant by a fallback":  {status: granted, source: penstock.FromFallback, want: DefaultLife},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, k, p := leasedOf(t, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
				d := penstock.Single(row.status)
				d.Source = row.source
				return d, row.err
			}))
			k.mu.Lock()
			pending := l.drawLocked(t.Context(), k, p, l.now(), 1)
			k.mu.Unlock()
			<-pending.done
			k.mu.Lock()
			if got := p.bypassUntil - pending.endedAt; got != row.want {
				t.Errorf("after %s, nothing is drawn for %v; want %v", name, got, row.want)
			}
			k.mu.Unlock()
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The next block is drawn in advance even if it can have only one unit, because all others of the
// last block are being returned.
func TestOneUnitIsDrawnInAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requested := int64(0)
		l, k, p := leasedOf(t, penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			requested += charges[0].Cost
			return penstock.Single(penstock.Status{Granted: charges[0].Cost, ResetAfter: time.Hour}), nil
		}))
		k.mu.Lock()
		p.blockSize, p.returning, p.blocks[0] = 100, 99, block{left: 1, expires: l.life}
		k.mu.Unlock()
		d, err := l.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: p.limits[0].plan, Cost: 1}})
		if synctest.Wait(); err != nil || d.Source != penstock.FromLease || requested != 1 {
			t.Errorf("the last unit: %+v, %v, and %d units were drawn; want a decision of the lease, and 1", d, err, requested)
		}
		k.mu.Lock()
		p.returning = 0
		k.mu.Unlock()
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A batch may have MaxCharges charges, of which none costs more than MaxCost.
func TestLargestBatchIsLeased(t *testing.T) {
	for _, row := range []struct {
		charges int
		cost    int64
		want    route
	}{
		{charges: 0, cost: 1, want: passThrough}, {charges: 1, cost: 1, want: spending},
		{charges: penstock.MaxCharges, cost: 1, want: spending}, {charges: penstock.MaxCharges + 1, cost: 1, want: passThrough},
		{charges: 1, cost: 0, want: passThrough}, {charges: 1, cost: penstock.MaxCost, want: spending}, {charges: 1, cost: penstock.MaxCost + 1, want: passThrough},
	} {
		var charges []penstock.Charge
		for i := range row.charges {
			limit := penstock.PerDay(100_000)
			limit.Name, limit.Group = fmt.Sprint("l", i), "g"
			charges = append(charges, penstock.Charge{Key: "k", Plan: limit.MustCompile(), Cost: row.cost})
		}
		if plans, got := routeOf(charges, nil); got != row.want || got == spending && len(plans) != row.charges {
			t.Errorf("%d charges of %d units have the route %d and %d plans; want the route %d", row.charges, row.cost, got, len(plans), row.want)
		}
	}
}

func checkUnits(t *testing.T, l *Store) {
	t.Helper()
	if s := l.Stats(); s.Drawn != s.Spent+s.Returned+s.Expired+s.Lost+s.Live {
		t.Errorf("the stats are %+v; want Drawn = Spent+Returned+Expired+Lost+Live", s)
	}
}

// A bucket that is nearly empty is drawn from again when it will have enough units for a draw at
// the time when the draw arrives.
func TestBucketRefillsWhileADrawIsOnItsWay(t *testing.T) {
	perSecond, err := penstock.PerSecond(1000).Compile()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		decay         algorithm.Decay
		roundTrip     time.Duration
		isNearlyEmpty bool
	}{
		{decay: algorithm.DecayContinuous, roundTrip: 0, isNearlyEmpty: true},
		{decay: algorithm.DecayContinuous, roundTrip: (minDraw - 1) * time.Millisecond, isNearlyEmpty: true},
		{decay: algorithm.DecayContinuous, roundTrip: (minDraw + 1) * time.Millisecond},
		{decay: algorithm.DecayAtReset, roundTrip: time.Hour, isNearlyEmpty: true},
	} {
		p := &pool{roundTrip: row.roundTrip, limits: []pooledLimit{{plan: perSecond, decay: row.decay, counters: 1}}}
		if got := p.isNearlyEmpty(); got != row.isNearlyEmpty {
			t.Errorf("an empty limit of 1000 per second, decay %v, with a round trip of %v, is scarce: %v; want %v", row.decay, row.roundTrip, got, row.isNearlyEmpty)
		}
	}
}
