package admission

import (
	"context"
	"time"

	"github.com/penstock/penstock/internal/batches"
)

// A BatchItem is one request of AdmitMany, and its result: what AdmitCharges would return.
type BatchItem struct {
	Charges   ExplicitCharges
	Admission *Admission
	Outcome   Outcome
	Err       error
}

// AdmitMany decides requests that do not depend on each other. For each it does what AdmitCharges
// does, but it sends the charges of all to the store as one list. Requests with Shadows, with an
// IdempotencyKey or with Peek are decided one by one, after the list.
func (c *Controller) AdmitMany(ctx context.Context, list []*BatchItem) {
	sent := make([]*batches.Batch, 0, len(list)) // what the store decides
	listed := make([]*BatchItem, 0, len(list))   // the item of each of these batches
	var alone []*BatchItem
	for _, item := range list {
		if r := &item.Charges; len(r.Shadows) > 0 || r.IdempotencyKey != "" || r.Peek {
			alone = append(alone, item)
			continue
		}
		a := c.begin(ctx, item.Charges.RequestOptions)
		item.Admission = a
		err := a.evaluateCharges(&item.Charges)
		outcome, err, isDecided := a.decideWithoutCharging(err)
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
		item.Admission, item.Outcome, item.Err = c.AdmitCharges(ctx, item.Charges)
	}
}
