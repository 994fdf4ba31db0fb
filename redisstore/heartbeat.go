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

// heartbeatLua adds an instance to a sorted set, or removes it. It replies the number of instances
// that have not expired by the server's clock, the time of that clock, and the epoch. An instance
// that is added also writes the epoch for a further epochLife: ARGV[3] if there is none.
var heartbeatLua = luagen.CheckRights(`#!lua
local call = redis.call
local time = call('TIME')
RIGHTS
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life = tonumber(ARGV[2])
local epoch = call('GET', KEYS[2]) or ARGV[3]
if life > 0 then
  call('ZADD', KEYS[1], string.format('%.0f', now + life), ARGV[1])
  call('SET', KEYS[2], epoch, 'PX', ARGV[4])
else
  call('ZREM', KEYS[1], ARGV[1])
end
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now))
local last = call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then
  call('PEXPIRE', KEYS[1], string.format('%.0f', tonumber(last[2]) - now))
end
return call('ZCARD', KEYS[1]) .. ' ' .. time[1] .. ' ' .. time[2] .. ' ' .. epoch`)

const maxInstanceNameBytes = 128 // bytes of an instance's name

// Heartbeat registers an instance of the program. It returns how many instances are registered by
// stores with the same prefix. The registration expires after the duration life. A life below
// 1 ms removes the instance. The instance's name has 1 to 128 bytes. Heartbeat also reads the
// server's clock for ClockSteps, and the epoch for Losses.
func (s *Store) Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error) {
	if err := checkInstance(instance); err != nil {
		return 0, err
	}
	sent := time.Now()
	keys := []string{s.instancesKey(), s.epochKey()}
	args := []string{instance, strconv.FormatInt(life.Milliseconds(), 10), rand.Text(), strconv.FormatInt(epochLife.Milliseconds(), 10)}
	text, err := s.client.Eval(ctx, heartbeatLua, keys, args)
	if err != nil {
		return 0, s.unavailable(ctx, nameMissingRight(heartbeatLua, err))
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

func checkInstance(name string) error {
	if name == "" || len(name) > maxInstanceNameBytes {
		return fmt.Errorf("%w: redisstore: the instance's name has %d bytes; it must have 1 to %d", penstock.ErrInvalid, len(name), maxInstanceNameBytes)
	}
	return nil
}
