local function tokenbucket(rate, parts, burst, _, mode, cost, patience, now, _, level, at, oldparts)
  local capacity = burst * parts
  if oldparts and oldparts ~= parts then
    level = convert(level, oldparts, parts)
  end
  local ahead, repaired
  level, at, ahead, repaired = drain(rate, now, level, at)
  local room = capacity - level
  local before = level

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
    granted = math.min(cost, div(level, parts))
    level = math.max(level - cost * parts, 0)
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
  return granted, remaining, retry, reset, wait, keep, level, at, parts
end
