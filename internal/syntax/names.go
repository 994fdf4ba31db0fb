// Package syntax reads addresses, hosts, cookies, queries and names as requests and policies have
// them.
package syntax

import "strings"

// IsName reports whether s can name a rule or a limit: 1 to 64 of a-z, 0-9, '_', '.' and '-'.
func IsName(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && hasOnly(s, lower+digits+"_.-")
}

// IsToken reports whether s is a token of RFC 9110, like the names of headers, cookies and methods.
func IsToken(s string) bool {
	for _, b := range []byte(s) {
		if !IsAlphanumeric(rune(b)) && strings.IndexByte("!#$%&'*+-.^_`|~", b) < 0 {
			return false
		}
	}
	return s != ""
}

// IsKind reports whether s can be the kind of an identity: 1 to 20 of a-z, 0-9 and -, beginning
// with a letter.
func IsKind(s string) bool {
	return len(s) >= 1 && len(s) <= 20 && hasOnly(s, lower+digits+"-") && hasOnly(s[:1], lower)
}

// IsIdentifier reports whether s is an identifier, such as the name of a segment: 1 to 64 letters,
// digits and _, not beginning with a digit.
func IsIdentifier(s string) bool {
	return len(s) >= 1 && len(s) <= 64 && hasOnly(s, lower+upper+digits+"_") && !hasOnly(s[:1], digits)
}

// IsAlphanumeric reports whether c is an ASCII letter or digit.
func IsAlphanumeric(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

func hasOnly(s, allowed string) bool { return strings.Trim(s, allowed) == "" }

// GlobalKey is the key of limits that all requests share. Keys that are made from a request contain
// a colon, so none of them equals it.
const GlobalKey = "global"

// The bounds of what identifies a client, in bytes.
const (
	MaxKeyValue = 128     // a value in a key; longer values are hashed
	MaxToken    = 8 << 10 // a token; longer ones are not read
)
