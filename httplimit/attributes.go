package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/transport/clientaddress"
	"github.com/penstock/penstock/policy"
)

// attributes are the parts of an HTTP request that a policy may read.
type attributes struct {
	request    *http.Request
	compiled   *compiledRules
	path       string
	host       string
	address    netip.Addr
	hasAddress bool // whether address is computed already

	// single is memory for the results of Lookup, by kind. The kinds up to KindRawQuery have exactly
	// one value.
	single [policy.KindRawQuery + 1]string
}

// Lookup implements policy.Attributes, as the other methods do.
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
		return syntax.CookieValues(a.request.Header["Cookie"], name)
	case policy.KindQuery:
		return syntax.QueryValues(a.request.URL.RawQuery, name)
	default:
		return nil
	}
	return a.single[kind : kind+1]
}

func (a *attributes) HasHeader(test func(name string) bool) bool {
	return syntax.HasHeader(a.request.Header, test)
}

func (a *attributes) Address() netip.Addr {
	if !a.hasAddress {
		a.hasAddress = true
		a.address = a.compiled.proxies.Client(clientaddress.PeerOf(a.request.RemoteAddr), a.request.Header)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.request.ContentLength }

// AttributesOf reads a request as a Gate with these rules does, and charges nothing. The path of
// the attributes is that which rules match, and which is sent on. The descriptor has the values of
// its entries by their keys. It is nil for HTTP requests; Envoy sends descriptors to its rate limit
// service. The error wraps penstock.ErrInvalid: a Gate would reject the request as malformed.
func AttributesOf(rules *policy.Rules, r *http.Request, descriptor map[string][]string) (policy.Attributes, error) {
	c, err := compile(rules)
	if err != nil {
		return nil, err
	}
	a := &Admission{Request: r, attributes: attributes{request: r, compiled: c}}
	if err := a.canonicalizePath(c); err != nil {
		return nil, fmt.Errorf("%w: %w", penstock.ErrInvalid, err)
	}
	return &descriptorAttributes{&a.attributes, descriptor}, nil
}

type descriptorAttributes struct {
	*attributes
	descriptor map[string][]string
}

func (d *descriptorAttributes) Lookup(kind policy.Kind, name string) []string {
	if kind == policy.KindDescriptor {
		return d.descriptor[name]
	}
	return d.attributes.Lookup(kind, name)
}
