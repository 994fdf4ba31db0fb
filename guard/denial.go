package guard

import (
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A denial is a batch that the store has denied. It never changes.
type denial struct {
	key      denialKey
	version  uint64
	until    int64 // when the first of its charges may be granted, or it is too old
	answered int64
	parts    []deniedCharge
	single   [1]deniedCharge // where the part of a single charge lies
	asked    atomic.Pointer[chan struct{}]
}

// A deniedCharge is one charge of a denial, and its answer.
type deniedCharge struct {
	plan     *penstock.Plan
	cost     int64 // the least that is denied; of a part that was not, what was asked
	most     int64 // the largest cost that this answers
	patience time.Duration
	status   penstock.Status
}

// covers tells whether the question is denied for as long as e is, and as e says.
func (e *denial) covers(q *question, charges []penstock.Charge) bool {
	if e.version != q.version || len(e.parts) != len(charges) {
		return false
	}
	for i := range e.parts {
		p, c := &e.parts[i], &charges[i]
		if !samePlan(p.plan, q.plans[i]) {
			return false
		}
		cost, patience := need(c), patience(c, p.plan)
		if p.status.RetryAfter > 0 {
			if cost < p.cost || cost > p.most || patience > p.patience {
				return false
			}
		} else if cost > p.cost || patience < p.patience {
			return false
		}
	}
	return true
}

// never tells whether no time helps.
func (e *denial) never() bool {
	for i := range e.parts {
		if e.parts[i].status.RetryAfter == penstock.Never {
			return true
		}
	}
	return false
}

// answer is the denial, counted down to now.
func (e *denial) answer(now int64) penstock.Decision {
	gone := time.Duration(now - e.answered).Truncate(time.Microsecond)
	var decision penstock.Decision
	if len(e.parts) == 1 {
		decision = penstock.Single(e.parts[0].after(gone))
	} else {
		statuses := make([]penstock.Status, len(e.parts))
		for i := range e.parts {
			statuses[i] = e.parts[i].after(gone)
		}
		decision = penstock.NewDecision(statuses)
	}
	decision.Source = penstock.FromDenyCache
	return decision
}

// after is the part's status, so long after the store gave it.
func (p *deniedCharge) after(gone time.Duration) penstock.Status {
	s := p.status
	if s.RetryAfter > 0 && s.RetryAfter != penstock.Never {
		s.RetryAfter = max(s.RetryAfter-gone, time.Microsecond)
	}
	s.ResetAfter = max(s.ResetAfter-gone, 0)
	return s
}

// turn tells who is the first to come after e has ended, and what the others wait for.
func (e *denial) turn() (answered chan struct{}, first bool) {
	if asked := e.asked.Load(); asked != nil {
		return *asked, false
	}
	mine := make(chan struct{})
	if e.asked.CompareAndSwap(nil, &mine) {
		return mine, true
	}
	return *e.asked.Load(), false
}

// need is the least cost that makes the charge worth granting.
func need(c *penstock.Charge) int64 {
	if c.Mode == penstock.Draw {
		return min(c.Cost, 1)
	}
	return c.Cost
}

// patience is what the charge's patience means to its limit.
func patience(c *penstock.Charge, plan *penstock.Plan) time.Duration {
	if !plan.Limit.Algorithm.Bookable {
		return 0
	}
	return c.Patience
}

// mostFor is the largest cost that a denial answers: one that the limit never grants is told so by
// the store.
func mostFor(plan *penstock.Plan, denied penstock.Status) int64 {
	if denied.RetryAfter == penstock.Never {
		return penstock.MaxCost
	}
	return plan.Capacity
}

// samePlan tells whether two plans of one counter say the same.
func samePlan(a, b *penstock.Plan) bool {
	if a == b {
		return true
	}
	x, y := &a.Limit, &b.Limit
	if x.Algorithm.At != nil || y.Algorithm.At != nil {
		return x.Algorithm == y.Algorithm && x.Count == y.Count && x.Period == y.Period && x.Burst == y.Burst
	}
	return *a.Params(0) == *b.Params(0)
}
