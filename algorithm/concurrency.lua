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
  local skip, expires = 0, nil
  while not expires do
    -- Reads 16 holds per call, because the first few are usually enough.
    local holds = call('ZRANGEBYSCORE', key, '(' .. timetext(now), '+inf', 'LIMIT', skip, 16, 'WITHSCORES')
    if #holds == 0 then -- another program has removed holds, so the sum of the costs is too large
      error('CORRUPT the state of this key is malformed')
    end
    for i = 1, #holds, 2 do
      if holds[i] ~= me and not expires then
        needed = needed - costof(key, holds[i])
        if needed <= 0 then
          expires = tonumber(holds[i + 1])
        end
      end
    end
    skip = skip + 16
  end
  return expires
end

local function concurrency(count, period, _, _, mode, cost, _, now, key, holder, serial)
  local me = 'h' .. holder
  local scores = call('ZMSCORE', key, me, 's')
  local ownexpires, used = tonumber(scores[1] or 0), -tonumber(scores[2] or 0)
  -- first has the hold that expires first: member, score.
  local first, ended = call('ZRANGEBYSCORE', key, '0', '+inf', 'LIMIT', '0', '1', 'WITHSCORES'), false
  local firstexpires = tonumber(first[2] or MAX)
  if firstexpires <= now then
    ended = call('ZRANGEBYSCORE', key, '0', timetext(now))
    for i = 1, #ended do
      used = used - costof(key, ended[i])
    end
    firstexpires = MAX
  end
  -- newest has the hold that expires last: member, score. last is when the last hold of another
  -- holder expires, and at most 0 if there is none.
  local newest = call('ZRANGE', key, '-1', '-1', 'WITHSCORES')
  local last, longest = tonumber(newest[2] or 0), period
  if last - now > period + MAXSTALL then
    longest = math.min(math.max(period, -tonumber(call('ZSCORE', key, 'p') or 0)), MAXPERIOD)
  end
  -- If repaired is true, the clock has stepped back so far that no hold may last beyond bound.
  local repaired = last - now > longest + MAXSTALL
  if newest[1] == me then
    local before = call('ZRANGE', key, '-2', '-2', 'WITHSCORES')
    last = tonumber(before[2] or 0)
  end
  local owncost = 0
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
  local needed = 0 -- how many slots must become free
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
      needed = used + 1 - count
    elseif mode ~= FORCE and wanted > math.max(count - used, owncost) then
      needed = used + wanted - count
    elseif mode ~= PEEK and wanted > 0 then
      granted = math.max(wanted - owncost, 0)
      newexpires, newcost, newserial = now + period, wanted, math.max(ownserial, serial)
    end
  end
  if needed > 0 then
    local expires
    if needed == 1 and firstexpires < MAX and first[1] ~= me then
      expires = firstexpires
    else
      expires = expiry(key, needed, now, me)
    end
    retry = math.min(expires, bound) - now
  end

  if newcost > 0 then
    used = used + newcost
    last = math.max(last, newexpires)
  end
  remaining = math.max(count - used, 0)
  if used > 0 then
    reset = last - now
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays. It
  -- is kept for long enough, because the last hold still expires at the same time.
  local is_same = newexpires == ownexpires and newcost == owncost and newserial == ownserial
  if is_same and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  local isnew, lowered = not newest[1], repaired and bound
  return granted, remaining, retry, reset, 0, keep, isnew, isnew, ended, lowered, me, newexpires, newcost, newserial, owncost, used, period
end

-- Writes what concurrency decided. The arguments are the results of concurrency from ended on.
local function concurrency_save(key, ended, bound, me, expires, cost, serial, owncost, used, period)
  if ended or bound or cost < owncost then
    RIGHTS()
  end
  for i = 1, ended and #ended or 0 do
    local holder = ended[i]:sub(2)
    call('ZREM', key, ended[i], 'c' .. holder, 'n' .. holder)
  end
  if bound then -- no hold may last beyond it
    for _, member in ipairs(call('ZRANGEBYSCORE', key, '(' .. timetext(bound), '+inf')) do
      call('ZADD', key, timetext(bound), member)
    end
  end
  call('ZADD', key, 'LT', text(-period), 'p')
  local holder = me:sub(2)
  if cost == 0 then
    call('ZREM', key, me, 'c' .. holder, 'n' .. holder)
    call('ZADD', key, text(-used), 's')
    return
  end
  call('ZADD', key, timetext(expires), me, text(-used), 's')
  if cost > 1 then
    call('ZADD', key, text(-cost), 'c' .. holder)
  elseif owncost > 1 then
    call('ZREM', key, 'c' .. holder)
  end
  if serial > 0 then
    call('ZADD', key, text(-serial), 'n' .. holder)
  end
end
