package memstore

import (
	"sync/atomic"
	"time"
)

// A clock returns the wall time in half the time that time.Now takes. It stores a moment with its
// wall time, and adds the monotonic time since then. It stores a new moment every second, so it
// follows a step of the wall clock within a second.
type clock struct {
	base atomic.Pointer[moment]
}

type moment struct {
	time      time.Time // with a monotonic reading
	unixMicro int64     // the same time, in µs since the epoch
}

// rebaseAfter is how long a clock uses a moment before it stores a new one.
const rebaseAfter = time.Second

func newClock() *clock {
	c := new(clock)
	c.rebase()
	return c
}

// now returns the time in µs since the epoch. By the monotonic clock, it is since after base.
func (c *clock) now() (unixMicro int64, base time.Time, since time.Duration) {
	m := c.base.Load()
	since = time.Since(m.time)
	if since > rebaseAfter {
		m, since = c.rebase(), 0
	}
	return m.unixMicro + since.Microseconds(), m.time, since
}

// rebase stores and returns the present moment.
func (c *clock) rebase() *moment {
	now := time.Now()
	base := &moment{now, now.UnixMicro()}
	c.base.Store(base)
	return base
}
