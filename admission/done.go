package admission

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock"
)

// Settle sets the request's true cost. Done adjusts the charges of some limits to it. In a policy,
// these are the limits with cost.actual. Without a policy, these are all limits that can refund. If
// Settle is called again, the last cost counts. Settle fails if the request has no such limit.
func (a *Admission) Settle(cost int64) error {
	if !a.isAdjustable && !a.isRepeat {
		return fmt.Errorf("%w: admission: no limit of the request can adjust to a true cost; write cost: {actual: HEADER} into one", penstock.ErrInvalid)
	}
	return a.setCost(cost)
}

// Done ends the Admission. It returns slots, refunds the charges of on_status limits that do not
// list the status, and adjusts charges to the true cost. Call Done before the response is sent:
// then the client's next request comes after the refund.
//
// For a rejected request, Done waits for the store only if refunds for 1,000 other requests are
// already in flight.
func (a *Admission) Done(r Result) {
	a.finish(&r, a.isRejected)
	a.shadows = nil
	if a.scratch != nil {
		a.rejection = Rejection{}
		a.controller.scratches.Put(a.scratch)
		a.scratch = nil
	}
}

// TakeGrants returns the charges of enforced limits that the store has made. From then on, the
// caller corrects these charges, by Corrections or Refunds, and renews the slots, by charging them
// again. Done and the Controller no longer do this. If the store gave no answer and this process
// has counted alone, TakeGrants returns only slots. The request must have IsRefundable. TakeGrants
// must be called before Done.
func (a *Admission) TakeGrants() (taken []Grant) {
	if !a.isLimited || a.isRejected || a.options.Peek {
		return nil
	}
	v := &a.evaluation
	a.renewal.stop()
	isTaken := func(g Grant) bool { return slices.Contains(v.Limits, g.Limit) }
	a.grants = slices.DeleteFunc(a.grants, isTaken)
	var receipts []int64 // of the first request, if this one is a repeat
	if a.isRepeat {
		receipts = a.firstReceipts(a.ctx, a.controller.store, v.Charges)
	}
	for i := range v.Charges {
		c, l := v.Charges[i], v.Limits[i]
		c.Patience, c.Receipt = 0, a.decision.Status(i).Receipt
		if receipts != nil {
			c.Receipt = receipts[i]
		}
		if isSlot(&c) || !isWithoutStore(a.decision.Source) {
			taken = append(taken, Grant{Charge: c, Limit: l, source: a.decision.Source})
		}
	}
	return taken
}
