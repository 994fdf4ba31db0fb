package policyfile

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/policy"
)

// A store generates scripts for plans in their order. So plans must have the order of the charges.
func TestPlansHaveTheOrderOfCharges(t *testing.T) {
	rules := policyIn(t, "policy.yaml", `
rules:
  - name: a
    per: global
    limits:
      - {name: counted, rate: 1/s, shadow: true}
      - {name: first, rate: 2/s, candidate: {rate: 3/s}}
      - {name: second, rate: 4/s}
`).Rules
	var plans, charged []string
	for _, plan := range rules.Plans() {
		plans = append(plans, plan.Name())
	}
	var v policy.Evaluation
	rules.Evaluate(testRequest{}, &v)
	for _, c := range v.Charges {
		charged = append(charged, c.Plan.Name())
	}
	for _, shadow := range v.Shadows {
		for _, c := range shadow.Charges {
			charged = append(charged, c.Plan.Name())
		}
	}
	want(t, "the plans", fmt.Sprint(plans), "[first second counted first.candidate]")
	want(t, "the charges", fmt.Sprint(charged), fmt.Sprint(plans))
}
