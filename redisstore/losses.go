package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/luagen"
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

const maxInstanceNameBytes = 128 // bytes of an instance's name

// Heartbeat registers an instance of the program. It returns how many instances are registered by
// stores with the same prefix. The registration expires after the duration life. A life below
// 1 ms removes the instance. The instance's name has 1 to 128 bytes. Heartbeat also reads the
// server's clock for ClockSteps, and the epoch for Losses.
func (s *Store) Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error) {
	if instance == "" || len(instance) > maxInstanceNameBytes {
		return 0, fmt.Errorf("%w: redisstore: the instance's name has %d bytes; it must have 1 to %d", penstock.ErrInvalid, len(instance), maxInstanceNameBytes)
	}
	sent := time.Now()
	text, err := s.Eval(ctx, luagen.Heartbeat, []string{"instances", "epoch"},
		instance, strconv.FormatInt(life.Milliseconds(), 10), rand.Text(), strconv.FormatInt(epochLife.Milliseconds(), 10))
	if err != nil {
		return 0, err
	}
	var n int
	var seconds, micros int64
	var epoch string
	if _, err := fmt.Sscan(text, &n, &seconds, &micros, &epoch); err != nil {
		return 0, s.unavailable(ctx, fmt.Errorf("the heartbeat script replied %q; expected a number of instances, seconds, microseconds and an epoch", text))
	}
	now := time.Unix(seconds, micros*1000)
	s.clock.addReading(reading{server: now, sent: sent, answered: time.Now()})
	if life >= time.Millisecond {
		s.epochs.add(epoch, now)
	}
	return n, nil
}
