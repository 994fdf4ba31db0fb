package forwardauth

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// Check rejects rules with limits that need what a Handler never sees: the response, the end of the
// request, or its body. The error wraps penstock.ErrInvalid, and names each such rule with the
// reason. Call it when rules are loaded, so that a reload fails as a whole. Rules without trusted
// proxies may have such limits, because a Handler then rejects all requests.
func Check(rules *policy.Rules) error {
	if config, ok := policy.SectionOf[*httplimit.Config](rules); !ok || len(config.TrustedProxies) == 0 {
		return nil
	}
	var errs []error
	for _, rule := range rules.Spec().Rules {
		if needsDescriptor(rule) {
			continue // the rule matches no HTTP request
		}
		for _, l := range rule.Limits {
			reason := findUnseen(l)
			if reason == "" && l.Candidate != nil {
				reason = findUnseen(l.Candidate)
			}
			if reason != "" {
				errs = append(errs, fmt.Errorf("rule %s, limit %s: %s", rule.Name, l.Name, reason))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: forwardauth: %w", penstock.ErrInvalid, err)
	}
	return nil
}

// needsDescriptor reports whether a rule matches only requests with a descriptor.
func needsDescriptor(r *policy.Rule) bool {
	return slices.ContainsFunc(r.Match.Where, func(t policy.Test) bool { return t.Source.Kind == policy.KindDescriptor })
}

// findUnseen returns what a limit needs that forward-auth does not see, and how to fix it; "" if
// nothing.
func findUnseen(l *policy.Limit) string {
	const remedy = "; use penstock's own proxy or middleware for it, or remove it"
	switch {
	case slices.ContainsFunc(l.Variants, func(p *penstock.Plan) bool { return p.Algorithm().NeedsHolder() }):
		return "in_flight needs the end of the request, which forward-auth does not see" + remedy
	case l.Status != nil:
		return "on_status needs the status of the response, which forward-auth does not see" + remedy
	case l.CostHeader != "":
		return "cost.actual needs the header " + l.CostHeader + " of the response, which forward-auth does not see" + remedy
	case l.Cost.Body > 0:
		return "cost.body needs the size of the body, which forward-auth does not see" + remedy
	}
	return ""
}
