local function leakybucket(rate, parts, places, _, mode, cost, patience, now, holderid, level, at, oldrate, tail, taken)
  if level and level > MAX and mode ~= RESET then -- not written by this store
    return 0, 0, IMPOSSIBLE, 0, 0, UNCHANGED
  end
  local capacity = places * parts
  tail, taken = tail or 0, taken or 0
  if oldrate and oldrate ~= rate then
    level = convert(level, oldrate, rate)
    taken = convert(taken, oldrate, rate)
    taken = math.max(taken - 3, 0) -- convert rounded it up by less than 3
  end
  local ahead, repaired
  level, at, ahead, repaired = drain(rate, now, level, at)
  local room = capacity - level
  local before = level

  local granted, remaining, retry, reset, wait, keep = 0, 0, 0, 0, 0, UNCHANGED
  if mode == SPEND or mode == PEEK or mode == DRAW then
    local least = mode == DRAW and math.min(cost, 1) or cost
    if least > places then
      retry = NEVER
    elseif least > 0 then
      if level > 0 then
        wait = cdiv(level, rate) + ahead
      end
      if least * parts > room then
        retry = cdiv(least * parts - room, rate) + ahead
      end
      retry = math.max(retry, wait - patience)
      if retry > 0 then
        wait = 0
      elseif mode ~= PEEK then
        granted = math.min(cost, div(room, parts))
        level = level + granted * parts
        tail, taken = holderid, granted * parts
      end
    end
  elseif mode == FORCE then
    granted = math.min(cost, div(MAX - level, parts))
    level = level + granted * parts
    if granted > 0 then
      tail, taken = holderid, granted * parts
    end
  elseif mode == REFUND then
    if holderid ~= 0 and holderid == tail then
      granted = math.min(cost, div(taken, parts), cdiv(level, parts))
      level = math.max(level - granted * parts, 0)
      taken = taken - granted * parts
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
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if level == before and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, wait, keep
  end
  keep = reset
  return granted, remaining, retry, reset, wait, keep, level, at, rate, tail, taken
end
