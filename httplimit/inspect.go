package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// An Inspection is how a policy reads a request: the charges that a Gate would make, and why.
type Inspection struct {
	Path       string     // as rules match it, and as it is sent on
	Address    netip.Addr // the client's
	Matching   []*policy.Rule
	Evaluation policy.Evaluation
}

// Inspect reads a request as a Gate does, and charges nothing. The error wraps penstock.ErrInvalid:
// a Gate would reject the request as malformed.
func Inspect(rules *policy.Rules, r *http.Request) (*Inspection, error) {
	c, err := compile(rules)
	if err != nil {
		return nil, err
	}
	a := &Admission{Request: r, attributes: attributes{r: r, compiled: c}}
	if err := a.canonicalizePath(c); err != nil {
		return nil, fmt.Errorf("%w: %w", penstock.ErrInvalid, err)
	}
	i := &Inspection{Path: a.attributes.path, Address: a.attributes.Address(), Matching: rules.Matching(&a.attributes)}
	if rules.Evaluate(&a.attributes, &i.Evaluation); i.Evaluation.Unclear != "" {
		return nil, fmt.Errorf("%w: %s", penstock.ErrInvalid, i.Evaluation.Unclear)
	}
	return i, nil
}
