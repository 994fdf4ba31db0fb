package policy

import (
	"cmp"

	"github.com/penstock/penstock/internal/match"
)

// A matcher is one way in which a request can match a rule.
type matcher struct {
	*match.Matcher
	where Condition
	rule  *Rule
	order int // the place in the policy; after New, the place by specificity
}

func (m *matcher) matches(q *request) bool {
	if q.isPreflight && len(m.Methods) == 0 && !m.rule.countsPreflights {
		return false
	}
	if !m.MatchesHost(q.host) || !m.Path.Matches(q.path) {
		return false
	}
	if len(m.Methods) > 0 {
		q.noteMethod()
	}
	return m.MatchesMethod(q.method) && q.holds(m.where)
}

// bySpecificity orders matchers as Compare does. Equal matchers keep their order.
func bySpecificity(a, b *matcher) int {
	return cmp.Or(a.Compare(b.Matcher), cmp.Compare(a.order, b.order))
}
