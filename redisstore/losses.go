package redisstore

import (
	"sync"
	"time"
)

// Losses returns how often the server has lost its keys, as by FLUSHALL or by a restart without
// its data. Each Heartbeat looks for a key that the first one has written, the epoch. A loss is
// seen if all heartbeats were less than a day apart. Until two heartbeats a second apart have
// found the same epoch, no loss is seen. Several losses between two heartbeats count as one. On a
// Cluster, only losses of the server that has the list of instances are seen. A failover that
// loses only the latest writes is not seen.
func (s *Store) Losses() int64 {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	return s.epochs.losses
}

const (
	// epochLife is how long the epoch lives after a heartbeat. It is long, so that a loss within an
	// outage is seen too.
	epochLife = 24 * time.Hour

	// epochSettled is how long the first epoch must have been seen before its end counts as a loss. A
	// replica that becomes the primary may not have a younger one.
	epochSettled = time.Second
)

// epochs are the epochs that heartbeats have seen. All times are those of the server's clock.
type epochs struct {
	mu        sync.Mutex
	current   string
	first     time.Time // when the current epoch was first seen
	last      time.Time // when it was last seen
	isSettled bool      // an epoch has been seen for epochSettled since the start or the last expiry
	losses    int64
}

// add adds the epoch that a heartbeat has seen. An instance that was stopped for epochLife may find
// another epoch, although nothing was lost. The epoch after a loss counts as settled at once, so
// that a second loss is seen too.
func (e *epochs) add(epoch string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	hasExpired := !now.Before(e.last.Add(epochLife))
	if epoch != e.current {
		e.isSettled = e.isSettled && !hasExpired
		if e.isSettled {
			e.losses++
		}
		e.current, e.first = epoch, now
	}
	e.last = now
	e.isSettled = e.isSettled || now.Sub(e.first) >= epochSettled
}
