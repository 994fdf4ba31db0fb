-- Members of the set and their scores:
--   'h' and the holder: the time at which the hold expires
--   'c' and the holder: minus the cost of the hold; absent if it is 1
--   'n' and the holder: minus the serial of the hold; absent if it is 0
--   's': minus the sum of all costs
--   'p': minus the longest period
-- Only holds have positive scores.
local function costof(key, member)
  return -tonumber(call('ZSCORE', key, 'c' .. member:sub(2)) or -1)
end

-- Returns the time by which expired holds have freed at least needed slots. The caller's own hold,
-- which is member me, does not count.
local function expiry(key, needed, now, me)
  local skip = 0
  while true do
    -- Reads 16 holds per call, because the first few are usually enough.
    local holds = call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', skip, 16)
    if #holds == 0 then -- another program has removed holds, so the sum of the costs is too large
      error('CORRUPT the state of this key is malformed')
    end
    for i = 1, #holds, 2 do
      if holds[i] ~= me then
        needed = needed - costof(key, holds[i])
        if needed <= 0 then
          return tonumber(holds[i + 1])
        end
      end
    end
    skip = skip + 16
  end
end

local function concurrency(count, period, _, _, mode, cost, _, now, key, holder, serial)
  local me = 'h' .. holder
  local used = -tonumber(call('ZSCORE', key, 's') or 0)
  local ended = call('ZRANGEBYSCORE', key, 0, text(now))
  for i = 1, #ended do
    used = used - costof(key, ended[i])
  end
  -- newest has the two members with the highest scores: member, score, member, score. The holds
  -- that expire last have the highest scores. A set with a hold has 's' too, so newest has two
  -- members. latest is when the last hold expires. last is when the last hold of another holder
  -- expires, and at most 0 if there is none.
  local newest = call('ZRANGE', key, -2, -1, 'WITHSCORES')
  local latest = tonumber(newest[4] or newest[2] or 0)
  local longest = period
  if latest - now > period + MAXSTALL then
    longest = math.min(math.max(period, -tonumber(call('ZSCORE', key, 'p') or 0)), MAXPERIOD)
  end
  -- If repaired is true, the clock has stepped back so far that no hold may last beyond bound.
  local repaired = latest - now > longest + MAXSTALL
  local last = latest
  if newest[3] == me then
    last = tonumber(newest[2])
  elseif not newest[3] then
    last = 0
  end
  local ownexpires, owncost = tonumber(call('ZSCORE', key, me) or 0), 0
  if ownexpires > now then
    owncost = costof(key, me)
    used = used - owncost
  else
    ownexpires = 0
  end
  local ownserial = 0 -- read only if the request has a serial
  if serial > 0 and owncost > 0 then
    ownserial = -tonumber(call('ZSCORE', key, 'n' .. holder) or 0)
  end
  local bound = repaired and now + longest or MAX
  last, ownexpires = math.min(last, bound), math.min(ownexpires, bound)

  local granted, remaining, retry, reset, keep = 0, 0, 0, 0, UNCHANGED
  -- of the caller's hold after this request
  local newexpires, newcost, newserial = ownexpires, owncost, ownserial
  if mode == REFUND then
    if serial >= ownserial then
      granted = math.min(cost, owncost)
      newcost = owncost - granted
    end
  elseif mode == RESET then
    used, last, newexpires, newcost, repaired = 0, 0, 0, 0, false
  else
    local wanted = cost
    if mode == DRAW then
      wanted = math.min(cost, math.max(count - used, owncost))
    elseif mode == FORCE then
      wanted = math.min(cost, math.max(MAX / 2 - used, 0))
    end
    if cost == 0 then -- spends nothing
    elseif cost > count and mode ~= DRAW and mode ~= FORCE then
      retry = NEVER
    elseif wanted == 0 and mode == DRAW then
      retry = math.min(expiry(key, used + 1 - count, now, me), bound) - now
    elseif mode ~= FORCE and wanted > math.max(count - used, owncost) then
      retry = math.min(expiry(key, used + wanted - count, now, me), bound) - now
    elseif mode ~= PEEK and wanted > 0 then
      granted = math.max(wanted - owncost, 0)
      newexpires, newcost, newserial = now + period, wanted, math.max(ownserial, serial)
    end
  end

  if newcost > 0 then
    used = used + newcost
    last = math.max(last, newexpires)
  end
  remaining = math.max(count - used, 0)
  if used > 0 then
    reset = last - now
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  local is_same = newexpires == ownexpires and newcost == owncost and newserial == ownserial
  if is_same and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, ended, repaired, bound, me, newexpires, newcost, newserial, used, period
end

-- Writes what concurrency decided. The arguments are the results of concurrency from keep on.
local function concurrency_save(key, keep, ended, repaired, bound, me, expires, cost, serial, used, period)
  if keep == 0 then
    call('DEL', key)
    return
  end
  for i = 1, #ended do
    local holder = ended[i]:sub(2)
    call('ZREM', key, ended[i], 'c' .. holder, 'n' .. holder)
  end
  if repaired then
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. text(bound), '+inf')) do
      call('ZADD', key, text(bound), member)
    end
  end
  local holder = me:sub(2)
  if cost == 0 then
    call('ZREM', key, me, 'c' .. holder, 'n' .. holder)
  else
    call('ZADD', key, text(expires), me)
    if cost > 1 then
      call('ZADD', key, -cost, 'c' .. holder)
    else
      call('ZREM', key, 'c' .. holder)
    end
    if serial > 0 then
      call('ZADD', key, -serial, 'n' .. holder)
    end
  end
  call('ZADD', key, 'LT', -period, 'p')
  call('ZADD', key, -used, 's')
end
