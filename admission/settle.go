package admission

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A settlement is what must still be done for a request after its decision: slots are renewed and
// returned, and charges are corrected. Settle and MarkStatusUnknown may be called by any goroutine.
type settlement struct {
	grants          []Grant // charges that may have to be corrected
	renewal         *renewal
	isAdjustable    bool         // a limit is charged by the true cost
	actualCostPlus1 atomic.Int64 // 0 while the true cost is unknown
	isStatusUnknown atomic.Bool
}

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

// A Grant is a charge that may have to be corrected: it was made, or it takes a slot that the store
// may have given. The Charge has the Receipt for its Refund.
type Grant struct {
	Charge penstock.Charge
	Limit  *policy.Limit

	source    penstock.Source
	isUnsized bool // the size of the request's body was not known
}

// NeedsResult reports whether Done has anything to correct. If not, Done may be called with any
// Result before the request is served.
func (s *settlement) NeedsResult() bool { return len(s.grants) > 0 }

// NeedsBodySize reports whether a limit charges by the size of the body, and this size was not
// known when the request was admitted.
func (s *settlement) NeedsBodySize() bool {
	return slices.ContainsFunc(s.grants, func(g Grant) bool { return g.Limit.Cost.Body > 0 && g.isUnsized })
}

// MarkStatusUnknown makes Done ignore the status, so that charges of on_status limits stay. A proxy
// calls it when the upstream may have got the request but gives no answer.
func (s *settlement) MarkStatusUnknown() { s.isStatusUnknown.Store(true) }

// RefundByStatus refunds the charges of on_status limits that do not list this status, without
// waiting for Done. A transport calls it before it sends the status: then the client's next request
// comes after the refund.
func (a *Admission) RefundByStatus(status int) {
	if a.isStatusUnknown.Load() {
		return
	}
	var all corrections
	a.grants = slices.DeleteFunc(a.grants, func(g Grant) bool {
		isFree := g.isFree(status)
		if isFree {
			all.addCorrection(&g, 0)
		}
		return isFree
	})
	a.correct(all)
}

func (s *settlement) setCost(cost int64) error {
	if cost < 0 || cost > penstock.MaxCost {
		return fmt.Errorf("%w: admission: settle %d units; a cost is 0 to %d", penstock.ErrInvalid, cost, int64(penstock.MaxCost))
	}
	s.actualCostPlus1.Store(cost + 1)
	return nil
}

// start prepares the settlement of an admitted request, which is served from now on.
func (a *Admission) start() {
	for i := range a.grants {
		a.isAdjustable = a.isAdjustable || a.grants[i].Limit.Adjustable
	}
	a.renewHolds()
}

// finish corrects the charges by the result of the request. For a rejected request it does so in
// the background.
func (a *Admission) finish(r *Result, isRejected bool) {
	if a.isStatusUnknown.Load() {
		r.Status = 0
	}
	a.renewal.stop()
	var all corrections
	for i := range a.grants {
		g := &a.grants[i]
		all.addCorrection(g, a.trueCost(g, r))
	}
	a.grants = nil
	if isRejected {
		a.correctInBackground(all)
	} else {
		a.correct(all)
	}
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
			a.grants = append(a.grants, Grant{granted, l, d.Source, isUnsized})
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
			a.grants = append(a.grants, Grant{Charge: *c, Limit: l})
		}
	}
}

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

// maxRefundsInFlight is how many rejected requests may have corrections in the background at the
// same time. For further requests, Done waits until the corrections are made.
const maxRefundsInFlight = 1000

// correct makes corrections. If the store cannot be called, charges stay, and slots end by
// themselves. Local corrections are for charges that the fallback made. If the store answers again,
// these corrections are dropped.
func (a *Admission) correct(all corrections) {
	if all.isEmpty() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), correctTimeout)
	defer cancel()
	store := a.controller.store
	for batch := range slices.Chunk(all.inStore, penstock.MaxCharges) {
		panicked.Decide(ctx, store, batch)
	}
	for i := range all.local { // one at a time: each may belong to another server
		if batch := all.local[i : i+1]; a.controller.isFallbackInUse(ctx, batch[0]) {
			panicked.Decide(ctx, store, batch)
		}
	}
}

const correctTimeout = time.Second

// isFallbackInUse reports whether the fallback, and not the store, would decide a charge now.
func (c *Controller) isFallbackInUse(ctx context.Context, charge penstock.Charge) bool {
	charge.Mode, charge.Cost = penstock.Peek, 0
	d, err := panicked.Decide(ctx, c.store, []penstock.Charge{charge})
	return err == nil && d.Source == penstock.FromFallback
}

// trueCost returns what a grant should have charged, as far as that is known.
func (s *settlement) trueCost(g *Grant, r *Result) int64 {
	if g.isFree(r.Status) {
		return 0
	}
	if g.Limit.Adjustable {
		if settled := s.actualCostPlus1.Load(); settled > 0 {
			return g.actualCost(settled - 1)
		}
		if r.Cost != nil && g.Limit.CostHeader != "" {
			if units, ok := r.Cost(g.Limit.CostHeader); ok && units >= 0 {
				return min(units, penstock.MaxCost)
			}
		}
	}
	if g.isUnsized {
		size, bytesPerUnit := r.BodySize, g.Limit.Cost.Body
		units := size/bytesPerUnit + min(size%bytesPerUnit, 1) // rounded up
		return max(g.Charge.Cost, units)
	}
	return g.Charge.Cost
}

// Corrections returns the charges that correct the grants of a request that was served. The status
// is that of the response, as in Result. cost is the true cost, or nil if it is unknown. The true
// cost applies to the limits that are Adjustable. If there is no such limit, it applies to all
// limits that can refund.
func Corrections(grants []Grant, status int, cost *int64) (charges []penstock.Charge) {
	hasAdjustable := slices.ContainsFunc(grants, func(g Grant) bool { return g.Limit.Adjustable })
	return correctionsOf(grants, func(g *Grant) int64 {
		switch {
		case g.isFree(status):
			return 0
		case cost != nil && (g.Limit.Adjustable || !hasAdjustable && g.Charge.Plan.Algorithm().CanRefund()):
			return g.actualCost(*cost)
		}
		return g.Charge.Cost
	})
}

// Refunds returns the charges that return the grants of a request that was not served.
func Refunds(grants []Grant) []penstock.Charge {
	return correctionsOf(grants, func(*Grant) int64 { return 0 })
}

// correctionsOf returns the charges that make each grant cost what cost returns.
func correctionsOf(grants []Grant, cost func(*Grant) int64) (charges []penstock.Charge) {
	for i := range grants {
		g := &grants[i]
		if c, isNeeded := g.correction(cost(g)); isNeeded {
			charges = append(charges, c)
		}
	}
	return charges
}

// isFree reports whether responses with the status cost nothing. The status 0 is unknown.
func (g *Grant) isFree(status int) bool {
	return g.Limit.Status != nil && status != 0 && !g.Limit.Status.Has(status)
}

// actualCost returns what the grant costs if the caller states the true cost of the request.
func (g *Grant) actualCost(stated int64) int64 {
	if g.Limit.IsMinimum {
		return max(stated, g.Charge.Cost)
	}
	return stated
}

// correction returns the charge that makes the grant cost this many units, if one is needed. A slot
// is returned, whatever the cost is.
func (g *Grant) correction(cost int64) (correcting penstock.Charge, isNeeded bool) {
	refund, isPossible := refundOf(g.Charge)
	switch {
	case isSlot(&refund):
		return refund, true
	case cost <= refund.Cost:
		refund.Cost -= cost
		return refund, isPossible && refund.Cost > 0
	}
	missing := g.Charge
	missing.Mode, missing.Cost, missing.Patience, missing.IsRefundable = penstock.Force, cost-g.Charge.Cost, 0, false
	return missing, true
}

// refundOf returns the charge that refunds a charge with its Receipt. isPossible is false if the
// store cannot know where these units are, so that a refund would return the units of others.
func refundOf(c penstock.Charge) (refund penstock.Charge, isPossible bool) {
	c.Mode, c.Patience, c.IsRefundable = penstock.Refund, 0, false
	return c, c.Receipt != 0 || !c.Plan.Algorithm().HasExactRefunds()
}

// markRefundable sets IsRefundable of the charges that may have to be refunded.
func (o *RequestOptions) markRefundable(charges []penstock.Charge, limits []*policy.Limit) {
	canWait := slices.ContainsFunc(charges, func(c penstock.Charge) bool { return c.Patience > 0 })
	for i, l := range limits {
		mayCostLess := l.Status != nil || l.Adjustable && !l.IsMinimum
		charges[i].IsRefundable = o.IsRefundable || canWait || mayCostLess
	}
}

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

// addCorrection adds the charge that makes a grant cost this many units, if one is needed.
func (s *corrections) addCorrection(g *Grant, cost int64) {
	if c, isNeeded := g.correction(cost); isNeeded {
		s.add(c, g.source)
	}
}

func (s *corrections) isEmpty() bool { return len(s.inStore)+len(s.local) == 0 }
