package penstock

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrInvalid says that a limit or a charge is wrong in itself. It is the caller's mistake and is
	// never worth a retry.
	ErrInvalid = errors.New("penstock: invalid")

	// ErrUnavailable says that the store gave no answer, and that asking elsewhere is reasonable. A
	// StoreError says whether the charges may have been made. If they may, the same store must not be
	// asked the same again.
	ErrUnavailable = errors.New("penstock: store unavailable")
)

// A DeniedError is how the methods that must succeed or fail (Wait, Reserve, Acquire, Renew) report
// a denial.
type DeniedError struct {
	Decision Decision
}

func (e *DeniedError) Error() string { return "penstock: " + e.Decision.String() }

// A StoreError says why a store gave no decision. It wraps ErrUnavailable and Err. Stores make it
// by NewStoreError; AsStoreError finds it in an error.
type StoreError struct {
	Reason Reason

	// MayBeCharged is true if the charges may have been made. If it is false, none was.
	MayBeCharged bool

	// IsStoreFault is true if the error says something about the store's health. Breakers go by it.
	IsStoreFault bool

	// IsPermanent is true if the error stays until somebody changes the store or its settings.
	IsPermanent bool

	// Hint says how to mend a permanent error, or is "".
	Hint string

	Err error // the cause, or nil
}

// NewStoreError returns a StoreError with the fields that are usual for its reason.
func NewStoreError(reason Reason, cause error) *StoreError {
	u := reason.usual()
	return &StoreError{Reason: reason, MayBeCharged: u.mayBeCharged, IsStoreFault: u.isStoreFault, IsPermanent: u.isPermanent, Err: cause}
}

// AsStoreError returns the StoreError that err is or wraps. For another error that wraps
// ErrUnavailable it returns one of ReasonTimeout or ReasonUnknown. Otherwise it returns nil.
func AsStoreError(err error) *StoreError {
	if e, ok := errors.AsType[*StoreError](err); ok {
		return e
	}
	if !errors.Is(err, ErrUnavailable) {
		return nil
	}
	if e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); errors.Is(err, context.DeadlineExceeded) || ok && e.Timeout() {
		return NewStoreError(ReasonTimeout, err)
	}
	return NewStoreError(ReasonUnknown, err)
}

func (e *StoreError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%v: %v", ErrUnavailable, e.Reason)
	}
	return fmt.Sprintf("%v: %v: %v", ErrUnavailable, e.Reason, e.Err)
}

func (e *StoreError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrUnavailable}
	}
	return []error{ErrUnavailable, e.Err}
}

// A Reason is the kind of a StoreError.
type Reason uint8

const (
	// ReasonUnknown is any other reason, such as a connection that broke. The charges may have been
	// made.
	ReasonUnknown Reason = iota
	// ReasonTimeout: no answer came in time. The charges may have been made.
	ReasonTimeout
	// ReasonRejected: the server answered with an error of another kind. The charges may have been
	// made.
	ReasonRejected
	// ReasonLate: the deadline passed before the charges were sent.
	ReasonLate
	// ReasonUnreachable: there was no connection to a server.
	ReasonUnreachable
	// ReasonNotReady: the server cannot decide now. It is loading, read-only, without quorum, or
	// slots are moving.
	ReasonNotReady
	// ReasonOutOfMemory: the store has no memory for the charges.
	ReasonOutOfMemory
	// ReasonBusy: another script has blocked the server for too long.
	ReasonBusy
	// ReasonPermissionDenied: the server does not let this user in, or not run a command. It is
	// permanent.
	ReasonPermissionDenied
	// ReasonCorrupt: a key holds something that is not this store's. It says nothing about the
	// store's health. Deleting the key mends it; Limiter.Reset does not.
	ReasonCorrupt
	// ReasonShed: too many calls were in flight, so nothing was sent. It says nothing about the
	// store's health.
	ReasonShed
	// ReasonBreakerOpen: a circuit breaker did not let the call through. It says nothing about the
	// store's health.
	ReasonBreakerOpen
)

// usualOf holds what is usual for a reason.
type usualOf struct {
	name                                    string
	mayBeCharged, isStoreFault, isPermanent bool
}

var usuals = [...]usualOf{
	ReasonUnknown:          {"unknown", true, true, false},
	ReasonTimeout:          {"timeout", true, true, false},
	ReasonRejected:         {"rejected", true, true, false},
	ReasonLate:             {"late", false, true, false},
	ReasonUnreachable:      {"unreachable", false, true, false},
	ReasonNotReady:         {"not_ready", false, true, false},
	ReasonOutOfMemory:      {"out_of_memory", false, true, false},
	ReasonBusy:             {"busy", false, true, false},
	ReasonPermissionDenied: {"permission_denied", false, true, true},
	ReasonCorrupt:          {"corrupt", false, false, false},
	ReasonShed:             {"shed", false, false, false},
	ReasonBreakerOpen:      {"breaker_open", false, false, false},
}

// usual returns what is usual for the reason. A reason that is not known is like ReasonUnknown.
func (r Reason) usual() usualOf {
	if int(r) < len(usuals) {
		return usuals[r]
	}
	return usuals[ReasonUnknown]
}

// Reasons returns all reasons.
func Reasons() []Reason {
	all := make([]Reason, len(usuals))
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}

// String is the reason's name in metrics, such as "timeout".
func (r Reason) String() string { return r.usual().name }
