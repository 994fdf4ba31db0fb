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

// AdmitMany decides requests that do not depend on each other. For each request it does what Admit
// does, but it sends the charges of all requests to the store as one list. Only requests with
// Direct can be listed, and only if they have no shadows, no ID and no Patience, and are not a
// Peek. The other requests are decided one by one, after the list.
func (c *Controller) AdmitMany(ctx context.Context, list []*Admittance) {
	memory := make([]many.Call, len(list))      // one allocation for all calls
	calls := make([]*many.Call, 0, len(list))   // what is sent to the store
	listed := make([]*Admittance, 0, len(list)) // the request of each call
	var alone []*Admittance
	for i, item := range list {
		if !item.Request.canBeListed() {
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
	storeCtx := ctx
	if len(listed) == 1 {
		// A list of one is decided by Decide, which records the store's error in this context.
		storeCtx = &listed[0].Admission.call
	}
	sent := time.Now() // for the latency, which is always real time
	many.Decide(storeCtx, c.store, calls)
	latency := time.Since(sent)
	for i, item := range listed {
		a, call := item.Admission, calls[i]
		if call.Cause != nil {
			a.call.storeErr = call.Cause
		}
		outcome, err := a.applyDecision(call.Decision, latency, call.Err)
		item.Outcome, item.Err = a.end(outcome), err
	}
	for _, item := range alone {
		item.Admission, item.Outcome, item.Err = c.Admit(ctx, item.Request)
	}
}

// canBeListed reports whether AdmitMany may send the request to the store in a list with others.
func (r *Request) canBeListed() bool {
	return r.Direct != nil && len(r.Direct.Shadows) == 0 && r.ID == "" && !r.Peek && r.Patience <= 0
}
