package guard

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A denial is a batch that the store has denied. After it is stored, only refreshed changes.
type denial struct {
	key        denialKey
	version    uint64
	validUntil int64 // when the first of its charges may be granted, or the denial is too old; in ns of DenyCache.now
	answeredAt int64 // when the store's answer arrived; in ns of DenyCache.now
	charges    []deniedCharge
	single     [1]deniedCharge               // saves an allocation for a single charge
	refreshed  atomic.Pointer[chan struct{}] // closed when the request that refreshes it is answered
}

// A deniedCharge is one charge of a denial, and its status.
type deniedCharge struct {
	plan     *penstock.Plan
	cost     int64 // the smallest cost that is denied; for a charge that was not denied, its cost
	maxCost  int64 // the largest cost that this status answers
	patience time.Duration
	status   penstock.Status
}

// covers tells whether the denial answers the charges: they would be denied too, with the same
// statuses.
func (e *denial) covers(q *denyQuery, charges []penstock.Charge) bool {
	if e.version != q.version || len(e.charges) != len(charges) {
		return false
	}
	for i := range e.charges {
		p, c := &e.charges[i], &charges[i]
		if !isSamePlan(p.plan, charges[i].Plan) {
			return false
		}
		cost, patience := c.MinCost(), patienceOf(c)
		if p.status.RetryAfter > 0 {
			if cost < p.cost || cost > p.maxCost || patience > p.patience {
				return false
			}
		} else if cost > p.cost || patience < p.patience {
			return false
		}
	}
	return true
}

// isNever tells whether a charge can never be granted.
func (e *denial) isNever() bool {
	for i := range e.charges {
		if e.charges[i].status.RetryAfter == penstock.Never {
			return true
		}
	}
	return false
}

// answer returns the decision, counted down to now, which is in ns of DenyCache.now.
func (e *denial) answer(now int64) penstock.Decision {
	elapsed := time.Duration(now - e.answeredAt).Truncate(time.Microsecond)
	var decision penstock.Decision
	if len(e.charges) == 1 {
		decision = penstock.Single(e.charges[0].after(elapsed))
	} else {
		statuses := make([]penstock.Status, len(e.charges))
		for i := range e.charges {
			statuses[i] = e.charges[i].after(elapsed)
		}
		decision = penstock.NewDecision(statuses)
	}
	decision.Source = penstock.FromDenyCache
	return decision
}

// after returns the status, counted down by the time since the store's answer.
func (p *deniedCharge) after(elapsed time.Duration) penstock.Status {
	s := p.status
	if s.RetryAfter > 0 && s.RetryAfter != penstock.Never {
		s.RetryAfter = max(s.RetryAfter-elapsed, time.Microsecond)
	}
	s.ResetAfter = max(s.ResetAfter-elapsed, 0)
	return s
}

// claim is called after the denial has ended. The first caller must send its request to the store,
// and then close the channel. The others wait until the channel is closed.
func (e *denial) claim() (answered chan struct{}, isFirst bool) {
	if done := e.refreshed.Load(); done != nil {
		return *done, false
	}
	mine := make(chan struct{})
	if e.refreshed.CompareAndSwap(nil, &mine) {
		return mine, true
	}
	return *e.refreshed.Load(), false
}

// patienceOf returns the charge's patience, or 0 if its limit ignores it.
func patienceOf(c *penstock.Charge) time.Duration {
	if !c.Plan.Algorithm().CanBook() {
		return 0
	}
	return c.Patience
}

// maxCostFor returns the largest cost that a denial answers. A larger cost never fits the limit,
// and needs an answer of Never from the store.
func maxCostFor(plan *penstock.Plan, denied penstock.Status) int64 {
	if denied.RetryAfter == penstock.Never {
		return penstock.MaxCost
	}
	return plan.Capacity()
}

// isSamePlan tells whether two plans of one counter have the same numbers.
func isSamePlan(a, b *penstock.Plan) bool {
	if a == b {
		return true
	}
	if a.Algorithm().IsCalendar() || b.Algorithm().IsCalendar() {
		x, y := a.Limit(), b.Limit()
		return x.Algorithm == y.Algorithm && x.Count == y.Count && x.Period == y.Period && x.Burst == y.Burst
	}
	return *a.Params(0) == *b.Params(0)
}
