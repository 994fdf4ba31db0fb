// Package panicked stops a panic in the user's code from ending the process, in goroutines that the
// user has not started.
package panicked

import (
	"context"
	"fmt"
	"log"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// Message is the text of the error that a client gets when its call panics.
const Message = "internal error; the service has logged the details"

// Recover must be deferred. It recovers from a panic, and logs the panic and its stack as net/http
// does for handlers. The operation is what the caller was doing, such as "reporting a reload".
func Recover(operation string) {
	if value := recover(); value != nil {
		Report(operation, value)
	}
}

// Decide calls store.Decide. If the store panics, it returns an error that wraps
// penstock.ErrUnavailable, and logs the panic as Recover does.
func Decide(ctx context.Context, store penstock.Store, charges []penstock.Charge) (d penstock.Decision, err error) {
	defer func() {
		if value := recover(); value != nil {
			Report("a store decides", value)
			d, err = penstock.Decision{}, fmt.Errorf("%w: panic: %v", penstock.ErrUnavailable, value)
		}
	}()
	return store.Decide(ctx, charges)
}

// Report logs a panic that the caller has recovered from, with the stack. The operation is what the
// caller was doing, such as "reporting a reload".
func Report(operation string, value any) {
	log.Printf("penstock: panic while %s: %v\n%s", operation, value, debug.Stack())
}

// An Error is a panic while external data was read: a bug in this module or in one that it uses.
type Error struct {
	Doing string // the operation, such as "load rules.yaml"
	Value any    // the argument of panic
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack writes it
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: panic: %v; this is a bug in Penstock: please report it with the file and the stack", e.Doing, e.Value)
}

// Try calls read, and returns an *Error if it panics.
func Try[T any](operation string, read func() (T, error)) (result T, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Error{Doing: operation, Value: value, Stack: debug.Stack()}
		}
	}()
	return read()
}
