package policy

// A rule with before_auth is decided by itself before a token is verified, so that forged tokens
// cost no more signature checks than its limits admit. Where no signature has to be checked (there
// is no token, or it was seen before) the rule is one that always applies, and is charged with the
// others.

// AssessFirst is Assess, unless that would check a signature and rules with before_auth match the
// request. Then it returns false, and the Verdict has only their charges. If these are granted they
// stay charged, and AssessRest assesses the other rules. If it is unclear who pays them, the
// request is malformed, and no signature is checked.
func (r *Rules) AssessFirst(a Attributes, v *Verdict) bool {
	if len(r.before) == 0 {
		r.Assess(a, v)
		return true
	}
	v.reset(r, a)
	v.request.waits = true
	r.assess(a, v)
	if !v.request.unverified {
		v.finish(r, a)
		return true
	}
	v.reset(r, a)
	for _, m := range r.before {
		if !v.has(m.rule) && m.matches(&v.request, a.Path()) {
			v.apply(m)
		}
	}
	switch {
	case v.request.unclear != "":
		v.finish(r, a)
		return true
	case len(v.Charges) > 0:
		return false
	}
	r.Assess(a, v)
	return true
}

// AssessRest finds what the rules demand of a request besides those with before_auth, which have
// granted it.
func (r *Rules) AssessRest(a Attributes, v *Verdict) {
	v.reset(r, a)
	v.request.granted = true
	r.assess(a, v)
	v.finish(r, a)
}

// beforeAuth checks that a rule can be decided before a token is verified.
func (c *compiler) beforeAuth(r *Rule, config *RuleConfig) {
	at := &config.BeforeAuth
	r.BeforeAuth = true
	if c.config.Tokens == nil && !c.broken[&c.config.Tokens] {
		c.fail(at, "there are no tokens to verify; remove before_auth, or add tokens:")
		return
	}
	if r.Unlimited || r.Shadow || r.newIdentities != nil {
		c.fail(at, "the rule denies nothing before tokens are verified; remove before_auth, or unlimited, shadow and new_identities")
	}
	for _, m := range r.matchers {
		for i := range m.where {
			if part := &m.where[i].part; part.needs(partClaim) || part.needs(partTier) {
				c.fail(at, "before a token is verified, nothing is known of claims and tiers, and the rule's match names one; remove that, or before_auth")
				return
			}
		}
	}
	for i, l := range r.Limits {
		at := c.orWritten(at, &config.Limits[i])
		switch {
		case l.per.needs(partClaim) || l.per.needs(partTier) || len(l.forms) > 1:
			c.fail(at, "before a token is verified, nothing is known of claims and tiers, and limit %s goes by one; use per: address", clip(l.Name))
		case l.Status != nil || l.Settled || l.Patience > 0 || l.Shadow || l.Candidate != nil || len(l.forms) > 0 && l.forms[0].Algorithm.Holds:
			c.fail(at, "limit %s is decided and done with before the token is verified; it cannot have in_flight, on_status, actual, wait, shadow or candidate", clip(l.Name))
		}
	}
}
