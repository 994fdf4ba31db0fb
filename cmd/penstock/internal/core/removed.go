package core

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/policy"
)

// removedProtections names what the old rules enforce and the new rules do not: rules, limits of
// rules that stay, tiers, and the deny list. It names at most maxNamed of each kind. The text is
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

// changedProtections names what the new rules enforce in another way, if requests may pass that the
// old rules denied: an allow list with new entries, rules whose match is narrower, and limits with
// another algorithm, whose counters begin anew. It names at most maxNamed of each kind. The values
// of a match are compared as they are written. So a rule is named if its path was /* and is /b, and
// also if its path was /b and is /*.
func changedProtections(before, after *policy.Rules) string {
	var matches, algorithms, changed []string
	for _, rule := range before.Rules() {
		next := after.Rule(rule.Name)
		if next == nil || !rule.Enforces() || !next.Enforces() {
			continue
		}
		if !hasMatch(&next.Match, &rule.Match) {
			matches = append(matches, rule.Name)
		}
		for _, l := range rule.Limits {
			newLimit := after.Limit(rule.Name, l.Name)
			if !l.Shadow && newLimit != nil && !newLimit.Shadow && newLimit.Algorithm != l.Algorithm {
				algorithms = append(algorithms, rule.Name+"."+l.Name)
			}
		}
	}
	old := before.Spec().Allow
	isNew := func(c policy.Condition) bool {
		return !slices.ContainsFunc(old, func(known policy.Condition) bool { return implies(c, known) })
	}
	if slices.ContainsFunc(after.Spec().Allow, isNew) {
		changed = append(changed, "the allow list")
	}
	changed = appendNames(changed, "match of rule", matches)
	changed = appendNames(changed, "algorithm of limit", algorithms)
	return strings.Join(changed, "; ")
}

// hasMatch tells whether a match has all methods, hosts and paths of an old one.
func hasMatch(m, old *policy.Match) bool {
	isSamePath := func(a, b policy.Pattern) bool { return reflect.DeepEqual(a, b) }
	return m.IsAll() || hasAll(m.Methods, old.Methods, isSameText) && hasAll(m.Hosts, old.Hosts, isSameText) &&
		hasAll(m.Paths, old.Paths, isSamePath) && implies(old.Where, m.Where)
}

// hasAll tells whether a list has all values of an old one. An empty list stands for all values.
func hasAll[T any](list, old []T, isSame func(a, b T) bool) bool {
	if len(list) == 0 || len(old) == 0 {
		return len(list) == 0
	}
	return !slices.ContainsFunc(old, func(value T) bool {
		return !slices.ContainsFunc(list, func(other T) bool { return isSame(value, other) })
	})
}

func isSameText(a, b string) bool { return a == b }

// implies tells whether b is true of each request of which a is true, as far as their values show.
func implies(a, b policy.Condition) bool {
	for i := range b {
		if !slices.ContainsFunc(a, func(t policy.Test) bool { return isWithin(&t, &b[i]) }) {
			return false
		}
	}
	return true
}

// isWithin tells whether test b has the source of test a, and all values of a.
func isWithin(a, b *policy.Test) bool {
	if a.Source.Kind != b.Source.Kind || a.Source.Name != b.Source.Name || a.Any && !b.Any {
		return false
	}
	if x, y := a.Source.Identity, b.Source.Identity; x != nil && y != nil && x.Kind != y.Kind {
		return false
	}
	values := b.Values() // sorted
	return b.Any || !slices.ContainsFunc(a.Values(), func(value string) bool {
		_, isFound := slices.BinarySearch(values, value)
		return !isFound
	})
}

// maxNamed is how many rules, how many limits and how many tiers a log attribute names.
const maxNamed = 10

// appendNames appends a text such as "rules a, b" to a list. It appends nothing without names.
func appendNames(list []string, kind string, names []string) []string {
	if len(names) == 0 {
		return list
	}
	if len(names) > 1 {
		kind += "s"
	}
	text := kind + " " + strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
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
