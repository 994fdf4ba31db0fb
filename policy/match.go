package policy

import (
	"cmp"
	"regexp"
	"strings"
)

// A matcher is one way in which a rule can match: one of its paths and hosts.
type matcher struct {
	rule    *Rule
	host    string // "" is any; "*.example.com" any below
	path    []segment
	methods []string // none: any
	implied bool     // it matches HEAD because its rule names GET
	where   condition
	order   int // in the file, and once compiled by specificity
	written int // in the file
	at      any // where the path was written, or the rule
}

// A segment of a path pattern.
type segment struct {
	kind segmentKind
	text string // what it is, what it is called, or its glob
}

type segmentKind uint8

// From the most to the least specific.
const (
	segmentLiteral segmentKind = iota
	segmentGlob                // with * in it
	segmentNamed               // {name}
	segmentAny                 // *
	segmentNone                // the path has ended
	segmentRest                // **
)

func (m *matcher) matches(q *request, path string) bool {
	if q.preflight && len(m.methods) == 0 {
		return false
	}
	return m.matchesMethod(q.a.Method()) && m.matchesHost(q.a.Host()) && matchesPath(m.path, path) && q.holds(m.where)
}

func (m *matcher) matchesMethod(method string) bool {
	if len(m.methods) == 0 {
		return true
	}
	for _, one := range m.methods {
		if one == method {
			return true
		}
	}
	return false
}

func (m *matcher) matchesHost(host string) bool { return m.host == "" || matchesHost(m.host, host) }

func matchesPath(pattern []segment, path string) bool {
	for i := range pattern {
		s := &pattern[i]
		if s.kind == segmentRest {
			return true
		}
		if path == "" {
			return false
		}
		var text string
		text, path = cut(path)
		if !s.matches(text) {
			return false
		}
	}
	return path == ""
}

// cut takes the first segment off a path, which begins with a slash.
func cut(path string) (text, rest string) {
	if end := strings.IndexByte(path[1:], '/'); end >= 0 {
		return path[1 : end+1], path[end+1:]
	}
	return path[1:], ""
}

func (s *segment) matches(text string) bool {
	switch s.kind {
	case segmentLiteral:
		return s.text == text
	case segmentGlob:
		return glob(s.text, text)
	}
	return text != ""
}

// glob matches a pattern with stars, in time proportional to the product of both lengths at worst.
func glob(pattern, text string) bool {
	p, t := 0, 0
	star, from := -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, t
			p++
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case star >= 0:
			from++
			p, t = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// segment is the text of the named segment in a path that matches.
func (m *matcher) segment(path, name string) (string, bool) {
	for i := range m.path {
		if path == "" || m.path[i].kind == segmentRest {
			break
		}
		var text string
		text, path = cut(path)
		if m.path[i].kind == segmentNamed && m.path[i].text == name {
			return text, true
		}
	}
	return "", false
}

func (m *matcher) has(name string) bool {
	for i := range m.path {
		if m.path[i].kind == segmentNamed && m.path[i].text == name {
			return true
		}
	}
	return false
}

// specificity orders matchers, the most specific first: by the host (named before *.domain before
// any), then the path from left to right (a literal segment before one with * in it, before {name},
// before *, before the path's end, before **; of two with * in them, the longer first), then
// whether methods are named (HEAD by itself before HEAD because of GET), then by how many more
// conditions there are, then as written.
func specificity(a, b *matcher) int { return cmp.Or(byMatch(a, b), cmp.Compare(a.order, b.order)) }

// byMatch is specificity but for the order in the file.
func byMatch(a, b *matcher) int {
	return cmp.Or(
		cmp.Compare(hostRank(b.host), hostRank(a.host)),
		comparePaths(a.path, b.path),
		cmp.Compare(b.methodRank(), a.methodRank()),
		cmp.Compare(len(b.where), len(a.where)),
	)
}

func (m *matcher) methodRank() int {
	switch {
	case len(m.methods) == 0:
		return 0
	case m.implied:
		return 1
	}
	return 2
}

// hostRank is higher for a host that says more: a whole name, or a longer domain.
func hostRank(host string) int {
	switch {
	case host == "":
		return 0
	case host[0] == '*':
		return len(host)
	}
	return 1 << 16
}

func comparePaths(a, b []segment) int {
	for i := range max(len(a), len(b)) {
		s, t := segment{kind: segmentNone}, segment{kind: segmentNone}
		if i < len(a) {
			s = a[i]
		}
		if i < len(b) {
			t = b[i]
		}
		byKind := cmp.Compare(s.kind, t.kind)
		if byKind == 0 && s.kind == segmentGlob {
			byKind = cmp.Compare(len(t.text), len(s.text))
		}
		if byKind != 0 {
			return byKind
		}
	}
	return 0
}

// alike tells whether two matchers without conditions match the same requests, so that one of them
// could never win.
func (m *matcher) alike(o *matcher) bool {
	return m.host == o.host && samePath(m.path, o.path) && sameMethods(m.methods, o.methods)
}

func samePath(a, b []segment) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		named := a[i].kind == segmentNamed && b[i].kind == segmentNamed
		if a[i] != b[i] && !named {
			return false
		}
	}
	return true
}

func sameMethods(a, b []string) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	for _, method := range a {
		for _, other := range b {
			if method == other {
				return true
			}
		}
	}
	return false
}

// pattern reads a path as people write it in a rule.
func (c *compiler) pattern(p any, text string) ([]segment, bool) {
	if strings.Contains(text, "://") {
		c.fail(p, "the path %q has a scheme and a host; write the path alone, as in /api, and the host into host:", clip(text))
		return nil, false
	}
	if !strings.HasPrefix(text, "/") {
		c.fail(p, "the path %q has to begin with a slash; write %q", clip(text), "/"+clip(text))
		return nil, false
	}
	var path []segment
	names := make(map[string]bool)
	parts := strings.Split(text[1:], "/")
	for i, text := range parts {
		s := segment{segmentLiteral, text}
		switch {
		case text == "**":
			if i < len(parts)-1 {
				c.fail(p, "** stands before the end of the path; it can only be last; for one segment write * or {name}")
				return nil, false
			}
			s = segment{kind: segmentRest}
		case text == "*":
			s = segment{kind: segmentAny}
		case strings.ContainsAny(text, "{}"):
			name := strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
			if len(name) != len(text)-2 || !wordLike(name) {
				c.fail(p, "the segment %q is not understood; write {name} for a whole segment, with a name of letters, digits and _", clip(text))
				return nil, false
			}
			if names[name] {
				c.fail(p, "the segment {%s} stands in the path twice; give each a name of its own", name)
				return nil, false
			}
			names[name] = true
			s = segment{segmentNamed, name}
		case strings.Contains(text, "**"):
			c.fail(p, "the segment %q has ** in it; write * for any part of a segment", clip(text))
			return nil, false
		case strings.Contains(text, "*"):
			s.kind = segmentGlob
			fallthrough
		default:
			if name := strings.Trim(text, ":<>"); text != name && wordLike(name) {
				c.warn(p, "the segment %q stands for itself, as it is written; for a segment of any text write {%s}", clip(text), clip(name))
			}
			clean, ok := c.literal(p, s.text, i == len(parts)-1)
			if !ok {
				return nil, false
			}
			s.text = clean
		}
		path = append(path, s)
	}
	if last := len(path) - 1; c.rules.paths.IgnoreTrailingSlash && last > 0 && path[last] == (segment{}) {
		path = path[:last]
	}
	return path, true
}

// literal brings a segment into the form that requests' paths are brought into.
func (c *compiler) literal(p any, text string, last bool) (string, bool) {
	if text == "" {
		if !last {
			c.fail(p, "the path has // in it, which no request's path has once it is read; write one slash")
		}
		return "", last
	}
	// A star is kept as it is; in a request's path it stands for itself, too.
	clean, err := c.rules.paths.Clean("/" + text)
	if err != nil {
		c.fail(p, "no request's path has the segment %q: %s", clip(text), offset.ReplaceAllString(strings.TrimPrefix(err.Error(), "path: "), ""))
		return "", false
	}
	if clean == "/" || strings.Contains(clean[1:], "/") {
		c.fail(p, "no request's path has the segment %q once it is read; leave it out", clip(text))
		return "", false
	}
	return clean[1:], true
}

// offset is where in a path something is wrong; a pattern has its own.
var offset = regexp.MustCompile(` at offset \d+`)

func wordLike(s string) bool {
	for i, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || i > 0 && b >= '0' && b <= '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}
