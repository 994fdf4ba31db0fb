-- Returns the time at which the newest part in use stops counting. Then nothing is used.
local function emptyat(start, n, width, parts)
  local newest = 0
  while newest < n and parts[newest + 1] == 0 do
    newest = newest + 1
  end
  return start + (n + 1 - newest) * width
end

-- oldn and oldwidth are the number and the width of the stored parts. The arguments after owner are
-- the units used in each part, the current part first.
local function subwindow(count, width, n, _, mode, cost, _, now, _, receipt, start, oldn, oldwidth, owner, ...)
  local passed, used, repaired = 0, 0, false
  local next = {} -- the current part first
  if oldwidth and oldn > MAXPARTS then -- not written by this store; loops over the parts would block the server
    if mode ~= RESET then
      return 0, 0, IMPOSSIBLE, 0, 0, UNCHANGED
    end
    oldwidth = nil
  end
  if oldwidth and start <= now then
    passed = div(now - start, oldwidth)
  end
  if not oldwidth or passed > oldn then
    start, oldn, oldwidth = now - fmod(now, width), n, width
  else
    local counts = { ... }
    for i = 1, oldn + 1 - passed do
      local c = counts[i] or 0
      next[passed + i] = c
      used = used + c
    end
    start = start + passed * oldwidth
    if start - now > MAXSTALL then
      next, start, repaired = { used }, now - fmod(now, oldwidth), used > 0
    end
  end
  for i = 1, oldn + 1 do
    next[i] = next[i] or 0
  end
  local part = 1 -- the newest part from which a refund returns units
  if mode == REFUND and receipt ~= 0 then
    part = oldn + 1
    while part > 0 and start - (part - 1) * oldwidth ~= receipt do
      part = part - 1
    end
    cost = math.min(cost, next[part] or 0)
  end
  local granted, after, fits = take(mode, cost, used, count)
  local returned = used - after
  while returned > 0 do
    local taken = math.min(returned, next[part])
    next[part] = next[part] - taken
    returned = returned - taken
    part = part + 1
  end
  local own = oldwidth == width and oldn == n -- the parts are those of this limit
  if not own and owner ~= width * n then
    local k = math.max(cdiv(math.min(used, after), count), 1) -- k parts have room for the used units
    local wide = k * width
    if k <= div(MAXPERIOD, width) and now - fmod(now, wide) + (n + 1) * wide < emptyat(start, oldn, oldwidth, next) then
      next, start, oldn, oldwidth = { math.min(used, after) }, now - fmod(now, wide), n, wide
    end
    own, repaired = oldwidth == width and oldn == n, true
  end
  -- A grant moves the used units into a part of this limit.
  if after > used and not own and mode ~= FORCE and mode ~= ATTEMPT then
    next, start, oldn, oldwidth, own = { used }, now - fmod(now, width), n, width, true
  end
  for i = 1, oldn + 1 do
    next[i] = next[i] or 0
  end
  if after > used then
    next[1] = next[1] + granted
  end

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  if never(mode, cost, count) then
    retry = NEVER
  elseif not fits then
    -- missing is how many units must become free, from the oldest part on. k is the newest part
    -- that must expire.
    local missing = used + (mode == DRAW and math.min(cost, 1) or cost) - count
    local k = oldn + 1
    missing = missing - next[k]
    while missing > 0 do
      k = k - 1
      missing = missing - next[k]
    end
    retry = start + (oldn + 2 - k) * oldwidth - now
  end
  remaining = math.max(count - after, 0)
  if after > 0 then
    reset = emptyat(start, oldn, oldwidth, next) - now
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if after == used and not (repaired and (mode ~= PEEK or retry ~= 0)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, start, oldn, oldwidth, own and 0 or width * n, unpack(next, 1, oldn + 1)
end
