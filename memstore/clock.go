package memstore

import (
	"sync/atomic"
	"time"
)

// A clock reads the wall clock in half the time of time.Now. It stores a moment with its wall time,
// and adds the monotonic time since then. It takes a new moment every second, so it follows a step
// of the wall clock within a second.
type clock struct {
	base atomic.Pointer[moment]
}

type moment struct {
	time  time.Time // with a monotonic reading
	micro int64     // µs since the epoch
}

// rebaseAfter is how long a clock uses one moment.
const rebaseAfter = time.Second

func newClock() *clock {
	c := new(clock)
	c.rebase()
	return c
}

func (c *clock) now() int64 {
	base := c.base.Load()
	since := time.Since(base.time)
	if since > rebaseAfter {
		return c.rebase()
	}
	return base.micro + since.Microseconds()
}

func (c *clock) rebase() int64 {
	now := time.Now()
	c.base.Store(&moment{now, now.UnixMicro()})
	return now.UnixMicro()
}
