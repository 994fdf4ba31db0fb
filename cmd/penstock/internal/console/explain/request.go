package explain

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// NewRequest makes a request in the form in which a server receives it. The target is a path or a
// URL. Headers are written Name: value.
func NewRequest(method, target string, headers []string, from string, size int64) (*http.Request, error) {
	if strings.HasPrefix(target, "/") {
		target = "http://localhost" + target
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is neither a path nor a URL; write one as in /api/rides or https://api.example.com/api/rides", target)
	}
	r, err := http.NewRequest(method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	r.URL.Scheme, r.URL.Host = "", ""
	r.ContentLength = size
	for _, line := range headers {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		switch {
		case !ok:
			return nil, fmt.Errorf("header %q has no colon; write 'Name: value', as in 'X-API-Key: abc'", line)
		case !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
			return nil, fmt.Errorf("header %q is not valid; write 'Name: value' as in 'X-API-Key: abc', without spaces in the name", line)
		case strings.EqualFold(name, "Host"):
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	address, err := netip.ParseAddr(from)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address; write 192.0.2.1 or 2001:db8::1", from)
	}
	const anyPort = 1024
	r.RemoteAddr = netip.AddrPortFrom(address, anyPort).String()
	return r, nil
}

// ReadDescriptor reads the entries of a descriptor, which are written KEY=VALUE.
func ReadDescriptor(list []string) (map[string][]string, error) {
	all := make(map[string][]string)
	for _, text := range list {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("descriptor %q has no key; write KEY=VALUE, as in remote_address=192.0.2.7", text)
		}
		all[key] = append(all[key], value)
	}
	return all, nil
}
