package admission

import (
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// A Grant is a charge that was made, or a slot that may have been taken.
type Grant struct {
	Charge penstock.Charge
	Limit  *policy.Limit

	// RefundableUntil is when the charge stops counting. A later refund would cancel newer charges.
	// RefundableUntil is zero for slots, which can always be returned.
	RefundableUntil time.Time
}

// TakeGrants returns the charges of enforced limits that the store has made. From then on the
// caller corrects these charges: Done does not. If the store gave no answer and this process has
// counted alone, only slots are returned. TakeGrants must be called before Done.
func (a *Admission) TakeGrants() (taken []Grant) {
	if !a.isLimited || a.isRejected || a.request.Peek {
		return nil
	}
	a.renewal.stop()
	v := &a.evaluation
	for i := range v.Charges {
		c, l := v.Charges[i], v.Limits[i]
		c.Patience = 0
		switch {
		case isSlot(&c):
			taken = append(taken, Grant{Charge: c, Limit: l})
		case !isWithoutStore(a.decision.Source):
			taken = append(taken, Grant{c, l, a.decidedAt.Add(countsFor(&c, a.decision.Status(i)))})
		}
	}
	a.grants = slices.DeleteFunc(a.grants, func(g grant) bool { return slices.Contains(v.Limits, g.limit) })
	return taken
}
