package policy

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestEachExplicitChargeNeedsALimitWithARule(t *testing.T) {
	t.Parallel()
	rules := namedRules(t, nil)
	plan := penstock.PerSecond(10).MustCompile()
	charges := []penstock.Charge{{Key: "a", Plan: plan, Cost: 1}, {Key: "b", Plan: plan, Cost: 1}}
	withRule, withoutRule := &Limit{Rule: &Rule{Name: "a"}}, &Limit{}
	for _, c := range []struct {
		name    string
		limits  []*Limit
		isValid bool
	}{
		{name: "two limits", limits: []*Limit{withRule, withRule}, isValid: true},
		{name: "no limits", limits: nil},
		{name: "one limit", limits: []*Limit{withRule}},
		{name: "three limits", limits: []*Limit{withRule, withRule, withRule}},
		{name: "a nil limit", limits: []*Limit{withRule, nil}},
		{name: "a limit without a rule", limits: []*Limit{withRule, withoutRule}},
	} {
		for _, isShadow := range []bool{false, true} {
			var v Evaluation
			var err error
			if isShadow {
				err = rules.EvaluateCharges(nil, nil, []Shadow{{Charges: charges, Limits: c.limits}}, &v)
			} else {
				err = rules.EvaluateCharges(charges, c.limits, nil, &v)
			}
			if (err == nil) != c.isValid {
				t.Errorf("%s for two charges (a shadow: %v): the error is %v; want an error: %v", c.name, isShadow, err, !c.isValid)
			}
			if got := len(v.Charges) + len(v.Shadows); err != nil && got > 0 {
				t.Errorf("%s for two charges: the evaluation has %d charges and shadows; want none after an error", c.name, got)
			}
		}
	}
}
