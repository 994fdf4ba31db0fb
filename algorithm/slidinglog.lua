-- A member of the set has the running sum of all cost up to a grant, and how long the grant is
-- kept. The member's score is the time of the grant. Members are big-endian, so that grants of one
-- microsecond are in the order of their sums.
local function tomember(sum, keep)
  return spack('>I7I6', sum, keep)
end

local function fromsum(member)
  return (sunpack('>I7', member))
end

local function fromkeep(member)
  return (sunpack('>I6', member, 8))
end

-- Returns the rank, time and member of the first grant, from rank low on, whose sum is at least
-- enough. Such a grant must exist. Sums grow with the rank, so the search is a bisection.
local function findsum(key, enough, low)
  local high = call('ZCARD', key) - 1
  while low < high do
    local mid = div(low + high - fmod(low + high, 2), 2)
    if fromsum(call('ZRANGE', key, mid, mid)[1]) >= enough then
      high = mid
    else
      low = mid + 1
    end
  end
  local found = call('ZRANGE', key, low, low, 'WITHSCORES')
  return low, tonumber(found[2]), found[1]
end

-- Returns the running sum of all costs before the grant of this rank.
local function sumbefore(key, rank)
  if rank == 0 then
    return 0
  end
  return fromsum(call('ZRANGE', key, rank - 1, rank - 1)[1])
end

local function slidinglog(count, period, _, _, mode, cost, _, now, key, _, receipt)
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local sum, last = 0, now -- of the newest grant
  local expired = 0 -- how many grants have expired
  local base, baseuntil = 0, 0 -- of the last expired grant: its sum, and until when it is kept
  if newest[1] then
    sum, last = fromsum(newest[1]), tonumber(newest[2])
    expired = call('ZCOUNT', key, '-inf', text(now - period))
  end
  local needsrepair = last - now > MAXSTALL
  if expired > 0 then
    local latest = call('ZRANGE', key, expired - 1, expired - 1, 'WITHSCORES')
    base, baseuntil = fromsum(latest[1]), tonumber(latest[2]) + fromkeep(latest[1])
  end
  local used = sum - base

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  local isexact, first = mode == REFUND and receipt ~= 0, 0 -- first is the rank of the first grant of that time
  if isexact and (needsrepair or receipt <= now - period) then
    cost = 0
  elseif isexact then
    first = call('ZCOUNT', key, '-inf', '(' .. text(receipt))
    local upto = call('ZCOUNT', key, '-inf', text(receipt))
    cost = math.min(cost, sumbefore(key, upto) - sumbefore(key, first))
  end
  local granted, after, fits = take(mode, cost, used, count)
  if never(mode, cost, count) then
    retry = NEVER
  elseif not fits then
    -- The request fits once the grants up to this sum have expired.
    local enough = sum + (mode == DRAW and math.min(cost, 1) or cost) - count
    local _, at = findsum(key, enough, expired)
    if needsrepair then
      at = math.min(at, now)
    end
    retry = at + period - now
  end
  if mode == FORCE then
    granted = math.min(granted, MAX / 2 - math.min(used, MAX / 2))
    after = used + granted
  end

  remaining = math.max(count - after, 0)
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if after == used and not (needsrepair and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    if used > 0 then
      reset = (needsrepair and now or last) + period - now
    end
    return granted, remaining, retry, reset, 0, keep
  end
  local at = needsrepair and now or math.max(now, last) -- the time of the entry that will be the newest
  local storedkeep = 0 -- how long the newest stored grant is kept
  if newest[1] then
    storedkeep = fromkeep(newest[1])
    if needsrepair then -- grants after now are merged into one, dated now
      for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf')) do
        storedkeep = math.max(storedkeep, fromkeep(member))
      end
      local past = call('ZCOUNT', key, '-inf', text(now))
      if past > 0 then
        local before = call('ZRANGE', key, past - 1, past - 1, 'WITHSCORES')
        storedkeep = math.max(storedkeep, before[2] + fromkeep(before[1]) - now)
      end
      last = now
    end
  end
  local newkeep = storedkeep -- how long the entry that will be the newest is kept
  if after > used then
    newkeep = math.max(period, last + storedkeep - at) -- no grant is dropped before an earlier one
    if not newest[1] or after == 0 then
      newkeep = period
    end
  elseif isexact and after > 0 then
    -- All later grants stay. If all units of the newest are returned, the one before is the newest.
    at = last
    if receipt == last and sum - granted == sumbefore(key, first) then
      local before = call('ZRANGE', key, first - 1, first - 1, 'WITHSCORES')
      at, newkeep = tonumber(before[2]), fromkeep(before[1])
    end
  elseif after > 0 and after < used then
    local member
    _, at, member = findsum(key, base + after, expired)
    if needsrepair and at > now then
      at = now
    else
      newkeep = fromkeep(member)
    end
  end
  if after > 0 then
    reset = at + period - now
    keep = math.max(reset, at + newkeep - now)
  else
    keep = 0
  end
  return granted, remaining, retry, reset, 0, keep, at, now, expired, base, baseuntil, sum, used, after, needsrepair, newkeep, storedkeep,
    isexact and receipt
end

-- Writes what slidinglog decided. The arguments are the results of slidinglog from keep on.
local function slidinglog_save(key, keep, at, now, expired, base, baseuntil, sum, used, after, needsrepair, newkeep, storedkeep, receipt)
  if keep == 0 then
    call('DEL', key)
    return
  end
  local dropped, floor = expired, base
  if expired > 1 and baseuntil > now then -- another limit needs some expired grants: find the first of them
    local high = expired - 1
    dropped = 0
    while dropped < high do
      local mid = div(dropped + high - fmod(dropped + high, 2), 2)
      local entry = call('ZRANGE', key, mid, mid, 'WITHSCORES')
      if entry[2] + fromkeep(entry[1]) <= now then
        dropped, floor = mid + 1, fromsum(entry[1])
      else
        high = mid
      end
    end
  end
  if dropped > 1 then
    call('ZREMRANGEBYRANK', key, 0, dropped - 1)
    call('ZADD', key, '-inf', tomember(floor, 0)) -- stays expired even if the period grows
  end
  if needsrepair and call('ZREMRANGEBYSCORE', key, '(' .. text(now), '+inf') > 0 then
    call('ZADD', key, text(now), tomember(sum, storedkeep))
  end
  if after > used then
    if sum + after - used > MAX then -- count the sums from base on
      local grants = call('ZRANGE', key, 0, -1, 'WITHSCORES')
      call('DEL', key)
      for i = 1, #grants, 2 do
        local above = fromsum(grants[i]) - base
        if above > 0 then
          call('ZADD', key, grants[i + 1], tomember(above, fromkeep(grants[i])))
        end
      end
      sum = sum - base
    end
    call('ZADD', key, text(at), tomember(sum + after - used, newkeep))
  elseif after < used and receipt then -- an exact refund: the sums from the grants of that time on become lower
    local first = call('ZCOUNT', key, '-inf', '(' .. text(receipt))
    local grants, before = call('ZRANGE', key, first, -1, 'WITHSCORES'), sumbefore(key, first)
    call('ZREMRANGEBYRANK', key, first, -1)
    for i = 1, #grants, 2 do
      local lower = fromsum(grants[i]) - (used - after)
      if lower > before then -- some of its units are left
        call('ZADD', key, grants[i + 1], tomember(lower, fromkeep(grants[i])))
        before = lower
      end
    end
  elseif after < used then
    call('ZREMRANGEBYRANK', key, (findsum(key, base + after, 0)), -1)
    call('ZADD', key, text(at), tomember(base + after, newkeep))
  end
end
