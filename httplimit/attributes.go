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
	request   *http.Request
	compiled  *compiledRules
	path      string
	host      string
	single    [policy.KindRawQuery + 1]string // memory for values that Lookup returns, by kind
	address   netip.Addr
	isLocated bool // address is known
}

// Lookup implements policy.Attributes, as Address and BodySize do.
func (a *attributes) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindHeader:
		return a.request.Header[name]
	case policy.KindMethod:
		a.single[kind] = a.request.Method
	case policy.KindHost:
		a.single[kind] = a.host
	case policy.KindPath:
		a.single[kind] = a.path
	case policy.KindRawQuery:
		a.single[kind] = a.request.URL.RawQuery
	case policy.KindCookie:
		return policy.CookieValues(a.request.Header["Cookie"], name)
	case policy.KindQuery:
		return policy.QueryValues(a.request.URL.RawQuery, name)
	default:
		return nil
	}
	return a.single[kind : kind+1]
}

func (a *attributes) Address() netip.Addr {
	if !a.isLocated {
		a.isLocated = true
		a.address = a.compiled.proxies.Client(clientaddress.PeerOf(a.request.RemoteAddr), a.request.Header)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.request.ContentLength }
