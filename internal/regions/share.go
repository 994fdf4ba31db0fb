package regions

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
)

// A shareID identifies the share of a limit that some regions have. If regions divide the limit
// (algorithm.ShareAcross), the plan is the same for all sets of regions: the state of each key says
// the share.
type shareID struct {
	plan    *penstock.Plan
	regions uint64 // a bit for each region, in alphabetical order; 0 for limits that are divided
}

// Check returns an error if a limit across regions has no share for one of them.
func (s Setup) Check(plan *penstock.Plan) error {
	if !IsAcross(plan) || s.Count < 2 {
		return nil
	}
	for i := range s.Count {
		if _, err := (shareID{plan, 1 << i}).compile(s.Count); err != nil {
			return err
		}
	}
	return nil
}

// Check is Setup.Check for the regions of the exchange.
func (e *Exchange) Check(plan *penstock.Plan) error {
	return Setup{Count: len(e.names)}.Check(plan)
}

// forgetOthers forgets the shares of all limits but these.
func (e *Exchange) forgetOthers(plans []*penstock.Plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.shares, func(share shareID, _ *penstock.Plan) bool { return !slices.Contains(plans, share.plan) })
}

// regionsInContact returns the regions whose shares this region enforces now: itself, and those in
// contact. Each is a bit, as in a shareID.
func (e *Exchange) regionsInContact(now time.Time) (regions uint64) {
	for i, name := range e.names {
		if name == e.o.Self || e.inContact(name, now) {
			regions |= 1 << i
		}
	}
	return regions
}

// shareOf returns the share of some regions.
func (e *Exchange) shareOf(share shareID) (*penstock.Plan, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if known := e.shares[share]; known != nil {
		return known, nil
	}
	plan, err := share.compile(len(e.names))
	if err == nil && plan != share.plan {
		e.shares[share] = plan
	}
	return plan, err
}

// compile makes the share. The shares of all regions add up to the limit.
func (share shareID) compile(count int) (*penstock.Plan, error) {
	all := int64(count)
	part := func(units int64) (sum int64) {
		for i := range all {
			if share.regions>>i&1 == 1 {
				sum += (units + all - 1 - i) / all
			}
		}
		return sum
	}
	limit := share.plan.Limit()
	if IsShared(share.plan) {
		return limit.With(algorithm.ShareAcross(limit.Algorithm, count)).Compile()
	}
	if share.regions == 1<<all-1 {
		return share.plan, nil
	}
	candidates := []penstock.Limit{limit}
	candidates[0].Count = part(limit.Count)
	if limit.Algorithm.RefillsSteadily() {
		n := part(all) // regions
		exact, rounded := limit, limit
		exact.Count, exact.Period = limit.Count*n, limit.Period*time.Duration(all)
		rounded.Count = limit.Count / all * n
		candidates = []penstock.Limit{exact, rounded}
		for i := range candidates {
			candidates[i].Burst = part(share.plan.Capacity())
		}
	}
	for _, l := range candidates {
		isEmpty := limit.Algorithm.RefillsSteadily() && l.Burst == 0
		if plan, err := l.Compile(); err == nil && !isEmpty {
			return plan, nil
		}
	}
	return nil, fmt.Errorf("%w: limit %q: %s cannot be shared by %d regions, because each needs a unit of its count and its burst; raise them",
		penstock.ErrInvalid, limit.Name, share.plan, all)
}

// Enforced returns what this region enforces of a limit now: its share if it is across regions, and
// not in contact with all others, and the limit itself otherwise.
func (e *Exchange) Enforced(plan *penstock.Plan) *penstock.Plan {
	if IsAcross(plan) {
		if share, err := e.shareIn(plan, e.regionsInContact(e.o.Now())); err == nil {
			return share
		}
	}
	return plan
}

// shareIn returns the share that this region enforces while some regions are in contact.
func (e *Exchange) shareIn(plan *penstock.Plan, inContact uint64) (*penstock.Plan, error) {
	if IsShared(plan) {
		inContact = 0
	}
	return e.shareOf(shareID{plan, inContact})
}

// refilled returns how many units the share of a region refills within in, rounded down.
func (e *Exchange) refilled(plan *penstock.Plan, region string, in time.Duration) int64 {
	if !plan.Algorithm().RefillsSteadily() {
		return algorithm.Max / rejoinFactors // no period of a sub-window has more than a count, however long the silence was
	}
	limit := plan.Limit()
	return int64(min(float64(max(in, 0))/float64(limit.Period)*float64(limit.Count)/float64(len(e.names)), algorithm.Max/rejoinFactors))
}

// Store returns the store that decides for this region.
func (e *Exchange) Store() penstock.Store { return e.Around(e.o.Store) }

// Around returns a store around one of this region, which may have guards. It enforces the share of
// the regions in contact, and notes what is granted.
func (e *Exchange) Around(store penstock.Store) batches.Func {
	decide := batches.Of(store)
	return func(ctx context.Context, list []*batches.Batch) {
		if !slices.ContainsFunc(list, hasAcross) {
			decide(ctx, list)
			return
		}
		now := e.o.Now()
		shared := make([]*batches.Batch, 0, len(list))
		var changed []*batches.Batch // those of the list that are in shared
		for _, b := range list {
			own, err := e.withShares(b, now)
			if b.Err = err; err != nil {
				continue
			}
			shared, changed = append(shared, own), append(changed, b)
		}
		if len(shared) > 0 {
			decide(ctx, shared)
		}
		for i, b := range changed {
			own := shared[i]
			if own == b {
				continue
			}
			b.Decision, b.Err, b.Cause = own.Decision, own.Err, own.Cause
			e.noteGrants(b)
		}
	}
}

// hasAcross reports whether a batch or one of its shadows has a limit across regions.
func hasAcross(b *batches.Batch) bool {
	return slices.ContainsFunc(b.Charges, isAcrossCharge) || slices.ContainsFunc(b.Shadows, hasAcross)
}

func isAcrossCharge(c penstock.Charge) bool { return IsAcross(c.Plan) }

// withShares returns the batch with shares in the place of limits across regions, and without its
// shadows, which are decided apart. If it has no such limits, withShares returns the batch itself.
func (e *Exchange) withShares(b *batches.Batch, now time.Time) (*batches.Batch, error) {
	if !hasAcross(b) {
		return b, nil
	}
	own, inContact := &batches.Batch{Charges: slices.Clone(b.Charges)}, e.regionsInContact(now)
	for i := range own.Charges {
		if c := &own.Charges[i]; IsAcross(c.Plan) {
			share, err := e.shareIn(c.Plan, inContact)
			if err != nil {
				return nil, err
			}
			c.Plan = share
		}
	}
	return own, nil
}

// IsShared reports whether the algorithm of a limit is one of algorithm.ShareAcross.
func IsShared(plan *penstock.Plan) bool {
	return plan != nil && strings.HasSuffix(plan.Algorithm().Name(), "_share_across")
}

// IsAcross reports whether the algorithm of a limit is one of algorithm.Across or
// algorithm.ShareAcross. Others cannot have such a name.
func IsAcross(plan *penstock.Plan) bool {
	return plan != nil && strings.HasSuffix(plan.Algorithm().Name(), "_across")
}

// noteGrants notes what a batch has granted, or may have granted: if its outcome is unknown, or if
// a fallback has decided it without an answer of the store.
func (e *Exchange) noteGrants(b *batches.Batch) {
	failed := penstock.AsStoreError(b.Err)
	isUnknown := failed != nil && failed.MayBeCharged
	if b.Err == nil {
		source := b.Decision.Source
		isUnknown = source == penstock.FromFallback || source == penstock.FromOpen || source == penstock.FromClosed
	}
	for i := range b.Charges {
		c := &b.Charges[i]
		if !IsAcross(c.Plan) || c.Mode == penstock.Peek || c.Mode > penstock.Force {
			continue
		}
		limit := c.Plan.Limit()
		units, counts := c.Cost, 2*max(limit.Period, time.Duration(float64(c.Plan.Capacity())/float64(limit.Count)*float64(limit.Period)))
		if IsShared(c.Plan) {
			counts = e.o.offerTime() // also what is denied: other regions lend by what is asked for
		} else if !isUnknown {
			units = 0
			if b.Err == nil {
				status := b.Decision.Status(i)
				units, counts = status.Granted, status.ResetAfter
			}
		}
		if units > 0 {
			e.ledger.note(Counter{c.Key, c.Plan}, units, counts)
		}
	}
}
