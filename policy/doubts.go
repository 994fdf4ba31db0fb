package policy

import (
	"fmt"
	"slices"
)

// Doubts returns why a request is not counted as the client that it names: why its token is
// rejected, and which of its values the policy does not list. They contain no secrets. Call it
// right after Evaluate.
func (v *Evaluation) Doubts() (reasons []string) {
	q := &v.request
	add := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		for _, reason := range reasons {
			if reason == text {
				return
			}
		}
		reasons = append(reasons, text)
	}
	if v.TokenError != nil {
		add("the token is rejected: %v", v.TokenError)
	}
	doubt := func(t *Test, problem func() string) {
		switch t.Source.Kind {
		case KindHeader, KindCookie, KindQuery, KindDescriptor:
			if text := q.identifies(&t.Source); text != "" && !t.has(text) {
				add("%s %s", t.Source.String(), problem())
			}
		}
	}
	for _, l := range v.Limits {
		l.Key.doubts(q, func(t *Test) {
			doubt(t, func() string { return "is not accepted: its value is not one of " + t.listed() })
		})
	}
	tiers := q.rules.spec.Tiers
	isDefault := slices.ContainsFunc(tiers, func(t Tier) bool { return t.IsDefault && t.Name == v.Tier })
	for _, t := range tiers {
		if t.IsDefault || v.Tier == "" || v.Tier == t.Name {
			break
		}
		for _, when := range t.AnyOf {
			for i := range when {
				doubt(&when[i], func() string {
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

// doubts calls doubt for each test of an identity, up to the part that identifies the client.
func (id *Identity) doubts(q *request, doubt func(*Test)) {
	for _, one := range id.FirstOf {
		if _, ok := q.find(one); ok {
			return
		}
		one.doubts(q, doubt)
	}
	for _, one := range id.AllOf {
		one.doubts(q, doubt)
	}
	if id.Only != nil {
		doubt(id.Only)
	}
}

// listed describes how many values a test accepts, and where they are listed. It does not show the
// values.
func (t *Test) listed() string {
	if t.File != "" {
		return fmt.Sprintf("the %d in %s", len(t.texts), t.File)
	}
	return fmt.Sprintf("the %d in the policy", len(t.texts))
}
