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

// A Class says what an error means for the charges that it answers.
type Class uint8

const (
	// Unknown: the answer was lost, the charges may have been made. A read timeout, a connection that
	// broke, a context that ended after the script was sent.
	Unknown Class = iota
	// Unreached: no server was reached, or the deadline passed before the charges were sent (ClassName
	// tells which); nothing was charged.
	Unreached
	// Unready: the server cannot decide now: loading, read-only, without quorum, moving slots. Nothing
	// was charged.
	Unready
	// Full: the server is out of memory. Nothing was charged.
	Full
	// Busy: another script has blocked the server for too long. Nothing was charged.
	Busy
	// Refused: the server does not let this user in, or not run this. A configuration fault; nothing
	// was charged.
	Refused
	// Poisoned: a key of this store holds something else. Limiter.Reset does not mend it, deleting the
	// key does. Nothing was charged.
	Poisoned
	// Rejected: the server knows the script and answered with an error of another kind.
	Rejected
)

var classNames = [...]string{"unknown", "unreached", "unready", "full", "busy", "refused", "poisoned", "rejected"}

func (c Class) String() string { return classNames[c] }

// An Error is why a Store has no decision. It wraps penstock.ErrUnavailable and the cause.
type Error struct {
	Class Class
	Cause error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%v: redis: %v: %v", penstock.ErrUnavailable, e.ClassName(), e.Cause)
}

// ClassName is the Class, as metrics have it: its name; "timeout" for an Unknown that is a matter
// of time; or "late" for an Unreached whose deadline passed while others were being decided before
// it: the server may be there, and slow.
func (e *Error) ClassName() string {
	if e.Class == Unreached && errors.Is(e.Cause, errLate) {
		return "late"
	}
	if e.Class == Unknown && timedOut(e.Cause) {
		return "timeout"
	}
	return e.Class.String()
}

// Counts tells whether the error says something of the server, and not of one key. A breaker goes
// by it.
func (e *Error) Counts() bool { return e.Class != Poisoned }

// Lasting tells whether somebody must change something before the store can answer: asking again
// soon is of no use.
func (e *Error) Lasting() bool { return e.Class == Refused }

func (e *Error) Unwrap() []error { return []error{penstock.ErrUnavailable, e.Cause} }

// Hint is what the server's administrator must do so that a lasting error ends: "+set", or other
// rights as ACL SETUSER takes them, where PREFIX stands for Options.Prefix; or a sentence. What
// several servers need is in it once. It is "" for an error that does not last.
func (e *Error) Hint() string {
	if !e.Lasting() {
		return ""
	}
	var rights, others []string
	for _, text := range refusals(e.Cause) {
		hint := hintFor(text)
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

// refusals are the texts of those errors joined in one with which servers refused something.
func refusals(err error) (texts []string) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				texts = append(texts, refusals(one)...)
			}
			return texts
		}
	}
	if classify(err) == Refused {
		texts = append(texts, err.Error())
	}
	return texts
}

// hintFor is what ends one refusal, if it tells.
func hintFor(text string) string {
	if command, ok := missingRight(text); ok {
		return "+" + command
	}
	for _, h := range hints {
		if strings.Contains(text, h.part) {
			return h.hint
		}
	}
	return ""
}

// missingRight is the command that a refusal names, in a server's words or in those of a script.
func missingRight(text string) (command string, found bool) {
	if _, rest, ok := strings.Cut(text, "run the '"); ok {
		command, _, found = strings.Cut(rest, "' command")
		return command, found
	}
	_, rest, _ := strings.Cut(text, "needs the right +")
	command = rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz|"))]
	return command, command != ""
}

var hints = []struct{ part, hint string }{
	{"access", "~PREFIX*"}, // one of the keys, in the words of every version
	{"WRONGPASS", "the store's setting with a user and password that are let in"},
	{"NOAUTH", "the store's setting with a user and password that are let in"},
}

// classes are the beginnings of error replies, as Redis and Valkey word them. Redis before 7 put a
// script's errors behind "ERR Error running script … -CODE", which is matched too. Some clients
// leave "ERR " out, so it is not looked at.
var classes = []struct {
	code  string
	class Class
}{
	{"MOVED ", Unready}, {"ASK ", Unready}, {"TRYAGAIN", Unready}, {"CLUSTERDOWN", Unready}, {"LOADING", Unready},
	{"MASTERDOWN", Unready}, {"READONLY", Unready}, {"NOREPLICAS", Unready}, {"max number of clients", Unready},
	{"MISCONF", Unready}, {"OOM ", Full}, {"BUSY ", Busy},
	{"NOPERM", Refused}, {"NOAUTH", Refused}, {"WRONGPASS", Refused}, {"unknown command", Refused}, {"NOPROTO", Refused},
	{"WRONGTYPE", Poisoned},
}

// classesInside are parts of error replies, for errors that a script meets.
var classesInside = []struct {
	part  string
	class Class
}{
	{"The user executing the script can't", Refused},           // Redis 7.0
	{"ACL failure in script", Refused},                         // Redis 7.2 and Valkey
	{"command called from script", Refused},                    // one that the server does not have, or has under another name
	{"Invalid command passed to redis.acl_check_cmd", Refused}, // likewise
	{"data string too short", Poisoned}, {"POISONED ", Poisoned},
}

// unavailable makes the error that Decide returns of what the client returned.
func unavailable(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &Error{Class: classify(err), Cause: err}
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

func classify(err error) Class {
	replies := repliesIn(err)
	if len(replies) == 0 {
		var op *net.OpError
		var certificate *tls.CertificateVerificationError
		if errors.Is(err, errNotSent) || errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) || certificateRefused(err) {
			return Unreached
		}
		return Unknown
	}
	class := Rejected
	for _, reply := range replies { // of several servers, which answer in any order
		if c := classifyReply(reply); c == Refused || class != Refused && c < class {
			class = c
		}
	}
	return class
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

func classifyReply(reply ReplyError) Class {
	text := strings.TrimPrefix(string(reply), "ERR ")
	for _, c := range classes {
		if strings.HasPrefix(text, c.code) || strings.Contains(text, " -"+c.code) {
			return c.class
		}
	}
	for _, c := range classesInside {
		if strings.Contains(text, c.part) {
			return c.class
		}
	}
	return Rejected
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
