package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock"
)

// liveLua notes or forgets an instance in a sorted set, and counts those that are not gone. Their times are the server's.
const liveLua = `#!lua
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local life = tonumber(ARGV[2])
if life > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + life), ARGV[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now))
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if last[2] then
  redis.call('PEXPIREAT', KEYS[1], last[2])
end
return tostring(redis.call('ZCARD', KEYS[1]))`

const maxInstance = 128 // bytes of an instance's name

// Live notes that an instance of the program is there, for as long as life from now, and counts all that are: the stores of one prefix are one
// fleet. A life of 0 or less forgets the instance. The name tells instances apart: 1 to 128 bytes.
func (s *Store) Live(ctx context.Context, instance string, life time.Duration) (int, error) {
	if instance == "" || len(instance) > maxInstance {
		return 0, fmt.Errorf("%w: redisstore: the instance's name has %d bytes; it must have 1 to %d", penstock.ErrInvalid, len(instance), maxInstance)
	}
	text, err := s.client.Eval(ctx, liveLua, []string{s.prefix + "{%@}instances"}, []string{instance, strconv.FormatInt(life.Milliseconds(), 10)})
	if err != nil {
		return 0, unavailable(ctx, err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, unavailable(ctx, fmt.Errorf("the script replied %q", text))
	}
	return n, nil
}
