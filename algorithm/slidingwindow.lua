local function slidingwindow(count, period, tick, ticks, mode, cost, _, now, _, start, current, width, previous)
  local mended = false
  if not width or start + 2 * width <= now or (start + width <= now and current == 0) then
    start, current, previous = now - fmod(now, period), 0, 0
  else
    current, previous = math.min(current or 0, div(MAX, ticks)), math.min(previous or 0, div(MAX, ticks))
    if start + width <= now then
      start, current, previous = start + width, 0, current
    end
    if start - now > MAXSTALL then
      start, mended = now, true
    end
    if width ~= period then
      start, mended = now - math.max(math.ceil(math.max(now - start, 0) / width * period) - 2, 0), true
    end
  end
  local weight = ticks - div(math.max(now - start, 0), tick)
  local before = current + previous

  local granted, remaining, retry, reset, keep = 0, 0, 0, 0, UNCHANGED
  if mode == FORCE then
    granted = math.min(cost, div(MAX, ticks) - current)
    current = current + granted
  elseif mode == REFUND then
    granted = math.min(cost, before)
    previous = previous - math.max(granted - current, 0)
    current = math.max(current - granted, 0)
  elseif mode == RESET then
    current, previous = 0, 0
  else
    local fits
    granted, _, fits = take(mode, cost, current + cdiv(previous * weight, ticks), count)
    if never(mode, cost, count) then
      retry = NEVER
    elseif not fits then
      local room = count - (mode == DRAW and math.min(cost, 1) or cost)
      local windows, elapsed
      if room >= current then
        windows, elapsed = 0, ticks - div((room - current) * ticks, previous)
      else
        windows, elapsed = 1, ticks - div(room * ticks, current)
      end
      if elapsed == ticks then
        windows, elapsed = windows + 1, 0
      end
      retry = start + windows * period + elapsed * tick - now
    end
    current = current + granted
  end

  remaining = math.max(count - current - cdiv(previous * weight, ticks), 0)
  if current > 0 then
    reset = start + 2 * period - now
  elseif previous > 0 then
    reset = start + period - now
  end
  if current + previous == before and not (mended and mode ~= PEEK) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, start, current, period, previous
end
