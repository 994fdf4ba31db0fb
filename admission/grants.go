package admission

import (
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// A Grant is a charge that was made, or a slot that may have been taken. The Charge has the Receipt
// for its Refund.
type Grant struct {
	Charge penstock.Charge
	Limit  *policy.Limit
}

// TakeGrants returns the charges of enforced limits that the store has made. From then on the
// caller corrects these charges: Done does not. If the store gave no answer and this process has
// counted alone, only slots are returned. The request must have IsRefundable. TakeGrants must be
// called before Done.
func (a *Admission) TakeGrants() (taken []Grant) {
	if !a.isLimited || a.isRejected || a.options.Peek {
		return nil
	}
	a.renewal.stop()
	v := &a.evaluation
	var receipts []int64 // of the first request, if this one is a repeat
	if a.isRepeat {
		receipts = a.firstReceipts()
	}
	for i := range v.Charges {
		c, l := v.Charges[i], v.Limits[i]
		c.Patience, c.Receipt = 0, a.decision.Status(i).Receipt
		if receipts != nil {
			c.Receipt = receipts[i]
		}
		if isSlot(&c) || !isWithoutStore(a.decision.Source) {
			taken = append(taken, Grant{c, l})
		}
	}
	a.grants = slices.DeleteFunc(a.grants, func(g grant) bool { return slices.Contains(v.Limits, g.limit) })
	return taken
}
