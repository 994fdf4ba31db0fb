package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// A Server is what guards need of a store besides decisions. A redisstore.Store is one.
type Server interface {
	// Node names the node that decides a batch, or "" if that is not known. It must not wait.
	Node(charges []penstock.Charge) string

	// Heartbeat notes that an instance is there for as long as life, and counts those that are. A life
	// of 0 forgets the instance.
	Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error)
}

// Options of Standard. Set Server or Instances; the zero value of all others is what a careful
// operator would choose.
type Options struct {
	// Server is the redisstore.Store below all wrappers. It gives each node a breaker of its own, and
	// counts the instances of which each has a share under Local. Default: the store is one node, and
	// Instances is how many there are.
	Server Server

	Timeout TimeoutOptions // 250 ms for a decision, whatever it takes: several questions, or one that waits for another
	Breaker BreakerOptions // one for each node; its longest pause is 500 ms here, so that a store is found back within 1 s

	// OnFailure is what happens to limits whose Settings do not say, while the store gives no answer.
	// Default: Local.
	OnFailure Failure

	// Limits are the Settings of each limit. It is called for every charge, so it must be quick.
	// Default: none has any.
	Limits func(*penstock.Limit) Settings

	// Instances is how many instances there are at least, for Local. Default: 1 with a Server, which
	// counts them too; otherwise it must be set.
	Instances int

	// DenyFor is how long a denial is remembered at most. Default: 1 s, within which a refund
	// elsewhere is noticed. Below 0: not at all.
	DenyFor time.Duration

	// Lease says how quota is drawn in advance, for limits whose Settings have a Lease. Its Limits and
	// Instances are those of Standard.
	Lease LeaseOptions

	// Observe is called with every decision. It must be quick. Default: none.
	Observe func(Event)

	// Unanswered is called with every question that the store gave no answer to, and why, before the
	// Fallback answers it: decisions, and what a Lease draws or gives back. It must be quick. Default:
	// none.
	Unanswered func(Event)
}

// A Guarded is a store with all guards around it. Make one with Standard.
type Guarded struct {
	penstock.Store
	floor   int
	fleet   *Fleet     // nil if the store cannot count instances
	deny    *DenyCache // nil if no denial is remembered
	lease   *Lease     // nil if nothing is leased
	breaker *breaker
	unwatch func()
}

// Standard puts the guards around a store in their order, from the caller's side: Observe, Deny,
// Lease, Fallback, Unanswered, Split, Breaker, Timeout. An error wraps penstock.ErrInvalid: neither
// Server nor Instances is set.
//
// The order matters: what is remembered as denied costs the store nothing, whether it answers or
// not; what is answered by the Fallback is never remembered; a split limit's shards have the
// breakers of the nodes that keep them; and an open breaker spends no deadline.
func Standard(store penstock.Store, o Options) (*Guarded, error) {
	g := &Guarded{floor: o.Instances}
	switch {
	case o.Server != nil:
		g.fleet = NewFleet(FleetOptions{Heartbeat: o.Server.Heartbeat, Floor: o.Instances})
		if o.Breaker.Node == nil {
			o.Breaker.Node = o.Server.Node
		}
	case o.Instances <= 0:
		return nil, fmt.Errorf("%w: guard: Options has no Server: set it to the redisstore.Store below all wrappers, or set Instances to how many processes share the store", penstock.ErrInvalid)
	}
	if o.Breaker.MaxPause == 0 {
		o.Breaker.MaxPause = time.Second / 2
	}
	d := &deadlines{after: o.Timeout.after()}
	o.Lease.Limits, o.Lease.Instances = o.Limits, g.Instances
	g.Store = penstock.Wrap(store,
		Observe(o.Observe),
		g.denying(DenyOptions{MaxAge: o.DenyFor, Limits: o.Limits, Grants: true}, d),
		d.within,
		g.leasing(o.Lease, d),
		Fallback(FallbackOptions{OnFailure: o.OnFailure, Limits: o.Limits, Instances: g.Instances}),
		unanswered(o.Unanswered),
		Split(SplitOptions{Limits: o.Limits}),
		g.breaking(o.Breaker),
		o.Timeout.timeout(d),
	)
	return g, nil
}

// denying puts a DenyCache around a store, if denials may be remembered.
func (g *Guarded) denying(o DenyOptions, p *deadlines) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.MaxAge < 0 {
			return next
		}
		g.deny = NewDenyCache(next, o)
		if p.after > 0 {
			g.deny.deadlines = p
		}
		return g.deny
	}
}

// leasing puts a Lease around a store, if there may be limits that are leased.
func (g *Guarded) leasing(o LeaseOptions, p *deadlines) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		if o.Limits == nil {
			return next
		}
		g.lease = NewLease(p.within(next), o) // a draw is a decision of its own
		return g.lease
	}
}

func (g *Guarded) breaking(o BreakerOptions) penstock.Decorator {
	return func(next penstock.Store) penstock.Store {
		g.breaker = newBreaker(next, o)
		g.unwatch = g.breaker.watched()
		return g.breaker
	}
}

// Instances is how many instances share the store, as far as is known.
func (g *Guarded) Instances() int {
	if g.fleet == nil {
		return max(g.floor, 1)
	}
	return g.fleet.Instances()
}

// Stats tell how the guards fare.
type Stats struct {
	Deny     DenyStats
	Lease    LeaseStats
	Breakers map[string]State // by the shard's name, of those that were asked within a minute or so; at first that of ""
}

// Stats tells how the guards fare. It looks at every key that is leased, so it is not for every
// request.
func (g *Guarded) Stats() Stats {
	s := Stats{Breakers: g.breaker.states()}
	if g.deny != nil {
		s.Deny = g.deny.Stats()
	}
	if g.lease != nil {
		s.Lease = g.lease.Stats()
	}
	return s
}

// Close gives back what is leased, within a second, and ends what runs in the background. It does
// not close the store.
func (g *Guarded) Close() {
	if g.lease != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = g.lease.Close(ctx) // what cannot be given back expires
	}
	if g.fleet != nil {
		g.fleet.Close()
	}
	g.unwatch()
}
