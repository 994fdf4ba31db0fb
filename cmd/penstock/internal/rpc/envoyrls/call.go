package envoyrls

import (
	"context"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/policy"
)

// A call is the state of one request while it is decided. Calls are pooled and reused.
type call struct {
	engine   *Engine
	compiled *compiledConfig
	request  *Request

	limits          []appliedLimit
	resetsInSeconds []int64       // by descriptor
	rules           *policy.Rules // the policy, if it decides the request; else nil
	policyShadows   []policy.Shadow
	configMatch     envoyconfig.Match
	buffer          []byte // for keys and metric paths
	pending         []int  // indexes of limits that this round decides; see decide
	nextRound       []int  // indexes of limits that the next round decides
	isDenied        bool   // the request is already denied, so nothing more may be spent
	hasQuota        bool   // a limit with quota_mode has applied

	round         admission.ExplicitCharges // the enforced charges of this round, and the shadows below
	shadows       []policy.Shadow
	shadowCharges []penstock.Charge // of all shadows; each shadow is a part of this array, which must not move
	shadowLimits  []*policy.Limit   // the limits of shadowCharges, by the same index

	evaluation policy.Evaluation
}

type appliedLimit struct {
	descriptorIndex int // in the request
	kind            kind
	limit           *limit
	eventLimit      *policy.Limit // the limit as events name it
	key             string
	cost            int64

	isShadow, isQuota bool

	batch       int // the batch of its charge in this round: 0 is the enforced charges, n is shadow n-1; -1: it waits for the next round
	chargeIndex int // the index of its charge in the batch

	decidedBy decider

	isOver    bool
	remaining int64
	reset     int64 // seconds
}

// A kind is what happens to a descriptor. The store decides those after refuse: charges.
type kind uint8

const (
	none      kind = iota // no limit applies, or another one replaces it
	unlimited             // the limit is unlimited
	refuse                // the policy's deny list has the client
	spend                 // charged if it fits
	force                 // always charged
	check                 // reads whether the limit is exceeded, without a charge
	refund                // units are returned
	forbid                // the limit is 0, so it always denies
)

// isCharge reports whether the store decides the descriptor.
func (k kind) isCharge() bool { return k > refuse }

// A decider is what has decided a limit.
type decider uint8

const (
	undecided    decider = iota
	decided              // the store or its fallback
	failedOpen           // on_failure is open: not counted, allowed
	failedClosed         // on_failure is closed: not counted, denied
)

func (c *call) release() {
	e := c.engine
	clear(c.limits)
	clear(c.policyShadows)
	clear(c.shadows[:cap(c.shadows)])
	clear(c.shadowCharges[:cap(c.shadowCharges)])
	clear(c.shadowLimits[:cap(c.shadowLimits)])
	clear(c.round.Charges[:cap(c.round.Charges)])
	*c = call{
		limits: c.limits[:0], resetsInSeconds: c.resetsInSeconds[:0], policyShadows: c.policyShadows[:0], evaluation: c.evaluation, configMatch: c.configMatch,
		buffer: c.buffer[:0], pending: c.pending[:0], nextRound: c.nextRound[:0],
		shadows: c.shadows[:0], shadowCharges: c.shadowCharges[:0], shadowLimits: c.shadowLimits[:0],
		round: admission.ExplicitCharges{Charges: c.round.Charges[:0], Limits: c.round.Limits[:0]},
	}
	e.calls.Put(c)
}

// match finds the limits of all descriptors and their costs.
func (c *call) match() error {
	r := c.request
	if domain := c.compiled.config.Domain(r.Domain); domain != nil {
		for i := range r.Descriptors {
			c.limits = append(c.limits, appliedLimit{descriptorIndex: i})
			if err := c.matchOne(&c.limits[i], &r.Descriptors[i], domain); err != nil {
				return err
			}
		}
		c.removeReplaced()
	} else if rules := c.engine.rulesInForce(); rules != nil {
		if err := c.matchPolicy(rules); err != nil {
			return err
		}
	}
	for i := range c.limits {
		if applied := &c.limits[i]; applied.kind.isCharge() {
			c.pending = append(c.pending, i)
			c.hasQuota = c.hasQuota || applied.isQuota
		} else if applied.kind == refuse {
			c.isDenied = true
		}
	}
	return nil
}

// matchOne finds the limit of one descriptor: its override, or else a limit of the configuration.
func (c *call) matchOne(applied *appliedLimit, d *Descriptor, domain *envoyconfig.Domain) error {
	e, m := c.engine, &c.configMatch
	m.Limit, m.Shared = nil, m.Shared[:0]
	if d.Override != nil {
		l, err := e.override(c.compiled, *d.Override)
		if err != nil {
			return err
		}
		applied.limit, applied.eventLimit = l, c.compiled.overrides.events[domain.Name]
		applied.isQuota = e.options.QuotaMode
	} else {
		domain.Match(d.Entries, m)
		if m.Limit == nil {
			return nil
		}
		applied.limit = c.compiled.limits[m.Limit.Index]
		if m.Limit.IsUnlimited {
			applied.kind = unlimited
			return nil
		}
		applied.eventLimit, c.buffer = e.eventLimitOf(c.compiled, applied.limit, m, domain.Name, d.Entries, c.buffer)
		applied.isShadow, applied.isQuota = m.Limit.ShadowMode, m.Limit.QuotaMode || e.options.QuotaMode
	}
	c.buffer = appendKey(c.buffer[:0], domain.Name, d.Entries, m.Shared)
	applied.key = string(c.buffer)
	return c.setCost(applied, d)
}

// isExact reports whether each descriptor is counted separately. Limits of a policy are always
// charged together.
func (c *call) isExact() bool { return c.engine.options.Mode == Exact && c.rules == nil }

// appendKey appends the key of a counter: the domain and the entries of a descriptor. Different
// descriptors have different keys, except by share_threshold. With it, a value in shared that is
// not empty replaces the value of the entry with the same index.
func appendKey(to []byte, domain string, entries []envoyconfig.Entry, shared []string) []byte {
	to = appendEscaped(to, domain)
	for i := range entries {
		value := entries[i].Value
		if i < len(shared) && shared[i] != "" {
			value = shared[i]
		}
		to = append(appendEscaped(append(to, '|'), entries[i].Key), '=')
		to = appendEscaped(to, value)
	}
	return to
}

// appendEscaped appends text, and escapes the characters that separate the parts of a key.
func appendEscaped(to []byte, text string) []byte {
	for i := range len(text) {
		switch b := text[i]; b {
		case '|':
			to = append(to, '~', '1')
		case '=':
			to = append(to, '~', '2')
		case '~':
			to = append(to, '~', '0')
		default:
			to = append(to, b)
		}
	}
	return to
}

func (c *call) setCost(applied *appliedLimit, d *Descriptor) error {
	o := &c.engine.options
	hits := uint64(max(c.request.Hits, 1))
	if d.HasHits {
		hits = d.Hits
	}
	if hits > penstock.MaxCost {
		return invalid("hits_addend is %d; the largest is %d", hits, int64(penstock.MaxCost))
	}
	applied.cost = int64(hits)
	switch {
	case hits == 0:
		applied.kind = check
	case d.IsNegative:
		applied.kind = refund
	case c.isExact(), d.HasHits && !o.DeniesReports:
		applied.kind = force
	case applied.limit.plan == nil:
		applied.kind = forbid
	default:
		applied.kind = spend
	}
	return nil
}

func (c *call) removeReplaced() {
	for i := range c.limits {
		l := c.limits[i].limit
		if l == nil || l.config == nil {
			continue
		}
		for _, name := range l.config.Replaces {
			for j := range c.limits {
				other := &c.limits[j]
				isConfigured := other.kind.isCharge() && other.limit.config != nil
				if isConfigured && other.limit.config.Name == name {
					other.kind = none
				}
			}
		}
	}
}

// decide decides the limits in rounds. Nearly always one is enough. Another round is needed if
// two descriptors share a counter and cannot be charged together. Another round is also needed if a
// round with charges of kind force or refund was denied.
func (c *call) decide(ctx context.Context) error {
	if len(c.pending) == 0 && len(c.policyShadows) == 0 {
		outcome := admission.Unlimited
		if slices.ContainsFunc(c.limits, func(applied appliedLimit) bool { return applied.kind == refuse }) {
			outcome = admission.Refused
		}
		c.engine.controller.Observe(&admission.Event{Context: ctx, Outcome: outcome})
		return nil
	}
	if len(c.pending) == 0 {
		return c.decideRound(ctx)
	}
	for len(c.pending) > 0 {
		if err := c.decideRound(ctx); err != nil {
			return err
		}
		c.endRound()
	}
	return nil
}

// endRound makes the limits that wait for the next round pending.
func (c *call) endRound() { c.pending, c.nextRound = c.nextRound, c.pending[:0] }

func (c *call) decideRound(ctx context.Context) error {
	return c.applyDecision(c.engine.controller.AdmitCharges(ctx, c.beginRound()))
}

func (c *call) beginRound() admission.ExplicitCharges {
	c.compose()
	// Reuse is nil, so that each Admission is new: guards may use its context even after Done.
	c.round.DenyIf, c.round.Rules = isOver, c.rules
	return c.round
}

// isPlain reports whether the next round has charges, and none of them is a shadow or a quota.
func (c *call) isPlain() bool {
	if len(c.pending) == 0 || len(c.policyShadows) > 0 || c.engine.options.ShadowMode {
		return false
	}
	for _, i := range c.pending {
		if applied := &c.limits[i]; applied.isShadow || applied.isQuota {
			return false
		}
	}
	return true
}

// applyDecision sets the results of the limits from the decision of a round.
func (c *call) applyDecision(a *admission.Admission, outcome admission.Outcome, err error) error {
	defer a.Done(admission.Result{})
	switch outcome {
	case admission.Malformed, admission.Abandoned:
		return failed(outcome, err)
	case admission.FailedClosed:
		if c.engine.options.OnFailure == FailError && c.rules == nil {
			return errUnavailable
		}
	}
	d, isLimited := a.Decision()
	for _, i := range c.pending {
		applied := &c.limits[i]
		switch {
		case applied.batch > 0:
			shadow, ok := a.ShadowDecision(applied.batch - 1)
			c.setResult(applied, &shadow, ok)
		case applied.batch < 0: // it waits for the next round
		case outcome == admission.FailedClosed:
			applied.decidedBy = failedClosed
		case outcome == admission.FailedOpen || !isLimited || d.Len() <= applied.chargeIndex:
			applied.decidedBy = failedOpen
		default:
			c.setResult(applied, &d, true)
			if !d.Allowed && (applied.kind == force || applied.kind == refund) {
				c.nextRound = append(c.nextRound, i)
				applied.decidedBy = undecided
			}
		}
	}
	c.isDenied = c.isDenied || isLimited && !d.Allowed
	return nil
}

// compose collects the charges of a round. Limits that cannot be in it wait for the next round.
func (c *call) compose() {
	c.round.Charges, c.round.Limits = c.round.Charges[:0], c.round.Limits[:0]
	c.shadows = c.shadows[:0]
	c.shadowCharges, c.shadowLimits = slices.Grow(c.shadowCharges[:0], len(c.limits)), slices.Grow(c.shadowLimits[:0], len(c.limits)) // so that no append moves them
	for n, i := range c.pending {
		applied := &c.limits[i]
		applied.batch = -1
		charge := c.charge(applied)
		if other := c.findSameCounter(applied, c.pending[:n]); other != nil {
			c.join(i, applied, other, &charge)
			continue
		}
		switch {
		case c.engine.options.ShadowMode: // all charges together are one shadow
			if len(c.shadows) == 0 {
				c.shadows = append(c.shadows, policy.Shadow{})
			}
			applied.batch, applied.chargeIndex = 1, len(c.shadowCharges)
			c.shadowCharges, c.shadowLimits = append(c.shadowCharges, charge), append(c.shadowLimits, applied.eventLimit)
			c.shadows[0].Charges, c.shadows[0].Limits = c.shadowCharges, c.shadowLimits
		case applied.isShadow, applied.isQuota: // a shadow by itself
			at, end := len(c.shadowCharges), len(c.shadowCharges)+1
			c.shadowCharges, c.shadowLimits = append(c.shadowCharges, charge), append(c.shadowLimits, applied.eventLimit)
			c.shadows = append(c.shadows, policy.Shadow{Charges: c.shadowCharges[at:end:end], Limits: c.shadowLimits[at:end:end]})
			applied.batch, applied.chargeIndex = len(c.shadows), 0
		default:
			applied.batch, applied.chargeIndex = 0, len(c.round.Charges)
			c.round.Charges, c.round.Limits = append(c.round.Charges, charge), append(c.round.Limits, applied.eventLimit)
		}
	}
	c.shadows = append(c.shadows, c.policyShadows...)
	c.policyShadows = c.policyShadows[:0]
	c.round.Shadows = c.shadows
}

func (c *call) charge(applied *appliedLimit) penstock.Charge {
	charge := penstock.Charge{Key: applied.key, Plan: applied.limit.probe, Cost: applied.cost}
	switch applied.kind {
	case spend:
		charge.Plan = applied.limit.plan
		if c.isDenied {
			charge.Mode = penstock.Peek
		}
	case force:
		charge.Mode = penstock.Force
	case refund:
		charge.Mode = penstock.Refund
	case forbid:
		charge.Mode, charge.Cost = penstock.Peek, applied.limit.probe.Capacity()+1 // a cost that never fits
	case check:
		charge.Mode = penstock.Peek
		if !c.isExact() {
			charge.Cost = 1 // it fits unless the limit is exceeded
		}
	}
	return charge
}

// findSameCounter returns an earlier limit of the round that has the same counter, or nil.
func (c *call) findSameCounter(applied *appliedLimit, earlier []int) *appliedLimit {
	for _, i := range earlier {
		other := &c.limits[i]
		if other.batch >= 0 && applied.sharesCounter(other) {
			return other
		}
	}
	return nil
}

func (applied *appliedLimit) sharesCounter(other *appliedLimit) bool {
	p, q := applied.limit.probe, other.limit.probe
	return applied.key == other.key && p.Name() == q.Name() && p.Group() == q.Group()
}

// join merges the charge of a limit into that of other, an earlier limit with the same counter. It
// does so if both have the same kind and their order does not matter. If not, the limit waits for
// the next round. i is the limit's index in c.limits.
func (c *call) join(i int, applied, other *appliedLimit, charge *penstock.Charge) {
	isAlike := applied.kind == other.kind && applied.limit.current == other.limit.current && applied.isShadow == other.isShadow && applied.isQuota == other.isQuota
	// In mode Exact, each charge changes what later ones of its counter find. Checks change nothing.
	needsOrder := c.isExact() && (applied.kind != check || c.hasEarlierWaiter(applied))
	if !isAlike || needsOrder {
		c.nextRound = append(c.nextRound, i)
		return
	}
	applied.batch, applied.chargeIndex = other.batch, other.chargeIndex
	if applied.kind != spend && applied.kind != force && applied.kind != refund { // one Peek answers both limits
		return
	}
	charges := c.round.Charges
	switch {
	case c.engine.options.ShadowMode:
		charges = c.shadowCharges
	case applied.batch > 0:
		charges = c.shadows[applied.batch-1].Charges
	}
	charges[applied.chargeIndex].Cost = min(charges[applied.chargeIndex].Cost+charge.Cost, penstock.MaxCost)
}

// hasEarlierWaiter reports whether an earlier limit with the same counter waits for the next round.
func (c *call) hasEarlierWaiter(applied *appliedLimit) bool {
	return slices.ContainsFunc(c.nextRound, func(i int) bool { return applied.sharesCounter(&c.limits[i]) })
}
