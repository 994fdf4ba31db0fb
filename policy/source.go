package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/textproto"
	"slices"
	"sort"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
)

// A Kind is a kind of attribute.
type Kind uint8

// The kinds. Transports supply those from KindMethod to KindDescriptor by Attributes.Lookup. Rules
// find the others themselves.
const (
	KindNone       Kind = iota
	KindMethod          // the HTTP method
	KindHost            // the host that the request is for
	KindPath            // the path in canonical form
	KindRawQuery        // the query as it was sent
	KindHeader          // a header field
	KindCookie          // a cookie
	KindQuery           // a parameter of the query
	KindDescriptor      // an entry of a descriptor, as Envoy sends it
	KindAddress         // the client's address, or its network
	KindClaim           // a claim of the verified token
	KindSegment         // a named segment of the path that a rule matched
	KindTier            // the name of the client's tier
	KindIdentity        // the key that an Identity finds
)

// kindWords are the words that begin a source in a policy file. A kind without a word cannot be
// written there.
var kindWords = [...]string{KindMethod: "method", KindHost: "host", KindHeader: "header", KindCookie: "cookie", KindQuery: "query", KindDescriptor: "descriptor",
	KindAddress: "ip", KindClaim: "claim", KindSegment: "segment", KindTier: "tier", KindIdentity: ""}

// String returns the word that begins a source in a policy file.
func (k Kind) String() string {
	if int(k) < len(kindWords) && kindWords[k] != "" {
		return kindWords[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// IsNamed reports whether a source of this kind needs a name.
func (k Kind) IsNamed() bool {
	switch k {
	case KindHeader, KindCookie, KindQuery, KindDescriptor, KindClaim, KindSegment:
		return true
	}
	return false
}

// A Source is where a text comes from: a part of the request, a claim of its token, or the key that
// an Identity finds.
type Source struct {
	Kind     Kind
	Name     string    // of the header, cookie and so on; empty for kinds without names
	Identity *Identity // of KindIdentity

	written string // the header's name as the policy writes it, for messages; "": Name
}

// Header returns the source for the header field with this name. Messages show the name as it is
// written here.
func Header(name string) Source {
	return Source{Kind: KindHeader, Name: textproto.CanonicalMIMEHeaderKey(name), written: name}
}

// String returns the source as policy files write it.
func (s *Source) String() string {
	if s.Kind.IsNamed() {
		return s.Kind.String() + " " + cmp.Or(s.written, s.Name)
	}
	return s.Kind.String()
}

// Needs reports whether a source has a kind, or is an identity with a source of that kind.
func (s *Source) Needs(kind Kind) bool {
	return s.Kind == kind || s.Identity != nil && s.Identity.Needs(kind)
}

// IsAlwaysPresent reports whether every request has a value for the source.
func (s *Source) IsAlwaysPresent() bool {
	return s.Kind == KindAddress || s.Kind == KindSegment || s.Kind == KindMethod || s.Kind == KindTier
}

func (q *request) text(s *Source) (string, bool) {
	text := ""
	switch s.Kind {
	case KindHeader, KindCookie, KindQuery, KindDescriptor:
		text = q.identifyingText(s)
	case KindClaim:
		return q.claims().Text(s.Name)
	case KindSegment:
		return q.matcher.Path.TextOf(q.path, s.Name)
	case KindAddress:
		return q.addressText(), true
	case KindHost:
		text = q.host
	case KindMethod:
		q.noteMethod()
		text = q.method
	case KindTier:
		return q.rules.spec.Tiers[q.tierIndex()].Name, true
	case KindIdentity:
		return q.key(s.Identity), true
	}
	return text, text != ""
}

// addressText returns the text of the client's address in keys. A client without an address is on a
// Unix socket.
func (q *request) addressText() string {
	a := q.attributes.Address()
	if !a.IsValid() {
		return "unix"
	}
	return syntax.AddressText(a, q.rules.spec.IPv4Prefix, q.rules.spec.IPv6Prefix)
}

// A Test holds if a source has one of certain values.
type Test struct {
	Source Source
	Any    bool   // any value passes
	File   string // the file that the values were read from, for descriptions

	isIdentity bool // the value identifies the client, so it must be readable in only one way
	texts      map[string]struct{}
	networks   networks
	domains    []string // values of hosts such as *.example.com
}

// Add adds a value. For an address it may also be a network, and for a host *.example.com, which
// means all hosts below. "*" is any value. The error says what is wrong and how to fix it.
func (t *Test) Add(value string) error {
	if value == "*" {
		t.Any = true
		return nil
	}
	switch t.Source.Kind {
	case KindAddress:
		network, ok := syntax.ParseNetwork(value)
		if !ok {
			return fmt.Errorf("%.60q is not an address or a network; write 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32", value)
		}
		if t.networks == nil {
			t.networks = make(networks)
		}
		t.networks.add(network)
		return nil
	case KindHost:
		host, err := syntax.ParseHost(value)
		if err != nil {
			return err
		}
		if host[0] == '*' {
			t.domains = append(t.domains, host)
			return nil
		}
		value = host
	case KindMethod:
		value = strings.ToUpper(value) // as Attributes have it
	}
	if t.texts == nil {
		t.texts = make(map[string]struct{})
	}
	t.texts[comparedText(&t.Source, value)] = struct{}{}
	return nil
}

// Len returns the number of different values.
func (t *Test) Len() int {
	n := len(t.texts) + len(t.domains)
	for _, set := range t.networks {
		n += len(set)
	}
	return n
}

// Values returns the values, sorted.
func (t *Test) Values() []string {
	values := slices.AppendSeq(slices.Clone(t.domains), maps.Keys(t.texts))
	for _, set := range t.networks {
		for network := range set {
			if network.IsSingleIP() {
				values = append(values, network.Addr().String())
			} else {
				values = append(values, network.String())
			}
		}
	}
	slices.Sort(values)
	return values
}

// IsCoveredBy reports whether each value of the test is a value of one of the others that have the
// same source. A network has the addresses and networks within it. Networks that lie side by side
// are one network.
func (t *Test) IsCoveredBy(others ...Test) bool {
	texts, all := make(map[string]struct{}), make(networks)
	var domains []string
	hasSource := false
	for i := range others {
		o := &others[i]
		if !o.Source.isSame(&t.Source) {
			continue
		}
		if o.Any {
			return true
		}
		hasSource = true
		maps.Copy(texts, o.texts)
		domains = append(domains, o.domains...)
		for _, set := range o.networks {
			for network := range set {
				all.add(network)
			}
		}
	}
	if t.Any || !hasSource {
		return false
	}
	for text := range t.texts {
		if _, ok := texts[text]; !ok {
			return false
		}
	}
	ranges := all.ranges()
	for _, r := range t.networks.ranges() {
		i := sort.Search(len(ranges), func(i int) bool { return ranges[i].last.Compare(r.last) >= 0 })
		if i == len(ranges) || ranges[i].first.Compare(r.first) > 0 {
			return false
		}
	}
	isMissing := func(domain string) bool { return !slices.Contains(domains, domain) }
	return !slices.ContainsFunc(t.domains, isMissing)
}

// isSame reports whether two sources read the same text of a request.
func (s *Source) isSame(other *Source) bool {
	if x, y := s.Identity, other.Identity; x != nil && y != nil && x.Kind != y.Kind {
		return false
	}
	return s.Kind == other.Kind && s.Name == other.Name
}

// IsEmpty reports whether no value passes the test.
func (t *Test) IsEmpty() bool { return !t.Any && t.Len() == 0 }

// A Condition holds if all of its tests do.
type Condition []Test

func (q *request) holds(c Condition) bool {
	for i := range c {
		if !q.passes(&c[i]) {
			return false
		}
	}
	return true
}

func (q *request) anyHolds(conditions []Condition) bool {
	return slices.ContainsFunc(conditions, q.holds)
}

func (q *request) passes(t *Test) bool {
	switch t.Source.Kind {
	case KindAddress:
		return t.Any || t.networks.contains(q.attributes.Address())
	case KindClaim:
		// A claim that is a list passes if any of its elements does.
		return slices.ContainsFunc(q.claims().Values(t.Source.Name), t.has)
	case KindHeader, KindCookie, KindQuery, KindDescriptor:
		if t.isIdentity {
			text := q.identifyingText(&t.Source)
			return text != "" && t.has(text)
		}
		// One of several values is enough. So clients cannot evade a rule by sending a header twice.
		for _, text := range q.attributes.Lookup(t.Source.Kind, t.Source.Name) {
			if text != "" && t.has(comparedText(&t.Source, text)) {
				return true
			}
		}
		return false
	case KindIdentity:
		key := q.key(t.Source.Identity)
		if t.Any {
			return key != unknownKey
		}
		return t.has(key)
	}
	text, ok := q.text(&t.Source)
	return ok && t.has(text)
}

func (t *Test) has(text string) bool {
	if t.Any {
		return true
	}
	if _, ok := t.texts[text]; ok {
		return true
	}
	return slices.ContainsFunc(t.domains, func(domain string) bool { return syntax.MatchesHost(domain, text) })
}

// networks is a set of address ranges, by the length of their prefix in bits.
type networks map[int]map[netip.Prefix]struct{}

func (n networks) add(p netip.Prefix) {
	if n[p.Bits()] == nil {
		n[p.Bits()] = make(map[netip.Prefix]struct{})
	}
	n[p.Bits()][p.Masked()] = struct{}{}
}

func (n networks) contains(a netip.Addr) bool {
	a = syntax.FoldAddress(a)
	for bits, set := range n {
		if p, err := a.Prefix(bits); err == nil {
			if _, ok := set[p]; ok {
				return true
			}
		}
	}
	return false
}

type addressRange struct{ first, last netip.Addr }

// ranges returns the addresses of the networks in order. Networks that overlap, or that lie side by
// side, are one range.
func (n networks) ranges() (all []addressRange) {
	for bits, set := range n {
		for network := range set {
			last := network.Addr().AsSlice()
			for bit := bits; bit < 8*len(last); bit++ {
				last[bit/8] |= 1 << (7 - bit%8)
			}
			lastAddr, _ := netip.AddrFromSlice(last)
			all = append(all, addressRange{network.Addr(), lastAddr})
		}
	}
	slices.SortFunc(all, func(a, b addressRange) int { return a.first.Compare(b.first) })
	merged := all[:0]
	for _, r := range all {
		if end := len(merged) - 1; end >= 0 && (r.first.Compare(merged[end].last) <= 0 || r.first == merged[end].last.Next()) {
			if r.last.Compare(merged[end].last) > 0 {
				merged[end].last = r.last
			}
			continue
		}
		merged = append(merged, r)
	}
	return merged
}
