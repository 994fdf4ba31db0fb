package admission

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// wait waits for the request's turn, and renews its slots. If too many requests wait already, a
// slot is lost, or the context ends, wait refunds all that was charged for the request.
func (a *Admission) wait(delay, latency time.Duration) (Outcome, error) {
	c := a.controller
	if c.waiting.Add(1) > int64(a.options.Rules.Spec().MaxWaiting) {
		c.waiting.Add(-1)
		return a.denyWaiting(delay, latency, isQueued), nil
	}
	leaveQueue := sync.OnceFunc(func() { c.waiting.Add(-1) })
	defer leaveQueue()
	turn := make(chan struct{}) // closed when the turn has come
	timer := time.AfterFunc(delay, func() {
		leaveQueue() // even if BeforeWait still runs: slow clients must not use up max_waiting
		close(turn)
	})
	defer timer.Stop()
	a.renewHolds()
	if a.beforeWait != nil {
		a.beforeWait(a.attributes)
	}
	select {
	case <-turn:
		if a.renewal.hasLostSlot() {
			return a.denyWaiting(slotRetryAfter, latency, func(c *penstock.Charge, _ penstock.Status) bool { return isSlot(c) }), nil
		}
		return a.observeDecision(Allowed, latency), nil
	case <-a.ctx.Done():
		a.observeDecision(Abandoned, latency)
		a.returnWaiting()
		return Abandoned, context.Cause(a.ctx)
	}
}

// denyWaiting denies a request that was granted a later turn, but cannot wait for it, or has lost a
// slot. isDenying reports whether the limit of a charge denied it.
func (a *Admission) denyWaiting(retryAfter, latency time.Duration, isDenying func(*penstock.Charge, penstock.Status) bool) Outcome {
	a.observeDecision(Denied, latency)
	a.returnWaiting()
	a.rejection.RetryAfter = retryAfter
	for i, l := range a.evaluation.Limits {
		if isDenying(&a.evaluation.Charges[i], a.decision.Status(i)) {
			a.rejection.add(l, retryAfter)
		}
	}
	return Denied
}

func isQueued(_ *penstock.Charge, s penstock.Status) bool { return s.Wait > 0 }

// returnWaiting returns all that was charged for a request that should have waited: the slots of
// enforced limits, and the units.
func (a *Admission) returnWaiting() {
	a.renewal.stop()
	a.grants = nil
	var all corrections
	for i, c := range a.evaluation.Charges {
		isCounted := !isNotCounted(a.evaluation.Limits[i], a.decision.Source)
		c.Receipt = a.decision.Status(i).Receipt
		refund, isPossible := refundOf(c)
		if isSlot(&c) || isCounted && isPossible {
			all.add(refund, a.decision.Source)
		}
	}
	a.correct(all)
}
