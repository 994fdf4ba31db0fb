// Package bearer reads and compares the tokens of Authorization headers.
package bearer

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"
)

// MaxToken is the length of the longest token that a header may have, in bytes.
const MaxToken = 4096

// A Secret is the hash of a token. All hashes have the same length, so the duration of a comparison
// reveals nothing about the token. The zero value matches no token.
type Secret struct {
	isSet bool
	hash  [sha256.Size]byte
}

// NewSecret returns the Secret of a token, or the zero value if the token is empty.
func NewSecret(token []byte) Secret {
	if len(token) == 0 {
		return Secret{}
	}
	return Secret{isSet: true, hash: sha256.Sum256(token)}
}

// IsSet reports whether the Secret was made from a token.
func (s Secret) IsSet() bool { return s.isSet }

func (s Secret) Matches(token string) bool {
	hash := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(hash[:], s.hash[:]) == 1 && s.isSet
}

// Token returns the token in the values of an Authorization header. The bool is false unless there
// is exactly one value, and it has the form "Bearer TOKEN" with at most 4,096 bytes (RFC 6750).
func Token(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > MaxToken {
		return "", false
	}
	return token, true
}
