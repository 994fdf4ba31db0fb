package policyfile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// These warnings are about policies that are valid, but may not do what their authors expect. Each
// kind of warning is given once for each policy, at the first place.

// surprises warns about the effects of a policy that people do not expect.
func (c *compiler) surprises(matchers []*placed) {
	once := make(map[string]int)
	at := make(map[string]any)
	text := make(map[string]string)
	note := func(kind string, where any, format string, args ...any) {
		if once[kind]++; once[kind] == 1 {
			at[kind], text[kind] = where, fmt.Sprintf(format, args...)
		}
	}
	c.indexMatchers(matchers)
	took := make(map[*policy.Rule]bool)
	for _, m := range matchers {
		if m.IsImplied || m.rule.Shadow || !m.rule.Enforces() {
			continue
		}
		if last := len(m.Path) - 1; m.Path[last].Kind == policy.SegmentAny && !c.isLimitedBelow(m) {
			note("segment", m.at, "* is one segment here, so %s is not limited by this rule; write %s for everything below, or {name} if one segment is meant",
				append(slices.Clone(m.Path[:last]), policy.Segment{Text: "a"}, policy.Segment{Text: "b"}), append(slices.Clone(m.Path[:last]), policy.Segment{Kind: policy.SegmentRest}))
		}
		if other := c.moreGeneral(m); other != nil && !took[m.rule] {
			took[m.rule] = true
			config := &c.config.Rules[m.index]
			note("away", c.orWritten(config, &config.Name), "rule %s takes requests away from rule %s, which matches them too: the more specific one applies alone; "+
				"write always: true into %[2]s if both shall count, or apply: most-specific if this is meant", wording.Clip(m.rule.Name), wording.Clip(other.Name))
		}
		if guards(m.rule) && m.isSpelled() && !(c.writtenIn("http", "case_sensitive") && c.writtenIn("http", "trailing_slash")) && !(c.spec.Paths.IgnoreCase && c.spec.Paths.IgnoreTrailingSlash) {
			note("spelling", m.at, "the rule guards %s, and some servers take it in capitals, or with a slash behind it, for the same; write http: {case_sensitive: false, "+
				"trailing_slash: ignore}, or keep if yours tells them apart", m.Path)
		}
	}
	for kind, n := range once {
		if n > 1 {
			text[kind] += fmt.Sprintf("; this occurs in %d places", n)
		}
		c.warn(at[kind], "%s", text[kind])
	}
}

// indexMatchers lets anyMatcher find the matchers that can match a path.
func (c *compiler) indexMatchers(matchers []*placed) {
	c.index, c.general = make(map[string][]*placed), nil
	bySpecificity := func(a, b *placed) int { return cmp.Or(a.Compare(b.Matcher), cmp.Compare(a.written, b.written)) }
	for _, m := range slices.SortedFunc(slices.Values(matchers), bySpecificity) {
		if first := m.Path[0]; first.Kind == policy.SegmentLiteral {
			c.index[first.Text] = append(c.index[first.Text], m)
		} else {
			c.general = append(c.general, m)
		}
	}
}

// isLimitedBelow tells whether another rule limits the paths below the last segment of a path.
func (c *compiler) isLimitedBelow(m *placed) bool {
	below := append(slices.Clone(m.Path[:len(m.Path)-1]), policy.Segment{Kind: policy.SegmentRest})
	return c.anyMatcher(m, func(other *placed) bool {
		return other.Path.Covers(below) && other.rule.Enforces() && !other.rule.Shadow
	})
}

// moreGeneral returns a rule that matches all requests of m, and does not apply because m is more
// specific.
func (c *compiler) moreGeneral(m *placed) (found *policy.Rule) {
	if m.rule.Always || c.written(&c.config.Apply) {
		return nil
	}
	c.anyMatcher(m, func(other *placed) bool {
		general := other.rule != m.rule && !other.rule.Always && !other.rule.Shadow && other.rule.Enforces() && other.Covers(m.Matcher) && m.Compare(other.Matcher) < 0
		if general {
			found = other.rule
		}
		return general
	})
	return found
}

// anyMatcher tells whether is holds for any matcher that can match a path of m.
func (c *compiler) anyMatcher(m *placed, is func(*placed) bool) bool {
	same := m.Path[0].Kind == policy.SegmentLiteral && slices.ContainsFunc(c.index[m.Path[0].Text], is)
	return same || slices.ContainsFunc(c.general, is)
}

// guards tells whether a rule protects something, such as a login: it counts failures, or closes
// when the store fails.
func guards(r *policy.Rule) bool {
	return slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool {
		return !l.Shadow && (l.Guard.OnFailure == guard.FailClosed || l.Status != nil && l.Status.Has(401))
	})
}

// isSpelled tells whether a path ends in a literal word, which has other spellings.
func (m *placed) isSpelled() bool {
	last := m.Path[len(m.Path)-1]
	return last.Kind == policy.SegmentLiteral && last.Text != ""
}
