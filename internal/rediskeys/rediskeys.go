// Package rediskeys names the keys that a redisstore has in Redis.
package rediskeys

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/syntax"
)

// Keys have this form, with the schema's version after the prefix:
//
//	ps1{user:42}search                     the limits of group "search" under key "user:42"
//	ps1{user:42}search:uploads:slidinglog  the sorted set of limit "uploads" of that group
//
// The braces put all limits of a key into one hash slot. Inside them is the key in an encoding
// without braces. Different keys have different encodings. Letters, digits and -_.~:@/=+,;!*'()&
// stay, other bytes become %XX. A key whose encoding is longer than MaxName becomes "%#" and its
// SHA-256. The empty key becomes "%_". The store's own keys begin with "%@". With a secret every
// key becomes "%#" and the beginning of its HMAC.
const (
	schemaVersion = "1"
	macBytes      = 16 // bytes of the HMAC-SHA-256 that stand for a key

	// MaxName is the longest name in bytes: the text between the braces.
	MaxName = 128
)

// Base returns how all keys of a store begin. Without a prefix it is that of "ps".
func Base(prefix string) string { return cmp.Or(prefix, "ps") + schemaVersion }

func Prefix(base string) string { return strings.TrimSuffix(base, schemaVersion) }

// StoreKey returns the name of a key of the store itself. All such keys are in one slot.
func StoreKey(base, name string) string { return base + "{%@}" + name }

// A Scheme is how one store names the keys of limits.
type Scheme struct {
	Base   string // how all keys begin
	Secret []byte // nil: names show the keys
}

// Append appends the name of the Redis key that has the state of a plan's limit for key.
func (s *Scheme) Append(b []byte, key string, plan *penstock.Plan) []byte {
	b = s.AppendStart(b, key)
	b = append(b, plan.Group()...)
	if plan.Algorithm().IsCollection() {
		b = append(b, ':')
		b = append(b, plan.Name()...)
		b = append(b, ':')
		b = append(b, plan.Algorithm().Name()...)
	}
	return b
}

// AppendStart appends the beginning of all names for key: the base and the hash tag.
func (s *Scheme) AppendStart(b []byte, key string) []byte {
	b = append(b, s.Base...)
	b = append(b, '{')
	if s.Secret != nil {
		b = NewNames(s.Secret).Append(b, key)
	} else if name, fits := appendEncoded(b, key); fits {
		b = name
	} else {
		b = NewNames(nil).Append(b, key)
	}
	return append(b, '}')
}

func (s *Scheme) Slot(key string) uint16 {
	var room [256]byte
	return hashslot.Of(s.AppendStart(room[:0], key))
}

const hexDigits = "0123456789ABCDEF"

// plainBytes has true for each byte that names keep as it is.
var plainBytes = func() (t [256]bool) {
	for c := range t {
		t[c] = syntax.IsAlphanumeric(rune(c)) || strings.ContainsRune("-_.~:@/=+,;!*'()&", rune(c))
	}
	return t
}()

// Names writes the names that keys have in a store: the text between the braces. Only one goroutine
// may use it at a time.
type Names struct {
	mac   hash.Hash // nil: there is no secret
	sum   hash.Hash // of keys that are too long
	chunk [128]byte // a part of the key that is hashed; afterwards the hash
}

// NewNames makes the Names of a store with this secret. nil: it has none.
func NewNames(secret []byte) *Names {
	n := &Names{sum: sha256.New()}
	if secret != nil {
		n.mac = hmac.New(sha256.New, secret)
	}
	return n
}

// Append appends the name of a key. It allocates no memory if b has room for MaxName+3 bytes. The 3
// bytes are for an encoded byte (%XX) that Append may write before it finds that the name is too
// long.
func (n *Names) Append(b []byte, key string) []byte {
	if n.mac != nil {
		return hex.AppendEncode(append(b, '%', '#'), n.hash(n.mac, key)[:macBytes])
	}
	if b, fits := appendEncoded(b, key); fits {
		return b
	}
	return hex.AppendEncode(append(b, '%', '#'), n.hash(n.sum, key))
}

// hash returns the hash of a key. The result is valid until the next call of hash.
func (n *Names) hash(h hash.Hash, key string) []byte {
	h.Reset()
	for len(key) > 0 {
		part := n.chunk[:copy(n.chunk[:], key)] // []byte(key) would allocate memory
		h.Write(part)
		key = key[len(part):]
	}
	return h.Sum(n.chunk[:0])
}

// KeyOf returns the key for which Names writes the name. ok is false if the name is a hash, or
// if Names writes it for no key.
func KeyOf(name string) (key string, ok bool) {
	if name == emptyKey {
		return "", true
	}
	var b []byte
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case plainBytes[c]:
			b = append(b, c)
		case c == '%' && i+2 < len(name):
			high, low := strings.IndexByte(hexDigits, name[i+1]), strings.IndexByte(hexDigits, name[i+2])
			if high < 0 || low < 0 {
				return "", false
			}
			b = append(b, byte(high<<4|low))
			i += 2
		default:
			return "", false
		}
	}
	if again, fits := appendEncoded(nil, string(b)); !fits || string(again) != name {
		return "", false // such as %41, which is written as A
	}
	return string(b), true
}

const emptyKey = "%_" // the encoding of the empty key

// appendEncoded appends the encoding of a key, unless it is longer than MaxName.
func appendEncoded(b []byte, key string) (encoded []byte, fits bool) {
	if key == "" {
		return append(b, emptyKey...), true
	}
	start := len(b)
	for i := 0; i < len(key) && len(b)-start <= MaxName; i++ {
		c := key[i]
		if plainBytes[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	if len(b)-start <= MaxName {
		return b, true
	}
	return b[:start], false
}
