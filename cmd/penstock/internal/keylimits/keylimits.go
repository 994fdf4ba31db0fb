// Package keylimits reads and resets all limits of one key.
package keylimits

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/describe"
)

// A Limit is one limit of a key, with the numbers of one tier.
type Limit struct {
	Rule      string `json:"rule"`
	Limit     string `json:"limit"`
	Kind      string `json:"kind"`           // enforced, shadow or candidate
	Tier      string `json:"tier,omitempty"` // the numbers are for clients of this tier
	Rate      string `json:"rate"`
	Algorithm string `json:"algorithm"`
	Stored    string `json:"stored,omitempty"` // the key in Redis
	Used      int64  `json:"used"`             // units
	Left      int64  `json:"left"`             // units
	ResetMS   int64  `json:"reset_after_ms"`   // until nothing is used any more
	RetryMS   int64  `json:"retry_after_ms"`   // until one unit is left; 0: now; -1: never
	IsDenied  bool   `json:"denies"`           // it would deny a request of one unit now

	key    string
	plan   *penstock.Plan
	policy *policy.Limit
}

// The kinds of limits.
const (
	Enforced  = "enforced"
	Shadow    = "shadow"
	Candidate = "candidate"
)

// globalKey is the key of limits for all clients together.
const globalKey = "global"

// Normalize returns the key under which a policy counts: of an address, only the network that is
// limited as one client.
func Normalize(rules *policy.Rules, key string) string {
	kind, value, _ := strings.Cut(key, ":")
	address, err := netip.ParseAddr(value)
	if kind != "ip" || err != nil {
		return key
	}
	spec := rules.Spec()
	return kind + ":" + policy.AddressText(address, spec.IPv4Prefix, spec.IPv6Prefix)
}

// Find returns the limits that count under a key, in the order of the policy: those of one rule if
// rule is not "". stored names the key of a charge in Redis.
func Find(rules *policy.Rules, key, rule string, stored func(penstock.Charge) (string, error)) (found []*Limit, err error) {
	tiers := rules.Spec().Tiers
	for _, r := range rules.Rules() {
		if rule != "" && r.Name != rule {
			continue
		}
		for _, l := range r.Limits {
			for _, one := range []*policy.Limit{l, l.Candidate} {
				if one == nil || !one.Key.CanBe(key) {
					continue
				}
				kind := Enforced
				switch {
				case one != l:
					kind = Candidate
				case l.Shadow || r.Shadow:
					kind = Shadow
				}
				for tier, plan := range one.Variants {
					limit := &Limit{Rule: r.Name, Limit: one.Name, Kind: kind, Rate: describe.Rate(plan), Algorithm: one.Algorithm, key: key, plan: plan, policy: one}
					if len(one.Variants) > 1 {
						limit.Tier = tiers[tier].Name
					}
					if limit.Stored, err = stored(limit.charge(penstock.Peek)); err != nil {
						return nil, err
					}
					found = append(found, limit)
				}
			}
		}
	}
	return found, nil
}

// Globals returns the limits for all clients together in the rules of some limits. They may deny
// requests of the key too.
func Globals(rules *policy.Rules, of []*Limit, stored func(penstock.Charge) (string, error)) ([]*Limit, error) {
	all, err := Find(rules, globalKey, "", stored)
	return slices.DeleteFunc(all, func(l *Limit) bool {
		return !l.policy.Key.Global || !slices.ContainsFunc(of, func(other *Limit) bool { return other.Rule == l.Rule })
	}), err
}

func (l *Limit) charge(mode penstock.Mode) penstock.Charge {
	c := penstock.Charge{Key: l.key, Plan: l.plan, Mode: mode}
	if mode == penstock.Peek {
		c.Cost = 1
	}
	return c
}

// Read asks the store about the limit. It charges nothing.
func (l *Limit) Read(ctx context.Context, store penstock.Store) error {
	d, err := store.Decide(ctx, []penstock.Charge{l.charge(penstock.Peek)})
	if err != nil {
		return err
	}
	s := d.Status(0)
	l.Used, l.Left = max(l.plan.Capacity()-s.Remaining, 0), s.Remaining
	l.ResetMS, l.RetryMS, l.IsDenied = milliseconds(s.ResetAfter), milliseconds(s.RetryAfter), s.RetryAfter > 0
	return nil
}

// Reset clears the counter of the limit. All tiers share it.
func (l *Limit) Reset(ctx context.Context, store penstock.Store) error {
	_, err := store.Decide(ctx, []penstock.Charge{l.charge(penstock.Reset)})
	return err
}

// Name is the limit's name in the policy, RULE.LIMIT.
func (l *Limit) Name() string { return l.Rule + "." + l.Limit }

// DenyFor is how long instances may repeat a denial from their caches, after a reset.
func (l *Limit) DenyFor() time.Duration {
	const byDefault = time.Second // guard.DenyOptions.MaxAge
	return max(cmp.Or(l.policy.Guard.DenyFor, byDefault), 0)
}

// HasLease tells whether instances hold units of the limit, which a reset does not concern.
func (l *Limit) HasLease() bool { return l.policy.Guard.Lease > 0 }

// milliseconds rounds up. penstock.Never is -1.
func milliseconds(d time.Duration) int64 {
	if d == penstock.Never {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Masked is a key of which only the kinds of its identities are left.
func Masked(key string) string {
	parts := strings.Split(key, ",")
	for i, part := range parts {
		kind, _, hasKind := strings.Cut(part, ":")
		if parts[i] = kind + ":…"; !hasKind || !policy.IsKind(kind) {
			parts[i] = "…"
		}
	}
	if key == globalKey {
		return key
	}
	return strings.Join(parts, ",")
}
