package checkapi

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/policy"
)

const (
	maxMethod      = 32        // bytes
	maxHost        = 300       // bytes
	maxPath        = 8 << 10   // bytes; also of the query
	maxHeaders     = 128       // headers
	maxHeaderName  = 128       // bytes
	maxHeaderValue = 8 << 10   // characters
	maxAllHeaders  = 256 << 10 // bytes of all names and values together

	maxDescriptors     = 64   // descriptors
	maxDescriptorName  = 128  // characters
	maxDescriptorValue = 1024 // characters
)

// attributes are the policy.Attributes of a request that a caller describes.
type attributes struct {
	values      [policy.KindRawQuery + 1]string // of the kinds that have one value
	headers     map[string][]string             // by canonical name
	descriptors map[string]string
	address     netip.Addr
	bodySize    int64 // -1 if the caller does not give it
}

func (a *attributes) Lookup(kind policy.Kind, name string) []string {
	switch kind {
	case policy.KindHeader:
		return a.headers[name]
	case policy.KindDescriptor:
		if value, ok := a.descriptors[name]; ok {
			return []string{value}
		}
	case policy.KindCookie:
		return syntax.CookieValues(a.headers["Cookie"], name)
	case policy.KindQuery:
		return syntax.QueryValues(a.values[policy.KindRawQuery], name)
	case policy.KindMethod, policy.KindHost, policy.KindPath, policy.KindRawQuery:
		if a.values[kind] != "" {
			return a.values[kind : kind+1]
		}
	}
	return nil
}

func (a *attributes) HasHeader(test func(name string) bool) bool {
	return syntax.HasHeader(a.headers, test)
}

func (a *attributes) Address() netip.Addr { return a.address }

// BodySize returns 0 for a size that the caller does not give, because it does not become known
// later. obstacleTo refuses the request if a limit charges by the size.
func (a *attributes) BodySize() int64 { return max(a.bodySize, 0) }

func readAttributes(m *penstockv1.Attributes, paths policy.Paths) (*attributes, error) {
	a := &attributes{bodySize: -1}
	if err := a.readMethod(m.GetMethod()); err != nil {
		return nil, err
	}
	host, ok := syntax.CleanHost(m.GetHost())
	if !ok || len(m.GetHost()) > maxHost {
		return nil, invalid("attributes.host", "it is malformed; write a name or an address, with an optional port")
	}
	a.values[policy.KindHost] = host
	path := m.GetPath()
	switch {
	case path == "":
		path = "/"
	case path[0] != '/' || len(path) > maxPath || !isVisible(path):
		return nil, invalid("attributes.path", "write what the client sent, from the first slash to the question mark, in at most %d bytes", maxPath)
	}
	path, err := paths.Clean(path)
	if err != nil {
		return nil, invalid("attributes.path", "%v", err)
	}
	a.values[policy.KindPath] = path
	if q := m.GetQuery(); len(q) > maxPath || !isVisible(q) || strings.HasPrefix(q, "?") {
		return nil, invalid("attributes.query", "write what the client sent after the question mark, in at most %d bytes", maxPath)
	}
	a.values[policy.KindRawQuery] = m.GetQuery()
	if err := a.readHeaders(m.GetHeaders()); err != nil {
		return nil, err
	}
	if err := a.readDescriptors(m.GetDescriptors()); err != nil {
		return nil, err
	}
	if text := m.GetAddress(); text != "" {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return nil, invalid("attributes.address", "it is not an address; write one such as 192.0.2.1 or 2001:db8::1, without a port")
		}
		a.address = address.Unmap()
	}
	if m.BodySize != nil {
		if a.bodySize = m.GetBodySize(); a.bodySize < 0 {
			return nil, invalid("attributes.body_size", "it must not be negative; leave it out if it is not known")
		}
	}
	return a, nil
}

func (a *attributes) readMethod(method string) error {
	switch upper := strings.ToUpper(method); {
	case len(method) > maxMethod || method != "" && !syntax.IsToken(method):
		return invalid("attributes.method", "it is malformed; write a method such as GET, with at most %d characters", maxMethod)
	case upper != method && isKnownMethod(upper):
		return invalid("attributes.method", "write %s in capitals", upper)
	}
	a.values[policy.KindMethod] = method
	return nil
}

func isKnownMethod(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

func (a *attributes) readHeaders(headers map[string]string) error {
	if len(headers) > maxHeaders {
		return invalid("attributes.headers", "there are %d; at most %d are allowed", len(headers), maxHeaders)
	}
	a.headers = make(map[string][]string, len(headers))
	size := 0
	for name, value := range headers {
		if !syntax.IsToken(name) || len(name) > maxHeaderName {
			return invalid("attributes.headers", "a name is malformed; write names such as X-API-Key, with at most %d characters", maxHeaderName)
		}
		key := http.CanonicalHeaderKey(name)
		size += len(name) + len(value)
		switch {
		case key == "Host":
			return invalid("attributes.headers", "write the host as attributes.host")
		case a.headers[key] != nil:
			return invalid("attributes.headers", "%s is sent twice; the case of names does not matter", key)
		case isLonger(value, maxHeaderValue) || strings.ContainsFunc(value, isControl):
			return invalid("attributes.headers", "the value of %s is malformed; it has at most %d characters, and no control characters", key, maxHeaderValue)
		}
		a.headers[key] = []string{strings.Trim(value, " \t")}
	}
	if size > maxAllHeaders {
		return invalid("attributes.headers", "together they have %d bytes; at most %d are allowed", size, maxAllHeaders)
	}
	return nil
}

func (a *attributes) readDescriptors(descriptors map[string]string) error {
	const field = "attributes.descriptors"
	if len(descriptors) > maxDescriptors {
		return invalid(field, "there are %d; at most %d are allowed", len(descriptors), maxDescriptors)
	}
	for name, value := range descriptors {
		if name == "" || isLonger(name, maxDescriptorName) || isLonger(value, maxDescriptorValue) {
			return invalid(field, "names have 1 to %d characters, and values at most %d characters", maxDescriptorName, maxDescriptorValue)
		}
	}
	a.descriptors = descriptors
	return nil
}

func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// isVisible reports whether a text has only visible ASCII characters, as a URI does.
func isVisible(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}
