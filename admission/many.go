package admission

import (
	"context"
	"time"

	"github.com/penstock/penstock/internal/many"
)

// An Admittance is a request, and what Admit returns for it.
type Admittance struct {
	Request   Request
	Admission *Admission
	Outcome   Outcome
	Err       error
}

// AdmitMany decides requests that do not depend on each other. It does the same as Admit, but it
// sends all of them to the store as one list. Requests that have shadows, an ID or patience, or
// that only peek, are decided one after the other afterwards.
func (c *Controller) AdmitMany(ctx context.Context, list []*Admittance) {
	calls, listed := make([]*many.Call, 0, len(list)), make([]*Admittance, 0, len(list))
	var alone []*Admittance
	memory := make([]many.Call, len(list))
	for i, item := range list {
		if item.Request.Direct == nil || len(item.Request.Direct.Shadows) > 0 || item.Request.ID != "" || item.Request.Peek || item.Request.Patience > 0 {
			alone = append(alone, item)
			continue
		}
		a := c.begin(ctx, item.Request)
		item.Admission = a
		outcome, err, isDecided := a.evaluate()
		switch {
		case isDecided:
			item.Outcome, item.Err = a.end(outcome), err
		case len(a.evaluation.Charges) == 0:
			item.Outcome = a.end(a.observe(Unlimited))
		default:
			memory[i].Charges = a.evaluation.Charges
			calls, listed = append(calls, &memory[i]), append(listed, item)
		}
	}
	start, sent := c.now(), time.Now() // start is by the store's clock
	if len(calls) > 0 {
		many.Decide(ctx, c.store, calls)
	}
	latency := time.Since(sent)
	for i, item := range listed {
		a, call := item.Admission, calls[i]
		a.call.err = call.Cause
		outcome, err := a.applyDecision(call.Decision, start, latency, call.Err)
		item.Outcome, item.Err = a.end(outcome), err
	}
	for _, item := range alone {
		item.Admission, item.Outcome, item.Err = c.Admit(ctx, item.Request)
	}
}
