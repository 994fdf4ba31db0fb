package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/policy"
)

// weakerParts names the parts by which new rules may admit requests that the old rules denied. It
// returns "" if there are none. It finds these changes:
//
//   - Rules, limits of rules that stay, tiers, or entries of the deny list are gone.
//   - Rules or limits have become shadows. A rule without limits is new.
//   - The allow list has new entries.
//   - A rule has a narrower match, or is no longer always charged.
//   - A limit has another algorithm or another per, so its counters begin anew, or it no longer
//     counts denied requests.
//   - More spellings of a path are accepted, or are paths of their own.
//
// At most maxNamed of each kind are named. Each path of a match is compared with one other path:
// /** has all requests of /api/**, but /a/** and /b/** together are not seen to have those of
// another path. Numbers, costs, on_failure, and which rule is more specific are not compared.
func weakerParts(before, after *policy.Rules) string {
	named := make(map[string][]string) // names of rules, limits and tiers, by what has happened to them
	add := func(kind, name string) { named[kind] = append(named[kind], name) }
	for _, rule := range before.Spec().Rules {
		old, next := enforcedLimits(rule), after.Rule(rule.Name)
		var kept []string
		if next != nil {
			kept = enforcedLimits(next)
		}
		switch {
		case len(old) == 0:
			continue
		case len(kept) == 0 && next != nil && next.Shadow:
			add("now a shadow: rule", rule.Name)
			continue
		case next == nil || len(next.Limits) == 0:
			add("removed rule", rule.Name)
			continue
		case !hasMatch(after, before, rule.Name):
			add("narrower match of rule", rule.Name)
		}
		if rule.Always && !next.Always {
			add("no longer always: rule", rule.Name)
		}
		for _, limit := range old {
			name := rule.Name + "." + limit
			switch {
			case !slices.Contains(kept, limit) && after.Limit(rule.Name, limit) != nil:
				add("now a shadow: limit", name)
			case !slices.Contains(kept, limit):
				add("removed limit", name)
			case algorithmOf(before, rule.Name, limit) != algorithmOf(after, rule.Name, limit):
				add("new algorithm of limit", name)
			default:
				old, next := before.Limit(rule.Name, limit), after.Limit(rule.Name, limit)
				if old == nil || next == nil { // new_identities
					continue
				}
				if !hasSameKeys(next.Key, old.Key) {
					add("another per of limit", name)
				}
				if countsDenied(old) && !countsDenied(next) {
					add("denied requests no longer count: limit", name)
				}
			}
		}
	}
	hadLimits := len(before.Plans()) > 0
	for _, rule := range after.Spec().Rules {
		if rule.Unlimited && hadLimits && before.Rule(rule.Name) == nil {
			add("new unlimited rule", rule.Name)
		}
	}
	old, next := before.Spec(), after.Spec()
	for i := range old.Tiers {
		isSame := func(t policy.Tier) bool { return t.Name == old.Tiers[i].Name }
		if !slices.ContainsFunc(next.Tiers, isSame) {
			add("removed tier", old.Tiers[i].Name)
		}
	}
	var parts []string
	isLost := func(c policy.Condition) bool { return !isCovered(c, next.Deny) }
	switch {
	case len(old.Deny) > 0 && len(next.Deny) == 0:
		parts = append(parts, "the deny list is gone")
	case slices.ContainsFunc(old.Deny, isLost):
		parts = append(parts, "the deny list has lost entries")
	}
	isNew := func(c policy.Condition) bool { return !isCovered(c, old.Allow) }
	if slices.ContainsFunc(next.Allow, isNew) {
		parts = append(parts, "the allow list has new entries")
	}
	for _, kind := range []string{
		"removed rule", "removed limit", "now a shadow: rule", "now a shadow: limit", "removed tier", "narrower match of rule", "no longer always: rule",
		"new unlimited rule", "new algorithm of limit", "another per of limit", "denied requests no longer count: limit",
	} {
		parts = appendNames(parts, kind, named[kind])
	}
	if readsMorePaths(old.Paths, next.Paths) {
		parts = append(parts, "more paths differ or are accepted: case_sensitive, trailing_slash, path_parameters or encoded_slash")
	}
	return strings.Join(parts, "; ")
}

// isCovered reports whether one of several conditions is true of each request of which c is true,
// as far as their values show. Conditions of one test are compared together, because a list may be
// spread over them.
func isCovered(c policy.Condition, by []policy.Condition) bool {
	var single []policy.Test
	for _, other := range by {
		if implies(c, other) {
			return true
		}
		if len(other) == 1 {
			single = append(single, other[0])
		}
	}
	return slices.ContainsFunc(c, func(t policy.Test) bool { return t.IsCoveredBy(single...) })
}

// hasSameKeys reports whether a limit by the identity id counts all requests under the same keys as
// by the old one. Another identity begins new counters, and may give one client several keys.
func hasSameKeys(id, old *policy.Identity) bool {
	listsValues := func(id *policy.Identity) bool { return id.AllowedValues != nil && !id.AllowedValues.Any }
	switch {
	case id.Global != old.Global || (id.Func == nil) != (old.Func == nil) || id.Kind != old.Kind:
		return false
	case id.Source.Kind != old.Source.Kind || id.Source.Name != old.Source.Name:
		return false
	case id.AllowedValues != nil && (old.AllowedValues == nil || !old.AllowedValues.IsCoveredBy(*id.AllowedValues)):
		return false
	case listsValues(old) && !listsValues(id): // the other values have counters of their own now
		return false
	}
	return slices.EqualFunc(id.FirstOf, old.FirstOf, hasSameKeys) && slices.EqualFunc(id.AllOf, old.AllOf, hasSameKeys)
}

func countsDenied(l *policy.Limit) bool {
	return slices.ContainsFunc(l.Variants, func(p *penstock.Plan) bool { return p.CountsDenied() })
}

// readsMorePaths reports whether next distinguishes paths that old treats as one, or accepts paths
// that old rejects. Then a client can choose among more paths, and rules may not match all of them.
func readsMorePaths(old, next policy.Paths) bool {
	return old.IgnoreCase && !next.IgnoreCase || old.IgnoreTrailingSlash && !next.IgnoreTrailingSlash ||
		old.StripParameters && !next.StripParameters || !old.KeepEncodedSlash && next.KeepEncodedSlash
}

// algorithmOf returns the algorithm of a limit. It returns "" for new_identities, which has none.
func algorithmOf(rules *policy.Rules, rule, limit string) string {
	l := rules.Limit(rule, limit)
	switch {
	case l != nil && regions.IsAcross(l.Variants[0]):
		return l.Algorithm + " across regions"
	case l != nil:
		return l.Algorithm
	}
	return ""
}

// hasMatch reports whether a rule matches all requests that an old rule matches, as far as the
// values of conditions show. Both rules have the same name.
func hasMatch(rules, old *policy.Rules, name string) bool {
	now, before := rules.Rule(name), old.Rule(name)
	return now.Covers(before) && implies(before.Match.Where, now.Match.Where)
}

// implies reports whether b is true whenever a is true, as far as their values show.
func implies(a, b policy.Condition) bool {
	for i := range b {
		if !slices.ContainsFunc(a, func(t policy.Test) bool { return t.IsCoveredBy(b[i]) }) {
			return false
		}
	}
	return true
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
