package redisstore

import (
	"sync"
	"time"
)

// ClockSteps is how often the server's clock has been seen to go back or ahead by more than 100 ms
// and 0.1 % of the time that really passed, by this machine's monotonic clock. It is looked at with
// every Live that is answered, so what goes back and returns between two of them is not seen; on a
// Cluster it is that of the server that keeps the list of instances. A failover to a server whose
// clock differs is a step too. It counts as ahead when this machine was suspended.
//
// Limits outlive steps: one ahead lets units come back as if the time had passed; after one back,
// buckets and sliding windows stop refilling for 5 s at most, and a window ends at its own end or
// with the one after the present one.
func (s *Store) ClockSteps() (back, forward int64) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	return s.clock.back, s.clock.forward
}

// A clock is what is known of the server's.
type clock struct {
	mu            sync.Mutex
	back, forward int64
	last          reading
}

// A reading of the server's clock was made some time between the question and the answer.
type reading struct {
	server         time.Time
	sent, answered time.Time // by the monotonic clock
}

// clockTolerance is the smallest step that counts.
const clockTolerance = 100 * time.Millisecond

func (c *clock) note(r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last
	c.last = r
	if last.sent.IsZero() {
		return
	}
	least, most := r.sent.Sub(last.answered), r.answered.Sub(last.sent) // between them, also if they overlapped
	slack := clockTolerance + most/1000                                 // clocks differ in how fast they go
	switch passed := r.server.Sub(last.server); {
	case passed < least-slack:
		c.back++
	case passed > most+slack:
		c.forward++
	}
}
