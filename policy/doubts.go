package policy

import "fmt"

// Doubts are the reasons why a request does not count as the client that it names: why its token is
// rejected, and which of its values are not listed in the policy. They contain no secrets. Call it
// right after Assess.
func (v *Verdict) Doubts() (reasons []string) {
	q := &v.request
	say := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		for _, said := range reasons {
			if said == text {
				return
			}
		}
		reasons = append(reasons, text)
	}
	if v.TokenError != nil {
		say("the token is rejected: %v", v.TokenError)
	}
	doubt := func(t *test) {
		switch t.part.what {
		case partHeader, partCookie, partQuery:
			if text := q.identifies(&t.part); text != "" && !t.is(text) {
				say("%s is not accepted: its value is not one of %s", t.part.text(), t.listed())
			}
		}
	}
	for _, l := range v.Limits {
		l.per.doubts(q, doubt)
	}
	for _, t := range q.rules.tiers {
		if t.otherwise || v.Tier == "" || v.Tier == t.name {
			break
		}
		for _, when := range t.when {
			for i := range when {
				doubt(&when[i])
			}
		}
	}
	return reasons
}

// doubts calls doubt for each test of an identity, up to the part that names the client.
func (id *identity) doubts(q *request, doubt func(*test)) {
	for _, one := range id.first {
		if _, ok := q.key(one); ok {
			return
		}
		one.doubts(q, doubt)
	}
	for _, one := range id.all {
		one.doubts(q, doubt)
	}
	if id.only != nil {
		doubt(id.only)
	}
}

// listed says which values a test takes, without telling them.
func (t *test) listed() string {
	if t.file != "" {
		return fmt.Sprintf("the %d in %s", len(t.texts), plain(t.file))
	}
	return fmt.Sprintf("the %d in the policy", len(t.texts))
}
