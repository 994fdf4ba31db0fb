package policy

import (
	"slices"

	"github.com/penstock/penstock"
)

// NewIdentities is the name of the limit of a rule's new_identities: in metrics, answers and the
// names of policies.
const NewIdentities = "new-identities"

// An UncheckedIdentity is an identity that the client may have invented, such as the value of a
// header, in a rule with new_identities. The caller of Assess must find out whether it is new, and
// if so charge Limit once, under the key Address.
type UncheckedIdentity struct {
	Rule    *Rule
	Limit   penstock.Limit // its Group is the rule
	Address string         // "ip:192.0.2.1", or its network
	Key     string         // as in a charge
}

// noteUnchecked notes the unchecked identities of a rule that applies.
func (v *Verdict) noteUnchecked(r *Rule) {
	q := &v.request
	for _, l := range r.Limits {
		if l.Shadow || !q.invented(l.per) {
			continue
		}
		n := UncheckedIdentity{Rule: r, Limit: *r.newIdentities, Address: "ip:" + q.address(), Key: q.payer(l.per)}
		if !slices.ContainsFunc(v.Unchecked, func(other UncheckedIdentity) bool { return other.Rule == r && other.Key == n.Key }) {
			v.Unchecked = append(v.Unchecked, n)
		}
	}
}

// invented tells whether the client wrote its identity itself, and nobody checked it.
func (q *request) invented(id *identity) bool {
	switch {
	case id.first != nil:
		for _, one := range id.first {
			if _, ok := q.key(one); ok {
				return q.invented(one)
			}
		}
		return false
	case id.all != nil:
		return slices.ContainsFunc(id.all, q.invented)
	}
	return id.canBeInvented()
}

// canBeInvented tells whether clients can choose the value of an identity of one part.
func (id *identity) canBeInvented() bool {
	switch id.part.what {
	case partHeader, partCookie, partQuery, partSegment, partHost, partMethod:
		return id.only == nil || id.only.anything
	}
	return false
}

// newIdentities reads how many new identities an address may bring to a rule.
func (c *compiler) newIdentities(r *Rule, config *RuleConfig) {
	at := &config.NewIdentities
	limit, calendar, err := parseRate(config.NewIdentities)
	switch {
	case err != nil:
		c.fail(at, "%s", reason(err))
		return
	case calendar != "":
		c.fail(at, "how many new identities an address may bring has no calendar; write it as 20/min, or 20/min, burst 100")
		return
	case r.Shadow || r.Unlimited:
		c.fail(at, "the rule denies nothing, so it cannot bound new identities; remove new_identities, or enforce the rule")
		return
	case !slices.ContainsFunc(r.Limits, func(l *Limit) bool { return !l.Shadow && len(l.per.inventions()) > 0 }):
		c.warn(at, "clients cannot invent who pays by this rule, so nobody is new; remove new_identities")
	}
	limit.Name, limit.Group = NewIdentities, r.Name
	if !nameLike(r.Name) {
		return // complained of elsewhere
	}
	ready, err := limit.Ready()
	if err != nil {
		c.fail(at, "%s", reason(err))
		return
	}
	r.newIdentities = &ready
	for i, l := range r.Limits {
		if l.Name == NewIdentities {
			c.fail(c.orWritten(&config.Limits[i], &config.Limits[i].Name), "the rule's new_identities is a limit of this name; give this one another")
		}
	}
}

// inventions are the parts of an identity whose values clients can choose.
func (id *identity) inventions() (parts []*identity) {
	if id.canBeInvented() {
		parts = append(parts, id)
	}
	for _, one := range slices.Concat(id.first, id.all) {
		parts = append(parts, one.inventions()...)
	}
	return parts
}

// inventable warns of identities that clients can invent without a bound: each new one has a fresh
// limit, and a key in the store.
func (c *compiler) inventable() {
	bounded := slices.ContainsFunc(c.rules.rules, func(r *Rule) bool { return r.Always && r.matchesAll() && r.boundsAddresses() })
	for _, r := range c.rules.rules {
		if bounded || r.newIdentities != nil || r.boundsAddresses() {
			continue
		}
		for _, l := range r.Limits {
			if l.Shadow {
				continue // nothing is refused for it, and its numbers are looked at
			}
			for _, id := range l.per.inventions() {
				if id.part.what != partHost && id.part.what != partMethod {
					c.warn(id.at, "clients write %s as they like, and each new value has a limit and a key of its own; list the values that were issued, "+
						"add new_identities: 20/min to the rule, or a limit per address beside this", *id.at)
				}
			}
		}
	}
}

// boundsAddresses tells whether a rule charges each of its requests to the client's address, too.
func (r *Rule) boundsAddresses() bool {
	return !r.Shadow && slices.ContainsFunc(r.Limits, func(l *Limit) bool {
		plain := l.per.part.what == partAddress && l.per.only == nil
		return plain && !l.Shadow && l.Status == nil && len(l.forms) > 0 && !l.forms[0].Algorithm.Holds
	})
}
