package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/penstock/penstock"
)

// A Class says what an error means for the charges that it answers.
type Class uint8

const (
	// Unknown: the answer was lost, the charges may have been made. A read timeout, a connection that broke, a context
	// that ended after the script was sent.
	Unknown Class = iota
	// Unreached: no server was reached, or the deadline passed before the charges were sent (ClassName tells which); nothing was charged.
	Unreached
	// Unready: the server cannot decide now: loading, read-only, without quorum, moving slots. Nothing was charged.
	Unready
	// Full: the server is out of memory. Nothing was charged.
	Full
	// Busy: another script has blocked the server for too long. Nothing was charged.
	Busy
	// Refused: the server does not let this user in, or not run this. A configuration fault; nothing was charged.
	Refused
	// Poisoned: a key of this store holds something else. Limiter.Reset does not mend it, deleting the key does. Nothing was charged.
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

// ClassName is the Class, as metrics have it: its name; "timeout" for an Unknown that is a matter of time; or "late" for an Unreached whose
// deadline passed while others were being decided before it: the server may be there, and slow.
func (e *Error) ClassName() string {
	if e.Class == Unreached && errors.Is(e.Cause, errLate) {
		return "late"
	}
	if e.Class == Unknown && timedOut(e.Cause) {
		return "timeout"
	}
	return e.Class.String()
}

// Counts tells whether the error says something of the server, and not of one key. A breaker goes by it.
func (e *Error) Counts() bool { return e.Class != Poisoned }

// Lasting tells whether somebody must change something before the store can answer: asking again soon is of no use.
func (e *Error) Lasting() bool { return e.Class == Refused }

func (e *Error) Unwrap() []error { return []error{penstock.ErrUnavailable, e.Cause} }

// classes are the beginnings of error replies, as Redis 7 and Valkey word them. Redis before 7 put a script's errors behind
// "ERR Error running script … -CODE", which is matched too.
var classes = []struct {
	code  string
	class Class
}{
	{"MOVED ", Unready}, {"ASK ", Unready}, {"TRYAGAIN", Unready}, {"CLUSTERDOWN", Unready}, {"LOADING", Unready},
	{"MASTERDOWN", Unready}, {"READONLY", Unready}, {"NOREPLICAS", Unready}, {"ERR max number of clients", Unready},
	{"MISCONF", Unready}, {"OOM ", Full}, {"BUSY ", Busy},
	{"NOPERM", Refused}, {"NOAUTH", Refused}, {"WRONGPASS", Refused}, {"ERR The user executing the script", Refused},
	{"ERR unknown command", Refused}, {"NOPROTO", Refused},
	{"WRONGTYPE", Poisoned},
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

// errLate marks what was not sent since its time was over, whether or not a server could be reached.
var errLate = errors.New("it was too late to send it")

func notSent(err error) error { return fmt.Errorf("%w: %w", errNotSent, err) }

func tooLate(err error) error { return notSent(fmt.Errorf("%w: %w", errLate, err)) }

func classify(err error) Class {
	var reply ReplyError
	if !errors.As(err, &reply) {
		var op *net.OpError
		var certificate *tls.CertificateVerificationError
		if errors.Is(err, errNotSent) || errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) {
			return Unreached
		}
		return Unknown
	}
	text := string(reply)
	for _, c := range classes {
		if strings.HasPrefix(text, c.code) || strings.Contains(text, " -"+c.code) {
			return c.class
		}
	}
	if strings.Contains(text, "data string too short") || strings.Contains(text, "POISONED ") {
		return Poisoned
	}
	if strings.Contains(text, "can't run this command") {
		return Refused
	}
	return Rejected
}

// isNoScript tells whether the server does not know a script: the one error that proves that sending it again is safe.
func isNoScript(err error) bool {
	reply, ok := errors.AsType[ReplyError](err)
	return ok && strings.HasPrefix(string(reply), "NOSCRIPT")
}
