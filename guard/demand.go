package guard

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A demand bounds what the requests of a limit need. While the store can grant no request within
// these bounds, the counter does not change, so a cached denial is exact.
type demand struct {
	minCost     int64         // no request needs less
	maxPatience time.Duration // no request has more
}

// exceeds reports whether d has a smaller minCost or a larger maxPatience than other.
func (d demand) exceeds(other demand) bool {
	return d.minCost < other.minCost || d.maxPatience > other.maxPatience
}

// demands learn the demand of each limit from its requests. Limits whose ID has the same remainder
// share an entry, whose demand covers the requests of all of them. This never makes a denial wrong.
type demands [1024]learntDemand

type learntDemand struct {
	requests    atomic.Int64 // at most enoughRequests
	minCost     atomic.Int64 // 0: there was no request
	maxPatience atomic.Int64
}

// enoughRequests is how many requests of a limit an instance must see before it relies on the
// smallest cost among them. Until then, it takes the smallest cost to be 1, because other instances
// may have seen cheaper requests.
const enoughRequests = 64

func (d *demands) entry(plan *penstock.Plan) *learntDemand {
	return &d[plan.ID()[0]%uint64(len(d))]
}

func (d *demands) of(plan *penstock.Plan) demand {
	entry := d.entry(plan)
	known := demand{minCost: 1, maxPatience: time.Duration(entry.maxPatience.Load())}
	if entry.requests.Load() >= enoughRequests {
		known.minCost = entry.minCost.Load()
	}
	return known
}

// learn notes the charges that take units.
func (d *demands) learn(charges []penstock.Charge) {
	for i := range charges {
		c := &charges[i]
		cost := c.MinCost()
		if c.Mode != penstock.Spend && c.Mode != penstock.Draw || cost == 0 {
			continue
		}
		entry := d.entry(c.Plan)
		for old := entry.minCost.Load(); old == 0 || cost < old; old = entry.minCost.Load() {
			entry.minCost.CompareAndSwap(old, cost)
		}
		patience := int64(patienceOf(c))
		for old := entry.maxPatience.Load(); patience > old; old = entry.maxPatience.Load() {
			entry.maxPatience.CompareAndSwap(old, patience)
		}
		if entry.requests.Load() < enoughRequests {
			entry.requests.Add(1)
		}
	}
}
