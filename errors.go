package penstock

import "errors"

var (
	// ErrInvalid says that a limit or a charge is wrong in itself. It is the caller's mistake and is
	// never worth a retry.
	ErrInvalid = errors.New("penstock: invalid")

	// ErrUnavailable says that the store gave no answer, and that asking elsewhere is reasonable.
	// Whether the charge was made is unknown, so the same store must not be asked the same again.
	ErrUnavailable = errors.New("penstock: store unavailable")
)

// A DeniedError is how the methods that must succeed or fail (Wait, Reserve, Acquire, Renew) report
// a denial.
type DeniedError struct {
	Decision Decision
}

func (e *DeniedError) Error() string { return "penstock: " + e.Decision.String() }
