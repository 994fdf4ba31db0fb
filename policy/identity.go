package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/syntax"
)

// An Identity finds the key of a request: the text for its client, such as "key:abc",
// "user:42,device:7" or "ip:192.0.2.1". Exactly one of Global, Func, FirstOf, AllOf and Source is
// set. Requests for which an Identity finds no key share the key "unknown".
type Identity struct {
	Global bool // all requests share one key
	Func   func(Attributes) string

	Kind          string // in the key, before the colon
	Source        Source
	AllowedValues *Test // the values of Source that identify a client; nil: all

	FirstOf []*Identity // the first that the request has
	AllOf   []*Identity // all of them: their keys are joined

	keyNumber int // the place of its key in request.keys, from 1; 0 if the key depends on the rule that matched
}

// Global returns one key for all requests.
func Global() *Identity { return &Identity{Global: true} }

// ByAddress limits by the client's address, or its network.
func ByAddress() *Identity { return By("ip", Source{Kind: KindAddress}) }

// By limits by the text of a source. The key begins with the kind, as in "user:42". A kind has 1 to
// 20 characters of a-z, 0-9 and -, and begins with a letter.
func By(kind string, source Source) *Identity { return &Identity{Kind: kind, Source: source} }

// ByFunc limits by the result of a function, which is the key without any change.
func ByFunc(key func(Attributes) string) *Identity { return &Identity{Func: key} }

const unknownKey = "unknown" // of requests for which the identity finds no key

func (q *request) key(id *Identity) string {
	if id.keyNumber > 0 && q.keys[id.keyNumber-1] != "" {
		return q.keys[id.keyNumber-1]
	}
	key, ok := q.findKey(id)
	if !ok {
		key = unknownKey
	}
	if id.keyNumber > 0 {
		q.keys[id.keyNumber-1] = key
	}
	return key
}

func (q *request) findKey(id *Identity) (string, bool) {
	switch {
	case id.Global:
		return syntax.GlobalKey, true
	case id.Func != nil:
		return id.Func(q.attributes), true
	case id.FirstOf != nil:
		for _, one := range id.FirstOf {
			if key, ok := q.findKey(one); ok {
				return key, true
			}
		}
		return "", false
	case id.AllOf != nil:
		return q.combineKeys(id)
	}
	text, ok := q.text(&id.Source)
	if !ok || id.AllowedValues != nil && !q.isListed(id.AllowedValues, text) {
		return "", false
	}
	return id.Kind + ":" + escape(text), true
}

// isListed reports whether the text of an identity is one of its AllowedValues. An address is
// compared as a network, because its text may be cut to a prefix.
func (q *request) isListed(t *Test, text string) bool {
	if t.Source.Kind == KindAddress {
		return t.Any || t.networks.contains(q.attributes.Address())
	}
	return t.has(text)
}

// combineKeys joins the keys of an AllOf. For a missing key it writes only the kind. So a client
// that omits a header does not share the key of other clients. If all keys are missing, there is no
// joined key either.
func (q *request) combineKeys(id *Identity) (string, bool) {
	var s strings.Builder
	isPresent := false
	for i, one := range id.AllOf {
		key, ok := q.findKey(one)
		isPresent = isPresent || ok
		if i > 0 {
			s.WriteByte(',')
		}
		if !ok {
			key = one.firstKind() + ":"
		}
		s.WriteString(key)
	}
	return s.String(), isPresent
}

// firstKind returns the kind that is written for an identity that a request lacks.
func (id *Identity) firstKind() string {
	if id.FirstOf != nil {
		return id.FirstOf[0].firstKind()
	}
	if id.AllOf != nil {
		return id.AllOf[0].firstKind()
	}
	return id.Kind
}

// ExampleKey returns a key of the identity with the given value. A combined key has this value for
// each kind.
func (id *Identity) ExampleKey(value string) string {
	switch {
	case id.Global:
		return syntax.GlobalKey
	case id.FirstOf != nil:
		return id.FirstOf[0].ExampleKey(value)
	case id.AllOf != nil:
		var keys []string
		for _, one := range id.AllOf {
			keys = append(keys, one.ExampleKey(value))
		}
		return strings.Join(keys, ",")
	}
	return id.Kind + ":" + value
}

// CanHaveKey reports whether a text can be a key of the identity. CanHaveKey checks only the first
// kind in the text, and for an AllOf also whether the text has a comma.
func (id *Identity) CanHaveKey(text string) bool {
	switch {
	case id.Global:
		return text == syntax.GlobalKey
	case id.Func != nil, text == unknownKey:
		return true
	case id.FirstOf != nil:
		return slices.ContainsFunc(id.FirstOf, func(one *Identity) bool { return one.CanHaveKey(text) })
	case len(id.AllOf) == 1:
		return id.AllOf[0].CanHaveKey(text)
	case id.AllOf != nil:
		first, _, hasComma := strings.Cut(text, ",")
		// If the first part is an AllOf too, its keys have a comma, so the whole text is compared.
		return hasComma && (id.AllOf[0].CanHaveKey(first) || id.AllOf[0].CanHaveKey(text))
	}
	return strings.HasPrefix(text, id.Kind+":")
}

// EscapedKey returns the key that a text such as "key:a,b" means: "key:a%2Cb". A value that is
// escaped already stays. The commas of an AllOf separate its keys.
func (id *Identity) EscapedKey(text string) string {
	if _, value, _ := strings.Cut(text, ":"); escape(value) == value { // without an allocation
		return text
	}
	switch {
	case id.Global, id.Func != nil, text == unknownKey:
		return text
	case id.FirstOf != nil:
		if i := slices.IndexFunc(id.FirstOf, func(one *Identity) bool { return one.CanHaveKey(text) }); i >= 0 {
			return id.FirstOf[i].EscapedKey(text)
		}
		return text
	case len(id.AllOf) > 1:
		parts := strings.Split(text, ",")
		for i, part := range parts {
			kind, value, hasKind := strings.Cut(part, ":")
			if hasKind {
				parts[i] = kind + ":" + escapeOnce(value)
			}
		}
		return strings.Join(parts, ",")
	}
	kind, value, _ := strings.Cut(text, ":")
	return kind + ":" + escapeOnce(value)
}

// Needs reports whether an identity has a source of a kind.
func (id *Identity) Needs(kind Kind) bool {
	needs := func(one *Identity) bool { return one.Needs(kind) }
	return id.Source.Needs(kind) || slices.ContainsFunc(id.FirstOf, needs) || slices.ContainsFunc(id.AllOf, needs)
}

func (id *Identity) parts() []*Identity { return slices.Concat(id.FirstOf, id.AllOf) }

// Segments returns the named path segments that an identity needs.
func (id *Identity) Segments() (names []string) {
	if id.Source.Kind == KindSegment {
		names = append(names, id.Source.Name)
	}
	for _, one := range id.parts() {
		names = append(names, one.Segments()...)
	}
	return names
}

// IsAlwaysPresent reports whether the identity finds a key for every request.
func (id *Identity) IsAlwaysPresent() bool {
	if id.Global || id.Func != nil || slices.ContainsFunc(id.parts(), (*Identity).IsAlwaysPresent) {
		return true
	}
	return id.Source.IsAlwaysPresent() && (id.AllowedValues == nil || id.AllowedValues.Any)
}

// Invented returns the parts of an identity whose values clients can choose.
func (id *Identity) Invented() (parts []*Identity) {
	if id.canBeInvented() {
		parts = append(parts, id)
	}
	for _, one := range id.parts() {
		parts = append(parts, one.Invented()...)
	}
	return parts
}

// canBeInvented reports whether clients can choose the value of an identity with one source.
func (id *Identity) canBeInvented() bool {
	switch id.Source.Kind {
	case KindHeader, KindCookie, KindQuery, KindSegment, KindHost, KindMethod:
		return id.AllowedValues == nil || id.AllowedValues.Any
	}
	return false
}

// escape writes a value so that different values have different texts, and no text looks like
// several values. escape writes %XX for '%', ',', '#', spaces, control and non-ASCII characters. A
// long value becomes '#' and its SHA-256.
func escape(value string) string {
	if len(value) > syntax.MaxKeyValue {
		sum := sha256.Sum256([]byte(value))
		return "#" + hex.EncodeToString(sum[:])
	}
	specials := 0
	for i := range len(value) {
		if isSpecial(value[i]) {
			specials++
		}
	}
	if specials == 0 {
		return value
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(value)+2*specials)
	for i := range len(value) {
		if c := value[i]; isSpecial(c) {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// escapeOnce returns the value itself if escape has written it, and otherwise escapes it.
func escapeOnce(value string) string {
	if hash, ok := strings.CutPrefix(value, "#"); ok {
		if sum, err := hex.DecodeString(hash); err == nil && len(sum) == sha256.Size {
			return value
		}
	}
	var plain []byte
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c == '%' && i+2 < len(value) {
			if b, err := hex.DecodeString(value[i+1 : i+3]); err == nil {
				c = b[0]
				i += 2
			}
		}
		plain = append(plain, c)
	}
	if escape(string(plain)) == value {
		return value
	}
	return escape(value)
}

// isSpecial reports whether escape must encode a byte.
func isSpecial(c byte) bool { return c <= ' ' || c >= 0x7f || c == '%' || c == ',' || c == '#' }

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
