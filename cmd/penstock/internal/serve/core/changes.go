package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/policy"
)

// A part is a rule, or a limit of a rule. The zero part is all settings outside the rules.
type part struct{ rule, limit string }

func compareParts(a, b part) int {
	return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.limit, b.limit))
}

// policyChanges returns the log attributes added, removed and changed, which name what a reload has
// changed. Each names at most maxNamed rules and maxNamed limits. A part has changed if its
// description has, or a value that descriptions hide, such as an API key.
func policyChanges(before, after *policy.Rules) (attributes []any) {
	old, next := partsOf(before), partsOf(after)
	isMissing := func(p part, in map[part]string) bool { // the limits of a missing rule are not named
		return !has(in, p) && (p.limit == "" || has(in, part{rule: p.rule}))
	}
	for _, change := range []struct {
		name    string
		of      map[part]string
		isNamed func(part) bool
	}{
		{"added", next, func(p part) bool { return isMissing(p, old) }},
		{"removed", old, func(p part) bool { return isMissing(p, next) }},
		{"changed", next, func(p part) bool { return has(old, p) && old[p] != next[p] }},
	} {
		var rules, limits, texts []string
		for _, p := range slices.SortedFunc(maps.Keys(change.of), compareParts) {
			switch {
			case !change.isNamed(p):
			case p == part{}:
				texts = append(texts, "settings outside the rules")
			case p.limit == "":
				rules = append(rules, p.rule)
			default:
				limits = append(limits, p.rule+"."+p.limit)
			}
		}
		texts = appendNames(appendNames(texts, "rule", rules), "limit", limits)
		if texts != nil {
			attributes = append(attributes, change.name, strings.Join(texts, "; "))
		}
	}
	return attributes
}

func has(parts map[part]string, p part) bool {
	_, ok := parts[p]
	return ok
}

// partsOf describes each part. The descriptions include values that explain hides.
func partsOf(rules *policy.Rules) map[part]string {
	spec := rules.Spec()
	all, common := make(map[part]string), spec
	common.Rules, common.Name = nil, ""
	all[part{}] = describe.Spec(common) + valuesOf(spec.Deny...) + valuesOf(spec.Allow...)
	for _, t := range spec.Tiers {
		all[part{}] += t.Name + valuesOf(t.AnyOf...)
	}
	tiers := make([]policy.Tier, len(spec.Tiers)) // only their names: who has a tier is a setting outside the rules
	for i := range tiers {
		tiers[i].Name = spec.Tiers[i].Name
	}
	describeRule := func(rule *policy.Rule) string {
		return describe.Spec(policy.Spec{Tiers: tiers, Rules: []*policy.Rule{rule}})
	}
	for _, rule := range spec.Rules {
		bare := *rule
		bare.Limits = nil
		all[part{rule: rule.Name}] = describeRule(&bare) + valuesOf(rule.Match.Where)
		for _, limit := range rule.Limits {
			all[part{rule.Name, limit.Name}] = describeRule(&policy.Rule{Name: rule.Name, Limits: []*policy.Limit{limit}}) + valuesOfIdentity(limit.Key)
		}
	}
	return all
}

// valuesOf returns the values of all tests, for comparisons only: they may be secret.
func valuesOf(conditions ...policy.Condition) string {
	var b strings.Builder
	for _, c := range conditions {
		for i := range c {
			fmt.Fprintf(&b, "%q", c[i].Values())
		}
		b.WriteByte(';')
	}
	return b.String()
}

// valuesOfIdentity returns the values that an identity and its parts list.
func valuesOfIdentity(id *policy.Identity) string {
	var text string
	if id.AllowedValues != nil {
		text = valuesOf(policy.Condition{*id.AllowedValues})
	}
	for _, one := range slices.Concat(id.FirstOf, id.AllOf) {
		text += valuesOfIdentity(one)
	}
	return text
}
