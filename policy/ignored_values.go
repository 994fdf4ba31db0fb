package policy

import (
	"fmt"
	"slices"
)

// IgnoredValues returns why rules ignored some of the values that identify the client: its token is
// rejected, or the policy does not list a value. The reasons contain no secrets. Call IgnoredValues
// right after Evaluate.
func (v *Evaluation) IgnoredValues() (reasons []string) {
	q := &v.request
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(reasons, text) {
			reasons = append(reasons, text)
		}
	}
	if v.TokenError != nil {
		add("the token is rejected: %v", v.TokenError)
	}
	addIfUnlisted := func(t *Test, problem func() string) {
		switch t.Source.Kind {
		case KindHeader, KindCookie, KindQuery, KindDescriptor:
			if text := q.identifyingText(&t.Source); text != "" && !t.has(text) {
				add("%s %s", t.Source.String(), problem())
			}
		}
	}
	for _, l := range v.Limits {
		l.Key.visitTests(q, func(t *Test) {
			addIfUnlisted(t, func() string { return "is not accepted: its value is not one of " + t.listText() })
		})
	}
	tiers := q.rules.spec.Tiers
	isDefault := slices.ContainsFunc(tiers, func(t Tier) bool { return t.IsDefault && t.Name == v.Tier })
	for _, t := range tiers { // those before the client's tier, which did not match
		if t.IsDefault || v.Tier == "" || v.Tier == t.Name {
			break
		}
		for _, when := range t.AnyOf {
			for i := range when {
				addIfUnlisted(&when[i], func() string {
					if isDefault {
						return "has a value that no tier lists, so the tier is " + v.Tier
					}
					return "has a value that the tier " + t.Name + " does not list"
				})
			}
		}
	}
	return reasons
}

// visitTests calls visit for each test of an identity. In a FirstOf it stops before the part that
// identifies the client.
func (id *Identity) visitTests(q *request, visit func(*Test)) {
	for _, one := range id.FirstOf {
		if _, ok := q.findKey(one); ok {
			return
		}
		one.visitTests(q, visit)
	}
	for _, one := range id.AllOf {
		one.visitTests(q, visit)
	}
	if id.AllowedValues != nil {
		visit(id.AllowedValues)
	}
}

// listText describes how many values a test accepts, and where they are listed. The text does not
// show the values.
func (t *Test) listText() string {
	if t.File != "" {
		return fmt.Sprintf("the %d in %s", len(t.texts), t.File)
	}
	return fmt.Sprintf("the %d in the policy", len(t.texts))
}
