local function slidingwindow(count, period, tick, ticks, mode, cost, _, now, _, receipt, start, current, width, previous, owner)
  local repaired = false
  if not width or start + 2 * width <= now or (start + width <= now and current == 0) then
    start, current, width, previous = now - fmod(now, period), 0, period, 0
  else
    current, previous = current or 0, previous or 0
    if start + width <= now then
      start, current, previous = start + width, 0, current
    end
    if start - now > MAXSTALL then
      start, repaired = now, true
    end
  end

  local granted, remaining, retry, reset, keep = 0, 0, 0, 0, UNCHANGED
  if mode == REFUND then
    local fromcurrent, fromprevious = current, previous -- the most units to return from each window
    if receipt ~= 0 and receipt ~= start then
      fromcurrent = 0
    end
    if receipt ~= 0 and receipt ~= start - width then
      fromprevious = 0
    end
    granted = math.min(cost, fromcurrent + fromprevious)
    previous = previous - math.max(granted - fromcurrent, 0)
    current = current - math.min(granted, fromcurrent)
  elseif mode == RESET then
    current, previous = 0, 0
  end
  -- The windows have another limit's width, and another limit has decided last.
  if width ~= period and owner ~= period then
    repaired = true
    local oldtick = cdiv(width, div(MAX, math.max(count, previous))) -- of the present windows, in µs
    local oldticks = cdiv(width, oldtick)
    local oldfading = cdiv(previous * (oldticks - div(math.max(now - start, 0), oldtick)), oldticks)
    local used = math.min(current + oldfading, MAX / 2)
    local faded = start + width -- when the used units have faded
    if current > 0 then
      faded = faded + width
    end
    local windows = math.max(cdiv(used, count), 1) -- how many windows have room for the used units
    if windows <= div(MAXPERIOD, period) and now + 2 * windows * period < faded then
      start, current, width, previous = now, used, windows * period, 0
    end
  end
  -- The limit's own ticks are for its own width, and for at most count units.
  if width ~= period or previous > count then
    tick = cdiv(width, div(MAX, math.max(count, previous)))
    ticks = cdiv(width, tick)
  end
  -- fading is how many units of the previous window still count.
  local fading = previous
  if previous > 0 and now > start then
    fading = cdiv(previous * (ticks - div(now - start, tick)), ticks)
  end
  if mode == FORCE then
    granted = math.min(cost, MAX / 2 - current)
    current = current + granted
  elseif mode < FORCE or mode == ATTEMPT then -- Spend, Draw, Peek or Attempt
    local fits
    granted, _, fits = take(mode, cost, current + fading, count)
    if never(mode, cost, count) then
      retry = NEVER
    elseif not fits then
      -- The request fits once at most maystay units of the fading window count. The previous window
      -- fades from start on. If the current units alone leave no room, the current window must
      -- fade, from its end on. units is how many units the fading window has. elapsed is how long
      -- it must fade, in ticks.
      local maystay, windows, units = count - (mode == DRAW and math.min(cost, 1) or cost) - current, 0, previous
      if maystay < 0 then
        maystay, windows, units = maystay + current, 1, current
        if width ~= period or units > count then
          tick = cdiv(width, div(MAX, math.max(count, units)))
        else
          tick = math.max(cdiv(period, div(MAX / 2, count)), 1)
        end
        ticks = cdiv(width, tick)
      end
      local elapsed = ticks - div(maystay * ticks, units)
      if elapsed == ticks then
        windows, elapsed = windows + 1, 0
      end
      retry = start + windows * width + elapsed * tick - now
    end
    if granted > 0 and width ~= period and mode ~= ATTEMPT then
      start, current, width, previous, fading = now, current + fading, period, 0, 0
    end
    current = current + granted
  end

  if current + fading < count then
    remaining = count - current - fading
  end
  if current > 0 then
    reset = start + 2 * width - now
  elseif previous > 0 then
    reset = start + width - now
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if granted == 0 and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, start, current, width, previous, width ~= period and period or 0
end
