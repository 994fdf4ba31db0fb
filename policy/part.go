package policy

import (
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// A part is a part of a request whose text matters: "header X-Plan", "address", or the name of an
// identity.
type part struct {
	what partKind
	name string // of the header, cookie, ...; empty for those that have none
	id   *identity
}

type partKind uint8

const (
	partNone partKind = iota
	partHeader
	partCookie
	partQuery
	partClaim
	partSegment
	partAddress
	partHost
	partMethod
	partTier
	partIdentity
)

// The words that begin a source. Those with true are followed by a name.
var partWords = map[string]struct {
	what  partKind
	named bool
}{
	"header": {partHeader, true}, "cookie": {partCookie, true}, "query": {partQuery, true},
	"claim": {partClaim, true}, "segment": {partSegment, true},
	"address": {partAddress, false}, "host": {partHost, false}, "method": {partMethod, false}, "tier": {partTier, false},
}

const partForms = "write header NAME, cookie NAME, query NAME, claim NAME, segment NAME, address, host, method, tier or the name of an identity"

// part reads a source; p points to where it was written. more are words that may have been meant
// instead.
func (c *compiler) part(p any, text string, more ...string) (part, bool) {
	words := strings.Fields(text)
	if len(words) == 0 {
		c.fail(p, "the source is empty; %s", partForms)
		return part{}, false
	}
	word, known := partWords[words[0]]
	switch {
	case known && word.named && len(words) != 2:
		c.fail(p, "%q needs one name behind %s; write %s NAME", clip(text), words[0], words[0])
		return part{}, false
	case known && !word.named && len(words) > 1:
		c.fail(p, "%q has %q behind %s; remove it", clip(text), clip(strings.Join(words[1:], " ")), words[0])
		return part{}, false
	case known && word.named:
		return c.namedPart(p, word.what, words[1])
	case known && word.what == partTier && len(c.config.Tiers) == 0:
		c.fail(p, "there are no tiers; add tiers: with conditions, or go by something else")
		return part{}, false
	case known:
		return part{what: word.what}, true
	case len(words) == 1 && c.identities[text] != nil:
		return part{what: partIdentity, id: c.identity(c.identities[text])}, true
	}
	hint := suggestOf(words[0], slices.Concat(slices.Sorted(maps.Keys(partWords)), slices.Sorted(maps.Keys(c.identities)), more))
	if !strings.HasPrefix(hint, "did you mean") {
		hint = partForms
	}
	c.fail(p, "%q is not a part of a request; %s", clip(text), hint)
	return part{}, false
}

func (c *compiler) namedPart(p any, what partKind, name string) (part, bool) {
	switch what {
	case partHeader:
		if !token(name) {
			c.fail(p, "%q cannot be the name of a header; use letters, digits and -", clip(name))
			return part{}, false
		}
		name = http.CanonicalHeaderKey(name)
	case partCookie:
		if !token(name) {
			c.fail(p, "%q cannot be the name of a cookie; use letters, digits, - and _", clip(name))
			return part{}, false
		}
	case partClaim:
		if c.broken[&c.config.Tokens] {
			return part{}, false
		}
		if c.config.Tokens == nil {
			c.fail(p, "claim %s needs verified tokens, and nothing says how to verify them; add tokens: with a secret, key_file, jwks_file or jwks_url", clip(name))
			return part{}, false
		}
	}
	return part{what: what, name: name}, true
}

// needs tells whether a part is of a kind, or is an identity that goes by one.
func (s *part) needs(what partKind) bool { return s.what == what || s.id != nil && s.id.needs(what) }

// token tells whether s is a token of RFC 9110.
func token(s string) bool {
	for _, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0) {
			return false
		}
	}
	return s != ""
}

// text is a part's text in the request, if it has the part.
func (q *request) text(s *part) (string, bool) {
	text := ""
	switch s.what {
	case partHeader, partCookie, partQuery:
		text = q.identifies(s)
	case partClaim:
		return q.claim(s.name)
	case partSegment:
		return q.matcher.segment(q.a.Path(), s.name)
	case partAddress:
		return q.address(), true
	case partHost:
		text = q.a.Host()
	case partMethod:
		text = q.a.Method()
	case partTier:
		return q.rules.tiers[q.tierIndex()].name, true
	case partIdentity:
		return q.payer(s.id), true
	}
	return text, text != ""
}

// values are those of a header, a cookie or a parameter.
func (q *request) values(s *part) []string {
	switch s.what {
	case partCookie:
		return q.a.Cookie(s.name)
	case partQuery:
		return q.a.Query(s.name)
	}
	return q.a.Header(s.name)
}

// address is the text under which the client's address pays.
func (q *request) address() string {
	a := q.a.Address()
	if !a.IsValid() {
		return "unix"
	}
	return AddressText(a, q.rules.prefix4, q.rules.prefix6)
}

// A test is a part of a request and what it may be.
type test struct {
	part       part
	identifies bool // it says who the client is, and not only what is asked for
	anything   bool
	texts      map[string]struct{}
	networks   networks
	domains    []string // of hosts, as *.example.com
	file       string   // where they were read from, as it was written
}

// empty tells whether nothing passes.
func (t *test) empty() bool { return !t.anything && len(t.texts)+len(t.networks)+len(t.domains) == 0 }

// A condition holds if all of its tests do.
type condition []test

func (q *request) holds(c condition) bool {
	for i := range c {
		if !q.passes(&c[i]) {
			return false
		}
	}
	return true
}

func (q *request) anyHolds(conditions []condition) bool {
	for _, c := range conditions {
		if q.holds(c) {
			return true
		}
	}
	return false
}

func (q *request) passes(t *test) bool {
	switch t.part.what {
	case partAddress:
		return t.anything || t.networks.contain(q.a.Address())
	case partClaim:
		// One that is a list passes if any of its elements does.
		for _, text := range q.claims().values(t.part.name) {
			if t.is(text) {
				return true
			}
		}
		return false
	case partHeader, partCookie, partQuery:
		if t.identifies {
			text := q.identifies(&t.part)
			return text != "" && t.is(text)
		}
		// Of several values any will do: nobody evades a rule by sending one twice.
		for _, text := range q.values(&t.part) {
			if text != "" && t.is(text) {
				return true
			}
		}
		return false
	case partIdentity:
		payer := q.payer(t.part.id)
		if t.anything {
			return payer != unknownKey
		}
		return t.is(payer)
	}
	text, ok := q.text(&t.part)
	return ok && t.is(text)
}

func (t *test) is(text string) bool {
	if t.anything {
		return true
	}
	if _, ok := t.texts[text]; ok {
		return true
	}
	return slices.ContainsFunc(t.domains, func(domain string) bool { return matchesHost(domain, text) })
}

// networks is a set of address ranges, by their length.
type networks map[int]map[netip.Prefix]struct{}

func (n networks) add(p netip.Prefix) {
	if n[p.Bits()] == nil {
		n[p.Bits()] = make(map[netip.Prefix]struct{})
	}
	n[p.Bits()][p.Masked()] = struct{}{}
}

func (n networks) contain(a netip.Addr) bool {
	a = folded(a)
	for bits, set := range n {
		if p, err := a.Prefix(bits); err == nil {
			if _, ok := set[p]; ok {
				return true
			}
		}
	}
	return false
}

// parseNetwork reads an address or a CIDR without bits behind its prefix. IPv4 in IPv6 becomes
// IPv4.
func parseNetwork(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, false
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, p == p.Masked()
}
