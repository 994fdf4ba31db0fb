package httplimit

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/penstock/penstock/internal/clientaddress"
	"github.com/penstock/penstock/policy"
)

// attributes are what a policy may know of an HTTP request. They are found out when they are asked
// for.
type attributes struct {
	r        *http.Request
	compiled *compiledRules
	path     string
	host     string
	single   [policy.KindRawQuery + 1]string // values of kinds that have one, for Lookup
	address  netip.Addr
	located  bool // address is known
}

// Lookup implements policy.Attributes, as Address and BodySize do.
func (a *attributes) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindHeader:
		return a.r.Header[name]
	case policy.KindMethod:
		a.single[kind] = a.r.Method
	case policy.KindHost:
		a.single[kind] = a.host
	case policy.KindPath:
		a.single[kind] = a.path
	case policy.KindRawQuery:
		a.single[kind] = a.r.URL.RawQuery
	case policy.KindCookie:
		return a.cookie(name)
	case policy.KindQuery:
		return a.query(name)
	default:
		return nil
	}
	return a.single[kind : kind+1]
}

// cookie accepts more than net/http: what net/http ignores, an upstream may read.
func (a *attributes) cookie(name string) (values []string) {
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

// query accepts more than net/url: some servers end a parameter at a semicolon, take name[] for
// name, or accept invalid escapes.
func (a *attributes) query(name string) (values []string) {
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

// sameName tells whether a server may read the sent name as name. PHP reads dots and spaces in it
// as underscores.
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
		a.address = a.compiled.proxies.Client(clientaddress.PeerOf(a.r.RemoteAddr), a.r.Header)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.r.ContentLength }
