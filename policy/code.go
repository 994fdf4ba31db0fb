package policy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// A Spec is a policy of one rule, made in code: some limits, for every request.
type Spec struct {
	Name   string                  // of the rule
	Payer  func(Attributes) string // the key that pays; it is used as it is
	Limits []penstock.Limit        // decided together
	HTTP   HTTPConfig

	// OnFailure is what happens to the Limits' charges while the store gives no answer. Default:
	// guard.Local.
	OnFailure guard.Failure
}

// New makes Rules of a Spec. The true cost of a request may be told afterwards for all of its
// limits that can give units back. An error wraps penstock.ErrInvalid.
func New(s Spec) (*Rules, error) {
	if s.Payer == nil {
		return nil, fmt.Errorf("%w: policy %q: it is not said who pays; set Payer", penstock.ErrInvalid, s.Name)
	}
	if !nameLike(s.Name) {
		return nil, fmt.Errorf("%w: limits in code need a name, and %q is none; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", penstock.ErrInvalid, s.Name)
	}
	if len(s.Limits) == 0 || len(s.Limits) > maxLimits {
		return nil, fmt.Errorf("%w: policy %q has %d limits; write 1 to %d", penstock.ErrInvalid, s.Name, len(s.Limits), maxLimits)
	}
	if s.OnFailure == guard.ByDefault {
		s.OnFailure = guard.Local
	}
	c := newCompiler(&Config{HTTP: s.HTTP})
	c.http()
	rule := &Rule{Name: s.Name}
	payer := &identity{index: 0, payer: s.Payer}
	c.rules.payers = 1
	errs := []error{c.err()}
	for _, limit := range s.Limits {
		limit = limit.WithName(limit.Name)
		limit.Group = s.Name
		ready, err := limit.Ready()
		if err != nil {
			errs = append(errs, fmt.Errorf("policy %q: %w", s.Name, err))
			continue
		}
		l := &Limit{Rule: rule, Name: ready.Name, Policy: s.Name + "." + ready.Name, Algorithm: ready.Algorithm.Title,
			Guard: guard.Settings{OnFailure: s.OnFailure}, Shown: true, forms: []penstock.Limit{ready}, per: payer, cost: cost{units: 1}}
		l.Settled = !ready.Algorithm.Holds && !ready.Algorithm.Is(penstock.LeakyBucket)
		if slices.ContainsFunc(rule.Limits, func(other *Limit) bool { return other.Name == l.Name }) {
			errs = append(errs, fmt.Errorf("%w: policy %q has two limits called %q; rename one by WithName", penstock.ErrInvalid, s.Name, l.Name))
		}
		rule.Limits = append(rule.Limits, l)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	rule.matchers = []*matcher{{rule: rule, path: []segment{{kind: segmentRest}}}}
	c.rules.rules, c.rules.general = []*Rule{rule}, rule.matchers
	c.rules.keepSettings()
	return c.rules, nil
}
