package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
)

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

// EvaluateRule finds the charges that the rule with this name makes for a caller who gives the key
// and the cost. The key is one that EscapedKey accepts; an address becomes the key of its client. A
// limit whose identity is Global ignores the key. canEnd means that the caller returns slots of
// in_flight limits, and reports the status for on_status. The allow list, the deny list and
// new_identities do not apply, and the tier is the last one. No charge has Patience, so nothing
// waits. An error says why the rule cannot be called, and contains nothing that the caller sent.
func (r *Rules) EvaluateRule(name, key string, cost int64, canEnd bool, v *Evaluation) error {
	v.reset(r, noAttributes{})
	rule := r.byName[name]
	switch {
	case rule == nil:
		return r.NoRule(name)
	case cost < 0 || cost > penstock.MaxCost:
		return errCost
	case len(key) > penstock.MaxKey:
		return errLongKey
	}
	for _, l := range rule.Limits {
		if err := l.checkNamed(); err != nil && !canEnd {
			return err
		}
		if !l.Key.Global && key == "" {
			return fmt.Errorf("there is no key, and the limit %s counts by key; write one such as %s", l.Name, l.Key.ExampleKey("42"))
		}
		if !l.Key.Global && !l.Key.CanHaveKey(key) {
			return fmt.Errorf("the limit %s does not count under such a key; write one such as %s", l.Name, l.Key.ExampleKey("42"))
		}
		if _, isClient := r.addressKey(l.Key, key); !isClient {
			return fmt.Errorf("the limit %s counts by address, and the key has none; write one such as ip:192.0.2.7 or ip:2001:db8::/64", l.Name)
		}
	}
	v.request.callerKey, v.request.callerCost, v.request.isNamedCall = key, cost, true
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

// lastVariant returns the plan of the last tier, which EvaluateRule uses.
func (l *Limit) lastVariant() *penstock.Plan { return l.Variants[len(l.Variants)-1] }

// namedCharge returns the charge for a limit, with the key and the cost that the caller gives.
func (q *request) namedCharge(l *Limit) penstock.Charge {
	key := syntax.GlobalKey
	if !l.Key.Global {
		key, _ = q.rules.addressKey(l.Key, l.Key.EscapedKey(q.callerKey))
	}
	return penstock.Charge{Key: key, Plan: l.lastVariant(), Cost: q.callerCost, Holder: q.holderOf(l.lastVariant())}
}

// addressKey returns the key of the client that a key with an address stands for: an IPv6 client is
// its network. Other keys stay. isClient is false if a key by address has no address.
func (r *Rules) addressKey(id *Identity, key string) (result string, isClient bool) {
	if i := slices.IndexFunc(id.FirstOf, func(one *Identity) bool { return one.CanHaveKey(key) }); i >= 0 {
		id = id.FirstOf[i]
	}
	isByAddress := id.Source.Kind == KindAddress && id.AllOf == nil && id.FirstOf == nil && id.Func == nil
	if !isByAddress || key == unknownKey {
		return key, true
	}
	_, value, _ := strings.Cut(key, ":")
	if address, err := netip.ParseAddr(value); err == nil {
		return id.Kind + ":" + syntax.AddressText(address, r.spec.IPv4Prefix, r.spec.IPv6Prefix), true
	}
	_, err := netip.ParsePrefix(value)
	return key, err == nil || value == "unix"
}

// noAttributes are the Attributes of a caller who names a rule or gives the charges.
type noAttributes struct{}

func (noAttributes) Lookup(Kind, string) []string     { return nil }
func (noAttributes) HasHeader(func(string) bool) bool { return false }
func (noAttributes) Address() (none netip.Addr)       { return none }
func (noAttributes) BodySize() int64                  { return 0 }
