package httplimit

import (
	"fmt"
	"net/http"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

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
