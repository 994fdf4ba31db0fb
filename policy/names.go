package policy

import (
	"net/url"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
)

// Some servers change the names of headers, cookies and parameters before an application reads
// them. So an application may find a value that rules do not find. This file finds such names. A
// request with one of them is malformed.
//
//   - Servers that turn headers into variables (CGI, WSGI, PHP) read every byte that is no letter
//     or digit as an underscore. For them, X_API_Key and X.API.Key are X-API-Key.
//   - PHP ends the name of a parameter at a NUL: it reads key%00a as key. Old versions of PHP
//     unescape the names of cookies too.
//   - Frameworks replace the method of a request by that of a header such as
//     X-HTTP-Method-Override.

// readNames are the names of headers, cookies and parameters that the policy reads.
type readNames struct {
	headers []Source
	lengths uint64                 // a bit for each length of a header that may have aliases; see lengthBit
	isAlias func(name string) bool // whether findAlias finds one; nil if no header may have aliases

	hasCookies, hasParameters, hasMethods bool
}

// methodOverrides are the headers that make some servers use another method.
var methodOverrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

func (n *readNames) addSource(s Source) {
	switch s.Kind {
	case KindHeader:
		n.addHeader(s)
	case KindCookie:
		n.hasCookies = true
		n.addHeader(Header("Cookie"))
	case KindQuery:
		n.hasParameters = true
	case KindMethod:
		n.addMethods()
	}
}

func (n *readNames) addMethods() {
	n.hasMethods = true
	for _, name := range methodOverrides {
		n.addHeader(Header(name))
	}
}

func (n *readNames) addHeader(s Source) {
	if n.hasHeader(s.Name) {
		return
	}
	n.headers = append(n.headers, s)
	if strings.ContainsFunc(s.Name, isSeparator) { // without one, no other name is read as this
		n.lengths |= lengthBit(s.Name)
		n.isAlias = func(name string) bool { return n.findAlias(name) != nil }
	}
}

func (n *readNames) hasHeader(name string) bool {
	return slices.ContainsFunc(n.headers, func(s Source) bool { return strings.EqualFold(name, s.Name) })
}

// lengthBit returns a bit that is the same for names of equal length.
func lengthBit(name string) uint64 { return 1 << (len(name) % 64) }

func isSeparator(r rune) bool { return !syntax.IsAlphanumeric(r) }

// findAlias returns the header of the policy that some servers read if a request has a header with
// this name. It returns nil if there is none, or if the policy reads this very name.
func (n *readNames) findAlias(name string) *Source {
	if n.lengths&lengthBit(name) == 0 {
		return nil
	}
	var found *Source
	for i := range n.headers {
		s := &n.headers[i]
		switch {
		case strings.EqualFold(name, s.Name):
			return nil
		case found == nil && isReadAs(name, s.Name):
			found = s
		}
	}
	return found
}

// isReadAs reports whether two names are equal for servers that ignore case and read every byte
// that is no letter or digit as a dash.
func isReadAs(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if plainByte(a[i]) != plainByte(b[i]) {
			return false
		}
	}
	return true
}

// plainByte returns a letter in lower case, a digit, or a dash for any other byte.
func plainByte(b byte) byte {
	switch {
	case b >= 'A' && b <= 'Z':
		return b - 'A' + 'a'
	case b >= 'a' && b <= 'z' || b >= '0' && b <= '9':
		return b
	}
	return '-'
}

// explain returns why some servers may find something in the request that rules do not find, or "".
func (n *readNames) explain(a Attributes) string {
	if n.isAlias != nil && a.HasHeader(n.isAlias) {
		for i := range n.headers {
			s := &n.headers[i]
			if a.HasHeader(func(name string) bool { return n.findAlias(name) == s }) {
				return s.String() + " is sent under another name that some servers read as this one, such as one with an underscore"
			}
		}
	}
	if n.hasParameters {
		query := firstValue(a, KindRawQuery)
		if strings.Contains(query, "#") {
			return "the query has a #, where some servers end it"
		}
		if strings.HasPrefix(query, "?") { // new URLSearchParams(query) drops the ?
			return "the query begins with a second ?, which some servers drop"
		}
		if hasName(query, "&;", isBrokenName) {
			return "the name of a parameter has an encoded NUL or a broken escape, which some servers read in another way"
		}
	}
	if n.hasCookies {
		for _, line := range a.Lookup(KindHeader, "Cookie") {
			if hasName(line, ";,", isBrokenCookieName) {
				return "the name of a cookie has an encoded NUL or %u, which some servers read in another way"
			}
		}
	}
	return ""
}

// hasName reports whether a test holds for a name with an escape. The names and their values are in
// a query or a line of cookies.
func hasName(text, separators string, test func(name string) bool) bool {
	if !strings.Contains(text, "%") {
		return false
	}
	for pair := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		if name, _, _ := strings.Cut(pair, "="); strings.Contains(name, "%") && test(name) {
			return true
		}
	}
	return false
}

// isBrokenName reports whether servers read the name of a parameter in different ways. Some end it
// at an encoded NUL, and some read %u006b as k.
func isBrokenName(name string) bool {
	_, err := url.QueryUnescape(name)
	return err != nil || strings.Contains(name, "%00")
}

// isBrokenCookieName is isBrokenName for cookies. Browsers may send other broken escapes.
func isBrokenCookieName(name string) bool {
	return strings.Contains(name, "%00") || strings.Contains(name, "%u") || strings.Contains(name, "%U")
}

// isMethodOverridden reports whether a header makes some servers use another method.
func isMethodOverridden(a Attributes, method string) bool {
	for _, name := range methodOverrides {
		for _, value := range a.Lookup(KindHeader, name) {
			if !strings.EqualFold(strings.TrimSpace(value), method) {
				return true
			}
		}
	}
	return false
}

// noteMethod marks the request as ambiguous if some servers use another method. It must be called
// before rules use the method.
func (q *request) noteMethod() {
	if q.hasMethodOverride {
		q.noteAmbiguous("a header such as X-HTTP-Method-Override states another method than the request")
	}
}
