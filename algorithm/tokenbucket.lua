local function tokenbucket(rate, parts, burst, _, mode, cost, patience, now, _, receipt, level, at, oldparts, since, low, older)
  if level and level > MAX and mode ~= RESET then -- not written by this store
    return 0, 0, IMPOSSIBLE, 0, 0, UNCHANGED
  end
  local capacity = burst * parts
  if oldparts and oldparts ~= parts then
    level = convert(level, oldparts, parts)
  end
  local ahead, repaired
  level, at, ahead, repaired = drain(rate, now, level, at)
  local room = capacity - level
  local before = level
  if low then -- there are marks (see marks.go); older has those before the newest, 14 bytes each
    if oldparts ~= parts then
      local converted, i = '', 1
      while older and i < #older do
        local time, lowest = sunpack('<I7I7', older, i)
        lowest = convert(lowest, oldparts, parts)
        converted = converted .. spack('<I7I7', time, math.max(lowest - 3, 0))
        i = i + 14
      end
      low = convert(low, oldparts, parts)
      low, older = math.max(low - 3, 0), converted
    end
    low = math.min(low, level)
    if repaired then
      low = 0
    end
    older = older or ''
  end

  local granted, remaining, retry, reset, wait, keep = 0, 0, 0, 0, 0, UNCHANGED
  if mode == SPEND or mode == PEEK then
    if cost > burst then
      retry = NEVER
    elseif cost > 0 then
      local short = cost * parts - room
      if short > 0 then
        wait = cdiv(short, rate) + ahead
      end
      if wait > patience then
        retry, wait = wait - patience, 0
      elseif mode == SPEND then
        granted = cost
        level = level + cost * parts
      end
    end
  elseif mode == DRAW then
    if room >= parts then
      granted = math.min(cost, div(room, parts))
      level = level + granted * parts
    elseif cost > 0 then
      retry = cdiv(parts - room, rate) + ahead
    end
  elseif mode == FORCE then
    granted = math.min(cost, div(MAX - level, parts))
    level = level + granted * parts
  elseif mode == REFUND then
    local returned = level -- the most parts to return
    if receipt ~= 0 then
      returned = 0
      if low and since <= receipt then
        returned = low
      elseif low then
        local i = #older - 13
        while i > 0 and returned == 0 do
          local time, lowest = sunpack('<I7I7', older, i)
          if time <= receipt then
            returned = math.min(lowest, low)
            i = 0
          end
          i = i - 14
        end
      end
    end
    local lowest = returned
    returned = math.min(cost * parts, returned)
    granted = div(returned, parts) -- whole tokens
    level = level - returned
    if receipt ~= 0 and returned > 0 then
      local kept, last, i = '', 0, 1
      while i < #older do
        local time, left = sunpack('<I7I7', older, i)
        left = math.min(left, low)
        left = math.min(left, math.max(left, lowest) - returned)
        if left > last then
          kept, last = kept .. spack('<I7I7', time, left), left
        end
        i = i + 14
      end
      low, older = low - returned, kept
      if low == last and last > 0 then
        since, older = sunpack('<I7', older, #older - 13), older:sub(1, -15)
      end
    end
  elseif mode == ATTEMPT then
    if cost <= burst then
      granted = math.min(cost, div(math.max(2 * capacity - level, 0), parts))
      level = level + granted * parts
    end
  else
    level = 0
  end

  if level < capacity then
    remaining = div(capacity - level, parts)
  end
  if level > 0 then
    reset = cdiv(level, rate) + ahead
  end
  if low then
    low = math.min(low, level)
  end
  if receipt < 0 and granted > 0 then -- add a mark
    if not low or low == 0 then
      since, low, older = at, level, ''
    else
      local newest = true
      while newest and #older > 0 do
        local time, lowest = sunpack('<I7I7', older, #older - 13)
        newest = lowest >= low
        if newest then
          since, older = time, older:sub(1, -15)
        end
      end
      if since == at then
        low = level
      else
        older = older .. spack('<I7I7', since, low)
        since, low = at, level
      end
      if #older >= 14 * MAXMARKS then
        local dropped, least, last, i = 1, MAX, 0, 1
        while i < #older do
          local lowest = sunpack('<I7', older, i + 7)
          if lowest - last < least then
            dropped, least = i, lowest - last
          end
          last, i = lowest, i + 14
        end
        if level - last < least then -- the new mark
          since, low = sunpack('<I7I7', older, #older - 13)
          older = older:sub(1, -15)
        else
          older = older:sub(1, dropped - 1) .. older:sub(dropped + 14)
        end
      end
    end
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if level == before and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, wait, keep
  end
  keep = reset
  if not low or low == 0 then
    return granted, remaining, retry, reset, wait, keep, level, at, parts
  end
  return granted, remaining, retry, reset, wait, keep, level, at, parts, since, low, older ~= '' and older or nil
end
