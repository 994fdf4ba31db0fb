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
)

// unavailable makes the error that the Store returns of what its client returned: a
// penstock.StoreError, or the context's own error if the caller went away.
func (s *Store) unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	e := penstock.NewStoreError(classify(err), err)
	if e.IsPermanent {
		e.Hint = s.hint(err)
		e.IsStoreFault = isLoginRefused(err)
	}
	return e
}

// isLoginRefused tells whether a server lets the user do nothing at all. A right that is missing
// may concern only some limits, so it says nothing about the server's health.
func isLoginRefused(err error) bool {
	text := err.Error()
	return strings.Contains(text, "NOAUTH") || strings.Contains(text, "WRONGPASS")
}

// hint is what the server's administrator must do so that a permanent error ends: "+set", or other
// rights as ACL SETUSER takes them; or a sentence. What several servers need is in it once.
func (s *Store) hint(err error) string {
	var rights, others []string
	for _, refusal := range refusals(err) {
		hint := s.hintFor(refusal)
		switch {
		case hint == "":
		case hint[0] == '+' || hint[0] == '~':
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
		return "a command that the scripts run; docs/operations.md has them all"
	}
	return strings.Join(all, "; ")
}

// refusals are those errors joined in one with which servers denied a permission.
func refusals(err error) (all []error) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				all = append(all, refusals(one)...)
			}
			return all
		}
	}
	if classify(err) == penstock.ReasonPermissionDenied {
		all = append(all, err)
	}
	return all
}

// hintFor is what ends one refusal, or "" if that is not known.
func (s *Store) hintFor(refusal error) string {
	if missing, ok := errors.AsType[*missingRight](refusal); ok {
		return "+" + missing.command
	}
	text := refusal.Error()
	if command, ok := deniedCommand(text); ok {
		return "+" + command
	}
	switch {
	case strings.Contains(text, "access"): // to one of the keys, in the words of every version
		return "~" + strings.TrimSuffix(s.prefix, schemaVersion) + "*"
	case isLoginRefused(refusal):
		return "the store's setting with a user and password that are let in"
	}
	return ""
}

// deniedCommand is the command that a refusal names, in a server's words or in those of a script.
func deniedCommand(text string) (command string, found bool) {
	if _, rest, ok := strings.Cut(text, "run the '"); ok {
		command, _, found = strings.Cut(rest, "' command")
		return command, found
	}
	_, rest, _ := strings.Cut(text, "needs the right +")
	command = rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz|"))]
	return command, command != ""
}

// A missingRight is a server's reply that does not name the command, and the command.
type missingRight struct {
	reply   error
	command string
}

func (e *missingRight) Error() string {
	return fmt.Sprintf("%v; the user needs the right +%s", e.reply, e.command)
}

func (e *missingRight) Unwrap() error { return e.reply }

// reasons are the beginnings of error replies, as Redis and Valkey word them. Redis before 7 put a
// script's errors behind "ERR Error running script … -CODE", which is matched too. Some clients
// leave "ERR " out, so it is not looked at.
var reasons = []struct {
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

// reasonsInside are parts of error replies, for errors that a script meets.
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
	{"POISONED ", penstock.ReasonCorrupt},
}

func timedOut(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout()
}

// errNotSent marks what went wrong before anything was sent.
var errNotSent = errors.New("nothing was sent")

// errLate marks what was not sent since its time was over, whether or not a server could be
// reached.
var errLate = errors.New("it was too late to send it")

func notSent(err error) error { return fmt.Errorf("%w: %w", errNotSent, err) }

func tooLate(err error) error { return notSent(fmt.Errorf("%w: %w", errLate, err)) }

func classify(err error) penstock.Reason {
	replies := repliesIn(err)
	if len(replies) == 0 {
		var op *net.OpError
		var certificate *tls.CertificateVerificationError
		switch {
		case errors.Is(err, errLate):
			return penstock.ReasonLate
		case errors.Is(err, errNotSent) || errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) || certificateRefused(err):
			return penstock.ReasonUnreachable
		case timedOut(err):
			return penstock.ReasonTimeout
		}
		return penstock.ReasonUnknown
	}
	worst := len(precedence)
	for _, reply := range replies { // of several servers, which answer in any order
		worst = min(worst, slices.Index(precedence, classifyReply(reply)))
	}
	return precedence[worst]
}

// precedence has the reasons of error replies; if servers differ, the first one counts.
var precedence = []penstock.Reason{
	penstock.ReasonPermissionDenied, penstock.ReasonNotReady, penstock.ReasonOutOfMemory, penstock.ReasonBusy, penstock.ReasonCorrupt,
	penstock.ReasonRejected,
}

// repliesIn are the replies among the errors that are joined in one.
func repliesIn(err error) (replies []ReplyError) {
	for ; err != nil; err = errors.Unwrap(err) {
		if reply, ok := err.(ReplyError); ok {
			return []ReplyError{reply}
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				replies = append(replies, repliesIn(one)...)
			}
			return replies
		}
	}
	return nil
}

func classifyReply(reply ReplyError) penstock.Reason {
	text := strings.TrimPrefix(string(reply), "ERR ")
	for _, c := range reasons {
		if strings.HasPrefix(text, c.code) || strings.Contains(text, " -"+c.code) {
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

// certificateRefused tells whether a server has ended the TLS handshake because of the client's
// certificate. Then it has received nothing else.
func certificateRefused(err error) bool {
	alert, ok := errors.AsType[tls.AlertError](err)
	if !ok {
		return false
	}
	switch uint8(alert) {
	case 42, 43, 44, 45, 46, 48, 49, 116: // RFC 8446, 6.2: from bad_certificate to certificate_unknown, unknown_ca, access_denied, certificate_required
		return true
	}
	return false
}

// isNoScript tells whether the server does not know a script: the one error that proves that
// sending it again is safe.
func isNoScript(err error) bool {
	reply, ok := errors.AsType[ReplyError](err)
	return ok && strings.HasPrefix(string(reply), "NOSCRIPT")
}
