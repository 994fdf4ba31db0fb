package policy

import (
	"slices"

	"github.com/penstock/penstock"
)

// An InventedIdentity is an identity that the client may have invented, such as the value of a
// header, in a rule with new_identities. The caller of Evaluate must find out whether the identity
// is new. For a new one the caller must charge Limit once, under the key Address.
type InventedIdentity struct {
	Rule    *Rule
	Limit   *penstock.Plan // its Group is the name of the rule
	Address string         // "ip:192.0.2.1", or its network
	Key     string         // the identity, as the key of a charge
}

func (v *Evaluation) noteInvented(r *Rule) {
	q := &v.request
	for _, l := range r.Limits {
		if l.Shadow || !q.isInvented(l.Key) {
			continue
		}
		invented := InventedIdentity{Rule: r, Limit: r.NewIdentities, Address: "ip:" + q.addressText(), Key: q.key(l.Key)}
		if !slices.ContainsFunc(v.Invented, func(other InventedIdentity) bool { return other.Rule == r && other.Key == invented.Key }) {
			v.Invented = append(v.Invented, invented)
		}
	}
}

// isInvented reports whether the client can have invented the value of its identity.
func (q *request) isInvented(id *Identity) bool {
	switch {
	case id.FirstOf != nil:
		for _, one := range id.FirstOf {
			if _, ok := q.findKey(one); ok {
				return q.isInvented(one)
			}
		}
		return false
	case id.AllOf != nil:
		return slices.ContainsFunc(id.AllOf, q.isInvented)
	}
	return id.canBeInvented()
}
