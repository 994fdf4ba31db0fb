package memstore

import (
	"sync/atomic"
	"time"
)

// A clock reads the wall clock at half the price of time.Now: by the monotonic clock since a moment
// whose wall time is known. That moment is read anew every second, so the clock follows steps of
// the wall clock within a second.
type clock struct {
	base atomic.Pointer[moment]
}

type moment struct {
	time  time.Time
	micro int64 // since the epoch
}

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
