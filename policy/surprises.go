package policy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/guard"
)

// These warnings are about policies that are valid, but may not do what their authors expect. Each
// kind of warning is given once for each policy, at the first place.

// surprises warns of what people do not expect of a policy.
func (c *compiler) surprises(matchers []*matcher) {
	once := make(map[string]int)
	at := make(map[string]any)
	text := make(map[string]string)
	note := func(kind string, where any, format string, args ...any) {
		if once[kind]++; once[kind] == 1 {
			at[kind], text[kind] = where, fmt.Sprintf(format, args...)
		}
	}
	matchers = slices.SortedFunc(slices.Values(matchers), func(a, b *matcher) int { return cmp.Compare(a.written, b.written) })
	took := make(map[*Rule]bool)
	for _, m := range matchers {
		if m.implied || m.rule.Shadow || !m.rule.enforces() {
			continue
		}
		if last := len(m.path) - 1; m.path[last].kind == segmentAny && !c.limitedBelow(m) {
			note("segment", m.at, "* is one segment here, so %s is not limited by this rule; write %s for everything below, or {name} if one segment is meant",
				pathText(append(slices.Clone(m.path[:last]), segment{text: "a"}, segment{text: "b"})), pathText(append(slices.Clone(m.path[:last]), segment{kind: segmentRest})))
		}
		if other := c.moreGeneral(m); other != nil && !took[m.rule] {
			took[m.rule] = true
			config := &c.config.Rules[m.rule.order]
			note("away", c.orWritten(config, &config.Name), "rule %s takes requests away from rule %s, which matches them too: the more specific one applies alone; "+
				"write always: true into %[2]s if both shall count, or apply: most-specific if this is meant", clip(m.rule.Name), clip(other.Name))
		}
		if m.rule.guards() && m.isSpelled() && !(c.written(&c.config.HTTP.Case) && c.written(&c.config.HTTP.TrailingSlash)) && !(c.rules.paths.IgnoreCase && c.rules.paths.IgnoreTrailingSlash) {
			note("spelling", m.at, "the rule guards %s, and some servers take it in capitals, or with a slash behind it, for the same; write http: {case: ignore, "+
				"trailing_slash: ignore}, or keep if yours tells them apart", pathText(m.path))
		}
	}
	for kind, n := range once {
		if n > 1 {
			text[kind] += fmt.Sprintf("; this occurs in %d places", n)
		}
		c.warn(at[kind], "%s", text[kind])
	}
}

// limitedBelow tells whether another rule limits what is below the last segment of a path.
func (c *compiler) limitedBelow(m *matcher) bool {
	below := append(slices.Clone(m.path[:len(m.path)-1]), segment{kind: segmentRest})
	return c.anyMatcher(m, func(other *matcher) bool {
		return covers(other.path, below) && other.rule.enforces() && !other.rule.Shadow
	})
}

// moreGeneral is a rule that matches all that m does, and does not apply since m is more specific.
func (c *compiler) moreGeneral(m *matcher) (found *Rule) {
	if m.rule.Always || c.written(&c.config.Apply) {
		return nil
	}
	c.anyMatcher(m, func(other *matcher) bool {
		general := other.rule != m.rule && !other.rule.Always && !other.rule.Shadow && other.rule.enforces() && other.coversAll(m) && byMatch(m, other) < 0
		if general {
			found = other.rule
		}
		return general
	})
	return found
}

// anyMatcher tells whether is holds for any matcher that can match a path of m.
func (c *compiler) anyMatcher(m *matcher, is func(*matcher) bool) bool {
	same := m.path[0].kind == segmentLiteral && slices.ContainsFunc(c.rules.index[m.path[0].text], is)
	return same || slices.ContainsFunc(c.rules.general, is)
}

// coversAll tells whether m matches all requests that o does.
func (m *matcher) coversAll(o *matcher) bool {
	if len(m.where) > 0 || m.host != "" && m.host != o.host && !(m.host[0] == '*' && o.host != "" && o.host[0] != '*' && m.matchesHost(o.host)) {
		return false
	}
	for _, method := range o.methods {
		if !m.matchesMethod(method) {
			return false
		}
	}
	return (len(m.methods) == 0 || len(o.methods) > 0) && covers(m.path, o.path)
}

// covers tells whether a pattern matches every path that another does.
func covers(general, path []segment) bool {
	for i := range general {
		g := &general[i]
		if g.kind == segmentRest {
			return true
		}
		if i >= len(path) || path[i].kind == segmentRest {
			return false
		}
		if p := &path[i]; p.kind == segmentLiteral && !g.matches(p.text) || p.kind != segmentLiteral && g.kind != segmentAny && g.kind != segmentNamed && *g != *p {
			return false
		}
	}
	return len(general) == len(path)
}

// guards tells whether a rule protects something, as a login: it counts failures, or closes when it
// cannot count.
func (r *Rule) guards() bool {
	return slices.ContainsFunc(r.Limits, func(l *Limit) bool {
		return !l.Shadow && (l.Guard.OnFailure == guard.Closed || l.Status != nil && l.Status.Has(401))
	})
}

// isSpelled tells whether a path ends in a word, which may be written otherwise.
func (m *matcher) isSpelled() bool {
	last := m.path[len(m.path)-1]
	return last.kind == segmentLiteral && last.text != ""
}
