package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// An identity says who pays. Its text in a request is the key of a charge: "key:abc",
// "user:42,device:7", "ip:192.0.2.1".
type identity struct {
	index    int // where a request keeps its text; -1 if it depends on the rule that matched
	everyone bool
	payer    func(Attributes) string // made in code
	kind     string
	part     part
	only     *test
	first    []*identity
	all      []*identity
	at       *string // its source, where it was written
	size     int     // how many parts it consists of, however deep; 0 counts as 1
	depth    int     // levels of identities in it
}

// Keys that no other identity has: each of the others has a colon.
const (
	everyoneKey = "everyone" // who pays is not told apart
	unknownKey  = "unknown"  // nothing that says who pays is there
)

// payer is who pays by an identity. Requests that have none of its parts share the payer "unknown".
func (q *request) payer(id *identity) string {
	if id.index >= 0 && q.payers[id.index] != "" {
		return q.payers[id.index]
	}
	key, ok := q.key(id)
	if !ok {
		key = unknownKey
	}
	if id.index >= 0 {
		q.payers[id.index] = key
	}
	return key
}

func (q *request) key(id *identity) (string, bool) {
	switch {
	case id.everyone:
		return everyoneKey, true
	case id.payer != nil:
		return id.payer(q.a), true
	case id.first != nil:
		for _, one := range id.first {
			if key, ok := q.key(one); ok {
				return key, true
			}
		}
		return "", false
	case id.all != nil:
		return q.combine(id)
	}
	text, ok := q.text(&id.part)
	if !ok || id.only != nil && !q.isOneOf(id.only, text) {
		return "", false
	}
	return id.kind + ":" + escape(text), true
}

// isOneOf tells whether the text that was found, and no other of the same name, is among those that
// count.
func (q *request) isOneOf(t *test, text string) bool {
	if t.part.what == partAddress {
		return t.anything || t.networks.contain(q.a.Address())
	}
	return t.is(text)
}

// combine joins keys. A missing one stands as its kind alone, so that leaving out a header does not
// make a caller share with all others; if all are missing, so is the combination.
func (q *request) combine(id *identity) (string, bool) {
	var s strings.Builder
	some := false
	for i, one := range id.all {
		key, ok := q.key(one)
		some = some || ok
		if i > 0 {
			s.WriteByte(',')
		}
		if !ok {
			key = one.name() + ":"
		}
		s.WriteString(key)
	}
	return s.String(), some
}

// name is what stands for an identity that a request lacks.
func (id *identity) name() string {
	if id.first != nil {
		return id.first[0].name()
	}
	if id.all != nil {
		return id.all[0].name()
	}
	return id.kind
}

// keyLike is a key of the identity, for those who wrote the value alone.
func (id *identity) keyLike(value string) string {
	if id.everyone {
		return everyoneKey
	}
	return id.name() + ":" + value
}

// canBe tells whether a text can be the key of an identity, as far as its beginning says.
func (id *identity) canBe(text string) bool {
	switch {
	case id == nobody:
		return true
	case id.everyone:
		return text == everyoneKey
	case text == unknownKey:
		return true
	case id.first != nil:
		return slices.ContainsFunc(id.first, func(one *identity) bool { return one.canBe(text) })
	case id.all != nil:
		first, _, several := strings.Cut(text, ",")
		return several && id.all[0].canBe(first)
	}
	return strings.HasPrefix(text, id.kind+":")
}

// maxValue is how long a value may be in a key, in bytes; a longer one is hashed.
const maxValue = 128

// escape writes a value so that no two are alike and none can be taken for several: %XX for '%',
// ',', '#', spaces, control and non-ASCII characters. A value that is long stands as '#' and its
// SHA-256.
func escape(value string) string {
	if len(value) > maxValue {
		sum := sha256.Sum256([]byte(value))
		return "#" + hex.EncodeToString(sum[:])
	}
	dirty := 0
	for i := range len(value) {
		if special(value[i]) {
			dirty++
		}
	}
	if dirty == 0 {
		return value
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(value)+2*dirty)
	for i := range len(value) {
		if c := value[i]; special(c) {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func special(c byte) bool { return c <= ' ' || c >= 0x7f || c == '%' || c == ',' || c == '#' }

// An identityState tells how far the compiler is with a named identity, to find those that refer to
// themselves.
type identityState struct {
	entry    *Entry[IdentityConfig]
	compiled *identity
	busy     bool
}

// identity compiles a named one, once.
func (c *compiler) identity(s *identityState) *identity {
	if s.busy {
		c.fail(&s.entry.Name, "identity %s refers to itself; name what it consists of", s.entry.Name)
		return nobody
	}
	if s.compiled == nil {
		s.busy = true
		s.compiled = c.identityOf(&s.entry.Value)
		s.busy = false
	}
	return s.compiled
}

// nobody stands for an identity with a mistake.
var nobody = &identity{index: -1, everyone: true}

var everybody = &identity{index: -1, everyone: true}

// identityOf compiles what was written.
func (c *compiler) identityOf(config *IdentityConfig) *identity {
	switch {
	case !config.set():
		c.fail(config, "it is not said who pays; %s", identityForms)
		return nobody
	case config.Name == "everyone":
		return everybody
	case config.Name == "address":
		return c.indexed(&identity{kind: "ip", part: part{what: partAddress}})
	case config.Name != "":
		if state := c.identities[config.Name]; state != nil {
			return c.identity(state)
		}
		if _, word := partWords[strings.SplitN(config.Name, " ", 2)[0]]; word {
			c.fail(config, "%q needs a kind, which stays in the key; write {KIND: %s}, as in {user: header X-User-Id}", config.Name, config.Name)
		} else {
			c.fail(config, "there is no identity %q; %s", clip(config.Name), c.suggestIdentity(config.Name))
		}
		return nobody
	case config.First != nil:
		return c.compound(config, &identity{first: c.identityList("first", &config.First)})
	case config.All != nil:
		return c.compound(config, &identity{all: c.identityList("all", &config.All)})
	}
	return c.simple(config)
}

// maxParts is how many parts an identity may consist of: it bounds keys and the work of finding
// one.
const maxParts = 32

func (c *compiler) compound(config *IdentityConfig, id *identity) *identity {
	for _, one := range slices.Concat(id.first, id.all) {
		id.size += max(one.size, 1)
		id.depth = max(id.depth, one.depth+1)
	}
	if id.size == 0 {
		return nobody
	}
	if id.size > maxParts {
		c.fail(config, "who pays consists of %d parts, with all that they refer to; the most are %d", id.size, maxParts)
		return nobody
	}
	if id.depth > maxDepth {
		c.fail(config, "who pays is nested more than %d levels deep, with all that it refers to; name what it consists of", maxDepth)
		return nobody
	}
	return c.indexed(id)
}

func (c *compiler) suggestIdentity(name string) string {
	known := []string{"address", "everyone"}
	for other := range c.identities {
		known = append(known, other)
	}
	return suggestOf(name, known)
}

func (c *compiler) identityList(kind string, configs *[]IdentityConfig) []*identity {
	if len(*configs) == 0 {
		c.fail(configs, "the list of %s is empty; add who pays, as in {%[1]s: [{key: header X-API-Key}, address]}", kind)
	}
	list := make([]*identity, len(*configs))
	for i := range list {
		list[i] = c.identityOf(&(*configs)[i])
	}
	return list
}

func (c *compiler) simple(config *IdentityConfig) *identity {
	id := &identity{kind: config.Kind, at: &config.Source}
	if !kindLike(config.Kind) {
		c.fail(&config.Kind, "%q cannot be a kind, which stands in the key as in key:abc; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", clip(config.Kind))
	}
	var ok bool
	if id.part, ok = c.part(&config.Source, config.Source); !ok {
		return nobody
	}
	if id.part.what == partIdentity {
		c.fail(&config.Source, "%s is an identity and has its kinds already; refer to it by its name alone", config.Source)
		return nobody
	}
	c.identifies(&id.part)
	if config.Only != nil {
		only := c.test(id.part, config.Only)
		id.only = &only
	}
	return c.indexed(id)
}

func kindLike(s string) bool {
	for i, b := range []byte(s) {
		if !(b >= 'a' && b <= 'z' || i > 0 && (b >= '0' && b <= '9' || b == '-')) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 20
}

// indexed gives an identity a place in requests, unless its text depends on the rule.
func (c *compiler) indexed(id *identity) *identity {
	if len(id.segments()) > 0 {
		id.index = -1
		return id
	}
	id.index = c.payers
	c.payers++
	return id
}

// needs tells whether an identity goes by a kind of part.
func (id *identity) needs(what partKind) bool {
	if id.part.needs(what) {
		return true
	}
	for _, one := range slices.Concat(id.first, id.all) {
		if one.needs(what) {
			return true
		}
	}
	return false
}

// segments are the named segments of the path that an identity needs.
func (id *identity) segments() (names []string) {
	if id.part.what == partSegment {
		names = append(names, id.part.name)
	}
	for _, one := range slices.Concat(id.first, id.all) {
		names = append(names, one.segments()...)
	}
	return names
}
