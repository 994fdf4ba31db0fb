package policyfile

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) checkBeforeAuth(r *policy.Rule, config *ruleConfig) {
	at := &config.BeforeAuth
	r.BeforeAuth = true
	if c.config.Tokens == nil && !c.unreadable[&c.config.Tokens] {
		c.fail(at, "there are no tokens to verify; remove before_auth, or add tokens:")
		return
	}
	if r.Unlimited || r.Shadow || r.NewIdentities != nil {
		c.fail(at, "before_auth cannot be combined with unlimited, shadow or new_identities; remove before_auth or the other field")
	}
	for i := range r.Match.Where {
		if source := &r.Match.Where[i].Source; source.Needs(policy.KindClaim) || source.Needs(policy.KindTier) {
			c.fail(at, "before a token is verified, claims and tiers are not known, and the rule's match uses one; remove it, or before_auth")
			return
		}
	}
	for i, l := range r.Limits {
		at := c.placeOf(at, &config.Limits[i])
		hasSlots := len(l.Variants) > 0 && l.Variants[0].Algorithm().NeedsHolder()
		isCorrectedLater := l.Status != nil || l.Adjustable || hasSlots
		switch {
		case l.Key.Needs(policy.KindClaim) || l.Key.Needs(policy.KindTier) || len(l.Variants) > 1:
			c.fail(at, "before a token is verified, claims and tiers are not known, and limit %s uses one; use per: ip", wording.Clip(l.Name))
		case isCorrectedLater || l.Patience > 0 || l.Shadow || l.Candidate != nil:
			c.fail(at, "limit %s is decided before the token is verified; it cannot have in_flight, on_status, actual, max_wait, shadow or candidate", wording.Clip(l.Name))
		}
	}
}

func (c *compiler) compileNewIdentities(r *policy.Rule, config *ruleConfig) {
	at := &config.NewIdentities
	canCountInvented := func(l *policy.Limit) bool { return !l.Shadow && len(l.Key.Invented()) > 0 }
	limit, calendar, err := parseRate(config.NewIdentities)
	switch {
	case err != nil:
		c.fail(at, "%s", reason(err))
		return
	case calendar != "":
		c.fail(at, "new_identities cannot be for calendar periods; write it as 20/min, or 20/min, burst 100")
		return
	case r.Shadow || r.Unlimited:
		c.fail(at, "the rule denies nothing, so it cannot bound new identities; remove new_identities, or enforce the rule")
		return
	case !slices.ContainsFunc(r.Limits, canCountInvented):
		c.warn(at, "clients cannot invent identities of this rule, so new_identities has no effect; remove it")
	}
	limit.Name, limit.Group = reserved.NewIdentities, r.Name
	if !syntax.IsName(r.Name) {
		return // the wrong name is reported elsewhere
	}
	plan, err := limit.Compile()
	if err != nil {
		c.fail(at, "%s", reason(err))
		return
	}
	r.NewIdentities = plan
	for i, l := range r.Limits {
		if l.Name == reserved.NewIdentities {
			c.fail(c.placeOf(&config.Limits[i], &config.Limits[i].Name), "the rule's new_identities is a limit with this name; rename this limit")
		}
	}
}

// warnInventedIdentities warns about identities that clients can invent without a bound. Each new
// identity has a new limit, and a key in the store. Shadows are meant to be enforced later, so the
// warning comes for them too.
func (c *compiler) warnInventedIdentities() {
	boundsAllRequests := func(r *policy.Rule) bool { return r.Always && r.Match.IsAll() && boundsAddresses(r, nil) }
	isWarnedOf := make(map[*string]bool) // by the place of an identity
	isBounded := slices.ContainsFunc(c.spec.Rules, boundsAllRequests)
	for _, r := range c.spec.Rules {
		if isBounded || r.NewIdentities != nil {
			continue
		}
		for _, l := range r.Limits {
			if boundsAddresses(r, l) {
				continue
			}
			isShadow := l.Shadow || r.Shadow
			effect, toRule := "each new value gets a fresh limit and a key", "the rule"
			if isShadow {
				effect, toRule = "each new value gets a key now, and a fresh limit when this shadow is enforced", "the enforced rule"
			}
			for _, id := range l.Key.Invented() {
				at := c.identityNotes[id].source
				isKnown := isShadow && isWarnedOf[at] // an enforced limit has the same identity
				if id.Source.Kind != policy.KindHost && id.Source.Kind != policy.KindMethod && !isKnown {
					isWarnedOf[at] = true
					c.warn(at, "clients can write any %s, and %s; list the values that were issued, "+
						"add new_identities: 20/min to %s, or a limit per address beside this", *at, effect, toRule)
				}
			}
		}
	}
}

// hintSharedUnknown explains the effect of identities that requests may lack: all such requests
// share one limit.
func (c *compiler) hintSharedUnknown() {
	remark := remarkKind{report: c.hint}
	for i, r := range c.spec.Rules {
		if r.Shadow {
			continue
		}
		for j, l := range r.Limits {
			if l.Shadow || isPresent(l.Key, r.Match.Where) {
				continue
			}
			missing, remedy := "any part of the identity", "write {first_of: [..., ip]} to count them by address"
			if l.Key.Needs(policy.KindDescriptor) { // descriptors often have no address
				remedy = "write {first_of: [..., {other: descriptor OTHER}]} with an entry that each of them has"
			}
			switch source := &l.Key.Source; {
			case source.Kind != policy.KindNone && l.Key.AllowedValues != nil && !l.Key.AllowedValues.Any:
				missing = "a listed " + source.String()
			case source.Kind != policy.KindNone:
				missing = source.String()
				remedy += fmt.Sprintf(", or match: {%s: \"*\"} if the rule is only for requests with it", source)
			}
			config := &c.config.Rules[i]
			remark.note(c.placeOf(&config.Per, &config.Limits[j].Per), "requests without %s all share one limit, under the key \"unknown\"; %s", missing, remedy)
		}
	}
	remark.end()
}

// isPresent reports whether each request that meets a condition has a key by an identity. Hosts
// count as present, because HTTP/1.1 requires them.
func isPresent(id *policy.Identity, where policy.Condition) bool {
	isPartPresent := func(part *policy.Identity) bool { return isPresent(part, where) }
	if id.IsAlwaysPresent() || slices.ContainsFunc(slices.Concat(id.FirstOf, id.AllOf), isPartPresent) {
		return true
	}
	wanted := policy.Test{Source: id.Source, Any: true}
	if id.AllowedValues != nil {
		wanted = *id.AllowedValues
	}
	if id.Source.Kind == policy.KindHost && wanted.Any {
		return true
	}
	return slices.ContainsFunc(where, func(t policy.Test) bool {
		return t.Source.Identity == id || id.Source.Kind != policy.KindNone && t.IsCoveredBy(wanted)
	})
}

// boundsAddresses reports whether a rule has a limit that counts, by the client's address, each
// request that the limit counted of the rule counts. If counted is nil, it must count all requests.
// If counted is a shadow, other shadows bound it too, as they will when they are enforced.
func boundsAddresses(r *policy.Rule, counted *policy.Limit) bool {
	canBeShadow := counted != nil && (counted.Shadow || r.Shadow)
	return slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool {
		isEnforced := !l.Shadow && !r.Shadow
		isRate := len(l.Variants) > 0 && !l.Variants[0].Algorithm().NeedsHolder()
		countsAll := l.Status == nil || counted != nil && counted.Status != nil && *counted.Status == *l.Status
		return (isEnforced || canBeShadow) && isRate && countsAll && isAddress(l.Key)
	})
}

// isAddress reports whether an identity is the client's address alone, however it is written.
func isAddress(id *policy.Identity) bool {
	switch {
	case id.FirstOf != nil:
		return isAddress(id.FirstOf[0]) // every request has an address, so no other part is used
	case id.AllOf != nil:
		return holdsForAll(id.AllOf, isAddress)
	}
	return id.Source.Kind == policy.KindAddress && (id.AllowedValues == nil || id.AllowedValues.Any)
}

// hintSharedAddresses explains the effect of limits by address alone. Some rules get no hint: those
// that charge another identity or a global limit too, and those that cannot have a better identity.
func (c *compiler) hintSharedAddresses() {
	isOtherIdentity := func(l *policy.Limit) bool { return !l.Shadow && l.Status == nil && !isAddress(l.Key) }
	hasOtherIdentity := func(r *policy.Rule) bool { return !r.Shadow && slices.ContainsFunc(r.Limits, isOtherIdentity) }
	// canApplyWith reports whether a request that r charges may be charged by other too.
	canApplyWith := func(r, other *policy.Rule) bool {
		return other == r || r.Always || other.Always && other.Match.IsAll()
	}
	remark := remarkKind{report: c.hint}
	for i, r := range c.spec.Rules {
		chargesOtherIdentity := func(other *policy.Rule) bool { return hasOtherIdentity(other) && canApplyWith(r, other) }
		if r.BeforeAuth || slices.ContainsFunc(c.spec.Rules, chargesOtherIdentity) {
			continue
		}
		for j, l := range r.Limits {
			if l.Shadow || l.Status != nil || !isAddress(l.Key) {
				continue
			}
			config := &c.config.Rules[i]
			remark.note(c.placeOf(&config.Per, &config.Limits[j].Per), "limits by address alone are shared by all clients behind one NAT or proxy, and clients with many addresses evade them; "+
				"write {first_of: [...]} with a better identity before ip if there is one, or add a limit per: global")
		}
	}
	remark.end()
}
