package luagen

// Heartbeat is the script of Store.Heartbeat. It adds an instance to a sorted set, or removes it.
// It replies the number of instances that have not expired by the server's clock, the time of that
// clock, and the epoch. If there is no epoch, ARGV[3] becomes the epoch. For an instance that is
// added, the server keeps the epoch for ARGV[4] ms more (redisstore's epochLife).
var Heartbeat = CheckRights(`#!lua
local call = redis.call
local time = call('TIME')
RIGHTS()
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
