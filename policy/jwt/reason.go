package jwt

import (
	"errors"
	"fmt"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/policy"
)

// rejection returns the reason of an error of the JWT library.
func rejection(err error) *policy.TokenError {
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
	case is(gojwt.ErrTokenMalformed):
		reason = "malformed"
	case is(gojwt.ErrTokenUnverifiable):
		reason = "unknown_key"
	case is(gojwt.ErrTokenSignatureInvalid):
		reason, text = "signature", errors.New("no trusted key has signed it")
	case is(gojwt.ErrTokenExpired):
		reason = "expired"
	case is(gojwt.ErrTokenNotValidYet, gojwt.ErrTokenUsedBeforeIssued):
		reason = "not_yet_valid"
	case is(gojwt.ErrTokenInvalidIssuer):
		reason, text = "issuer", errors.New("its iss is not tokens.issuer")
	case is(gojwt.ErrTokenInvalidAudience):
		reason, text = "audience", errors.New("its aud does not contain tokens.audience")
	}
	return &policy.TokenError{Reason: reason, Err: text}
}

// valid returns why a token with a valid signature is rejected now, or nil.
func (v *Verifier) valid(c claims) *policy.TokenError {
	err := v.checks.Validate(c)
	if err == nil {
		return nil
	}
	e := rejection(err)
	at := func(name string) string {
		if date, err := c.date(name); err == nil && date != nil {
			return date.UTC().Format(time.RFC3339)
		}
		return "none"
	}
	switch e.Reason {
	case "expired":
		e.Err = fmt.Errorf("it expired at %s", at("exp"))
	case "not_yet_valid":
		e.Err = fmt.Errorf("it is not valid yet: nbf %s, iat %s", at("nbf"), at("iat"))
	}
	return e
}
