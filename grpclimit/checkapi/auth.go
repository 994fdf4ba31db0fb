package checkapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"google.golang.org/grpc/codes"
)

// A permission is what a caller may do. Larger ones include smaller ones.
type permission uint8

const (
	nobody   permission = iota // no call
	caller                     // everything but what needs an operator
	operator                   // Peek, Reset, Explain
)

// An AuthFailure is why a call over HTTP was refused for its token.
type AuthFailure uint8

const (
	NoToken     AuthFailure = iota // the call has none
	WrongToken                     // it has one that is neither the caller's nor the operator's, or several
	NotOperator                    // only an operator may make this call
	authFailures
)

var authFailureNames = [authFailures]string{"no_token", "wrong_token", "not_operator"}

func (f AuthFailure) String() string {
	if f >= authFailures {
		return "unknown"
	}
	return authFailureNames[f]
}

// AuthFailures returns all reasons why calls are refused for their tokens.
func AuthFailures() []AuthFailure { return []AuthFailure{NoToken, WrongToken, NotOperator} }

// failureOf returns why a call with these header values was refused.
func failureOf(headers []string, f *failure) AuthFailure {
	switch {
	case f.code == codes.PermissionDenied:
		return NotOperator
	case len(headers) == 0:
		return NoToken
	}
	return WrongToken
}

// maxToken is the length of the longest token, in bytes.
const maxToken = 4096

// tokens are the hashes of tokens. A comparison of hashes takes a time that says nothing about a
// token, not even its length.
type tokens struct {
	hasCaller, hasOperator, isOpen bool
	caller, operator               [sha256.Size]byte
}

func newTokens(o Options) tokens {
	return tokens{
		hasCaller: len(o.CallerToken) > 0, hasOperator: len(o.OperatorToken) > 0, isOpen: o.AllowAnonymous,
		caller: sha256.Sum256(o.CallerToken), operator: sha256.Sum256(o.OperatorToken),
	}
}

// permission returns what the sender of a token may do. It always compares both tokens, so that
// its duration does not depend on the result.
func (t *tokens) permission(token string) permission {
	sum := sha256.Sum256([]byte(token))
	isCaller, isOperator := subtle.ConstantTimeCompare(sum[:], t.caller[:]), subtle.ConstantTimeCompare(sum[:], t.operator[:])
	switch {
	case t.hasOperator && isOperator == 1:
		return operator
	case t.hasCaller && isCaller == 1:
		return caller
	}
	return nobody
}

// authorize checks that the sender of the header values "Bearer TOKEN" has a permission.
func (t *tokens) authorize(headers []string, needed permission) error {
	has := nobody
	switch {
	case len(headers) > 1:
		return failf(codes.Unauthenticated, "there are several Authorization headers; send one")
	case len(headers) == 1:
		scheme, token, _ := strings.Cut(headers[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxToken {
			return failf(codes.Unauthenticated, "the Authorization header is not of the form: Bearer TOKEN")
		}
		has = t.permission(token)
		if has == nobody && !t.hasCaller && !t.hasOperator {
			return failf(codes.Unauthenticated, "the token is wrong: this service has no tokens; set caller-token there, or send no Authorization header if you call from its machine")
		}
		if has == nobody {
			return failf(codes.Unauthenticated, "the token is wrong; send the caller token or the operator token of this service")
		}
	case t.isOpen:
		has = caller
	}
	switch {
	case has >= needed:
		return nil
	case has == nobody && needed == caller && !t.hasCaller && !t.hasOperator:
		return failf(codes.Unauthenticated, "this service has no token for callers, so it answers none; set caller-token there, and send: Authorization: Bearer TOKEN")
	case has == nobody:
		return failf(codes.Unauthenticated, "a token is missing; send: Authorization: Bearer TOKEN")
	case !t.hasOperator:
		return failf(codes.PermissionDenied, "only operators may call this, and this service has no operator token; set operator-token there")
	}
	return failf(codes.PermissionDenied, "only operators may call this; send the operator token")
}
