package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// A NamedCall calls one rule by its name. A NamedCall is for callers that state the key and the
// cost themselves, and have no attributes.
type NamedCall struct {
	// Rule is the name of the rule. What the rule matches does not matter.
	Rule string

	// Key is the key to charge, such as "user:42". Each limit of the rule must accept keys of this
	// kind ("user"). Requests by other transports that have this key share its counters. A limit whose
	// identity is Global ignores this key.
	Key string

	// Cost is charged to each limit of the rule, whatever cost the rule sets.
	Cost int64

	// CanEnd means that the caller will report how its request ends: it returns slots of in_flight
	// limits, and reports the status for on_status. Without CanEnd, a rule with such limits cannot be
	// called.
	CanEnd bool
}

// The reasons for which a rule cannot be called by its name.
var (
	errHolds   = errors.New("the rule has an in_flight limit, and a call by name cannot return its slot; use another rule")
	errStatus  = errors.New("the rule has a limit with on_status, and a call by name has no status; use another rule")
	errCost    = fmt.Errorf("the cost is out of range; write 0 to %d", int64(penstock.MaxCost))
	errLongKey = fmt.Errorf("the key is longer than %d bytes", penstock.MaxKey)
)

// maxSuggested is how many names of rules NoRule compares at most. One comparison lasts at most 10
// µs.
const maxSuggested = 100

// NoRule returns the error for a name that no rule has. If one of the first rules has a similar
// name, the error suggests it. The error does not contain the given name.
func (r *Rules) NoRule(name string) error {
	text := "the policy has no rule of this name"
	var names []string
	for _, rule := range r.spec.Rules[:min(len(r.spec.Rules), maxSuggested)] {
		names = append(names, rule.Name)
	}
	if hint := wording.Suggest(name, names); strings.HasPrefix(hint, "did you mean") {
		text += "; " + hint
	}
	return errors.New(text)
}

// EvaluateNamed finds the charges that the rule makes for a call. The allow list, the deny list and
// new_identities do not apply, and the tier is the last one. No charge has Patience, so nothing
// waits. An error says why the rule cannot be called, and contains nothing that the caller sent.
func (r *Rules) EvaluateNamed(c NamedCall, v *Evaluation) error {
	v.reset(r, noAttributes{})
	rule := r.byName[c.Rule]
	switch {
	case rule == nil:
		return r.NoRule(c.Rule)
	case c.Cost < 0 || c.Cost > penstock.MaxCost:
		return errCost
	case len(c.Key) > penstock.MaxKey:
		return errLongKey
	}
	for _, l := range rule.Limits {
		if err := l.checkNamed(); err != nil && !c.CanEnd {
			return err
		}
		if !l.Key.Global && !l.Key.CanBe(c.Key) {
			return fmt.Errorf("the limit %s does not count under such a key; write one such as %s", l.Name, l.Key.ExampleKey("42"))
		}
	}
	v.request.named, v.request.isNamed = c, true
	v.apply(rule.matchers[0])
	return nil
}

// checkNamed returns an error if a limit or its candidate must know when or how the request ends.
func (l *Limit) checkNamed() error {
	switch {
	case l.Variants[0].Algorithm().NeedsHolder():
		return errHolds
	case l.Status != nil:
		return errStatus
	case l.Candidate != nil:
		return l.Candidate.checkNamed()
	}
	return nil
}

// LastVariant returns the plan of a NamedCall: that of the last tier.
func (l *Limit) LastVariant() *penstock.Plan { return l.Variants[len(l.Variants)-1] }

// namedCharge returns the charge of a NamedCall for a limit.
func (q *request) namedCharge(l *Limit) penstock.Charge {
	key := q.named.Key
	if l.Key.Global {
		key = globalKey
	}
	return penstock.Charge{Key: key, Plan: l.LastVariant(), Cost: q.named.Cost, Holder: q.holderOf(l.LastVariant())}
}

// noAttributes are the Attributes of a NamedCall or a DirectCall.
type noAttributes struct{}

func (noAttributes) Lookup(Kind, string) []string     { return nil }
func (noAttributes) HasHeader(func(string) bool) bool { return false }
func (noAttributes) Address() (none netip.Addr)       { return none }
func (noAttributes) BodySize() int64                  { return 0 }
