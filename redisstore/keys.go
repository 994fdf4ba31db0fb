package redisstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/penstock/penstock"
)

// Keys look like this, with the schema's version behind the prefix:
//
//	ps1{user:42}search                     the limits of group "search" under key "user:42"
//	ps1{user:42}search:uploads:slidinglog  the sorted set of limit "uploads" of that group
//
// The braces make one hash slot of all that a key pays. Inside them stands the key in an encoding
// that is injective and has no brace: letters, digits and -_.~:@/=+,;!*'()& as they are, other
// bytes as %XX. A key longer than maxTag bytes stands as %# and its SHA-256; the empty key as %_;
// what is the store's own as %@. With Options.Secret every key stands as %# and its HMAC.
const (
	schemaVersion = "1"
	maxTag        = 128
	maxPrefix     = 64
)

const hexDigits = "0123456789ABCDEF"

var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = letter(byte(c)) || strings.ContainsRune("-_.~:@/=+,;!*'()&", rune(c))
	}
	return t
}()

func letter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// appendKey appends the name under which the state of a plan's limit is kept for key.
func (s *Store) appendKey(b []byte, key string, plan *penstock.Plan) []byte {
	b = s.appendTagged(b, key)
	b = append(b, plan.Limit.Group...)
	if plan.Limit.Algorithm.Collection {
		b = append(b, ':')
		b = append(b, plan.Limit.Name...)
		b = append(b, ':')
		b = append(b, plan.Limit.Algorithm.Name...)
	}
	return b
}

// appendTagged appends how all names begin of what key pays: with the prefix, and what makes the
// slot.
func (s *Store) appendTagged(b []byte, key string) []byte {
	b = append(b, s.prefix...)
	b = append(b, '{')
	switch {
	case s.secret != nil:
		mac := hmac.New(sha256.New, s.secret)
		mac.Write([]byte(key))
		b = append(b, '%', '#')
		b = hex.AppendEncode(b, mac.Sum(nil)[:16])
	case key == "":
		b = append(b, '%', '_')
	default:
		b = appendTag(b, key)
	}
	return append(b, '}')
}

func appendTag(b []byte, key string) []byte {
	start := len(b)
	for i := 0; i < len(key) && len(b)-start <= maxTag; i++ {
		c := key[i]
		if plain[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	if len(b)-start <= maxTag {
		return b
	}
	sum := sha256.Sum256([]byte(key))
	b = append(b[:start], '%', '#')
	return hex.AppendEncode(b, sum[:])
}

// KeyOf is the name under which a store with these Options keeps the state of a charge's limit, for
// those who look for it there. An error wraps penstock.ErrInvalid.
func KeyOf(c penstock.Charge, o Options) (string, error) {
	s, err := newStore(o)
	if err != nil {
		return "", err
	}
	plan, err := c.Limit.Plan()
	if err != nil {
		return "", err
	}
	return string(s.appendKey(nil, c.Key, plan)), nil
}
