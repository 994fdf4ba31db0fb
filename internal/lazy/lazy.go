// Package lazy lets a guard pass a store a deadline that has no timer.
package lazy

import (
	"context"
	"time"
)

// A Context has a deadline, but makes a timer for it only when Done is called. A store that waits
// in a cheaper way calls Lazy instead. If a decorator wraps the context, the store sees no Context
// and calls Done; that only costs a timer.
type Context interface {
	context.Context

	// Lazy returns another channel that Done waits for, and the deadline without reading a clock. The
	// deadline may be extended: when it is reached, call Deadline.
	Lazy() (done <-chan struct{}, deadline time.Time)
}
