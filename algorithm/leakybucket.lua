local function leakybucket(rate, unit, places, _, mode, cost, patience, now, who, level, at, old, tail, taken, debt)
  local capacity = places * unit
  tail, taken = tail or 0, taken or 0
  local ahead, mended
  level, at, ahead, mended = drain(rate, unit, places, now, level, at, old, debt)
  local room = capacity - level
  local before = level

  local granted, remaining, retry, reset, wait, keep = 0, 0, 0, 0, 0, UNCHANGED
  if mode == SPEND or mode == PEEK or mode == DRAW then
    local need = mode == DRAW and math.min(cost, 1) or cost
    if need > places then
      retry = NEVER
    elseif need > 0 then
      if level > 0 then
        wait = cdiv(level, rate) + ahead
      end
      if need * unit > room then
        retry = cdiv(need * unit - room, rate) + ahead
      end
      retry = math.max(retry, wait - patience)
      if retry > 0 then
        wait = 0
      elseif mode ~= PEEK then
        granted = math.min(cost, div(room, unit))
        level = level + granted * unit
        tail, taken = who, granted
      end
    end
  elseif mode == FORCE then
    granted = cost
    level = math.min(level + cost * unit, MAX)
    if cost > 0 then
      tail, taken = who, cost
    end
  elseif mode == REFUND then
    if who ~= 0 and who == tail then
      granted = math.min(cost, taken, cdiv(level, unit))
      level = math.max(level - granted * unit, 0)
      taken = taken - granted
    end
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
  return granted, remaining, retry, reset, wait, keep, math.min(level, capacity), at, unit, tail, taken, math.max(level - capacity, 0)
end
