package admission

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A Result is how a request ended.
type Result struct {
	// Status is the status of the response, as on_status of the policy lists it. Status is 0 if there
	// was no response, or if its status is unknown. If it is 0, nothing is refunded by status.
	Status int

	// BodySize is how many bytes of the request's body were read. BodySize is used only if
	// NeedsBodySize returns true.
	BodySize int64

	// Cost returns the true cost that the response has under a name, such as the HTTP header that
	// cost.actual of the policy names. A cost that Settle has set takes precedence. Default: the
	// response has no cost.
	Cost func(name string) (units int64, ok bool)
}

// Done ends the Admission. It returns slots, refunds the charges of on_status limits that do not
// list the status, and adjusts charges to the true cost. Call Done before the response is sent:
// then the client's next request comes after the refund.
//
// For a rejected request, Done waits for the store only if refunds for 1,000 other requests are
// already in flight.
func (a *Admission) Done(r Result) {
	if a.isStatusUnknown.Load() {
		r.Status = 0
	}
	a.renewal.stop()
	var all corrections
	for i := range a.grants {
		if c, ok := a.correction(&a.grants[i], &r); ok {
			all.add(c, a.grants[i].source)
		}
	}
	a.grants = nil
	if a.isRejected {
		a.correctInBackground(all)
	} else {
		a.correct(all)
	}
	a.shadows = nil
	if a.scratch != nil {
		a.rejection = Rejection{}
		a.controller.scratches.Put(a.scratch)
		a.scratch = nil
	}
}

// Cancel ends the Admission of a request that is not served after all. Call it in place of Done. It
// returns slots, and refunds charges exactly, as if they had never been made. These are all charges
// of a request with IsRefundable, or that could wait. Of other requests, they are those of limits
// with on_status or a true cost. The charges of rules with before_auth stay. The charges of a
// repeat are those of the first request, and stay.
func (a *Admission) Cancel() {
	if a.scratch != nil && !a.isRejected && a.isLimited && !a.isRepeat {
		a.grants = slices.DeleteFunc(a.grants, func(g grant) bool { return slices.Contains(a.evaluation.Limits, g.limit) })
		a.renewal.stop()
		a.returnAll()
	}
	a.Done(Result{})
}

// NeedsResult reports whether Done has anything to correct. If not, Done may be called with any
// Result before the request is served.
func (a *Admission) NeedsResult() bool { return len(a.grants) > 0 }

// NeedsBodySize reports whether a limit charges by the size of the body, and this size was not
// known when the request was admitted.
func (a *Admission) NeedsBodySize() bool {
	return slices.ContainsFunc(a.grants, func(g grant) bool { return g.limit.Cost.Body > 0 && g.isUnsized })
}

// RefundByStatus refunds the charges of on_status limits that do not list this status, without
// waiting for Done. A transport calls it before it sends the status: then the client's next request
// comes after the refund.
func (a *Admission) RefundByStatus(status int) {
	if a.isStatusUnknown.Load() {
		return
	}
	var all corrections
	r := Result{Status: status}
	a.grants = slices.DeleteFunc(a.grants, func(g grant) bool {
		if g.limit.Status == nil || g.limit.Status.Has(status) {
			return false
		}
		if c, ok := a.correction(&g, &r); ok {
			all.add(c, g.source)
		}
		return true
	})
	a.correct(all)
}

// MarkStatusUnknown makes Done ignore the status, so that charges of on_status limits stay. A proxy
// calls it when the upstream may have got the request but gives no answer.
func (a *Admission) MarkStatusUnknown() { a.isStatusUnknown.Store(true) }

// Settle sets the request's true cost. Done adjusts the charges of some limits to it. In a policy,
// these are the limits with cost.actual. Without a policy, these are all limits that can refund. If
// Settle is called again, the last cost counts. Settle fails if the request has no such limit.
func (a *Admission) Settle(cost int64) error {
	if cost < 0 || cost > penstock.MaxCost {
		return fmt.Errorf("%w: admission: settle %d units; a cost is 0 to %d", penstock.ErrInvalid, cost, int64(penstock.MaxCost))
	}
	if !a.canSettle && !a.isRepeat {
		return fmt.Errorf("%w: admission: no limit of the request can adjust to a true cost; write cost: {actual: HEADER} into one", penstock.ErrInvalid)
	}
	a.actualCostPlus1.Store(cost + 1)
	return nil
}

// A grant is a charge that Done may have to correct: it was made, or it takes a slot that the store
// may have given. If the caller corrects charges instead, TakeGrants returns them as Grants.
type grant struct {
	charge    penstock.Charge // with its Receipt
	limit     *policy.Limit
	source    penstock.Source
	isUnsized bool // the size of the request's body was not known
}

// markRefundable sets IsRefundable of the charges that may have to be refunded.
func (o *RequestOptions) markRefundable(charges []penstock.Charge, limits []*policy.Limit) {
	canWait := slices.ContainsFunc(charges, func(c penstock.Charge) bool { return c.Patience > 0 })
	for i, l := range limits {
		charges[i].IsRefundable = o.IsRefundable || canWait || l.Status != nil || l.Adjustable && !l.IsMinimum
	}
}

// refundOf returns the charge that refunds what a charge was granted. isPossible is false if the
// store cannot know where these units are, so that a refund would return the units of others.
func refundOf(c penstock.Charge, s penstock.Status) (refund penstock.Charge, isPossible bool) {
	c.Mode, c.Patience, c.IsRefundable, c.Receipt = penstock.Refund, 0, false, s.Receipt
	return c, s.Receipt != 0 || !c.Plan.Algorithm().HasExactRefunds()
}

// noteGrants records the charges that may have to be corrected.
func (a *Admission) noteGrants(charges []penstock.Charge, limits []*policy.Limit, d *penstock.Decision) {
	if a.options.Peek {
		return
	}
	for i, l := range limits {
		c := &charges[i]
		if isNotCounted(l, d.Source) {
			a.noteHolds(charges[i:i+1], limits[i:i+1])
			continue
		}
		isUnsized := l.Cost.Body > 0 && a.attributes != nil && a.attributes.BodySize() < 0
		if l.Status != nil || l.Adjustable || isSlot(c) || isUnsized {
			granted := *c
			granted.Receipt = d.Status(i).Receipt
			a.grants = append(a.grants, grant{granted, l, d.Source, isUnsized})
		}
	}
}

// noteHolds records the slots that the store may have granted although it gave no answer.
func (a *Admission) noteHolds(charges []penstock.Charge, limits []*policy.Limit) {
	if a.options.Peek {
		return
	}
	for i, l := range limits {
		if c := &charges[i]; isSlot(c) {
			a.grants = append(a.grants, grant{charge: *c, limit: l})
		}
	}
}

// returnAll returns the slots of enforced limits, and refunds their charges.
func (a *Admission) returnAll() {
	var all corrections
	for i, c := range a.evaluation.Charges {
		isCounted := !isNotCounted(a.evaluation.Limits[i], a.decision.Source)
		refund, isPossible := refundOf(c, a.decision.Status(i))
		if isSlot(&c) || isCounted && isPossible {
			all.add(refund, a.decision.Source)
		}
	}
	if a.sharedName != "" {
		if once, err := a.onceCharge(a.evaluation.Charges[0].Key); err == nil {
			once.Mode = penstock.Reset // so that a repeat is charged
			all.add(once, a.decision.Source)
		}
	}
	a.correct(all)
}

// corrections are charges that correct earlier ones.
type corrections struct {
	inStore []penstock.Charge
	local   []penstock.Charge // for charges that only this process has counted
}

// add adds the correction of a charge that the source has granted. Slots are returned to the store
// even if the fallback granted them, because the store may have granted them too.
func (s *corrections) add(c penstock.Charge, source penstock.Source) {
	if source == penstock.FromFallback && !isSlot(&c) {
		s.local = append(s.local, c)
	} else {
		s.inStore = append(s.inStore, c)
	}
}

func (s *corrections) isEmpty() bool { return len(s.inStore)+len(s.local) == 0 }

// maxRefundsInFlight is how many rejected requests may have corrections in the background at the
// same time. For further requests, Done waits until the corrections are made.
const maxRefundsInFlight = 1000

// correctInBackground makes corrections in the background. If too many are in flight, or if
// Options.Now is set, it makes them before it returns.
func (a *Admission) correctInBackground(all corrections) {
	if all.isEmpty() {
		return
	}
	c := a.controller
	if c.refundsInFlight.Add(1) > maxRefundsInFlight || c.options.Now != nil {
		defer c.refundsInFlight.Add(-1)
		a.correct(all)
		return
	}
	go func() {
		defer c.refundsInFlight.Add(-1)
		a.correct(all)
	}()
}

// correctTimeout bounds how long the corrections of a request may take.
const correctTimeout = time.Second

// correct makes corrections. If the store cannot be called, charges stay, and slots end by
// themselves. Local corrections are for charges that the fallback made. If the store answers again,
// these corrections are dropped.
func (a *Admission) correct(all corrections) {
	if all.isEmpty() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), correctTimeout)
	defer cancel()
	for batch := range slices.Chunk(all.inStore, penstock.MaxCharges) {
		panicked.Decide(ctx, a.controller.store, batch)
	}
	for i := range all.local { // one at a time: each may belong to another server
		if batch := all.local[i : i+1]; a.isFallbackInUse(ctx, batch[0]) {
			panicked.Decide(ctx, a.controller.store, batch)
		}
	}
}

// isFallbackInUse reports whether the fallback, and not the store, would decide a charge now.
func (a *Admission) isFallbackInUse(ctx context.Context, c penstock.Charge) bool {
	c.Mode, c.Cost = penstock.Peek, 0
	d, err := panicked.Decide(ctx, a.controller.store, []penstock.Charge{c})
	return err == nil && d.Source == penstock.FromFallback
}

// correction returns the charge that corrects a grant, if one is needed.
func (a *Admission) correction(g *grant, r *Result) (correcting penstock.Charge, isNeeded bool) {
	refund, isPossible := refundOf(g.charge, penstock.Status{Receipt: g.charge.Receipt})
	if isSlot(&refund) {
		return refund, true
	}
	cost := a.trueCost(g, r)
	if g.limit.Status != nil && r.Status != 0 && !g.limit.Status.Has(r.Status) {
		cost = 0
	}
	if cost <= refund.Cost {
		refund.Cost -= cost
		return refund, isPossible && refund.Cost > 0
	}
	missing := g.charge
	missing.Mode, missing.Cost, missing.Patience, missing.IsRefundable = penstock.Force, cost-g.charge.Cost, 0, false
	return missing, true
}

// trueCost returns what the grant should have charged, as far as that is known.
func (a *Admission) trueCost(g *grant, r *Result) int64 {
	if g.limit.Adjustable {
		if settled := a.actualCostPlus1.Load(); settled > 0 && g.limit.IsMinimum {
			return max(settled-1, g.charge.Cost)
		} else if settled > 0 {
			return settled - 1
		}
		if r.Cost != nil && g.limit.CostHeader != "" {
			if units, ok := r.Cost(g.limit.CostHeader); ok && units >= 0 {
				return min(units, penstock.MaxCost)
			}
		}
	}
	if g.isUnsized {
		size, bytesPerUnit := r.BodySize, g.limit.Cost.Body
		units := size/bytesPerUnit + min(size%bytesPerUnit, 1) // rounded up
		return max(g.charge.Cost, units)
	}
	return g.charge.Cost
}
