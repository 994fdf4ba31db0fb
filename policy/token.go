package policy

import (
	"fmt"
	"strings"
)

// Tokens define where requests have a token that identifies their client, and which Verifier
// verifies it. With the zero value, no request has claims.
type Tokens struct {
	// Header is the request header with the token, in canonical form: "Bearer <token>" in
	// Authorization and Proxy-Authorization, the token alone in any other. Empty: no header.
	Header string

	// Cookie is the cookie with the token. This cookie is read only if Header has no token. Empty: no
	// cookie.
	Cookie string

	// Verifier verifies tokens. Nil: there are no claims.
	Verifier Verifier

	Summary string // describes how tokens are verified; it contains no secret
}

// A Verifier verifies tokens. Many goroutines may use it at the same time. A Verifier must not wait
// for the network.
type Verifier interface {
	// Claims returns the claims of a token, or why it is rejected.
	Claims(token string) (Claims, *TokenError)

	// IsKnown reports whether the signature of a token was checked before, so that Claims is cheap.
	IsKnown(token string) bool
}

// A TokenError says why a token was rejected. The error shows nothing of the token except the key
// ID, the algorithm and dates.
type TokenError struct {
	Reason string // one of TokenReasons
	Err    error
}

func (e *TokenError) Error() string { return e.Err.Error() }

// TokenReasons returns the reasons why tokens are rejected.
func TokenReasons() []string {
	return []string{"malformed", "signature", "unknown_key", "expired", "not_yet_valid", "issuer", "audience", "claims"}
}

// Find returns the token of a request before it is verified, or "" if there is none. If the token
// can be read in several ways, ambiguous is the reason.
func (t *Tokens) Find(a Attributes) (token, ambiguous string) {
	if t.Header != "" {
		if ambiguous = explainHidden(a, &Source{Kind: KindHeader, Name: t.Header}); ambiguous == "" {
			token, ambiguous = t.inHeader(a.Lookup(KindHeader, t.Header))
		}
		if ambiguous != "" {
			return "", "header " + t.Header + " " + ambiguous
		}
	}
	if token == "" && t.Cookie != "" {
		if ambiguous = explainHidden(a, &Source{Kind: KindCookie, Name: t.Cookie}); ambiguous == "" {
			token, ambiguous = singleValue(a.Lookup(KindCookie, t.Cookie))
		}
		if ambiguous != "" {
			return "", "cookie " + t.Cookie + " " + ambiguous
		}
	}
	return token, ""
}

func (t *Tokens) inHeader(lines []string) (token, ambiguous string) {
	if !isAuthorization(t.Header) || len(lines) != 1 {
		return singleValue(lines)
	}
	text, ambiguous := parseAuthorization(lines[0])
	token, isBearer := strings.CutPrefix(text, "bearer ")
	if ambiguous != "" || !isBearer {
		return "", ambiguous
	}
	return token, ""
}

// singleValue returns the token if there is at most one value, and "" if there is none. If the
// token can be read in several ways, ambiguous is the reason.
func singleValue(values []string) (token, ambiguous string) {
	switch {
	case len(values) > 1:
		return "", fmt.Sprintf("is sent %d times", len(values))
	case len(values) == 0 || values[0] == "":
		return "", ""
	}
	return values[0], explainAmbiguousToken(values[0])
}
