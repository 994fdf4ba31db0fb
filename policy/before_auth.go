package policy

// A rule with before_auth is decided in a separate call before a token is verified. So forged
// tokens cost at most as many signature checks as its limits admit. If no signature must be checked
// (there is no token, or its check is cached), the rule is like one with Always, and is charged
// with the others.

// EvaluateFirst does what Evaluate does, unless that would check a signature and rules with
// before_auth match the request. Then it returns false, and the Evaluation has only the charges of
// these rules. If they are granted, they stay charged, and EvaluateRest evaluates the other rules.
// If the key of such a charge is unclear, the request is malformed, and no signature is checked.
func (r *Rules) EvaluateFirst(a Attributes, v *Evaluation) bool {
	if len(r.beforeAuth) == 0 {
		r.Evaluate(a, v)
		return true
	}
	v.reset(r, a)
	v.request.isBeforeAuth = true
	r.evaluate(a, v)
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
	case v.request.unclear != "":
		v.finish(r, a)
		return true
	case len(v.Charges) > 0:
		return false
	}
	r.Evaluate(a, v)
	return true
}

// EvaluateRest evaluates the rules without before_auth, after those with before_auth have granted
// the request.
func (r *Rules) EvaluateRest(a Attributes, v *Evaluation) {
	v.reset(r, a)
	v.request.isGrantedBeforeAuth = true
	r.evaluate(a, v)
	v.finish(r, a)
}
