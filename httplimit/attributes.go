package httplimit

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// attributes are what a policy may know of an HTTP request. They are found out when they are asked
// for.
type attributes struct {
	r       *http.Request
	setup   *setup
	path    string
	host    string
	address netip.Addr
	located bool // address is known
}

// Method, and what follows, implement policy.Attributes.
func (a *attributes) Method() string { return a.r.Method }

func (a *attributes) Path() string { return a.path }

func (a *attributes) Host() string { return a.host }

func (a *attributes) Header(name string) []string { return a.r.Header[name] }

// Cookie accepts more than net/http: what net/http ignores, an upstream may read.
func (a *attributes) Cookie(name string) (values []string) {
	for _, line := range a.r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			known, value, _ := strings.Cut(pair, "=")
			if plain, err := url.PathUnescape(known); err == nil {
				known = plain // as old versions of PHP do
			}
			if !sameName(known, name) {
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

// Query accepts more than net/url: some servers end a parameter at a semicolon, take name[] for
// name, or accept invalid escapes.
func (a *attributes) Query(name string) (values []string) {
	query := a.r.URL.RawQuery
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
		known, value, _ := strings.Cut(pair, "=")
		known, _, _ = strings.Cut(unescaped(known), "[")
		if sameName(known, name) {
			values = append(values, unescaped(value))
		}
	}
	return values
}

func (a *attributes) RawQuery() string { return a.r.URL.RawQuery }

// sameName tells whether some server takes a name that was sent for name. PHP reads dots and spaces
// in it as underscores.
func sameName(sent, name string) bool {
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

func (a *attributes) Address() netip.Addr {
	if !a.located {
		a.located = true
		a.address = a.setup.addresses.of(a.r)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.r.ContentLength }
