package policy

import (
	"fmt"
	"runtime/debug"
)

// A PanicError is a panic while a policy, or a file or key set that it names, was read: a mistake
// in this package or in one that it uses. The rules in force are not changed by it.
type PanicError struct {
	Doing string // what was being done, as in "load rules.yaml"
	Value any    // what panic was called with
	Stack []byte // of the goroutine that panicked, as runtime/debug.Stack writes it
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("policy: %s: panic: %v; this is a mistake in Penstock: please report it with the file and the stack", e.Doing, e.Value)
}

// recovered calls read, and makes an error of its panic.
func recovered[T any](doing string, read func() (T, error)) (result T, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Doing: doing, Value: value, Stack: debug.Stack()}
		}
	}()
	return read()
}
