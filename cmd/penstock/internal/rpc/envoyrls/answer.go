package envoyrls

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock"
)

// isOver reports whether a limit is exceeded although the store has granted its charge. The store
// always grants a Force and a Peek of cost 0. These are made with the probe, which has one unit
// more than the limit. So the limit is exceeded if the probe has no unit left.
func isOver(charges []penstock.Charge, d *penstock.Decision) bool {
	for i := range charges {
		c := &charges[i]
		isAlwaysGranted := c.Mode == penstock.Force || c.Mode == penstock.Peek && c.Cost == 0
		if isAlwaysGranted && d.Status(i).Remaining == 0 {
			return true
		}
	}
	return false
}

// setResult sets the result of a limit from the decision of its batch. Without a decision, the
// request passes.
func (c *call) setResult(applied *appliedLimit, d *penstock.Decision, hasDecision bool) {
	if !hasDecision || d.Source == penstock.FromOpen || d.Len() <= applied.chargeIndex {
		applied.decidedBy = failedOpen
		return
	}
	if d.Source == penstock.FromClosed {
		applied.decidedBy = failedClosed
		return
	}
	s := d.Status(applied.chargeIndex)
	applied.decidedBy = decided
	if applied.kind == spend {
		applied.remaining = s.Remaining
	} else {
		applied.remaining = max(s.Remaining-1, 0) // the probe has one unit more than the limit
	}
	switch applied.kind {
	case refund: // never denied
	case force:
		applied.isOver = s.Remaining == 0 // the probe has no unit left
	case check:
		applied.isOver = s.RetryAfter > 0 || s.Remaining == 0
	default:
		applied.isOver = s.RetryAfter > 0
	}
	applied.reset = c.resetSeconds(applied, s)
}

// resetSeconds returns a time in seconds. If the limit is exceeded, the result is the time until
// the limit has room again. If not, the result is the time until nothing of the limit is used. The
// result is at least 1, because Envoy shows whole seconds.
func (c *call) resetSeconds(applied *appliedLimit, s penstock.Status) int64 {
	after := s.ResetAfter
	if applied.isOver && s.RetryAfter > 0 && s.RetryAfter != penstock.Never {
		after = s.RetryAfter
	}
	if o := &c.engine.options; after <= 0 && applied.limit.probe.Algorithm() == penstock.FixedWindow {
		period := applied.limit.period.Microseconds() // nothing is used, so the store returned no time
		after = time.Duration(period-o.Now().UnixMicro()%period) * time.Microsecond
	}
	return max(int64((after+time.Second-1)/time.Second), 1)
}

// closedReset is the Reset, in seconds, of a status that FailClosed denies.
const closedReset = 1

func (c *call) writeResponse(to *Response) {
	o := &c.engine.options
	isQuotaSpent := c.isQuotaSpent()
	denied := -1 // the last descriptor that a limit without quota_mode denies
	c.resetsInSeconds = append(c.resetsInSeconds[:0], make([]int64, len(to.Statuses))...)
	for i := range c.limits {
		applied := &c.limits[i]
		switch applied.kind {
		case none:
			continue
		case unlimited:
			to.Statuses[applied.descriptorIndex].Remaining = math.MaxUint32
			continue
		case refuse:
			to.Statuses[applied.descriptorIndex].IsOver, to.IsOver = true, true
			continue
		}
		status := Status{Limit: &applied.limit.current}
		switch applied.decidedBy {
		case failedOpen:
			applied.remaining, applied.reset = int64(applied.limit.current.RequestsPerUnit), c.resetSeconds(applied, penstock.Status{})
		case failedClosed:
			applied.isOver, applied.remaining, applied.reset = !applied.isShadow && !applied.isQuota, 0, closedReset
		}
		status.IsOver = applied.denies()
		status.Remaining, status.Reset = clamp(applied.remaining), clamp(applied.reset)
		canDeny := !applied.isQuota || isQuotaSpent
		to.IsOver = to.IsOver || status.IsOver && canDeny
		if status.IsOver && !applied.isQuota {
			denied = applied.descriptorIndex
		}
		if shown := &to.Statuses[applied.descriptorIndex]; shown.Limit == nil || status.isStricter(shown) {
			*shown, c.resetsInSeconds[applied.descriptorIndex] = status, applied.reset
		}
	}
	if len(o.Headers) > 0 {
		c.appendHeaders(to, denied)
	}
	if o.HasMetadata {
		to.Metadata = c.metadata()
	}
	to.IsOver = to.IsOver && !o.ShadowMode
}

// isStricter reports whether the response shows this status of a descriptor instead of the other.
func (s *Status) isStricter(than *Status) bool {
	if s.IsOver != than.IsOver {
		return s.IsOver
	}
	return s.Remaining < than.Remaining
}

// denies reports whether the limit is exceeded and enforced.
func (applied *appliedLimit) denies() bool { return applied.isOver && !applied.isShadow }

// isQuotaSpent reports whether all limits with quota_mode are over. Only then do these limits deny
// the request: a request may use any of its quotas. With Options.QuotaMode, a descriptor without a
// limit is a quota that always has room.
func (c *call) isQuotaSpent() bool {
	if !c.hasQuota {
		return false
	}
	for i := range c.limits {
		applied := &c.limits[i]
		isUnlimitedQuota := applied.kind == none && c.engine.options.QuotaMode
		if isUnlimitedQuota || applied.kind.isCharge() && applied.isQuota && !applied.denies() {
			return false
		}
	}
	return true
}

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

func (c *call) metadata() map[string]any {
	r := c.request
	descriptors := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		descriptors[i] = r.Descriptors[i].metadata()
	}
	m := map[string]any{"domain": r.Domain, "descriptors": descriptors}
	if r.Hits > 0 {
		m["hitsAddend"] = float64(r.Hits)
	}
	passed := make(map[string]any)
	for i := range c.limits {
		applied := &c.limits[i]
		if applied.kind.isCharge() && !applied.denies() && applied.limit.config != nil {
			mergeMetadata(passed, applied.limit.config.Metadata)
		}
	}
	if len(passed) > 0 {
		m["metadata"] = passed
	}
	return m
}

// mergeMetadata adds the fields of from that to does not have. If both have a map in a field, the
// maps are merged in the same way.
func mergeMetadata(to, from map[string]any) {
	for name, value := range from {
		inner, isMap := value.(map[string]any)
		if !isMap {
			if _, ok := to[name]; !ok {
				to[name] = value
			}
			continue
		}
		if _, ok := to[name]; !ok {
			to[name] = make(map[string]any) // from is part of the configuration, which must not change
		}
		if merged, ok := to[name].(map[string]any); ok {
			mergeMetadata(merged, inner)
		}
	}
}

func (d *Descriptor) metadata() map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = e.Key + "=" + e.Value
	}
	m := map[string]any{"entries": entries}
	if o := d.Override; o != nil {
		text := fmt.Sprintf("unit:%v", o.Unit)
		if o.RequestsPerUnit > 0 {
			text = fmt.Sprintf("requests_per_unit:%d %s", o.RequestsPerUnit, text)
		}
		if o.UnitMultiplier > 0 {
			text += fmt.Sprintf(" unit_multiplier:{value:%d}", o.UnitMultiplier)
		}
		m["limit"] = text
	}
	if d.HasHits {
		m["hitsAddend"] = float64(d.Hits)
	}
	return m
}
