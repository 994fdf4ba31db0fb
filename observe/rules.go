package observe

import (
	"maps"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/policy"
)

// A Rule has the labels of the series of one limit. Name is the name of the limit's rule.
type Rule struct{ Name, Limit, Algorithm string }

// Other is the Rule of requests that belong to no Rule that was set. A policy may also have a rule
// with the name "other". The series of this rule have other labels than Other, because no algorithm
// has the name "other".
var Other = Rule{labels.Other, labels.Other, labels.Other}

// RulesOf returns a Rule for each limit of a policy, including shadows and candidates.
func RulesOf(rules *policy.Rules) (all []Rule) {
	add := func(l *policy.Limit) {
		all = append(all, Rule{Name: l.Rule.Name, Limit: l.Name, Algorithm: l.Algorithm})
	}
	for _, rule := range rules.Spec().Rules {
		if limit := rule.NewIdentities; limit != nil {
			all = append(all, Rule{Name: rule.Name, Limit: limit.Name(), Algorithm: limit.Algorithm().Title()})
		}
		for _, l := range rule.Limits {
			add(l)
			if l.Candidate != nil {
				add(l.Candidate)
			}
		}
	}
	return all
}

// RulesOfPlans returns a Rule for each limit. The Rule's Name is the limit's group. RulesOfPlans is
// for programs that call a Limiter: (*penstock.Limiter).Plans returns the Limiter's limits.
func RulesOfPlans(plans ...*penstock.Plan) (all []Rule) {
	for _, plan := range plans {
		all = append(all, ruleOf(plan))
	}
	return all
}

func ruleOf(plan *penstock.Plan) Rule {
	return Rule{Name: plan.Group(), Limit: plan.Name(), Algorithm: plan.Algorithm().Title()}
}

// SetRules sets the rules that have their own series. Call it after each load of the policy. A rule
// that was set before keeps its counts. A rule that is no longer set loses its series.
func (c *Counts) SetRules(rules []Rule) { c.SetRulesOf("", rules) }

// SetRulesOf is SetRules for one of several owners of rules. The owner of SetRules is "".
func (c *Counts) SetRulesOf(owner string, rules []Rule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rulesByOwner[owner] = slices.Clone(rules)
	c.updateRulesLocked()
}

// updateRulesLocked makes series for new rules, and removes those of rules that are no longer set.
func (c *Counts) updateRulesLocked() {
	var old map[Rule]*series
	if loaded := c.seriesByRule.Load(); loaded != nil {
		old = *loaded
	}
	rules := slices.Concat(slices.Collect(maps.Values(c.rulesByOwner))...)
	all := make(map[Rule]*series, len(rules)+1)
	for _, rule := range append(rules, Other) {
		s := old[rule]
		if s == nil {
			s = new(series)
		}
		all[rule] = s
	}
	c.seriesByRule.Store(&all)
	for rule, s := range old {
		if all[rule] == nil && s.histogram.Load() != nil {
			c.options.Removed(rule)
		}
	}
}
