package admission

import (
	"context"
	"sync"
	"time"
)

// wait waits for the request's turn, and renews its slots. If too many requests wait already, a
// slot is lost, or the context ends, wait refunds all that was charged for the request.
func (a *Admission) wait(delay, latency time.Duration) (Outcome, error) {
	c := a.controller
	if c.waiting.Add(1) > int64(a.options.Rules.MaxWaiting()) {
		c.waiting.Add(-1)
		return a.denyWaiting(delay, latency, a.hasQueue), nil
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
			return a.denyWaiting(slotRetryAfter, latency, a.hasSlot), nil
		}
		return a.observeDecision(Allowed, latency), nil
	case <-a.ctx.Done():
		a.observeDecision(Abandoned, latency)
		a.returnWaiting()
		return Abandoned, context.Cause(a.ctx)
	}
}

// denyWaiting denies a request that was granted a later turn, but cannot wait for it, or has lost a
// slot. isDenying reports whether the limit of charge i denied it.
func (a *Admission) denyWaiting(retryAfter, latency time.Duration, isDenying func(i int) bool) Outcome {
	a.observeDecision(Denied, latency)
	a.returnWaiting()
	a.rejection.RetryAfter = retryAfter
	for i, l := range a.evaluation.Limits {
		if isDenying(i) {
			a.rejectBy(l, retryAfter)
		}
	}
	return Denied
}

// hasQueue reports whether charge i has a later turn.
func (a *Admission) hasQueue(i int) bool { return a.decision.Status(i).Wait > 0 }

// hasSlot reports whether charge i takes a slot.
func (a *Admission) hasSlot(i int) bool { return isSlot(&a.evaluation.Charges[i]) }

// returnWaiting returns all that was charged for a request that should have waited.
func (a *Admission) returnWaiting() {
	a.renewal.stop()
	a.grants = nil
	a.returnAll()
}
