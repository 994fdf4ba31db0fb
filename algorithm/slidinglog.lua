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

-- Returns the time, member and rank of the first grant whose sum is at least enough. Such a grant
-- must exist. Sums grow with the rank, so the search is a bisection.
local function findsum(key, enough)
  local low, high = 0, call('ZCARD', key) - 1
  while low < high do
    local mid = div(low + high - fmod(low + high, 2), 2)
    if fromsum(call('ZRANGE', key, mid, mid)[1]) >= enough then
      high = mid
    else
      low = mid + 1
    end
  end
  local found = call('ZRANGE', key, low, low, 'WITHSCORES')
  return tonumber(found[2]), found[1], low
end

-- Returns the running sum of all costs before the grant of this rank.
local function sumbefore(key, rank)
  if rank == 0 then
    return 0
  end
  return fromsum(call('ZRANGE', key, rank - 1, rank - 1)[1])
end

local function slidinglog(count, period, _, _, mode, cost, _, now, key, _, receipt)
  local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  local edge = timetext(now - period) -- grants up to this time have expired
  local sum, last, storedkeep = 0, now, 0 -- of the newest grant
  local base, hasold = 0, false -- the sum of the last expired grant, and whether there are others
  if newest[1] then
    sum, storedkeep = sunpack('>I7I6', newest[1])
    last = tonumber(newest[2])
    local expired = call('ZRANGE', key, edge, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '2')
    if expired[1] then
      base, hasold = fromsum(expired[1]), expired[2] ~= nil
    end
  end
  local needsrepair = last - now > MAXSTALL
  local used = sum - base

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  local isexact, first = mode == REFUND and receipt ~= 0, 0 -- first is the rank of the first grant of that time
  local below = 0 -- the sum before that grant
  if isexact and (needsrepair or receipt <= now - period) then
    cost = 0
  elseif isexact then
    first = call('ZCOUNT', key, '-inf', '(' .. text(receipt))
    below = sumbefore(key, first)
    local upto, top = call('ZCOUNT', key, '-inf', text(receipt)), 0
    top = sumbefore(key, upto)
    cost = math.min(cost, top - below)
  end
  local granted, after, fits = take(mode, cost, used, count)
  if never(mode, cost, count) then
    retry = NEVER
  elseif not fits then
    -- The request fits once the grants up to this sum have expired. The oldest that has not expired
    -- is usually enough.
    local enough = sum + (mode == DRAW and math.min(cost, 1) or cost) - count
    local at
    local oldest = call('ZRANGEBYSCORE', key, '(' .. edge, '+inf', 'LIMIT', '0', '1', 'WITHSCORES')
    if fromsum(oldest[1]) >= enough then
      at = tonumber(oldest[2])
    else
      at = findsum(key, enough)
    end
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
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays. It
  -- is kept for long enough, unless the limit has been made slower.
  if after == used and not (needsrepair and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    if used > 0 then
      reset = (needsrepair and now or last) + period - now
    end
    return granted, remaining, retry, reset, 0, keep, false, used > 0 and storedkeep < period
  end
  local at = needsrepair and now or math.max(now, last) -- the time of the entry that will be the newest
  if newest[1] and needsrepair then -- grants after now are merged into one, dated now
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. timetext(now), '+inf')) do
      storedkeep = math.max(storedkeep, fromkeep(member))
    end
    local past = call('ZCOUNT', key, '-inf', timetext(now))
    if past > 0 then
      local before = call('ZRANGE', key, past - 1, past - 1, 'WITHSCORES')
      storedkeep = math.max(storedkeep, before[2] + fromkeep(before[1]) - now)
    end
    last = now
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
    if receipt == last and sum - granted == below then
      local before = call('ZRANGE', key, first - 1, first - 1, 'WITHSCORES')
      at, newkeep = tonumber(before[2]), fromkeep(before[1])
    end
  elseif after > 0 and after < used then
    local member
    at, member = findsum(key, base + after)
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
  local top = base + after -- the sum of the newest entry
  -- Whether slidinglog_save may remove all members before it adds new ones: then the TTL is lost.
  local isemptied = used == 0 or needsrepair or top > MAX or after < used
  local isnew, refunded, mergedkeep = not newest[1], isexact and receipt, needsrepair and storedkeep
  return granted, remaining, retry, reset, 0, keep, isnew, isemptied, at, now, edge, hasold, base, sum, top, newkeep, mergedkeep, refunded
end

-- Writes what slidinglog decided. The arguments are the results of slidinglog from at on.
-- mergedkeep is false unless the state is repaired.
local function slidinglog_save(key, at, now, edge, hasold, base, sum, top, newkeep, mergedkeep, refunded)
  if mergedkeep or top > MAX or top < sum then
    RIGHTS()
  elseif hasold then
    RIGHTS('ZADD')
  end
  if hasold then -- drop expired grants, except those that another limit needs, and the last
    local dropped, floor, high = 0, base, call('ZCOUNT', key, '-inf', edge)
    local mid = high - 1 -- first ask whether the last one is needed; usually it is not
    while dropped < high do
      local entry = call('ZRANGE', key, mid, mid, 'WITHSCORES')
      if entry[2] + fromkeep(entry[1]) <= now then
        dropped, floor = mid + 1, fromsum(entry[1])
      else
        high = mid
      end
      mid = div(dropped + high - fmod(dropped + high, 2), 2)
    end
    if dropped > 1 then
      call('ZREMRANGEBYRANK', key, 0, dropped - 1)
      call('ZADD', key, '-inf', tomember(floor, 0)) -- stays expired even if the period grows
    end
  end
  if mergedkeep and call('ZREMRANGEBYSCORE', key, '(' .. timetext(now), '+inf') > 0 then
    call('ZADD', key, timetext(now), tomember(sum, mergedkeep))
  end
  if top > MAX then -- the sums would become too large: count them from base on
    local grants = call('ZRANGE', key, 0, -1, 'WITHSCORES')
    call('DEL', key)
    for i = 1, #grants, 2 do
      local above = fromsum(grants[i]) - base
      if above > 0 then
        call('ZADD', key, grants[i + 1], tomember(above, fromkeep(grants[i])))
      end
    end
    sum, top = sum - base, top - base
  end
  if top > sum then
    call('ZADD', key, timetext(at), tomember(top, newkeep))
  elseif top < sum and refunded then -- an exact refund: the sums from the grants of that time on become lower
    local first, before = call('ZCOUNT', key, '-inf', '(' .. text(refunded)), 0
    before = sumbefore(key, first)
    local grants = call('ZRANGE', key, first, -1, 'WITHSCORES')
    call('ZREMRANGEBYRANK', key, first, -1)
    for i = 1, #grants, 2 do
      local lower = fromsum(grants[i]) - (sum - top)
      if lower > before then -- some of its units are left
        call('ZADD', key, grants[i + 1], tomember(lower, fromkeep(grants[i])))
        before = lower
      end
    end
  elseif top < sum then
    local _, rank
    _, _, rank = findsum(key, top)
    call('ZREMRANGEBYRANK', key, rank, -1)
    call('ZADD', key, timetext(at), tomember(top, newkeep))
  end
end
