package admission

import (
	"context"
	"time"

	"github.com/penstock/penstock/internal/batches"
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
	sent := make([]*batches.Batch, 0, len(list)) // what the store decides
	listed := make([]*Admittance, 0, len(list))  // the request of each of these batches
	var alone []*Admittance
	for _, item := range list {
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
			a.batch = batches.Batch{Charges: a.evaluation.Charges}
			sent, listed = append(sent, &a.batch), append(listed, item)
		}
	}
	start := time.Now() // for the latency, which is always real time
	if len(sent) > 0 {
		batches.Try(ctx, c.store, sent)
	}
	latency := time.Since(start)
	for _, item := range listed {
		a := item.Admission
		outcome, err := a.applyDecision(latency)
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
