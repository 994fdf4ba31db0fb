package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/policy"
)

// removedProtections names what the old rules enforce and the new rules do not: rules, limits of
// rules that stay, tiers, and the deny list. It names at most maxRemoved of each kind. The text is
// "" if the new rules have all of them. Shadows enforce nothing.
func removedProtections(before, after *policy.Rules) string {
	var rules, limits, tiers, removed []string
	for _, rule := range before.Rules() {
		old := enforcedLimits(rule)
		var kept []string
		if next := after.Rule(rule.Name); next != nil {
			kept = enforcedLimits(next)
		}
		if len(old) > 0 && len(kept) == 0 {
			rules = append(rules, rule.Name)
			continue
		}
		for _, limit := range old {
			if !slices.Contains(kept, limit) {
				limits = append(limits, rule.Name+"."+limit)
			}
		}
	}
	old, next := before.Spec(), after.Spec()
	for i := range old.Tiers {
		isSame := func(t policy.Tier) bool { return t.Name == old.Tiers[i].Name }
		if !slices.ContainsFunc(next.Tiers, isSame) {
			tiers = append(tiers, old.Tiers[i].Name)
		}
	}
	if len(old.Deny) > 0 && len(next.Deny) == 0 {
		removed = append(removed, "the deny list")
	}
	removed = appendNames(removed, "rule", rules)
	removed = appendNames(removed, "limit", limits)
	removed = appendNames(removed, "tier", tiers)
	return strings.Join(removed, "; ")
}

// maxRemoved is how many removed rules, limits and tiers a log line names.
const maxRemoved = 10

// appendNames appends a text such as "rules a, b" to a list. It appends nothing without names.
func appendNames(list []string, kind string, names []string) []string {
	if len(names) == 0 {
		return list
	}
	if len(names) > 1 {
		kind += "s"
	}
	text := kind + " " + strings.Join(names[:min(len(names), maxRemoved)], ", ")
	if more := len(names) - maxRemoved; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return append(list, text)
}

// enforcedLimits returns the names of the limits of a rule that are not shadows.
func enforcedLimits(rule *policy.Rule) (names []string) {
	for _, l := range rule.Limits {
		if !l.Shadow {
			names = append(names, l.Name)
		}
	}
	if rule.NewIdentities != nil {
		names = append(names, rule.NewIdentities.Name())
	}
	return names
}
