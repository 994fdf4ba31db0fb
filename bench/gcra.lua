-- A script with the commands, arguments and reply of AllowN in redis_rate v10. The state is the
-- theoretical arrival time, a decimal number of seconds since 2017-01-01, by the server's clock.
local burst, rate, period, cost = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local interval = period / rate
local time = redis.call('TIME')
local epoch = 1483228800
local now = (time[1] - epoch) + (time[2] / 1000000)
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local after = arrival + interval * cost
local room = now - (after - interval * burst)
local remaining = room / interval
if remaining < 0 then
  return { 0, 0, tostring(-room), tostring(arrival - now) }
end
local reset = after - now
if reset > 0 then
  redis.call('SET', KEYS[1], after, 'EX', math.ceil(reset))
end
return { cost, remaining, tostring(-1), tostring(reset) }
