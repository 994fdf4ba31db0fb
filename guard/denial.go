package guard

import (
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A denial is a batch that the store has denied. After it is stored, only refreshed changes.
type denial struct {
	key        denialKey
	version    uint64
	validUntil int64 // when the first of its charges may be granted, or the denial is too old; in ns of denyCache.now
	answeredAt int64 // when the store's answer arrived; in ns of denyCache.now
	charges    []deniedCharge
	single     [1]deniedCharge               // saves an allocation for a single charge
	refreshed  atomic.Pointer[chan struct{}] // closed when the request that refreshes it is answered
}

type deniedCharge struct {
	plan     *penstock.Plan
	cost     int64 // Charge.MinCost
	patience time.Duration
	status   penstock.Status
	demand   demand // of the limit, when the denial was stored

	isRefilling     bool // Remaining may grow, and follows from ResetAfter
	answersAllCosts bool // the status of any cost and patience follows from ResetAfter, as for a TokenBucket
}

// covers reports whether the denial answers the charges: they would be denied too, and their
// statuses are known.
func (e *denial) covers(q *denyQuery, charges []penstock.Charge, demands *demands) bool {
	if e.version != q.version || len(e.charges) != len(charges) {
		return false
	}
	for i := range e.charges {
		p, c := &e.charges[i], &charges[i]
		if !p.plan.Equal(c.Plan) {
			return false
		}
		cost, patience := c.MinCost(), patienceOf(c)
		switch {
		case p.status.RetryAfter == 0:
			if cost > p.cost || patience < p.patience {
				return false
			}
		case demands.of(c.Plan).exceeds(p.demand):
			return false // other requests may be granted: smaller or more patient ones than the denial reckoned with
		case !p.answersAllCosts && (cost != p.cost || patience != p.patience):
			return false
		case p.answersAllCosts && cost <= p.status.Remaining:
			return false
		}
	}
	return true
}

func (e *denial) isNever() bool {
	return slices.ContainsFunc(e.charges, func(p deniedCharge) bool { return p.status.RetryAfter == penstock.Never })
}

// answer writes the decision on charges that the denial covers to *d, counted down to now, which is
// in ns of denyCache.now. It returns false if they would be granted by now.
func (e *denial) answer(now int64, charges []penstock.Charge, d *penstock.Decision) (ok bool) {
	elapsed := time.Duration(now - e.answeredAt).Truncate(time.Microsecond)
	if len(e.charges) == 1 {
		status, ok := e.charges[0].statusAfter(elapsed, &charges[0])
		if !ok {
			return false
		}
		*d = penstock.Single(status)
	} else {
		statuses := make([]penstock.Status, len(e.charges))
		for i := range e.charges {
			if statuses[i], ok = e.charges[i].statusAfter(elapsed, &charges[i]); !ok {
				return false
			}
		}
		*d = penstock.NewDecision(statuses)
	}
	d.Source = penstock.FromDenyCache
	return true
}

// statusAfter returns the status that a charge gets when this time has passed since the store's
// answer. ok is false if the charge would be granted by then.
func (p *deniedCharge) statusAfter(elapsed time.Duration, c *penstock.Charge) (s penstock.Status, ok bool) {
	s = p.status
	s.ResetAfter = max(s.ResetAfter-elapsed, 0)
	if s.RetryAfter == 0 {
		return s, true
	}
	if p.isRefilling {
		s.Remaining = max(s.Remaining, p.plan.Capacity()-usedUntilReset(p.plan, s.ResetAfter))
	}
	cost, patience := c.MinCost(), patienceOf(c)
	switch isSame := cost == p.cost && patience == p.patience; {
	case s.RetryAfter != penstock.Never && (isSame || !p.answersAllCosts):
		s.RetryAfter = max(s.RetryAfter-elapsed, time.Microsecond)
	case cost > p.plan.Capacity():
		s.RetryAfter = penstock.Never
	case p.answersAllCosts:
		s.RetryAfter = retryAfterAnswer(p.plan, cost, s) - patience
		return s, s.RetryAfter > 0
	}
	return s, true
}

// usedUntilReset returns how many units of a limit are in use if it refills steadily, and all are
// back after reset. The number is rounded up.
func usedUntilReset(plan *penstock.Plan, reset time.Duration) int64 {
	limit := plan.Limit()
	high, low := bits.Mul64(uint64(reset), uint64(limit.Count))
	used, rest := bits.Div64(high, low, uint64(limit.Period))
	if rest > 0 {
		used++
	}
	return int64(used)
}

// retryAfterAnswer returns how long after an answer with this status a Spend without patience is
// granted, if no other request comes. It returns 0 if that is not known, or if the Spend is granted
// immediately.
func retryAfterAnswer(plan *penstock.Plan, cost int64, s penstock.Status) time.Duration {
	micros := plan.Algorithm().RetryAfterGrant(plan.Params(0), cost, s.Remaining, s.ResetAfter.Microseconds())
	return time.Duration(micros) * time.Microsecond
}

// quietFor returns for how long no request is granted that needs at least what the demand says. As
// long as none is granted, nobody changes the counter, so the status is exact.
func (p *deniedCharge) quietFor() time.Duration {
	least, patience := p.demand.minCost, p.demand.maxPatience
	switch retryAfter := p.status.RetryAfter; {
	case retryAfter != penstock.Never && p.cost <= least:
		return retryAfter - max(patience-p.patience, 0)
	case least > p.plan.Capacity():
		return maxDuration
	case !p.answersAllCosts || least <= p.status.Remaining:
		return 0
	}
	return retryAfterAnswer(p.plan, least, p.status) - patience
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

// patienceOf returns the charge's patience in whole µs, or 0 if its limit ignores it.
func patienceOf(c *penstock.Charge) time.Duration {
	if c.Patience == 0 || !c.Plan.Algorithm().CanBook() {
		return 0
	}
	return c.Patience.Truncate(time.Microsecond)
}
