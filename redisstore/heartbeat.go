package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/luagen"
)

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
