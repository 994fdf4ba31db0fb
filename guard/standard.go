package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/deadline"
	"github.com/penstock/penstock/internal/lease"
)

// A Server reports the nodes and the instances of a store to the guards. A *redisstore.Store is
// one.
type Server interface {
	// Node returns the name of the node that decides a batch, or "" if the node is not known. Node
	// must not block.
	Node(charges []penstock.Charge) string

	// Heartbeat registers an instance for the duration life, and returns how many are registered. A
	// life of 0 removes the instance.
	Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error)
}

// Options configure Standard. Server or Instances must be set. The defaults of all other fields
// suit production.
type Options struct {
	// Server is the *redisstore.Store below all wrappers. With it, each node has its own breaker, and
	// the instances are counted for FailLocal. Default: none. Without a Server, the store counts as
	// one node, and the number of instances is Instances.
	Server Server

	// Timeout bounds a decision with all its calls. Default: 250 ms.
	Timeout TimeoutOptions

	// Breaker configures the breaker of each node. Here the default of MaxPause is 400 ms, so that a
	// recovered store is noticed within 1 s.
	Breaker BreakerOptions

	// OnFailure applies to limits whose Settings have no OnFailure. Default: FailLocal.
	OnFailure FailureMode

	// Limits returns the Settings of a limit. Limits is called for every charge, so it must be fast.
	// Default: all limits have the zero Settings.
	Limits func(*penstock.Plan) Settings

	// Instances is the smallest number of instances that FailLocal assumes. Default: 1 with a Server;
	// without one it is required.
	Instances int

	// DenyCacheTTL is the longest time for which a denial is cached. A refund by another instance is
	// noticed within this time. Below 0: denials are not cached. Default: 1 s.
	DenyCacheTTL time.Duration

	// Lease configures the leases of limits whose Settings have one.
	Lease LeaseOptions

	// Observe is called with every decision, and must be fast. Default: none.
	Observe func(Event)

	// OnStoreError is called for every batch that the store did not decide, before Fallback decides
	// the batch. The Event has the error. The draws and refunds of a Lease are such batches too.
	// OnStoreError must be fast. Default: none.
	OnStoreError func(Event)

	// OnLateReturns is called when holds of Concurrency limits were returned late, because the store
	// had not got their Refund, or had granted them too late. It is called about once after each
	// outage, with their number, and must be fast. Default: none.
	OnLateReturns func(holds int)
}

// A Guarded is a store with all guards around it. Standard makes one.
type Guarded struct {
	penstock.Store
	listDecider
	minInstances int                           // Options.Instances
	limits       func(*penstock.Plan) Settings // Options.Limits
	counter      *instanceCounter              // nil without a Server
	deny         *denyCache                    // nil if denials are not cached
	lease        *lease.Store                  // nil without Options.Limits
	fallback     *fallback
	holds        *holds
	breaker      *breaker
	stopWatching func() // ends the goroutines that probe for the breaker
}

// A listDecider lets other packages of this module have lists of batches decided. The name is
// unexported, so that the documentation of Guarded does not show it.
type listDecider = batches.ListDecider

// Standard puts the guards around a store. From the outside in, they are Observe, Deny, Lease,
// Fallback, OnStoreError, Split, Breaker and Timeout. The error wraps penstock.ErrInvalid if
// neither Server nor Instances is set.
//
// Standard corrects holds of Concurrency limits later, when the store answers, in three cases:
//
//   - The store did not get the Refund of a hold. Then Standard returns the hold.
//   - The store granted a hold whose caller had stopped waiting. Then Standard returns the hold.
//   - Fallback granted or renewed a hold. Then Standard takes it in the store, even beyond the
//     limit.
//
// It does so for up to 65,536 holds that this process has taken, and at most 6,400 times a second.
// If the same holder is charged by another process meanwhile, it may lose its hold until it is
// renewed, unless the charges have a Serial.
//
// The order matters:
//
//   - A cached denial never calls the store, whether the store answers or not.
//   - A decision of Fallback is never cached.
//   - The counters of a split limit use the breakers of the nodes that keep them.
//   - An open breaker rejects a batch immediately, and takes no place of TimeoutOptions.InFlight.
func Standard(store penstock.Store, o Options) (*Guarded, error) {
	g := &Guarded{minInstances: o.Instances, limits: o.Limits}
	switch {
	case o.Server != nil:
		g.counter = newInstanceCounter(instanceCounterOptions{Heartbeat: o.Server.Heartbeat, MinInstances: o.Instances})
		if o.Breaker.Node == nil {
			o.Breaker.Node = o.Server.Node
		}
	case o.Instances <= 0:
		return nil, fmt.Errorf("%w: guard: Options has no Server: set it to the redisstore.Store below all wrappers, or set Instances to how many processes share the store", penstock.ErrInvalid)
	}
	if o.Breaker.MaxPause == 0 {
		// At worst a store recovers right after a probe was sent. Then that probe lasts up to 250 ms,
		// the pause 480 ms with its jitter, and the probes that close the breaker 200 ms.
		o.Breaker.MaxPause = 400 * time.Millisecond
	}
	deadlines := &deadline.Set{After: o.Timeout.after()}
	g.holds = newHolds(o.OnLateReturns)
	g.Store = penstock.Wrap(store,
		Observe(o.Observe),
		g.withDenyCache(denyOptions{MaxAge: o.DenyCacheTTL, Limits: o.Limits, Grants: true}, deadlines),
		g.withLease(o.Lease.engine(o.Limits, g.Instances), deadlines),
		g.withFallback(FallbackOptions{OnFailure: o.OnFailure, Limits: o.Limits, Instances: g.Instances}),
		onStoreError(o.OnStoreError),
		g.holds.around(deadlines),
		Split(o.Limits),
		g.withBreaker(o.Breaker),
		o.Timeout.timeout(deadlines),
	)
	g.listDecider = batches.NewListDecider(g, batches.Of(g.Store))
	return g, nil
}

// withDenyCache adds a denyCache if denials may be cached. Each decision gets its deadline here.
func (g *Guarded) withDenyCache(o denyOptions, deadlines *deadline.Set) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.MaxAge < 0 {
			return deadlines.Within(next)
		}
		g.deny = newDenyCache(next, o)
		if deadlines.After > 0 {
			g.deny.deadlines = deadlines
		}
		return g.deny
	}
}

// withLease adds leases if limits may have Settings.
func (g *Guarded) withLease(o lease.Options, deadlines *deadline.Set) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.Block == nil {
			return next
		}
		g.lease = lease.New(deadlines.Within(next), o) // each draw has its own deadline
		return g.lease
	}
}

func (g *Guarded) withFallback(o FallbackOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		g.fallback = newFallback(next, o, g.holds)
		return batches.Func(g.fallback.decide)
	}
}

func (g *Guarded) withBreaker(o BreakerOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		g.breaker = newBreaker(next, o)
		g.stopWatching = g.breaker.startWatching()
		return batches.Func(g.breaker.decide)
	}
}

// DecideWithoutStore decides charges as Fallback does while the store gives no answer. It does not
// call the store. With Peeks, it tells how requests are decided whose key has data that the store
// cannot read.
func (g *Guarded) DecideWithoutStore(charges []penstock.Charge) (penstock.Decision, error) {
	return g.fallback.answer(charges, penstock.ErrUnavailable)
}

// Instances returns the number of instances that share the store, as last counted or configured.
func (g *Guarded) Instances() int {
	if g.counter == nil {
		return max(g.minInstances, 1)
	}
	return g.counter.Instances()
}

// Stats are counters and states of the guards.
type Stats struct {
	DenyCacheEntries int64 // cached denials, including those that have ended
	Lease            LeaseStats

	// Holds of Concurrency limits that could not be returned when they ended.
	HoldsUnreturned   int64 // are still to be returned now, or a late charge may still take them
	HoldsReturnedLate int64 // were in the store, and were returned later, since the start

	// Breakers has the state of each node's breaker, for the nodes that were called in about the last
	// minute. The node "" is there from the start, and is removed like the others.
	Breakers map[string]State
}

// Settings returns how the guards treat a limit: the result of Options.Limits.
func (g *Guarded) Settings(plan *penstock.Plan) Settings {
	if g.limits == nil {
		return Settings{}
	}
	return g.limits(plan)
}

// SettingsOf returns the method Settings of a store, or nil if the store has none. A store with
// this method also decides while its server gives no answer, as a Guarded does. A decorator around
// such a store needs the method too. If it has none, package admission puts a second Fallback
// around it, which takes memory and time, and does not count instances. If a limit fails open or
// closed, but the guards inside the decorator decide locally, the second Fallback decides instead.
func SettingsOf(store penstock.Store) func(*penstock.Plan) Settings {
	if s, ok := store.(interface{ Settings(*penstock.Plan) Settings }); ok {
		return s.Settings
	}
	return nil
}

// Stats returns the current Stats. The call visits every leased key, so do not call it for every
// request.
func (g *Guarded) Stats() Stats {
	s := Stats{HoldsUnreturned: g.holds.unreturned.Load(), HoldsReturnedLate: g.holds.returnedLate.Load(), Breakers: g.breaker.states()}
	if g.deny != nil {
		s.DenyCacheEntries = g.deny.table.entries.Load()
	}
	if g.lease != nil {
		l := g.lease.Stats()
		s.Lease = LeaseStats{Drawn: l.Drawn, Spent: l.Spent, Returned: l.Returned, Expired: l.Expired, Lost: l.Lost, Live: l.Live}
	}
	return s
}

// Close returns leased units and holds to the store and stops the background work. Close waits for
// at most two seconds, and does not close the store.
func (g *Guarded) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if g.lease != nil {
		_ = g.lease.Close(ctx) // units that cannot be returned expire
	}
	g.holds.close(ctx)
	if g.counter != nil {
		g.counter.Close()
	}
	g.stopWatching()
}
