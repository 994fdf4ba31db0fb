package policy

// A rule with before_auth is decided in a separate call before a token is verified. So forged
// tokens cause at most as many signature checks as the limits of the rule admit. If the request has
// no token, or the check of its token is cached, no signature must be checked. Then no separate
// call is made: the rule is like one with Always, and all rules are charged together.

// EvaluateBeforeAuth evaluates the rules with before_auth alone, if some of them match the request
// and Evaluate would have to check a signature. If it does this, it returns false, and the
// Evaluation has only the charges of these rules. If the charges are granted, they are kept, and
// the caller evaluates the other rules with EvaluateAfterAuth.
//
// In all other cases EvaluateBeforeAuth does what Evaluate does, and returns true. If the key of a
// rule with before_auth is ambiguous, EvaluateBeforeAuth returns true too. The request is then
// malformed, and no signature is checked.
func (r *Rules) EvaluateBeforeAuth(a Attributes, v *Evaluation) (hasAllCharges bool) {
	if len(r.beforeAuth) == 0 {
		r.Evaluate(a, v)
		return true
	}
	v.reset(r, a)
	v.request.isBeforeAuth = true
	r.evaluate(v)
	if !v.request.hasSkippedCheck {
		v.finish(r, a)
		return true
	}
	v.reset(r, a)
	for _, m := range r.beforeAuth {
		if !v.has(m.rule) && m.matches(&v.request) {
			v.apply(m)
		}
	}
	switch {
	case v.request.ambiguous != "":
		v.finish(r, a)
		return true
	case len(v.Charges) > 0:
		return false
	}
	r.Evaluate(a, v)
	return true
}

// EvaluateAfterAuth evaluates the rules without before_auth, after those with before_auth have
// granted the request.
func (r *Rules) EvaluateAfterAuth(a Attributes, v *Evaluation) {
	v.reset(r, a)
	v.request.isGrantedBeforeAuth = true
	r.evaluate(v)
	v.finish(r, a)
}
