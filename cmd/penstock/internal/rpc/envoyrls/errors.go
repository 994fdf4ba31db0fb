package envoyrls

import "fmt"

// A Code is the class of an Error. The numbers are those of gRPC.
type Code uint32

const (
	InvalidArgument    Code = 3
	FailedPrecondition Code = 9 // there is no configuration yet
	Unavailable        Code = 14
)

// An Error is the reason why a request has no response. The text of an Error may contain numbers of
// the request, but no strings.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

func invalid(format string, args ...any) *Error {
	return &Error{InvalidArgument, fmt.Sprintf(format, args...)}
}

var (
	errNoDomain      = &Error{InvalidArgument, "rate limit domain must not be empty"}
	errNoDescriptors = &Error{InvalidArgument, "rate limit descriptor list must not be empty"}
	errNoConfig      = &Error{FailedPrecondition, "no rate limit configuration loaded"}
	errUnavailable   = &Error{Unavailable, "the store gives no answer, and on_failure is error"}
)
