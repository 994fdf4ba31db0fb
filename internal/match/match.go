// Package match compares paths with patterns, and orders the ways in which a rule can match a
// request.
package match

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
)

// A Matcher is one way in which a rule can match a request: one of its paths at one of its hosts.
type Matcher struct {
	Host       string // "": any; "*.example.com": any host below example.com
	Path       Pattern
	Methods    []string // none: any
	Conditions int      // how many further conditions must hold
	IsImplied  bool     // it matches HEAD only because GET is named
	PathIndex  int      // the index of Path among the rule's paths
}

// Matchers returns the ways in which a request can match a rule: each path at each host. Without
// hosts, any host matches, and without paths any path. A server handles HEAD like GET, so GET has a
// matcher for HEAD too.
func Matchers(methods, hosts []string, paths []Pattern, conditions int) (list []*Matcher) {
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	if len(paths) == 0 {
		paths = []Pattern{{{Kind: Rest}}}
	}
	impliesHead := slices.Contains(methods, "GET") && !slices.Contains(methods, "HEAD")
	for _, host := range hosts {
		for i, path := range paths {
			list = append(list, &Matcher{Host: host, Path: path, Methods: methods, Conditions: conditions, PathIndex: i})
			if impliesHead {
				list = append(list, &Matcher{Host: host, Path: path, Methods: []string{"HEAD"}, Conditions: conditions, IsImplied: true, PathIndex: i})
			}
		}
	}
	return list
}

type Pattern []Segment

type Segment struct {
	Kind SegmentKind
	Text string // the literal text, the name, or the glob
}

type SegmentKind uint8

// The kinds of segments, from the most to the least specific.
const (
	Literal SegmentKind = iota
	Glob                // with * in it
	Named               // {name}
	Any                 // *
	none                // no segment, because the path has ended; only for comparisons
	Rest                // **
)

// IsAll reports whether every path matches.
func (p Pattern) IsAll() bool { return len(p) == 1 && p[0].Kind == Rest }

// String returns the pattern as policies write it.
func (p Pattern) String() string {
	var s strings.Builder
	for _, one := range p {
		switch one.Kind {
		case Literal:
			one.Text = strings.ReplaceAll(one.Text, "*", "%2A") // an unescaped star would be a pattern
		case Named:
			one.Text = "{" + one.Text + "}"
		case Any:
			one.Text = "*"
		case Rest:
			one.Text = "**"
		}
		s.WriteString("/" + one.Text)
	}
	return s.String()
}

func (m *Matcher) MatchesMethod(method string) bool {
	return len(m.Methods) == 0 || slices.Contains(m.Methods, method)
}

func (m *Matcher) MatchesHost(host string) bool {
	return m.Host == "" || syntax.MatchesHost(m.Host, host)
}

// Matches reports whether a path matches the pattern. The path is in canonical form.
func (p Pattern) Matches(path string) bool {
	for i := range p {
		s := &p[i]
		if s.Kind == Rest {
			return true
		}
		if path == "" {
			return false
		}
		var text string
		text, path = CutSegment(path)
		if !s.matches(text) {
			return false
		}
	}
	return path == ""
}

// CutSegment splits the first segment from a path, which begins with a slash.
func CutSegment(path string) (text, rest string) {
	if end := strings.IndexByte(path[1:], '/'); end >= 0 {
		return path[1 : end+1], path[end+1:]
	}
	return path[1:], ""
}

func (s *Segment) matches(text string) bool {
	switch s.Kind {
	case Literal:
		return s.Text == text
	case Glob:
		return matchesGlob(s.Text, text)
	}
	return text != ""
}

// matchesGlob matches a pattern with stars. After a mismatch, the last star takes one more byte of
// the text. So the time is at most proportional to the product of both lengths.
func matchesGlob(pattern, text string) bool {
	p, t := 0, 0   // the next index in pattern and text
	lastStar := -1 // the index in pattern of the last star
	starEnd := 0   // the index in text after the bytes that the last star takes
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			lastStar, starEnd = p, t
			p++
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case lastStar >= 0:
			starEnd++
			p, t = lastStar+1, starEnd
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func (p Pattern) TextOf(path, name string) (string, bool) {
	for i := range p {
		if path == "" || p[i].Kind == Rest {
			break
		}
		var text string
		text, path = CutSegment(path)
		if p[i].Kind == Named && p[i].Text == name {
			return text, true
		}
	}
	return "", false
}

// Compare orders matchers, the most specific first, by these criteria:
//
//   - the host: a name, then *.domain (the longer domain first), then any
//   - the path, segment by segment: literal, glob (the longer first), {name}, *, the end of the
//     path, **
//   - whether methods are named; HEAD by name comes before HEAD because of GET
//   - the number of further conditions
func (a *Matcher) Compare(b *Matcher) int {
	return cmp.Or(
		cmp.Compare(hostRank(b.Host), hostRank(a.Host)),
		comparePaths(a.Path, b.Path),
		cmp.Compare(b.methodRank(), a.methodRank()),
		cmp.Compare(b.Conditions, a.Conditions),
	)
}

func (m *Matcher) methodRank() int {
	switch {
	case len(m.Methods) == 0:
		return 0
	case m.IsImplied:
		return 1
	}
	return 2
}

// hostRank is higher for a more specific host: a whole name, or a longer domain.
func hostRank(host string) int {
	switch {
	case host == "":
		return 0
	case host[0] == '*':
		return len(host)
	}
	return 1 << 16 // more than the length of every domain
}

// comparePaths orders patterns, the most specific first. See Matcher.Compare.
func comparePaths(a, b Pattern) int {
	for i := range max(len(a), len(b)) {
		segmentA, segmentB := Segment{Kind: none}, Segment{Kind: none}
		if i < len(a) {
			segmentA = a[i]
		}
		if i < len(b) {
			segmentB = b[i]
		}
		order := cmp.Compare(segmentA.Kind, segmentB.Kind)
		if order == 0 && segmentA.Kind == Glob {
			order = cmp.Compare(len(segmentB.Text), len(segmentA.Text))
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

func (m *Matcher) Covers(other *Matcher) bool { return m.Conditions == 0 && m.CoversTarget(other) }

// CoversTarget is Covers, whatever the conditions of m are.
func (m *Matcher) CoversTarget(other *Matcher) bool {
	if !m.coversHost(other.Host) {
		return false
	}
	for _, method := range other.Methods {
		if !m.MatchesMethod(method) {
			return false
		}
	}
	return (len(m.Methods) == 0 || len(other.Methods) > 0) && m.Path.Covers(other.Path)
}

// coversHost reports whether m matches every host that another matcher's Host matches.
func (m *Matcher) coversHost(other string) bool {
	if m.Host == "" || m.Host == other {
		return true
	}
	isOneHost := other != "" && other[0] != '*'
	return isOneHost && m.MatchesHost(other)
}

// Covers reports whether a pattern matches every path that another pattern matches.
func (p Pattern) Covers(other Pattern) bool {
	for i := range p {
		s := &p[i]
		if s.Kind == Rest {
			return true
		}
		if i >= len(other) || other[i].Kind == Rest || !s.covers(&other[i]) {
			return false
		}
	}
	return len(p) == len(other)
}

// covers reports whether a segment matches every text that another segment matches. Neither is **.
func (s *Segment) covers(other *Segment) bool {
	if other.Kind == Literal {
		return s.matches(other.Text)
	}
	return s.Kind == Any || s.Kind == Named || *s == *other
}

// ParsePattern reads the pattern of a path. In it, {name} is one segment, * is any part of one
// segment, and ** at the end is everything below. clean converts a path to its canonical form. If
// ignoresTrailingSlash is true, canonical paths do not end with a slash. The error says what is
// wrong and how to fix it.
func ParsePattern(text string, clean func(path string) (string, error), ignoresTrailingSlash bool) (Pattern, error) {
	if err := checkIsPath(text); err != nil {
		return nil, err
	}
	var pattern Pattern
	names := make(map[string]bool)
	parts := strings.Split(text[1:], "/")
	for i, text := range parts {
		isLast := i == len(parts)-1
		s := Segment{Literal, text}
		switch {
		case text == "**":
			if !isLast {
				return nil, fmt.Errorf("** is not at the end of the path; it can only be last. For one segment write * or {name}")
			}
			s = Segment{Kind: Rest}
		case text == "*":
			s = Segment{Kind: Any}
		case strings.ContainsAny(text, "{}"):
			name := strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
			hasBothBraces := len(name) == len(text)-len("{}")
			if !hasBothBraces || !syntax.IsIdentifier(name) {
				return nil, fmt.Errorf("the segment %.60q is malformed; write {name} for a whole segment, with a name of letters, digits and _", text)
			}
			if names[name] {
				return nil, fmt.Errorf("the segment {%s} occurs twice in the path; rename one of them", name)
			}
			names[name] = true
			s = Segment{Named, name}
		case strings.Contains(text, "**"):
			return nil, fmt.Errorf("the segment %.60q has ** in it; write * for any part of a segment", text)
		default:
			if strings.Contains(text, "*") {
				s.Kind = Glob
			}
			var err error
			if s.Text, err = CleanSegment(text, isLast, clean); err != nil {
				return nil, err
			}
		}
		pattern = append(pattern, s)
	}
	if last := len(pattern) - 1; ignoresTrailingSlash && last > 0 && pattern[last] == (Segment{}) {
		pattern = pattern[:last] // without the empty segment after the last slash
	}
	return pattern, nil
}

// checkIsPath returns an error if a text is not a path, but a URL or a regular expression, for
// example.
func checkIsPath(text string) error {
	if strings.Contains(text, "://") {
		return fmt.Errorf("the path %.60q has a scheme and a host; write only the path, such as /api, and the host under host:", text)
	}
	if strings.HasPrefix(text, "^") {
		return fmt.Errorf("the path %.60q is a regular expression, which a path cannot be; write %.60q", text, pathLikeRegexp(text))
	}
	if path, _, hasQuery := strings.Cut(text, "?"); hasQuery && strings.HasPrefix(path, "/") {
		return fmt.Errorf("the path %.60q has a query; write %.60q, and beside it query NAME: VALUE if the rule needs it (%%3F is a question mark in a path)", text, path)
	}
	if host, path, _ := strings.Cut(text, "/"); strings.Contains(host, ".") && !strings.ContainsAny(host, "*{}") && path != "" {
		if _, err := syntax.ParseHost(host); err == nil {
			return fmt.Errorf("the path %.60q begins with a host; write host: %.60s and path: %.60q", text, host, "/"+path)
		}
	}
	if !strings.HasPrefix(text, "/") {
		return fmt.Errorf("the path %.60q must begin with a slash; write %.60q", text, "/"+text)
	}
	return nil
}

// pathLikeRegexp returns a pattern that matches about the same paths as a regular expression.
// The pattern is only the proposal of an error message.
func pathLikeRegexp(text string) string {
	text = strings.TrimSuffix(strings.Trim(text, "^$"), "/?")
	parts := strings.Split(strings.NewReplacer("[^/]+", "*", "[^/]*", "*", "(", "", ")", "", `\`, "").Replace(text), "/")
	for i, part := range parts {
		switch isLast := i == len(parts)-1; {
		case isLast && (part == ".*" || part == ".+"):
			parts[i] = "**"
		case strings.ContainsAny(part, "*+?|[]{}^$"):
			parts[i] = "*"
		}
	}
	return "/" + strings.TrimPrefix(strings.Join(parts, "/"), "/")
}

// CleanSegment converts a segment to the canonical form, but keeps stars. clean converts a path.
func CleanSegment(text string, isLast bool, clean func(path string) (string, error)) (string, error) {
	if text == "" {
		if !isLast {
			return "", fmt.Errorf("the path contains //, which no canonical path has; write one slash")
		}
		return "", nil
	}
	canonical, err := clean("/" + text)
	if err != nil {
		return "", fmt.Errorf("no canonical path has the segment %.60q: %s", text, positionInError.ReplaceAllString(strings.TrimPrefix(err.Error(), "path: "), ""))
	}
	if canonical == "/" || strings.Contains(canonical[1:], "/") {
		return "", fmt.Errorf("no canonical path has the segment %.60q; remove it", text)
	}
	return canonical[1:], nil
}

// positionInError matches the position in an error about a path. The position is removed from
// errors about patterns, because it counts from the start of a segment.
var positionInError = regexp.MustCompile(` at offset \d+`)
