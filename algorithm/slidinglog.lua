-- A member of the set is the running sum of all cost up to a grant, its score the grant's time. Members are big-endian, so
-- that grants of one microsecond are in the order of their sums.
local function tosum(sum)
  return spack('>I7', sum)
end

local function fromsum(member)
  return (sunpack('>I7', member))
end

-- The rank and time of the first grant, from rank low on, by which the sum reaches enough. There must be one.
local function reaching(key, enough, low)
  local high = call('ZCARD', key) - 1
  while low < high do
    local mid = div(low + high - fmod(low + high, 2), 2)
    if fromsum(call('ZRANGE', key, mid, mid)[1]) >= enough then
      high = mid
    else
      low = mid + 1
    end
  end
  return low, tonumber(call('ZRANGE', key, low, low, 'WITHSCORES')[2])
end

local function slidinglog(count, period, _, _, mode, cost, _, now, key)
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local sum, last, base, expired = 0, now, 0, 0
  if newest[1] then
    sum, last = fromsum(newest[1]), tonumber(newest[2])
    expired = call('ZCOUNT', key, '-inf', text(now - period))
  end
  local mended = last - now > MAXSTALL
  if expired > 0 then
    base = fromsum(call('ZRANGE', key, expired - 1, expired - 1)[1])
  end
  local used = sum - base

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  local granted, after, fits = take(mode, cost, used, count)
  if never(mode, cost, count) then
    retry = NEVER
  elseif not fits then
    local enough = sum + (mode == DRAW and math.min(cost, 1) or cost) - count
    local _, at = reaching(key, enough, expired)
    if mended then
      at = math.min(at, now)
    end
    retry = at + period - now
  end
  if mode == FORCE then
    granted = math.min(granted, MAX / 2 - math.min(used, MAX / 2))
    after = used + granted
  end

  remaining = math.max(count - after, 0)
  if after == used and not (mended and mode ~= PEEK) and mode ~= RESET then
    if used > 0 then
      reset = (mended and now or last) + period - now
    end
    return granted, remaining, retry, reset, 0, keep
  end
  local at = mended and now or math.max(now, last)
  if after > 0 and after < used then
    _, at = reaching(key, base + after, expired)
    if mended then
      at = math.min(at, now)
    end
  end
  if after > 0 then
    reset = at + period - now
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, now, expired, base, sum, used, after, mended, at
end

-- Writes what slidinglog decided; the arguments are those it returned from keep on.
local function slidinglog_save(key, keep, now, expired, base, sum, used, after, mended, at)
  if keep == 0 then
    call('DEL', key)
    return
  end
  if expired > 1 then
    call('ZREMRANGEBYRANK', key, 0, expired - 2)
    call('ZADD', key, '-inf', tosum(base)) -- stays expired even if the period grows
  end
  if mended and call('ZREMRANGEBYSCORE', key, '(' .. text(now), '+inf') > 0 then
    call('ZADD', key, text(now), tosum(sum))
  end
  if after > used then
    if sum + after - used > MAX then -- count the sums from base on
      local grants = call('ZRANGE', key, 0, -1, 'WITHSCORES')
      call('DEL', key)
      for i = 1, #grants, 2 do
        local above = fromsum(grants[i]) - base
        if above > 0 then
          call('ZADD', key, grants[i + 1], tosum(above))
        end
      end
      sum = sum - base
    end
    call('ZADD', key, text(at), tosum(sum + after - used))
  elseif after < used then
    call('ZREMRANGEBYRANK', key, (reaching(key, base + after, 0)), -1)
    call('ZADD', key, text(at), tosum(base + after))
  end
end
