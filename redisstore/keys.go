package redisstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/penstock/penstock"
)

// Keys have this form, with the schema's version after the prefix:
//
//	ps1{user:42}search                     the limits of group "search" under key "user:42"
//	ps1{user:42}search:uploads:slidinglog  the sorted set of limit "uploads" of that group
//
// The braces put all limits of a key into one hash slot. Inside them is the key in an injective
// encoding without braces: letters, digits and -_.~:@/=+,;!*'()& as they are, other bytes as %XX.
// A key longer than maxTag bytes becomes %# and its SHA-256; the empty key becomes %_; the store's
// own keys have %@. With Options.Secret every key becomes %# and its HMAC.
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

// appendKey appends the name of the Redis key that has the state of a plan's limit for key.
func (s *Store) appendKey(b []byte, key string, plan *penstock.Plan) []byte {
	b = s.appendTagged(b, key)
	b = append(b, plan.Group()...)
	if plan.Algorithm().IsCollection() {
		b = append(b, ':')
		b = append(b, plan.Name()...)
		b = append(b, ':')
		b = append(b, plan.Algorithm().Name()...)
	}
	return b
}

// appendTagged appends the beginning of all names for key: the prefix and the hash tag.
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

// KeyOf returns the name of the Redis key in which a store with these Options has the state of a
// charge's limit. An error wraps penstock.ErrInvalid.
func KeyOf(c penstock.Charge, o Options) (string, error) {
	s, err := newStore(o)
	if err != nil {
		return "", err
	}
	if c.Plan == nil {
		return "", fmt.Errorf("%w: the charge has no Plan", penstock.ErrInvalid)
	}
	return string(s.appendKey(nil, c.Key, c.Plan)), nil
}
