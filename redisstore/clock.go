package redisstore

import (
	"sync"
	"time"
)

// ClockSteps returns how often the server's clock has jumped back and forward. Each Heartbeat reads
// that clock. Two readings show a jump if the time between them differs from this machine's
// monotonic clock by more than 100 ms plus 0.1 %. A jump that is corrected before the next
// Heartbeat is not seen. On a Cluster, the clock is that of the server that has the list of
// instances. A failover to a server with another clock may count as a jump. If this machine was
// suspended, that counts as a jump forward.
//
// Limits survive jumps. After a jump forward, units are refilled as if the time had passed. After a
// jump back, buckets and sliding windows do not refill for up to 5 s. A fixed window that has begun
// ends when the clock reaches its end again. After a large jump it ends earlier: the documentation
// of algorithm.FixedWindow has the bound.
func (s *Store) ClockSteps() (back, forward int64) {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	return s.clock.back, s.clock.forward
}

// A clock compares the server's clock with this machine's.
type clock struct {
	mu            sync.Mutex
	back, forward int64 // jumps
	last          reading
}

// A reading is the server's time at some moment between sent and answered.
type reading struct {
	server         time.Time
	sent, answered time.Time // by the monotonic clock
}

// clockTolerance is the largest difference between the clocks that never counts as a jump.
const clockTolerance = 100 * time.Millisecond

// addReading compares a reading with the one before.
func (c *clock) addReading(r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last
	c.last = r
	if last.sent.IsZero() {
		return // the first reading
	}
	// The true time between the readings is between least and most, even if the readings overlap.
	least, most := r.sent.Sub(last.answered), r.answered.Sub(last.sent)
	tolerance := clockTolerance + most/1000 // 0.1 % more, because clocks differ in speed
	switch passed := r.server.Sub(last.server); {
	case passed < least-tolerance:
		c.back++
	case passed > most+tolerance:
		c.forward++
	}
}
