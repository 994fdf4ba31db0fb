package policyfile

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/match"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// The warnings and hints of this file are about policies that are valid, but may not do what their
// authors expect. A policy gets each kind at most once, at the first place.

func (c *compiler) warnOfSurprises(matchers []*placedMatcher) {
	oneSegment, uncounted, unenforced := remarkKind{report: c.warn}, remarkKind{report: c.warn}, remarkKind{report: c.warn}
	// A path with several spellings is a warning if the rule protects a login, for example. For other
	// rules it is a hint.
	protectedSpelling, limitedSpelling := remarkKind{report: c.warn}, remarkKind{report: c.hint}
	c.indexMatchers(matchers)
	isReported := make(map[*policy.Rule]bool)
	for _, m := range matchers {
		// An implied matcher is that of HEAD, which GET implies.
		if m.IsImplied || m.rule.Shadow || m.rule.Unlimited {
			continue
		}
		config := &c.config.Rules[m.ruleIndex]
		other := c.findMoreGeneral(m)
		isFirst := other != nil && !isReported[m.rule]
		isReported[m.rule] = isReported[m.rule] || isFirst
		if !m.rule.Enforces() {
			if isFirst {
				unenforced.note(c.placeOf(config, &config.Name), "no limit is enforced for requests of rule %s: all its limits are shadows, and rule %s, which matches these requests too, does not apply; "+
					"move shadow: true from the limits of rule %[1]s to the rule itself, so that rule %[2]s still applies", wording.Clip(m.rule.Name), wording.Clip(other.Name))
			}
			continue
		}
		if last := len(m.Path) - 1; m.Path[last].Kind == match.Any && !c.isLimitedBelow(m) {
			endingIn := func(segments ...match.Segment) match.Pattern {
				return append(slices.Clone(m.Path[:last]), segments...)
			}
			unlimited := endingIn(match.Segment{Text: "a"}, match.Segment{Text: "b"})
			everything, oneNamed := endingIn(match.Segment{Kind: match.Rest}), endingIn(match.Segment{Kind: match.Named, Text: "name"})
			oneSegment.note(m.at, "* is one segment here, so %s is not limited by this rule; write %s for everything below, or \"%s\" in quotes if one segment is intended",
				unlimited, everything, oneNamed)
		}
		if isFirst && !c.isWritten(&c.config.Apply) {
			uncounted.note(c.placeOf(config, &config.Name), "requests of rule %s are not counted by rule %s, which matches them too: only the more specific one applies; "+
				"write always: true into %[2]s to count them in both, or apply: most-specific if this is intended", wording.Clip(m.rule.Name), wording.Clip(other.Name))
		}
		if spellings, unify, distinguish := c.otherSpellings(m); len(spellings) > 0 {
			kind := &limitedSpelling
			if isProtective(m.rule) {
				kind = &protectedSpelling
			}
			kind.note(m.at, "the rule limits only %s, but some servers treat %s as the same path; write http: {%s}, or {%s} if yours does not",
				m.Path, wording.List(spellings, "and"), strings.Join(unify, ", "), strings.Join(distinguish, ", "))
		}
	}
	for _, kind := range []*remarkKind{&oneSegment, &uncounted, &unenforced, &protectedSpelling, &limitedSpelling} {
		kind.end()
	}
}

// A remarkKind is one kind of warning or hint. A policy gets each kind at most once, at the first
// place.
type remarkKind struct {
	report func(p any, format string, args ...any) // compiler.warn or compiler.hint
	at     any                                     // a pointer to the first place in the policyConfig
	text   string                                  // the message for the first place
	places int                                     // how many places there are
}

// note counts one more place, and keeps the message of the first.
func (k *remarkKind) note(at any, format string, args ...any) {
	if k.places++; k.places == 1 {
		k.at, k.text = at, fmt.Sprintf(format, args...)
	}
}

func (k *remarkKind) end() {
	switch {
	case k.places == 1:
		k.report(k.at, "%s", k.text)
	case k.places > 1:
		k.report(k.at, "%s; this occurs in %d places", k.text, k.places)
	}
}

// otherSpellings returns other spellings of a path that ends in a word. Left out are spellings that
// the rule matches, and those that the policy distinguishes explicitly. unify are settings that
// make all spellings one path, and distinguish are settings that keep them apart.
func (c *compiler) otherSpellings(m *placedMatcher) (spellings, unify, distinguish []string) {
	last := len(m.Path) - 1
	word := m.Path[last].Text
	if m.Path[last].Kind != match.Literal || word == "" {
		return nil, nil, nil
	}
	otherCase := strings.ToUpper(word)
	if otherCase == word {
		otherCase = strings.ToLower(word)
	}
	if otherCase != word && !c.spec.Paths.IgnoreCase && !c.isWrittenIn("http", "case_sensitive") {
		spellings = append(spellings, append(slices.Clone(m.Path[:last]), match.Segment{Text: otherCase}).String())
		unify, distinguish = append(unify, "case_sensitive: false"), append(distinguish, "case_sensitive: true")
	}
	if !c.spec.Paths.IgnoreTrailingSlash && !c.isWrittenIn("http", "trailing_slash") {
		spellings = append(spellings, m.Path.String()+"/")
		unify, distinguish = append(unify, "trailing_slash: ignore"), append(distinguish, "trailing_slash: keep")
	}
	return spellings, unify, distinguish
}

// indexMatchers builds the index in which anyMatcher finds matchers by their paths.
func (c *compiler) indexMatchers(matchers []*placedMatcher) {
	c.byFirstSegment, c.startingWithPattern = make(map[string][]*placedMatcher), nil
	bySpecificity := func(a, b *placedMatcher) int {
		return cmp.Or(a.Compare(b.Matcher), cmp.Compare(a.matcherIndex, b.matcherIndex))
	}
	for _, m := range slices.SortedFunc(slices.Values(matchers), bySpecificity) {
		if first := m.Path[0]; first.Kind == match.Literal {
			c.byFirstSegment[first.Text] = append(c.byFirstSegment[first.Text], m)
		} else {
			c.startingWithPattern = append(c.startingWithPattern, m)
		}
	}
}

// isLimitedBelow reports whether another rule limits the paths below the last segment of a path.
func (c *compiler) isLimitedBelow(m *placedMatcher) bool {
	below := append(slices.Clone(m.Path[:len(m.Path)-1]), match.Segment{Kind: match.Rest})
	return c.anyMatcher(m, func(other *placedMatcher) bool {
		return other.Path.Covers(below) && other.rule.Enforces() && !other.rule.Shadow
	})
}

// findMoreGeneral returns a rule that matches all requests of m, but does not apply to these
// requests because m is more specific. If there is no such rule, it returns nil.
func (c *compiler) findMoreGeneral(m *placedMatcher) (found *policy.Rule) {
	if m.rule.Always {
		return nil
	}
	c.anyMatcher(m, func(other *placedMatcher) bool {
		canBeReplaced := other.rule != m.rule && !other.rule.Always && !other.rule.Shadow && other.rule.Enforces()
		isReplaced := canBeReplaced && other.Covers(m.Matcher) && m.Compare(other.Matcher) < 0
		if isReplaced {
			found = other.rule
		}
		return isReplaced
	})
	return found
}

// anyMatcher reports whether a function holds for any matcher that can match all paths of m.
// anyMatcher stops at the first such matcher. It also calls the function for other matchers. After
// maxComparisons calls it finds nothing.
func (c *compiler) anyMatcher(m *placedMatcher, holds func(*placedMatcher) bool) bool {
	if c.comparisons > maxComparisons {
		return false
	}
	compare := func(other *placedMatcher) bool {
		c.comparisons++
		return holds(other)
	}
	isFound := m.Path[0].Kind == match.Literal && slices.ContainsFunc(c.byFirstSegment[m.Path[0].Text], compare)
	return isFound || slices.ContainsFunc(c.startingWithPattern, compare)
}

// maxComparisons bounds the time of warnings about very large policies to about a second. Policies
// with up to 2,000 paths are compared completely.
const maxComparisons = 10_000_000

// isProtective reports whether a rule certainly protects something, such as a login: it counts
// status 401, or rejects requests while the store fails.
func isProtective(r *policy.Rule) bool {
	return slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool {
		countsUnauthorized := l.Status != nil && l.Status.Has(http.StatusUnauthorized)
		return !l.Shadow && (l.Guard.OnFailure == guard.FailClosed || countsUnauthorized)
	})
}
