package redisstore

import (
	"sync"
	"time"
)

// Losses returns how often the server has lost its keys, as by FLUSHALL or by a restart without its
// data. Each Heartbeat looks for a key that the first one has written, the epoch. A loss is seen if
// all heartbeats were less than a day apart. On a Cluster, only losses of the server that has the
// list of instances are seen. A failover that loses only the latest writes is not seen.
func (s *Store) Losses() int64 {
	s.epochs.mu.Lock()
	defer s.epochs.mu.Unlock()
	return s.epochs.losses
}

func (s *Store) epochKey() string { return s.prefix + "{%@}epoch" }

const (
	// epochLife is how long the epoch lives after a heartbeat. It is long, so that a loss within an
	// outage is seen too.
	epochLife = 24 * time.Hour

	// epochSettled is how long an epoch must have been seen before its end counts as a loss. A replica
	// that becomes the primary may not have a younger one.
	epochSettled = 10 * time.Second
)

// epochs are the epochs that heartbeats have seen. All times are those of the server's clock.
type epochs struct {
	mu      sync.Mutex
	current string
	first   time.Time // when the current epoch was first seen
	last    time.Time // when it was last seen
	losses  int64
}

// add adds the epoch that a heartbeat has seen. An instance that was stopped for epochLife may find
// another epoch, although nothing was lost.
func (e *epochs) add(epoch string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if epoch == e.current {
		e.last = now
		return
	}
	if e.last.Sub(e.first) >= epochSettled && now.Before(e.last.Add(epochLife)) {
		e.losses++
	}
	e.current, e.first, e.last = epoch, now, now
}
