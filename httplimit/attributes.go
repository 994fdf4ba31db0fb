package httplimit

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// attributes are what a policy may know of an HTTP request. They are found out when they are asked for.
type attributes struct {
	r       *http.Request
	setup   *setup
	path    string
	host    string
	address netip.Addr
	located bool // address is known
	query   url.Values
}

// Method, and what follows, implement policy.Attributes.
func (a *attributes) Method() string { return a.r.Method }

func (a *attributes) Path() string { return a.path }

func (a *attributes) Host() string {
	if a.host == "" {
		a.host = hostname(a.r.Host)
	}
	return a.host
}

// hostname is a host without its port and the dot at its end, in lower case.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func (a *attributes) Header(name string) []string { return a.r.Header[name] }

func (a *attributes) Cookie(name string) (values []string) {
	for _, cookie := range a.r.CookiesNamed(name) {
		values = append(values, cookie.Value)
	}
	return values
}

func (a *attributes) Query(name string) []string {
	if a.query == nil {
		a.query = a.r.URL.Query()
	}
	return a.query[name]
}

func (a *attributes) Address() netip.Addr {
	if !a.located {
		a.located = true
		a.address = a.setup.addresses.of(a.r)
	}
	return a.address
}

func (a *attributes) BodySize() int64 { return a.r.ContentLength }
