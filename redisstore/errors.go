package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/rediskeys"
)

// unavailable converts an error of the client to an error of the Store. The result is a
// penstock.StoreError, or the context's own error if the caller has canceled the context.
func (s *Store) unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	e := penstock.NewStoreError(classify(err), err)
	if e.IsPermanent {
		e.Hint = hintFor(err, s.keys.Base)
		e.IsStoreFault = isLoginRejected(err)
	}
	return e
}

// isLoginRejected reports whether a server rejects every command of the user, because the login has
// failed. A single missing right may affect only some limits, so it is not a fault of the store.
func isLoginRejected(err error) bool {
	text := err.Error()
	return strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS")
}

// hintFor returns what the store's user lacks if an error is permanent: rights, as ACL SETUSER
// takes them ("+set"), or a description. If the same is missing on several servers, the hint names
// it once. All keys of the store begin with base.
func hintFor(err error, base string) string {
	var rights, others []string
	for _, one := range joinedIn(err) {
		if classify(one) != penstock.ReasonPermissionDenied {
			continue
		}
		switch hint := hintForRejection(one, base); {
		case hint == "":
		case hint[0] == '+' || hint[0] == '~': // a command, or keys
			rights = append(rights, hint)
		default:
			others = append(others, hint)
		}
	}
	slices.Sort(rights) // servers answer in any order
	slices.Sort(others)
	all := slices.Compact(others)
	if len(rights) > 0 {
		all = slices.Insert(all, 0, strings.Join(slices.Compact(rights), " "))
	}
	if len(all) == 0 {
		return "the right to a command of the scripts; docs/operations.md lists all of them"
	}
	return strings.Join(all, "; ")
}

// joinedIn returns the errors that are joined in err, at any depth. If none are, it returns err.
func joinedIn(err error) (all []error) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				all = append(all, joinedIn(one)...)
			}
			return all
		}
	}
	return []error{err}
}

func hintForRejection(rejection error, base string) string {
	if missing, ok := errors.AsType[*missingRight](rejection); ok {
		return "+" + missing.command
	}
	text := rejection.Error()
	if command, ok := deniedCommand(text); ok {
		return "+" + command
	}
	switch {
	case strings.Contains(text, "access"): // every version of Redis has this word if the user has no right to a key
		return "~" + rediskeys.Prefix(base) + "*"
	case isLoginRejected(rejection):
		return "a valid user and password for the store"
	}
	return ""
}

// deniedCommand returns the command that an error names, whether the server or a script wrote the
// error. A script may name several, as in "dbsize +scan".
func deniedCommand(text string) (command string, found bool) {
	if _, rest, ok := strings.Cut(text, "run the '"); ok {
		command, _, found = strings.Cut(rest, "' command")
		return command, found
	}
	_, rest, _ := strings.Cut(text, "needs the right +")
	command = rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz| +"))]
	return command, command != ""
}

// A missingRight is an error reply that does not name the command, together with the command.
type missingRight struct {
	reply   error
	command string
}

func (e *missingRight) Error() string {
	return fmt.Sprintf("%v; the user needs the right +%s", e.reply, e.command)
}

func (e *missingRight) Unwrap() error { return e.reply }

// reasonsByPrefix has the beginnings of error replies of Redis and Valkey. Some clients remove the
// beginning "ERR ", so it is ignored.
var reasonsByPrefix = []struct {
	code   string
	reason penstock.Reason
}{
	{"MOVED ", penstock.ReasonNotReady},
	{"ASK ", penstock.ReasonNotReady},
	{"TRYAGAIN", penstock.ReasonNotReady},
	{"CLUSTERDOWN", penstock.ReasonNotReady},
	{"LOADING", penstock.ReasonNotReady},
	{"MASTERDOWN", penstock.ReasonNotReady},
	{"READONLY", penstock.ReasonNotReady},
	{"NOREPLICAS", penstock.ReasonNotReady},
	{"max number of clients", penstock.ReasonNotReady},
	{"MISCONF", penstock.ReasonNotReady},
	{"OOM ", penstock.ReasonOutOfMemory},
	{"BUSY ", penstock.ReasonBusy},
	{"NOPERM", penstock.ReasonPermissionDenied},
	{"NOAUTH", penstock.ReasonPermissionDenied},
	{"WRONGPASS", penstock.ReasonPermissionDenied},
	{"unknown command", penstock.ReasonPermissionDenied},
	{"NOPROTO", penstock.ReasonPermissionDenied},
	{"WRONGTYPE", penstock.ReasonCorrupt},
}

// reasonsInside has parts of error replies, for errors inside a script.
var reasonsInside = []struct {
	part   string
	reason penstock.Reason
}{
	{"The user executing the script can't", penstock.ReasonPermissionDenied}, // Redis 7.0
	{"ACL failure in script", penstock.ReasonPermissionDenied},               // Redis 7.2 and Valkey
	// A command that the server does not have, or has under another name.
	{"command called from script", penstock.ReasonPermissionDenied},
	{"Invalid command passed to redis.acl_check_cmd", penstock.ReasonPermissionDenied},
	{"data string too short", penstock.ReasonCorrupt},
	{"CORRUPT ", penstock.ReasonCorrupt},
}

// isTimeout reports whether an error has a method Timeout that returns true.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout()
}

func classify(err error) penstock.Reason {
	replies := repliesIn(err)
	if len(replies) == 0 {
		switch {
		case errors.Is(err, redisclient.ErrLate):
			return penstock.ReasonLate
		case isUnsent(err):
			return penstock.ReasonUnreachable
		case isTimeout(err):
			return penstock.ReasonTimeout
		}
		return penstock.ReasonUnknown
	}
	first := len(precedence)
	for _, reply := range replies { // of several servers, which answer in any order
		first = min(first, slices.Index(precedence, classifyReply(reply)))
	}
	return precedence[first]
}

// precedence has the reasons of error replies. If several servers reply different errors, the
// reason that comes first in this list counts.
var precedence = []penstock.Reason{
	penstock.ReasonPermissionDenied, penstock.ReasonNotReady, penstock.ReasonOutOfMemory, penstock.ReasonBusy, penstock.ReasonCorrupt,
	penstock.ReasonRejected,
}

func repliesIn(err error) (replies []ReplyError) {
	for _, one := range joinedIn(err) {
		if reply, ok := errors.AsType[ReplyError](one); ok {
			replies = append(replies, reply)
		}
	}
	return replies
}

func classifyReply(reply ReplyError) penstock.Reason {
	text := strings.TrimPrefix(string(reply), "ERR ")
	for _, c := range reasonsByPrefix {
		if strings.HasPrefix(text, c.code) {
			return c.reason
		}
	}
	for _, c := range reasonsInside {
		if strings.Contains(text, c.part) {
			return c.reason
		}
	}
	return penstock.ReasonRejected
}

// isUnsent reports whether an error occurred before any command was sent: while dialing, or in the
// TLS handshake.
func isUnsent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, isCertificateWrong := errors.AsType[*tls.CertificateVerificationError](err)
	return isCertificateWrong || isCertificateRejected(err) || errors.Is(err, redisclient.ErrNotSent)
}

// isCertificateRejected reports whether a server has ended the TLS handshake because of the
// client's certificate. Such a server has received no command.
func isCertificateRejected(err error) bool {
	alert, ok := errors.AsType[tls.AlertError](err)
	if !ok {
		return false
	}
	switch uint8(alert) {
	// RFC 8446, 6.2: bad_certificate to certificate_unknown, unknown_ca, access_denied,
	// certificate_required.
	case 42, 43, 44, 45, 46, 48, 49, 116:
		return true
	}
	return false
}

// isNoScript reports whether an error is the reply NOSCRIPT: the server does not know the script.
// NOSCRIPT is the only error that proves that nothing ran, so that the call can safely be sent
// again.
func isNoScript(err error) bool {
	reply, ok := errors.AsType[ReplyError](err)
	return ok && strings.HasPrefix(string(reply), "NOSCRIPT")
}
