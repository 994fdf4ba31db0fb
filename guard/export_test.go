package guard

import (
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard/internal/lease"
)

// Types that tests outside the package use.
type (
	DenyCache              = denyCache
	InstanceCounter        = instanceCounter
	InstanceCounterOptions = instanceCounterOptions
	Lease                  = lease.Store
)

var (
	NewDenyCache       = newDenyCache
	NewInstanceCounter = newInstanceCounter
)

func NewLease(store penstock.Store, o LeaseOptions) *Lease { return lease.New(store, o.engine()) }

// Draws returns how many draws the leases have sent.
func (g *Guarded) Draws() int64 { return g.lease.Stats().Draws }
