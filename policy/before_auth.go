package policy

// A rule with before_auth is decided by itself before a token is verified, so that forged tokens
// cost no more signature checks than its limits admit. Where no signature has to be checked (there
// is no token, or it was seen before) the rule is one that always applies, and is charged with the
// others.

// EvaluateFirst is Evaluate, unless that would check a signature and rules with before_auth match
// the request. Then it returns false, and the Evaluation has only their charges. If these are
// granted they stay charged, and EvaluateRest assesses the other rules. If the key of one of these
// charges is unclear, the request is malformed, and no signature is checked.
func (r *Rules) EvaluateFirst(a Attributes, v *Evaluation) bool {
	if len(r.before) == 0 {
		r.Evaluate(a, v)
		return true
	}
	v.reset(r, a)
	v.request.waits = true
	r.evaluate(a, v)
	if !v.request.unverified {
		v.finish(r, a)
		return true
	}
	v.reset(r, a)
	for _, m := range r.before {
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

// EvaluateRest finds what the rules demand of a request besides those with before_auth, which have
// granted it.
func (r *Rules) EvaluateRest(a Attributes, v *Evaluation) {
	v.reset(r, a)
	v.request.granted = true
	r.evaluate(a, v)
	v.finish(r, a)
}
