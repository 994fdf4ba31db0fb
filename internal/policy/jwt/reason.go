package jwt

import (
	"errors"
	"fmt"
	"slices"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/policy"
)

func rejection(err error) *policy.TokenError {
	isAnyOf := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
	}
	reason, cause := "claims", err
	switch {
	case isAnyOf(gojwt.ErrTokenMalformed):
		reason = "malformed"
	case isAnyOf(gojwt.ErrTokenUnverifiable):
		reason = "unknown_key"
	case isAnyOf(gojwt.ErrTokenSignatureInvalid):
		reason, cause = "signature", errors.New("no trusted key has signed it")
	case isAnyOf(gojwt.ErrTokenExpired):
		reason = "expired"
	case isAnyOf(gojwt.ErrTokenNotValidYet, gojwt.ErrTokenUsedBeforeIssued):
		reason = "not_yet_valid"
	case isAnyOf(gojwt.ErrTokenInvalidIssuer):
		reason, cause = "issuer", errors.New("its iss is not tokens.issuer")
	case isAnyOf(gojwt.ErrTokenInvalidAudience):
		reason, cause = "audience", errors.New("its aud does not contain tokens.audience")
	}
	return &policy.TokenError{Reason: reason, Err: cause}
}

// checkClaims returns why a token with a valid signature is rejected now, or nil.
func (v *Verifier) checkClaims(c claims) *policy.TokenError {
	err := v.claimChecks.Validate(c)
	if err == nil {
		return nil
	}
	e := rejection(err)
	dateText := func(name string) string {
		if date, err := c.dateClaim(name); err == nil && date != nil {
			return date.UTC().Format(time.RFC3339)
		}
		return "none"
	}
	switch e.Reason {
	case "expired":
		e.Err = fmt.Errorf("it expired at %s", dateText("exp"))
	case "not_yet_valid":
		e.Err = fmt.Errorf("it is not valid yet: nbf %s, iat %s", dateText("nbf"), dateText("iat"))
	}
	return e
}
