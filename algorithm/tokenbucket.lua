local function tokenbucket(rate, unit, burst, _, mode, cost, patience, now, _, level, at, old, debt)
  local capacity = burst * unit
  local ahead, mended
  level, at, ahead, mended = drain(rate, unit, burst, now, level, at, old, debt)
  local room = capacity - level
  local before = level

  local granted, remaining, retry, reset, wait, keep = 0, 0, 0, 0, 0, UNCHANGED
  if mode == SPEND or mode == PEEK then
    if cost > burst then
      retry = NEVER
    elseif cost > 0 then
      local short = cost * unit - room
      if short > 0 then
        wait = cdiv(short, rate) + ahead
      end
      if wait > patience then
        retry, wait = wait - patience, 0
      elseif mode == SPEND then
        granted = cost
        level = level + cost * unit
      end
    end
  elseif mode == DRAW then
    if room >= unit then
      granted = math.min(cost, div(room, unit))
      level = level + granted * unit
    elseif cost > 0 then
      retry = cdiv(unit - room, rate) + ahead
    end
  elseif mode == FORCE then
    granted = cost
    level = math.min(level + cost * unit, MAX)
  elseif mode == REFUND then
    granted = math.min(cost, div(level, unit))
    level = math.max(level - cost * unit, 0)
  else
    level = 0
  end

  if level < capacity then
    remaining = div(capacity - level, unit)
  end
  if level > 0 then
    reset = cdiv(level, rate) + ahead
  end
  if level == before and not (mended and mode ~= PEEK) and mode ~= RESET then
    return granted, remaining, retry, reset, wait, keep
  end
  keep = reset
  if level > capacity then
    return granted, remaining, retry, reset, wait, keep, capacity, at, unit, level - capacity
  end
  return granted, remaining, retry, reset, wait, keep, level, at, unit, 0
end
