package guard

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/lease"
)

// Types that tests outside the package use.
type (
	DenyCache              = denyCache
	DenySetup              = denyOptions
	InstanceCounter        = instanceCounter
	InstanceCounterOptions = instanceCounterOptions
	Lease                  = lease.Store
)

var (
	NewDenyCache       = newDenyCache
	NewInstanceCounter = newInstanceCounter
)

// A LeaseSetup is what Standard makes leases of.
type LeaseSetup struct {
	Limits    func(*penstock.Plan) Settings
	Life      time.Duration
	Instances func() int
	MaxKeys   int
}

func (s LeaseSetup) engine() lease.Options {
	return LeaseOptions{Life: s.Life, MaxKeys: s.MaxKeys}.engine(s.Limits, s.Instances)
}

// Excess returns the number of units beyond the limit that all instances together may admit.
func (s LeaseSetup) Excess(plan *penstock.Plan) int64 { return s.engine().Excess(plan) }

func NewLease(store penstock.Store, s LeaseSetup) *Lease { return lease.New(store, s.engine()) }

// Draws returns how many draws the leases have sent.
func (g *Guarded) Draws() int64 { return g.lease.Stats().Draws }

// A denyStats has counts of a denyCache.
type denyStats struct {
	Entries    int64 // denials in the cache now, including those that have ended
	Remembered int64 // denials that were stored since the start
	Evicted    int64 // denials that were replaced by others before they ended
	Waited     int64 // requests that waited for the answer to another
}

// Stats returns the counts until now.
func (d *denyCache) Stats() denyStats {
	t := d.table
	return denyStats{Entries: t.entries.Load(), Remembered: t.remembered.Load(), Evicted: t.evicted.Load(), Waited: d.waited.Load()}
}
