package checkapi

import (
	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock/internal/bearer"
)

// A permission is what a caller may do. A larger permission includes the smaller ones.
type permission uint8

const (
	nobody   permission = iota // no call
	caller                     // every call that does not need an operator
	operator                   // Peek, Reset, Explain
)

// authFailureOf returns the reason for an error of authorize. headers are the values of the header
// Authorization.
func authFailureOf(headers []string, err error) string {
	switch {
	case err == errWebPage:
		return "no_token"
	case asFailure(err).code == codes.PermissionDenied:
		return "not_operator"
	case len(headers) == 0:
		return "no_token"
	}
	return "wrong_token" // neither the caller's nor the operator's, or several
}

// tokens are the tokens that the service accepts from callers and operators.
type tokens struct {
	isOpen           bool          // callers need no token
	caller, operator bearer.Secret // not set: the service has no such token
}

func newTokens(o Options) tokens {
	return tokens{isOpen: o.AllowAnonymous, caller: bearer.NewSecret(o.CallerToken), operator: bearer.NewSecret(o.OperatorToken)}
}

// permission returns what the sender of a token may do. It always compares both tokens, so that its
// duration does not tell which of them matches.
func (t *tokens) permission(token string) permission {
	isCaller, isOperator := t.caller.Matches(token), t.operator.Matches(token)
	switch {
	case isOperator:
		return operator
	case isCaller:
		return caller
	}
	return nobody
}

// authorize checks that a caller has a permission. headers are the values of the header
// Authorization, such as "Bearer TOKEN".
func (t *tokens) authorize(headers []string, needed permission) error {
	hasTokens := t.caller.IsSet() || t.operator.IsSet()
	granted := nobody
	switch {
	case len(headers) > 1:
		return failf(codes.Unauthenticated, "there are several Authorization headers; send one")
	case len(headers) == 1:
		token, ok := bearer.Token(headers)
		if !ok {
			return failf(codes.Unauthenticated, "the Authorization header is not of the form: Bearer TOKEN")
		}
		granted = t.permission(token)
		if granted == nobody && !hasTokens {
			return failf(codes.Unauthenticated, "the token is wrong: this service has no tokens; set caller-token there, or send no Authorization header if you call from its machine")
		}
		if granted == nobody {
			return failf(codes.Unauthenticated, "the token is wrong; send the caller token or the operator token of this service")
		}
	case t.isOpen:
		granted = caller
	}
	switch {
	case granted >= needed:
		return nil
	case granted == nobody && needed == caller && !hasTokens:
		return failf(codes.Unauthenticated, "this service has no token for callers, so it refuses all calls; set caller-token there, and send: Authorization: Bearer TOKEN")
	case granted == nobody:
		return failf(codes.Unauthenticated, "a token is missing; send: Authorization: Bearer TOKEN")
	case !t.operator.IsSet():
		return failf(codes.PermissionDenied, "only operators may call this, and this service has no operator token; set operator-token there")
	}
	return failf(codes.PermissionDenied, "only operators may call this; send the operator token")
}
