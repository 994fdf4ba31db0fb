package policy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Match describes which requests a rule matches. The zero value matches all.
type Match struct {
	Methods []string  // none: any. GET includes HEAD, unless another rule names HEAD
	Hosts   []string  // as ParseHost returns them; none, or an empty one: any
	Paths   []Pattern // none: any
	Where   Condition // must also hold
}

// IsAll reports whether every request matches.
func (m *Match) IsAll() bool {
	return len(m.Methods) == 0 && len(m.Where) == 0 && (len(m.Hosts) == 0 || slices.Contains(m.Hosts, "")) &&
		(len(m.Paths) == 0 || slices.ContainsFunc(m.Paths, Pattern.IsAll))
}

// Matchers returns the ways in which a request can match: each path at each host. A server handles
// HEAD like GET, so GET has a matcher for HEAD too.
func (m *Match) Matchers() (list []*Matcher) {
	hosts, paths := m.Hosts, m.Paths
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	if len(paths) == 0 {
		paths = []Pattern{{{Kind: SegmentRest}}}
	}
	impliesHead := slices.Contains(m.Methods, "GET") && !slices.Contains(m.Methods, "HEAD")
	for _, host := range hosts {
		for i, path := range paths {
			list = append(list, &Matcher{Host: host, Path: path, Methods: m.Methods, Where: m.Where, PathIndex: i})
			if impliesHead {
				list = append(list, &Matcher{Host: host, Path: path, Methods: []string{"HEAD"}, IsImplied: true, Where: m.Where, PathIndex: i})
			}
		}
	}
	return list
}

// A Matcher is one way in which a Match can match: one of its paths at one of its hosts.
type Matcher struct {
	Host      string // "": any; "*.example.com": any host below example.com
	Path      Pattern
	Methods   []string // none: any
	Where     Condition
	IsImplied bool // it matches HEAD only because GET is named
	PathIndex int  // the index of Path in Match.Paths

	rule  *Rule
	order int // the place in the policy; after New, the place by specificity
}

// A Pattern is a path's pattern, segment by segment.
type Pattern []Segment

// A Segment is one segment of a Pattern.
type Segment struct {
	Kind SegmentKind
	Text string // the literal text, the name, or the glob
}

// A SegmentKind is what a Segment stands for.
type SegmentKind uint8

// The kinds of segments, from the most to the least specific.
const (
	SegmentLiteral SegmentKind = iota
	SegmentGlob                // with * in it
	SegmentNamed               // {name}
	SegmentAny                 // *
	segmentNone                // no segment, because the path has ended; only for comparisons
	SegmentRest                // **
)

// IsAll reports whether every path matches.
func (p Pattern) IsAll() bool { return len(p) == 1 && p[0].Kind == SegmentRest }

// String returns the pattern as policies write it.
func (p Pattern) String() string {
	var s strings.Builder
	for _, one := range p {
		switch one.Kind {
		case SegmentNamed:
			one.Text = "{" + one.Text + "}"
		case SegmentAny:
			one.Text = "*"
		case SegmentRest:
			one.Text = "**"
		}
		s.WriteString("/" + one.Text)
	}
	return s.String()
}

func (m *Matcher) matches(q *request) bool {
	if q.isPreflight && len(m.Methods) == 0 && !m.rule.countsPreflights {
		return false
	}
	if !m.matchesHost(q.host) || !m.Path.matches(q.path) {
		return false
	}
	if len(m.Methods) > 0 {
		q.noteMethod()
	}
	return m.matchesMethod(q.method) && q.holds(m.Where)
}

func (m *Matcher) matchesMethod(method string) bool {
	if len(m.Methods) == 0 {
		return true
	}
	for _, one := range m.Methods {
		if one == method {
			return true
		}
	}
	return false
}

func (m *Matcher) matchesHost(host string) bool { return m.Host == "" || matchesHost(m.Host, host) }

func (p Pattern) matches(path string) bool {
	for i := range p {
		s := &p[i]
		if s.Kind == SegmentRest {
			return true
		}
		if path == "" {
			return false
		}
		var text string
		text, path = cutSegment(path)
		if !s.matches(text) {
			return false
		}
	}
	return path == ""
}

// cutSegment splits the first segment from a path, which begins with a slash.
func cutSegment(path string) (text, rest string) {
	if end := strings.IndexByte(path[1:], '/'); end >= 0 {
		return path[1 : end+1], path[end+1:]
	}
	return path[1:], ""
}

func (s *Segment) matches(text string) bool {
	switch s.Kind {
	case SegmentLiteral:
		return s.Text == text
	case SegmentGlob:
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

// segment returns the text of the named segment in a path that matches.
func (p Pattern) segment(path, name string) (string, bool) {
	for i := range p {
		if path == "" || p[i].Kind == SegmentRest {
			break
		}
		var text string
		text, path = cutSegment(path)
		if p[i].Kind == SegmentNamed && p[i].Text == name {
			return text, true
		}
	}
	return "", false
}

// HasSegment reports whether a pattern has a segment {name}.
func (p Pattern) HasSegment(name string) bool {
	return slices.Contains(p, Segment{SegmentNamed, name})
}

// bySpecificity orders matchers as Compare does. Equal matchers keep their order.
func bySpecificity(a, b *Matcher) int { return cmp.Or(a.Compare(b), cmp.Compare(a.order, b.order)) }

// Compare orders matchers, the most specific first, by these criteria:
//
//   - the host: a name, then *.domain, then any
//   - the path, segment by segment: literal, glob (the longer first), {name}, *, the end of the
//     path, **
//   - whether methods are named; HEAD by name comes before HEAD because of GET
//   - the number of further conditions
func (a *Matcher) Compare(b *Matcher) int {
	return cmp.Or(
		cmp.Compare(hostRank(b.Host), hostRank(a.Host)),
		comparePaths(a.Path, b.Path),
		cmp.Compare(b.methodRank(), a.methodRank()),
		cmp.Compare(len(b.Where), len(a.Where)),
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
		segmentA, segmentB := Segment{Kind: segmentNone}, Segment{Kind: segmentNone}
		if i < len(a) {
			segmentA = a[i]
		}
		if i < len(b) {
			segmentB = b[i]
		}
		order := cmp.Compare(segmentA.Kind, segmentB.Kind)
		if order == 0 && segmentA.Kind == SegmentGlob {
			order = cmp.Compare(len(segmentB.Text), len(segmentA.Text))
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

// Covers reports whether m matches all requests that other matches.
func (m *Matcher) Covers(other *Matcher) bool {
	if len(m.Where) > 0 || !m.coversHost(other.Host) {
		return false
	}
	for _, method := range other.Methods {
		if !m.matchesMethod(method) {
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
	return isOneHost && m.matchesHost(other)
}

// Covers reports whether a pattern matches every path that another pattern matches.
func (p Pattern) Covers(other Pattern) bool {
	for i := range p {
		s := &p[i]
		if s.Kind == SegmentRest {
			return true
		}
		if i >= len(other) || other[i].Kind == SegmentRest || !s.covers(&other[i]) {
			return false
		}
	}
	return len(p) == len(other)
}

// covers reports whether a segment matches every text that another segment matches. Neither is **.
func (s *Segment) covers(other *Segment) bool {
	if other.Kind == SegmentLiteral {
		return s.matches(other.Text)
	}
	return s.Kind == SegmentAny || s.Kind == SegmentNamed || *s == *other
}

// ParsePattern reads the pattern of a path. In it, {name} is one segment, * is any part of one
// segment, and ** at the end is everything below. The error says what is wrong and how to fix it.
func (p Paths) ParsePattern(text string) (Pattern, error) {
	if err := checkIsPath(text); err != nil {
		return nil, err
	}
	var pattern Pattern
	names := make(map[string]bool)
	parts := strings.Split(text[1:], "/")
	for i, text := range parts {
		isLast := i == len(parts)-1
		s := Segment{SegmentLiteral, text}
		switch {
		case text == "**":
			if !isLast {
				return nil, fmt.Errorf("** is not at the end of the path; it can only be last. For one segment write * or {name}")
			}
			s = Segment{Kind: SegmentRest}
		case text == "*":
			s = Segment{Kind: SegmentAny}
		case strings.ContainsAny(text, "{}"):
			name := strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
			hasBothBraces := len(name) == len(text)-len("{}")
			if !hasBothBraces || !IsWord(name) {
				return nil, fmt.Errorf("the segment %.60q is malformed; write {name} for a whole segment, with a name of letters, digits and _", text)
			}
			if names[name] {
				return nil, fmt.Errorf("the segment {%s} occurs twice in the path; rename one of them", name)
			}
			names[name] = true
			s = Segment{SegmentNamed, name}
		case strings.Contains(text, "**"):
			return nil, fmt.Errorf("the segment %.60q has ** in it; write * for any part of a segment", text)
		default:
			if strings.Contains(text, "*") {
				s.Kind = SegmentGlob
			}
			var err error
			if s.Text, err = p.cleanSegment(text, isLast); err != nil {
				return nil, err
			}
		}
		pattern = append(pattern, s)
	}
	if last := len(pattern) - 1; p.IgnoreTrailingSlash && last > 0 && pattern[last] == (Segment{}) {
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
		return fmt.Errorf("the path %.60q is a regular expression, which a path cannot be; write %.60q", text, convertExpression(text))
	}
	if path, _, hasQuery := strings.Cut(text, "?"); hasQuery && strings.HasPrefix(path, "/") {
		return fmt.Errorf("the path %.60q has a query; write %.60q, and beside it query NAME: VALUE if the rule needs it (%%3F is a question mark in a path)", text, path)
	}
	if host, path, _ := strings.Cut(text, "/"); strings.Contains(host, ".") && !strings.ContainsAny(host, "*{}") && path != "" {
		if _, err := ParseHost(host); err == nil {
			return fmt.Errorf("the path %.60q begins with a host; write host: %.60s and path: %.60q", text, host, "/"+path)
		}
	}
	if !strings.HasPrefix(text, "/") {
		return fmt.Errorf("the path %.60q must begin with a slash; write %.60q", text, "/"+text)
	}
	return nil
}

// convertExpression returns a pattern that matches about the same paths as a regular expression.
// The pattern is only the proposal of an error message.
func convertExpression(text string) string {
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

// cleanSegment converts a segment to the canonical form of Clean, but keeps stars.
func (p Paths) cleanSegment(text string, isLast bool) (string, error) {
	if text == "" {
		if !isLast {
			return "", fmt.Errorf("the path contains //, which no canonical path has; write one slash")
		}
		return "", nil
	}
	clean, err := p.Clean("/" + text)
	if err != nil {
		return "", fmt.Errorf("no canonical path has the segment %.60q: %s", text, offsetText.ReplaceAllString(strings.TrimPrefix(err.Error(), "path: "), ""))
	}
	if clean == "/" || strings.Contains(clean[1:], "/") {
		return "", fmt.Errorf("no canonical path has the segment %.60q; remove it", text)
	}
	return clean[1:], nil
}

// offsetText matches the position in an error of Clean. The position is removed from errors about
// patterns, because it counts from the start of a segment.
var offsetText = regexp.MustCompile(` at offset \d+`)

// IsWord reports whether s can name a segment: 1 to 64 letters, digits and _, not beginning with a
// digit.
func IsWord(s string) bool {
	for i, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || i > 0 && b >= '0' && b <= '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
