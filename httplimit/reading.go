package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// A Reading is how a policy reads a request: what a Gate would ask the store, and why.
type Reading struct {
	Path     string     // as rules match it, and as it is sent on
	Address  netip.Addr // the client's
	Matching []*policy.Rule
	Verdict  policy.Verdict
}

// Read reads a request as a Gate does, and charges nothing. The error wraps penstock.ErrInvalid: a
// Gate would refuse the request as malformed.
func Read(rules *policy.Rules, r *http.Request) (*Reading, error) {
	s, err := newSetup(rules)
	if err != nil {
		return nil, err
	}
	a := &Admission{Request: r, attributes: attributes{r: r, setup: s}}
	if err := a.canonical(s); err != nil {
		return nil, fmt.Errorf("%w: %w", penstock.ErrInvalid, err)
	}
	reading := &Reading{Path: a.attributes.path, Address: a.attributes.Address(), Matching: rules.Matching(&a.attributes)}
	if rules.Assess(&a.attributes, &reading.Verdict); reading.Verdict.Unclear != "" {
		return nil, fmt.Errorf("%w: %s", penstock.ErrInvalid, reading.Verdict.Unclear)
	}
	return reading, nil
}
