package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A TokenError is why a token was rejected. It contains nothing of the token but its key ID,
// algorithm and dates.
type TokenError struct {
	Reason string // one of TokenReasons
	cause  error
}

func (e *TokenError) Error() string { return e.cause.Error() }

// The reasons why tokens are rejected.
var tokenReasons = []string{"malformed", "signature", "unknown_key", "expired", "not_yet_valid", "issuer", "audience", "claims"}

// TokenReasons are all that there are.
func TokenReasons() []string { return append([]string(nil), tokenReasons...) }

// tokenError finds the reason in what the library says.
func tokenError(err error) *TokenError {
	is := func(targets ...error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
	reason, text := "claims", err
	switch {
	case is(jwt.ErrTokenMalformed):
		reason = "malformed"
	case is(jwt.ErrTokenUnverifiable):
		reason = "unknown_key"
	case is(jwt.ErrTokenSignatureInvalid):
		reason, text = "signature", errors.New("no trusted key has signed it")
	case is(jwt.ErrTokenExpired):
		reason = "expired"
	case is(jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued):
		reason = "not_yet_valid"
	case is(jwt.ErrTokenInvalidIssuer):
		reason, text = "issuer", errors.New("its iss is not tokens.issuer")
	case is(jwt.ErrTokenInvalidAudience):
		reason, text = "audience", errors.New("its aud has not tokens.audience")
	}
	return &TokenError{reason, text}
}

// valid tells why a token with a good signature is rejected now, or nil.
func (v *verifier) valid(c claims) *TokenError {
	err := v.checks.Validate(c)
	if err == nil {
		return nil
	}
	e := tokenError(err)
	at := func(name string) string {
		if date, err := c.date(name); err == nil && date != nil {
			return date.UTC().Format(time.RFC3339)
		}
		return "a time that is none"
	}
	switch e.Reason {
	case "expired":
		e.cause = fmt.Errorf("it expired at %s", at("exp"))
	case "not_yet_valid":
		e.cause = fmt.Errorf("it is not valid yet: nbf %s, iat %s", at("nbf"), at("iat"))
	}
	return e
}
