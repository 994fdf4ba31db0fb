package policy

import (
	"testing"

	"github.com/penstock/penstock"
)

func TestDirectCallNeedsALimitWithARuleForEachCharge(t *testing.T) {
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
		for _, call := range []DirectCall{
			{Charges: charges, Limits: c.limits},
			{Shadows: []Shadow{{Charges: charges, Limits: c.limits}}},
		} {
			var v Evaluation
			err := rules.EvaluateDirect(call, &v)
			if (err == nil) != c.isValid {
				t.Errorf("%s for two charges: the error of %+v is %v; want an error: %v", c.name, call, err, !c.isValid)
			}
			if got := len(v.Charges) + len(v.Shadows); err != nil && got > 0 {
				t.Errorf("%s for two charges: the evaluation has %d charges and shadows; want none after an error", c.name, got)
			}
		}
	}
}
