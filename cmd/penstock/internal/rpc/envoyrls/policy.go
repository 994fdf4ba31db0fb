package envoyrls

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/policy"
)

// A ruleset is a policy with a cache of its compiled limits.
type ruleset struct {
	rules *policy.Rules
	mu    sync.RWMutex
	plans map[*penstock.Plan]*limit // bounded by the number of variants of all limits in the policy
}

// rulesInForce returns the policy in force, or nil.
func (e *Engine) rulesInForce() *ruleset {
	if e.options.Policy == nil {
		return nil
	}
	rules := e.options.Policy.Rules()
	if s := e.ruleset.Load(); s != nil && s.rules == rules {
		return s
	}
	s := &ruleset{rules: rules, plans: make(map[*penstock.Plan]*limit)}
	e.ruleset.Store(s)
	return s
}

// NeedsDescriptor reports whether a rule is for Envoy's requests: its match or an identity of a
// limit has a descriptor. Other rules do not apply to them.
func NeedsDescriptor(r *policy.Rule) bool {
	return slices.ContainsFunc(r.Match.Where, func(t policy.Test) bool { return t.Source.Needs(policy.KindDescriptor) }) ||
		slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool { return l.Key.Needs(policy.KindDescriptor) })
}

// CheckRules returns an error if a rule for Envoy's requests has a limit that depends on the end of
// a request or on its status. Envoy does not report these. Without this check, a request of Envoy
// to which such a limit applies fails. The error wraps penstock.ErrInvalid.
func CheckRules(rules *policy.Rules) error {
	for _, r := range rules.Spec().Rules {
		if !NeedsDescriptor(r) {
			continue
		}
		for _, l := range r.Limits {
			if err := checkLimit(l); err != nil {
				return fmt.Errorf("%w: rule %s: %w", penstock.ErrInvalid, r.Name, err)
			}
		}
	}
	return nil
}

// checkLimit returns an error if Envoy's requests cannot be limited by l.
func checkLimit(l *policy.Limit) error {
	switch {
	case l.Variants[0].Algorithm().NeedsHolder():
		return errInFlight
	case l.Status != nil:
		return errOnStatus
	}
	return nil
}

var (
	errInFlight = errors.New("it has an in_flight limit and a descriptor, and Envoy does not report the end of a request; use a limit with rate")
	errOnStatus = errors.New("it has a limit with on_status and a descriptor, and Envoy does not report the status of a response; omit on_status")
)

func (s *ruleset) limitOf(l *policy.Limit, plan *penstock.Plan) (*limit, error) {
	s.mu.RLock()
	known := s.plans[plan]
	s.mu.RUnlock()
	if known != nil {
		return known, nil
	}
	if err := checkLimit(l); err != nil {
		return nil, err
	}
	storeLimit := plan.Limit()
	unit, multiplier := unitOf(storeLimit.Period)
	if plan.Algorithm().IsCalendar() {
		unit, multiplier = envoyconfig.UnitUnknown, 0
	}
	compiled := &limit{
		current: CurrentLimit{Name: l.FullName, RequestsPerUnit: clamp(storeLimit.Count), Unit: unit, UnitMultiplier: multiplier},
		period:  storeLimit.Period, plan: plan,
	}
	var err error
	if compiled.probe, err = probeOf(plan); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans[plan] = compiled
	return compiled, nil
}

// probeOf returns the probe of a plan: the same limit with one unit more. The capacity of a window
// is its Count. The capacity of a token bucket is its Burst, and that of a leaky bucket Burst + 1.
func probeOf(plan *penstock.Plan) (probe *penstock.Plan, err error) {
	storeLimit := plan.Limit()
	if !storeLimit.Algorithm.RefillsSteadily() {
		storeLimit.Count++
		return storeLimit.Compile()
	}
	storeLimit.Burst = plan.Capacity()
	probe, err = storeLimit.Compile()
	isTokenBucket := err == nil && probe.Capacity() == plan.Capacity()
	if !isTokenBucket {
		return probe, err
	}
	storeLimit.Burst++
	return storeLimit.Compile()
}

// unitOf expresses a period as a multiple of the largest unit that divides it. If none divides the
// period, unitOf returns UnitUnknown, and Envoy shows only the limit's count.
func unitOf(period time.Duration) (envoyconfig.Unit, uint32) {
	for _, u := range []envoyconfig.Unit{envoyconfig.Year, envoyconfig.Month, envoyconfig.Week, envoyconfig.Day, envoyconfig.Hour, envoyconfig.Minute, envoyconfig.Second} {
		if n := period / u.Period(); n > 0 && period%u.Period() == 0 {
			if n == 1 {
				return u, 0
			}
			return u, uint32(n)
		}
	}
	return envoyconfig.UnitUnknown, 0
}

// matchPolicy finds the limits of the policy for each descriptor. Each descriptor is evaluated as
// a separate request. All limits are charged together.
func (c *call) matchPolicy(s *ruleset) error {
	c.rules = s.rules
	for i := range c.request.Descriptors {
		d := &c.request.Descriptors[i]
		attributes := descriptorAttributes{c.request.Domain, d.Entries}
		evaluation := &c.evaluation
		s.rules.Evaluate(attributes, evaluation)
		switch {
		case evaluation.Ambiguous != "":
			return invalid("%s", evaluation.Ambiguous)
		case evaluation.ListMatch == policy.DenyListed:
			c.limits = append(c.limits, appliedLimit{descriptorIndex: i, kind: refuse})
			continue
		case evaluation.ListMatch == policy.AllowListed:
			continue
		}
		for j, l := range evaluation.Limits {
			if !NeedsDescriptor(l.Rule) {
				continue
			}
			compiled, err := s.limitOf(l, evaluation.Charges[j].Plan)
			if err != nil {
				return invalid("the limit %s cannot be enforced: %v", l.FullName, err)
			}
			applied := appliedLimit{descriptorIndex: i, limit: compiled, eventLimit: l, key: evaluation.Charges[j].Key}
			if err := c.setCost(&applied, d); err != nil {
				return err
			}
			var ok bool
			if applied.cost, ok = product(applied.cost, evaluation.Charges[j].Cost); !ok {
				return invalid("the cost is out of range; the largest is %d", int64(penstock.MaxCost))
			}
			c.limits = append(c.limits, applied)
		}
		if err := c.addShadows(evaluation, d); err != nil {
			return err
		}
	}
	return nil
}

// product multiplies two costs. Above penstock.MaxCost, it returns MaxCost and false.
func product(a, b int64) (cost int64, ok bool) {
	if a > 0 && b > penstock.MaxCost/a {
		return penstock.MaxCost, false
	}
	return a * b, true
}

// addShadows adds the shadows of the policy for a descriptor. The response does not show them.
func (c *call) addShadows(evaluation *policy.Evaluation, d *Descriptor) error {
	applied := appliedLimit{limit: emptyLimit} // only for its kind and its cost
	if err := c.setCost(&applied, d); err != nil || applied.kind == check || applied.kind == refund {
		return err
	}
	for _, shadow := range evaluation.Shadows {
		if !NeedsDescriptor(shadow.Limits[0].Rule) || slices.ContainsFunc(shadow.Limits, func(l *policy.Limit) bool { return checkLimit(l) != nil }) {
			continue
		}
		shadow.Charges = slices.Clone(shadow.Charges)
		for i := range shadow.Charges {
			charge := &shadow.Charges[i]
			charge.Cost, _ = product(charge.Cost, applied.cost)
			charge.Patience = 0
			if applied.kind == force {
				charge.Mode = penstock.Force
			}
		}
		c.policyShadows = append(c.policyShadows, shadow)
	}
	return nil
}

var emptyLimit = new(limit)

// descriptorAttributes are the entries of a descriptor, as rules read them. The key "domain" is the
// domain of the request.
type descriptorAttributes struct {
	domain  string
	entries []envoyconfig.Entry
}

func (a descriptorAttributes) Lookup(kind policy.Kind, name string) (values []string) {
	if kind != policy.KindDescriptor {
		return nil
	}
	if name == domainKey {
		return []string{a.domain}
	}
	for i := range a.entries {
		if a.entries[i].Key == name {
			values = append(values, a.entries[i].Value)
		}
	}
	return values
}

func (descriptorAttributes) HasHeader(func(name string) bool) bool { return false }

// domainKey is the key by which rules read the domain.
const domainKey = "domain"

// Address is the value of Envoy's action remote_address, if the descriptor has it.
func (a descriptorAttributes) Address() (none netip.Addr) {
	for i := range a.entries {
		if a.entries[i].Key == "remote_address" {
			if address, err := netip.ParseAddr(a.entries[i].Value); err == nil {
				return address
			}
		}
	}
	return none
}

func (descriptorAttributes) BodySize() int64 { return -1 }
