package admission

import (
	"context"
	"time"

	"github.com/penstock/penstock/internal/many"
)

// An Admittance is a request of a list, and what Admit returns for it.
type Admittance struct {
	Request   Request
	Admission *Admission
	Outcome   Outcome
	Err       error
}

// AdmitMany decides requests that do not depend on each other, as Admit does, but the store gets
// them as one list. Requests that have shadows, an ID or patience, or that only peek, are decided
// one after the other afterwards.
func (c *Controller) AdmitMany(ctx context.Context, list []*Admittance) {
	calls, listed := make([]*many.Call, 0, len(list)), make([]*Admittance, 0, len(list))
	var alone []*Admittance
	memory := make([]many.Call, len(list))
	for i, one := range list {
		if one.Request.Direct == nil || len(one.Request.Direct.Shadows) > 0 || one.Request.ID != "" || one.Request.Peek || one.Request.Patience > 0 {
			alone = append(alone, one)
			continue
		}
		a := c.begin(ctx, one.Request)
		one.Admission = a
		outcome, err, isOver := a.evaluate()
		switch {
		case isOver:
			one.Outcome, one.Err = a.end(outcome), err
		case len(a.evaluation.Charges) == 0:
			one.Outcome = a.end(a.observe(Unlimited))
		default:
			memory[i].Charges = a.evaluation.Charges
			calls, listed = append(calls, &memory[i]), append(listed, one)
		}
	}
	start, asked := c.now(), time.Now()
	if len(calls) > 0 {
		many.Decide(ctx, c.store, calls)
	}
	latency := time.Since(asked)
	for i, one := range listed {
		a, call := one.Admission, calls[i]
		a.call.err = call.Cause
		outcome, err := a.decided(call.Decision, start, latency, call.Err)
		one.Outcome, one.Err = a.end(outcome), err
	}
	for _, one := range alone {
		one.Admission, one.Outcome, one.Err = c.Admit(ctx, one.Request)
	}
}
