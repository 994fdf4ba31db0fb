package admission

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
)

// A renewal renews the slots that a request holds, three times within the shortest TTL of these
// slots. A request without slots has a nil renewal.
type renewal struct {
	store    penstock.Store
	holds    []penstock.Charge
	interval time.Duration // the time between two renewals
	timer    *time.Timer

	mu      sync.Mutex // held while slots are renewed, so that stop waits for that
	isEnded bool
	isLost  bool // another request has got a slot of this one
}

func isSlot(c *penstock.Charge) bool { return c.Plan.Algorithm().NeedsHolder() }

// renewHolds renews the request's slots in the background from now on.
func (a *Admission) renewHolds() {
	a.renewal.stop()
	var holds []penstock.Charge
	var ttl time.Duration // the shortest of them
	for i := range a.grants {
		c := &a.grants[i].Charge
		if !isSlot(c) {
			continue
		}
		holds = append(holds, *c)
		if period := c.Plan.Limit().Period; ttl == 0 || period < ttl {
			ttl = period
		}
	}
	if holds == nil {
		return
	}
	n := &renewal{store: a.controller.store, holds: holds, interval: ttl / 3}
	a.renewal = n
	n.mu.Lock()
	defer n.mu.Unlock()
	n.timer = time.AfterFunc(n.interval, n.renew)
}

// renew renews all slots once, and sets the timer for the next time.
func (n *renewal) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isEnded {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), correctTimeout)
	defer cancel()
	for i := range n.holds {
		// If a slot cannot be renewed, another request may get the slot. That does not cancel the present
		// request, which is already being served.
		if d, err := panicked.Decide(ctx, n.store, n.holds[i:i+1]); err == nil && !d.Allowed {
			n.isLost = true
		}
	}
	n.timer.Reset(n.interval)
}

func (n *renewal) hasLostSlot() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isLost
}

// stop ends the renewal. After it returns, no slot is renewed.
func (n *renewal) stop() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isEnded = true
	n.timer.Stop()
}
