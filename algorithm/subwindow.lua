local function subwindow(count, width, n, _, mode, cost, _, now, _, start, oldn, old, ...)
  local aligned = now - fmod(now, width)
  local passed, used, mended = 0, 0, false
  local next = {} -- the current part first
  if old and start <= now then
    passed = div(now - start, old)
  end
  if not old or passed > oldn then
    start = aligned
  else
    local counts = { ... }
    for i = 1, oldn + 1 - passed do
      local c = counts[i] or 0
      next[passed + i] = c
      used = used + c
    end
    start = start + passed * old
    if old ~= width or oldn ~= n or start - now > MAXSTALL then
      next, start, mended = { used }, aligned, used > 0
    end
  end
  for i = 1, n + 1 do
    next[i] = next[i] or 0
  end

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  local granted, after, fits = take(mode, cost, used, count)
  if never(mode, cost, count) then
    retry = NEVER
  elseif not fits then
    local left = used + (mode == DRAW and math.min(cost, 1) or cost) - count
    local k = n + 1
    left = left - next[k]
    while left > 0 do
      k = k - 1
      left = left - next[k]
    end
    retry = start + (n + 2 - k) * width - now
  end
  if after >= used then
    next[1] = next[1] + granted
  else
    local i, back = 1, used - after
    while back > 0 do
      local taken = math.min(back, next[i])
      next[i] = next[i] - taken
      back = back - taken
      i = i + 1
    end
  end

  remaining = math.max(count - after, 0)
  if after > 0 then
    local newest = 0
    while next[newest + 1] == 0 do
      newest = newest + 1
    end
    reset = start + (n + 1 - newest) * width - now
  end
  if after == used and not (mended and mode ~= PEEK) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, start, n, width, unpack(next)
end
