// Package lazy is how a guard tells a store about a deadline that has no timer.
package lazy

import (
	"context"
	"time"
)

// A Context has a deadline, but makes a timer for it only when somebody calls Done. A store that
// waits in a cheaper way calls Lazy instead. Behind a decorator that wraps the context, a store
// finds no Context, and calls Done: that costs a timer, and changes nothing else.
type Context interface {
	context.Context

	// Lazy returns what Done waits for: another channel, and the deadline. The deadline may be
	// extended: when it has come, call Lazy again.
	Lazy() (done <-chan struct{}, deadline time.Time)
}
