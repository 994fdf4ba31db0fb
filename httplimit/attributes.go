package httplimit

import (
	"net/http"
	"net/netip"

	"github.com/penstock/penstock/internal/clientaddress"
	"github.com/penstock/penstock/policy"
)

// attributes are what a policy may read of an HTTP request. They are computed when they are looked
// up.
type attributes struct {
	r         *http.Request
	compiled  *compiledRules
	path      string
	host      string
	single    [policy.KindRawQuery + 1]string // values of kinds that have one, for Lookup
	address   netip.Addr
	isLocated bool // address is known
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
		return policy.CookieValues(a.r.Header["Cookie"], name)
	case policy.KindQuery:
		return policy.QueryValues(a.r.URL.RawQuery, name)
	default:
		return nil
	}
	return a.single[kind : kind+1]
}

func (a *attributes) Address() netip.Addr {
	if !a.isLocated {
		a.isLocated = true
		a.address = a.compiled.proxies.Client(clientaddress.PeerOf(a.r.RemoteAddr), a.r.Header)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.r.ContentLength }
