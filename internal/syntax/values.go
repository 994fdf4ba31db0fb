package syntax

import (
	"net/url"
	"strings"
	"unicode/utf8"
)

// CookieValues returns the values of a cookie in lines of the header Cookie, for policy.Attributes.
// CookieValues accepts more than net/http, because an upstream may read what net/http ignores.
func CookieValues(lines []string, name string) (values []string) {
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			sentName, value, _ := strings.Cut(pair, "=")
			// Old versions of PHP unescape names, and read a plus as a space.
			if !isSameName(unescapeName(sentName), name) && !isSameName(unescapeName(strings.ReplaceAll(sentName, "+", " ")), name) {
				continue
			}
			value = strings.TrimSpace(value)
			if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
				value = value[1 : n-1]
			}
			values = append(values, value)
		}
	}
	return values
}

// unescapeName unescapes the name of a cookie. A name with a broken escape stays as it is.
func unescapeName(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}

// QueryValues returns the values of a parameter in a query, for policy.Attributes. QueryValues
// accepts more than net/url, because some servers do. They end a parameter at a semicolon, read
// brackets in a name, or accept invalid escapes.
func QueryValues(query, name string) (values []string) {
	if query == "" {
		return nil
	}
	unescape := func(text string) string {
		if plain, err := url.QueryUnescape(text); err == nil {
			return plain
		}
		return text
	}
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		sentName, value, _ := strings.Cut(pair, "=")
		if isSameName(unescape(sentName), name) {
			values = append(values, unescape(value))
		}
	}
	return values
}

// HasHeader reports whether the name of a header field passes the test, for policy.Attributes.
func HasHeader(header map[string][]string, test func(name string) bool) bool {
	for name := range header {
		if test(name) {
			return true
		}
	}
	return false
}

// isSameName reports whether a server may read sentName as name. PHP reads dots, spaces and open
// brackets in a name as underscores. PHP, Rack and qs (Express) read name[] and name[x] as name.
// Rack and qs also drop brackets before a name, and Rack those after it.
func isSameName(sentName, name string) bool {
	sentName = TrimName(sentName)
	if equalsName(sentName, name) {
		return true
	}
	if !strings.ContainsAny(sentName, brackets) {
		return false
	}
	sentName = strings.TrimLeft(sentName, brackets+" ")
	if i := strings.IndexAny(sentName, brackets); i >= 0 {
		sentName = sentName[:i]
	}
	return equalsName(TrimName(sentName), name)
}

const brackets = "[]"

// TrimName returns a name without the white space around it, as servers read it that decode headers
// as ISO 8859-1: the bytes 0x85 and 0xa0 are white space there.
func TrimName(name string) string {
	isSpace := func(b byte) bool { return b == 0x85 || b == 0xa0 }
	for {
		name = strings.TrimSpace(name)
		switch {
		case name != "" && isSpace(name[0]):
			name = name[1:]
		case name != "" && isSpace(name[len(name)-1]) && !utf8.ValidString(name):
			name = name[:len(name)-1]
		default:
			return name
		}
	}
}

func equalsName(sentName, name string) bool {
	if len(sentName) != len(name) {
		return false
	}
	if strings.Contains(name, "_") {
		sentName = underscores.Replace(sentName)
	}
	return strings.EqualFold(sentName, name)
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "[", "_")
