package penstock

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrInvalid says that a limit or a charge is invalid. It is the caller's mistake, and a retry
	// fails again.
	ErrInvalid = errors.New("penstock: invalid")

	// ErrUnavailable says that the store gave no decision. The caller may use another store. A
	// StoreError says whether the charges may have been made. If they may, do not send them to the
	// same store again.
	ErrUnavailable = errors.New("penstock: store unavailable")
)

// A DeniedError reports a denial by the methods that return no Decision: Wait, Reserve, Acquire and
// Renew.
type DeniedError struct {
	Decision Decision
}

func (e *DeniedError) Error() string { return "penstock: " + e.Decision.String() }

// A StoreError says why a store gave no decision. It wraps ErrUnavailable and Err. Stores make it
// with NewStoreError, and AsStoreError finds it in an error.
type StoreError struct {
	Reason Reason

	// MayBeCharged is true if the charges may have been made. If it is false, none was.
	MayBeCharged bool

	// IsStoreFault is true if the error shows that the store is unhealthy. Circuit breakers count only
	// such errors.
	IsStoreFault bool

	// IsPermanent is true if the error stays until an operator changes the store or its settings.
	IsPermanent bool

	// Hint says how to fix a permanent error, or is "".
	Hint string

	Err error // the cause, or nil
}

// NewStoreError returns a StoreError with the fields that are usual for its reason.
func NewStoreError(reason Reason, cause error) *StoreError {
	p := reason.properties()
	return &StoreError{Reason: reason, MayBeCharged: p.mayBeCharged, IsStoreFault: p.isStoreFault, IsPermanent: p.isPermanent, Err: cause}
}

// AsStoreError returns the StoreError that err is or wraps. If err wraps ErrUnavailable but no
// StoreError, it returns a new StoreError with ReasonTimeout or ReasonUnknown. For any other error
// it returns nil.
func AsStoreError(err error) *StoreError {
	if e, ok := errors.AsType[*StoreError](err); ok {
		return e
	}
	if !errors.Is(err, ErrUnavailable) {
		return nil
	}
	if isTimeout(err) {
		return NewStoreError(ReasonTimeout, err)
	}
	return NewStoreError(ReasonUnknown, err)
}

// isTimeout reports whether err is or wraps context.DeadlineExceeded, or a timeout of package net.
func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && e.Timeout()
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
	// ReasonUnknown: a cause that no other Reason describes, such as a broken connection. The charges
	// may have been made.
	ReasonUnknown Reason = iota
	// ReasonTimeout: no answer came in time. The charges may have been made.
	ReasonTimeout
	// ReasonRejected: the server answered with an error that has no Reason of its own. The charges
	// may have been made.
	ReasonRejected
	// ReasonLate: the deadline passed before the charges were sent.
	ReasonLate
	// ReasonUnreachable: there was no connection to a server.
	ReasonUnreachable
	// ReasonNotReady: the server cannot decide now. The server is loading, read-only, without quorum,
	// or is moving slots.
	ReasonNotReady
	// ReasonOutOfMemory: the store has no memory for the charges.
	ReasonOutOfMemory
	// ReasonBusy: another script has blocked the server for too long.
	ReasonBusy
	// ReasonPermissionDenied: the server rejects this user, or this user may not run a command. The
	// error is permanent.
	ReasonPermissionDenied
	// ReasonCorrupt: a key holds data that this store has not written. This does not mean that the
	// store is unhealthy. Deleting the key repairs it; Limiter.Reset does not.
	ReasonCorrupt
	// ReasonShed: too many calls were in flight, so nothing was sent. This does not mean that the
	// store is unhealthy.
	ReasonShed
	// ReasonBreakerOpen: a circuit breaker was open and rejected the call. This does not mean that the
	// store is unhealthy.
	ReasonBreakerOpen
)

// reasonProperties are the name of a reason, and the usual fields of its StoreErrors.
type reasonProperties struct {
	name         string
	mayBeCharged bool
	isStoreFault bool
	isPermanent  bool
}

var propertiesByReason = [...]reasonProperties{
	ReasonUnknown:          {name: "unknown", mayBeCharged: true, isStoreFault: true},
	ReasonTimeout:          {name: "timeout", mayBeCharged: true, isStoreFault: true},
	ReasonRejected:         {name: "rejected", mayBeCharged: true, isStoreFault: true},
	ReasonLate:             {name: "late", isStoreFault: true},
	ReasonUnreachable:      {name: "unreachable", isStoreFault: true},
	ReasonNotReady:         {name: "not_ready", isStoreFault: true},
	ReasonOutOfMemory:      {name: "out_of_memory", isStoreFault: true},
	ReasonBusy:             {name: "busy", isStoreFault: true},
	ReasonPermissionDenied: {name: "permission_denied", isStoreFault: true, isPermanent: true},
	ReasonCorrupt:          {name: "corrupt"},
	ReasonShed:             {name: "shed"},
	ReasonBreakerOpen:      {name: "breaker_open"},
}

// properties returns the properties of the reason. An unknown reason is like ReasonUnknown.
func (r Reason) properties() reasonProperties {
	if int(r) < len(propertiesByReason) {
		return propertiesByReason[r]
	}
	return propertiesByReason[ReasonUnknown]
}

// Reasons returns all reasons.
func Reasons() []Reason {
	all := make([]Reason, len(propertiesByReason))
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}

// String returns the reason's name in metrics, such as "timeout".
func (r Reason) String() string { return r.properties().name }
