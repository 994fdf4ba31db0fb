package guard

import (
	"context"
	"time"

	"github.com/penstock/penstock"
)

// Options of Standard. The zero value is what a careful operator would choose.
type Options struct {
	Timeout TimeoutOptions // 25 ms for a decision
	Breaker BreakerOptions // one for each shard that the store names; its longest pause is 1 s here, so that a store is found back within that

	// OnFailure is what happens to limits whose Settings do not say, while the store gives no answer. Default: Local.
	OnFailure Failure

	// Limits are the Settings of each limit. It is called for every charge, so it must be quick. Default: none has any.
	Limits func(*penstock.Limit) Settings

	// Instances is how many instances there are at least, for Local. Default: 1. If the store can count them, as redisstore can, they are
	// counted too.
	Instances int

	// DenyFor is how long a denial is remembered at most. Default: 1 s, within which a refund elsewhere is noticed. Below 0: not at all.
	DenyFor time.Duration

	// Lease says how quota is drawn in advance, for limits whose Settings have a Lease. Its Limits and Instances are those of Standard.
	Lease LeaseOptions

	// Observe is told of every decision. It must be quick. Default: nobody is told.
	Observe func(Event)
}

// A Guarded is a store with all guards around it. Make one with Standard.
type Guarded struct {
	penstock.Store
	fleet *Fleet
	lease *Lease
}

// Standard puts the guards around a store in their order, from the caller's side: Observe, Deny, Lease, Fallback, Split, Breaker, Timeout. Of a store
// that has them, it uses
//
//	Shard(charges []penstock.Charge) string                                              for a breaker for each shard
//	Live(ctx context.Context, instance string, life time.Duration) (int, error)          to count instances, for Local
//
// as redisstore.Store has. The order matters: what is remembered as denied costs the store nothing, whether it answers or not; what is answered by the
// Fallback is never remembered; a split limit's shards have the breakers of the servers that keep them; and an open breaker spends no deadline.
func Standard(store penstock.Store, o Options) *Guarded {
	g := &Guarded{}
	if named, ok := store.(interface {
		Shard(charges []penstock.Charge) string
	}); ok && o.Breaker.Shard == nil {
		o.Breaker.Shard = named.Shard
	}
	instances := func() int { return o.Instances }
	if counted, ok := store.(interface {
		Live(ctx context.Context, instance string, life time.Duration) (int, error)
	}); ok {
		g.fleet = NewFleet(FleetOptions{Live: counted.Live, Floor: o.Instances})
		instances = g.fleet.Instances
	}
	if o.Breaker.MaxPause == 0 {
		o.Breaker.MaxPause = time.Second
	}
	o.Lease.Limits, o.Lease.Instances = o.Limits, instances
	guards := []penstock.Decorator{
		Observe(o.Observe),
		Deny(DenyOptions{MaxAge: o.DenyFor, Limits: o.Limits}),
		g.leased(o.Lease),
		Fallback(FallbackOptions{OnFailure: o.OnFailure, Limits: o.Limits, Instances: instances, Floor: o.Instances}),
		Split(SplitOptions{Limits: o.Limits}),
		Breaker(o.Breaker),
		Timeout(o.Timeout),
	}
	if o.DenyFor < 0 {
		guards = append(guards[:1], guards[2:]...)
	}
	g.Store = penstock.Wrap(store, guards...)
	return g
}

// leased puts a Lease around a store, if there may be limits that are leased.
func (g *Guarded) leased(o LeaseOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.Limits == nil {
			return next
		}
		g.lease = NewLease(next, o)
		return g.lease
	}
}

// Instances is how many instances share the store, as far as is known.
func (g *Guarded) Instances() int {
	if g.fleet == nil {
		return 1
	}
	return g.fleet.Instances()
}

// Close gives back what is leased, within a second, and ends the counting of instances. It does not close the store.
func (g *Guarded) Close() {
	if g.lease != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = g.lease.Close(ctx) // what cannot be given back expires
	}
	if g.fleet != nil {
		g.fleet.Close()
	}
}
