package policy

import (
	"net/url"
	"strings"
)

// CookieValues returns the values of a cookie in lines of the header Cookie, for
// Attributes.Lookup. It accepts more than net/http, because an upstream may read what net/http
// ignores.
func CookieValues(lines []string, name string) (values []string) {
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			sent, value, _ := strings.Cut(pair, "=")
			if plain, err := url.PathUnescape(sent); err == nil {
				sent = plain // old versions of PHP unescape names
			}
			if !isSameName(sent, name) {
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

// QueryValues returns the values of a parameter in a query, for Attributes.Lookup. It accepts more
// than net/url: some servers end a parameter at a semicolon, take name[] for name, or accept
// invalid escapes.
func QueryValues(query, name string) (values []string) {
	if query == "" {
		return nil
	}
	unescaped := func(text string) string {
		if plain, err := url.QueryUnescape(text); err == nil {
			return plain
		}
		return text
	}
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		sent, value, _ := strings.Cut(pair, "=")
		sent, _, _ = strings.Cut(unescaped(sent), "[")
		if isSameName(sent, name) {
			values = append(values, unescaped(value))
		}
	}
	return values
}

// isSameName reports whether a server may read the sent name as name. PHP reads dots and spaces in
// it as underscores.
func isSameName(sent, name string) bool {
	sent = strings.TrimSpace(sent)
	if len(sent) != len(name) {
		return false
	}
	if strings.Contains(name, "_") {
		sent = underscores.Replace(sent)
	}
	return strings.EqualFold(sent, name)
}

var underscores = strings.NewReplacer(".", "_", " ", "_")
