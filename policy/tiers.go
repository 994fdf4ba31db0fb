package policy

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// ClientOf returns what a key says about its client. The key is one of the identity id, which must
// be that of a limit of the Rules. A call by EvaluateRule is on no list, has the last tier, and can
// have any key.
//
//   - tiers are the tiers that the client may have, as indexes in Spec.Tiers. If the key alone
//     decides the conditions of the tiers, as a listed API key does, there is one.
//   - list is the list that has all requests with the key. It is NotListed if the key does not
//     decide the conditions of the lists.
//   - isUnlisted is true if no request can have the key, because its value is not one of the
//     identity's AllowedValues.
func (r *Rules) ClientOf(id *Identity, key string) (tiers []int, list ListMatch, isUnlisted bool) {
	facts := r.factsOf(id, key)
	return facts.tiers(r.spec.Tiers), facts.list(&r.spec), facts.isUnlisted()
}

func (k *keyFacts) tiers(all []Tier) (tiers []int) {
	for i, t := range all {
		if k.source.Kind == KindTier { // the key is the name of the tier
			if t.Name == k.text {
				tiers = append(tiers, i)
			}
			continue
		}
		holds := no
		if t.IsDefault {
			holds = yes
		}
		holds = max(holds, k.anyHolds(t.AnyOf))
		if holds != no {
			tiers = append(tiers, i)
		}
		if holds == yes {
			break
		}
	}
	return tiers
}

func (k *keyFacts) list(s *Spec) ListMatch {
	switch k.anyHolds(s.Deny) {
	case yes:
		return DenyListed
	case no:
		if k.anyHolds(s.Allow) == yes {
			return AllowListed
		}
	}
	return NotListed
}

// isUnlisted reports whether the value of the key is not one of the identity's AllowedValues.
func (k *keyFacts) isUnlisted() bool {
	allowed := k.identities[len(k.identities)-1].AllowedValues
	switch {
	case allowed == nil || allowed.Any:
		return false
	case k.source.Kind == KindAddress:
		return k.address.IsValid() && !allowed.networks.contains(k.address)
	}
	return k.source.Kind != KindNone && !allowed.has(k.text)
}

// An answer says whether something holds for all requests of a client.
type answer uint8

const (
	no    answer = iota // for none
	maybe               // for some
	yes                 // for all
)

// keyFacts are what a key says about the requests that have it.
type keyFacts struct {
	identities []*Identity // that have the key
	key        string
	source     Source     // what the key was made from; KindNone if that is not known
	text       string     // of the source, unless it is an address
	address    netip.Addr // of the source, if it is an address
	absent     []Source   // what these requests lack
}

func (r *Rules) factsOf(id *Identity, key string) keyFacts {
	k := keyFacts{identities: []*Identity{id}, key: key}
	for id.FirstOf != nil {
		// If several parts can have the key, it is not known which one has it.
		isPart := func(one *Identity) bool { return one.CanHaveKey(key) }
		i := slices.IndexFunc(id.FirstOf, isPart)
		if i < 0 || key == unknownKey || slices.ContainsFunc(id.FirstOf[i+1:], isPart) {
			return k
		}
		for _, earlier := range id.FirstOf[:i] {
			if isAnyText := earlier.AllowedValues == nil || earlier.AllowedValues.Any; isAnyText {
				k.absent = append(k.absent, earlier.Source)
			}
		}
		id = id.FirstOf[i]
		k.identities = append(k.identities, id)
	}
	value, ok := strings.CutPrefix(key, id.Kind+":")
	if !ok || id.Source.Kind == KindNone {
		return k
	}
	if id.Source.Kind == KindAddress {
		k.address, _ = netip.ParseAddr(value) // not valid for a network
		k.source = id.Source
		return k
	}
	if text, err := url.PathUnescape(value); err == nil && escape(text) == value { // not for a hash
		k.source, k.text = id.Source, text
	}
	return k
}

func (k *keyFacts) anyHolds(conditions []Condition) answer {
	holds := no
	for _, c := range conditions {
		holds = max(holds, k.holds(c))
	}
	return holds
}

func (k *keyFacts) holds(c Condition) answer {
	holds := yes
	for i := range c {
		holds = min(holds, k.passes(&c[i]))
	}
	return holds
}

// passes reports whether a test on the client passes. See request.passes.
func (k *keyFacts) passes(t *Test) answer {
	answerOf := func(holds bool) answer {
		if holds {
			return yes
		}
		return no
	}
	isSame := func(s Source) bool { return s.Kind == t.Source.Kind && s.Name == t.Source.Name }
	switch t.Source.Kind {
	case KindAddress:
		switch {
		case t.Any:
			return yes
		case k.source.Kind == KindAddress && k.address.IsValid():
			return answerOf(t.networks.contains(k.address))
		}
	case KindIdentity:
		if slices.Contains(k.identities, t.Source.Identity) {
			return answerOf(t.Any && k.key != unknownKey || !t.Any && t.has(k.key))
		}
	case KindHeader, KindCookie, KindQuery, KindDescriptor:
		switch {
		case slices.ContainsFunc(k.absent, isSame):
			return no
		case isSame(k.source):
			return answerOf(t.has(k.text))
		}
	case KindClaim:
		if isSame(k.source) && t.has(k.text) { // a claim with a text may also be a list of words
			return yes
		}
	}
	return maybe
}
