// Package lazy lets a guard give a deadline to a store without starting a timer for it.
package lazy

import (
	"context"
	"time"
)

// A Context has a deadline, but makes a timer for it only when Done is called. A store that can
// wait without this timer calls Lazy instead. If a decorator wraps the context, the store does not
// recognize it and calls Done; this only costs a timer.
type Context interface {
	context.Context

	// Lazy returns the Done channel of the parent context, and the deadline as far as it is known
	// without reading a clock. The deadline may be extended later. So call Deadline when it is
	// reached.
	Lazy() (done <-chan struct{}, deadline time.Time)
}
