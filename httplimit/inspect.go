package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// An Inspection shows how a policy reads a request: which charges a Gate would make, and why.
type Inspection struct {
	Path       string     // as rules match it, and as it is sent on
	Address    netip.Addr // the client's
	Matching   []*policy.Rule
	Evaluation policy.Evaluation
}

// Inspect reads a request as a Gate does, and charges nothing. The error wraps penstock.ErrInvalid:
// a Gate would reject the request as malformed. The descriptor has the values of its entries by
// their keys. It is nil for HTTP requests; Envoy sends descriptors to its rate limit service.
func Inspect(rules *policy.Rules, r *http.Request, descriptor map[string][]string) (*Inspection, error) {
	c, err := compile(rules)
	if err != nil {
		return nil, err
	}
	a := &Admission{Request: r, attributes: attributes{request: r, compiled: c}}
	if err := a.canonicalizePath(c); err != nil {
		return nil, fmt.Errorf("%w: %w", penstock.ErrInvalid, err)
	}
	withDescriptor := &descriptorAttributes{&a.attributes, descriptor}
	i := &Inspection{Path: a.attributes.path, Address: a.attributes.Address(), Matching: rules.Matching(withDescriptor)}
	rules.Evaluate(withDescriptor, &i.Evaluation)
	if i.Evaluation.Ambiguous != "" {
		return nil, fmt.Errorf("%w: %s", penstock.ErrInvalid, i.Evaluation.Ambiguous)
	}
	return i, nil
}

// descriptorAttributes are the attributes of a request and the entries of a descriptor.
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
