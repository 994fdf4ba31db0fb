package simulate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simclock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/memstore"
)

// Regions says which regions there are, and how messages pass between them. If the limit's
// algorithm is one of algorithm.Across or algorithm.ShareAcross, they exchange what they have
// granted. Otherwise each region is on its own.
type Regions struct {
	Count int
	Delay time.Duration // of a message
	Every time.Duration // see regions.Options
	Cuts  []Cut

	// These are for tests.
	wiped []Cut           // at the beginning of these, a region loses its data
	ahead []time.Duration // by how much the clock of each region is ahead
	loss  float64         // the part of messages that is lost
	hung  []Cut           // in these, a region answers but asks no other
}

// A Cut is a time in which a region is cut off from all others.
type Cut struct {
	Region   int // from 1
	From, To time.Duration
	isOneWay bool // messages from the region still pass
}

// A region is a store with its Exchange, and what arrived there.
type region struct {
	name     string
	store    *memstore.Store
	exchange *regions.Exchange // nil: the region is on its own
	options  regions.Options
	allowed  int64
	lag      time.Duration     // the longest time for which it may not know what others have granted
	demand   map[int64]*window // by counter: what arrived within the lag
	most     map[int64]int64   // by counter: the most that arrived within it
}

// count counts a request that has arrived.
func (g *region) count(at time.Duration, units, counter int64, isAllowed bool) {
	if isAllowed {
		g.allowed++
	}
	if g.demand[counter] == nil {
		g.demand[counter] = &window{}
	}
	g.most[counter] = max(g.most[counter], g.demand[counter].add(at, units, max(g.lag, 1)))
}

// makeRegions makes the regions, and lets their exchange begin long enough before the first
// requests.
func (r *run) makeRegions() error {
	o := r.options.Regions
	newStore := func(i int) *memstore.Store {
		return memstore.New(memstore.Options{Now: r.clockOf(i), Locks: 1, MaxCounters: 10 * MaxRequests})
	}
	for i := range o.Count {
		g := &region{name: fmt.Sprint(i + 1), store: newStore(i), demand: make(map[int64]*window), most: make(map[int64]int64)}
		var store penstock.Store = batches.Func(func(ctx context.Context, list []*batches.Batch) { batches.Of(g.store)(ctx, list) })
		g.options = regions.Options{Self: g.name, Store: store, Every: o.Every, Now: r.clockOf(i), Seed: r.options.Seed<<8 + uint64(i)}
		_, g.lag = g.options.Lag(o.Delay)
		for j := range o.Count {
			if j != i {
				g.options.Peers = append(g.options.Peers, fmt.Sprint(j+1))
			}
		}
		r.regions = append(r.regions, g)
	}
	warmUp := -2 * r.regions[0].lag
	r.clock = simclock.New(r.start.Add(warmUp))
	for i, g := range r.regions {
		instance := g.options.Store
		if regions.IsAcross(r.options.Limit) {
			var err error
			if g.exchange, err = regions.New(g.options); err != nil {
				return err
			}
			if err := g.exchange.Check(r.options.Limit); err != nil {
				return err
			}
			instance = g.exchange.Store()
			for j := range r.regions {
				if j != i {
					r.send(warmUp, func() error { return r.ask(i, j) })
				}
			}
		}
		r.instances = append(r.instances, instance)
	}
	for _, w := range o.wiped {
		r.send(w.From, func() error { r.regions[w.Region-1].store = newStore(w.Region - 1); return nil })
	}
	return nil
}

// clockOf returns the clock of a region.
func (r *run) clockOf(i int) func() time.Time {
	ahead := time.Duration(0)
	if i < len(r.options.Regions.ahead) {
		ahead = r.options.Regions.ahead[i]
	}
	return func() time.Time { return r.clock.Now().Add(ahead) }
}

// send lets something happen at a time, unless all requests are answered before.
func (r *run) send(at time.Duration, act func() error) {
	r.clock.Schedule(r.start.Add(at), func() { r.err = cmp.Or(r.err, act()) })
}

// ask lets region i ask region j, and then again after a pause.
func (r *run) ask(i, j int) error {
	r.send(r.now()+r.regions[i].exchange.Pause(), func() error { return r.ask(i, j) })
	return r.askOnce(i, j)
}

func (r *run) askOnce(i, j int) error {
	for _, c := range r.options.Regions.hung {
		if c.Region == i+1 && r.now() >= c.From && r.now() < c.To {
			return nil
		}
	}
	asked, delay := r.clockOf(i)(), r.options.Regions.Delay
	from, to := r.regions[i], r.regions[j]
	ask := from.exchange.Ask(to.name)
	if !r.isLinked(i, j) {
		return nil
	}
	r.result.Exchanged += 2
	r.send(r.now()+delay, func() error {
		if !r.isLinked(i, j) {
			return nil
		}
		answer, err := to.exchange.Site().Answer(context.Background(), ask)
		if err != nil {
			return err
		}
		r.send(r.now()+delay, func() error {
			if !r.isLinked(j, i) {
				return nil
			}
			if err := from.exchange.Merge(context.Background(), to.name, asked, answer); err != nil || answer.IsFull {
				return err
			}
			return r.askOnce(i, j)
		})
		return nil
	})
	return nil
}

// isLinked reports whether a message passes from one region to another now.
func (r *run) isLinked(from, to int) bool {
	for _, c := range r.options.Regions.Cuts {
		if (c.Region == to+1 || c.Region == from+1 && !c.isOneWay) && r.now() >= c.From && r.now() < c.To {
			return false
		}
	}
	return r.options.Regions.loss == 0 || r.rng.Float64() >= r.options.Regions.loss
}

// addBoundOfRegions computes the bound of docs/decisions/0033 or 0034 for an interval of one
// Period, with the demand that was measured.
func (r *run) addBoundOfRegions() {
	plan, period := r.options.Limit, r.options.Limit.Limit().Period
	for _, g := range r.regions {
		r.result.ByRegion = append(r.result.ByRegion, g.allowed)
	}
	if !regions.IsAcross(plan) {
		r.result.Bound = int64(len(r.regions)) * regions.Within(plan, period)
		return
	}
	for counter := range r.admitted {
		beyond := r.beyond(counter)
		if plan.Algorithm().WindowsDiffer() { // an interval of one period has units of two windows
			beyond *= 2
		}
		r.result.Bound = max(r.result.Bound, regions.Within(plan, period)+beyond)
	}
	r.result.Bound += int64(len(r.options.Regions.wiped)) * regions.Within(plan, r.regions[0].lag)
}

// beyond returns how many units of a counter the regions may admit beyond the limit, with the
// demand that was measured. Of windows, it is for one window.
func (r *run) beyond(counter int64) int64 {
	var demands []int64
	for _, g := range r.regions {
		if demand := g.most[counter]; demand > 0 {
			demands = append(demands, demand)
		}
	}
	return regions.Beyond(r.options.Limit, r.regions[0].lag, demands)
}
