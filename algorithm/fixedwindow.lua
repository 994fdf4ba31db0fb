local function fixedwindow(count, first, second, align, mode, cost, _, now, _, receipt, ending, used, oldkind)
  -- The end of the current window, the end and the length of the next, and the kind of window.
  local currentend, nextend, length, kind = 0, 0, first, first
  if align == 1 then -- windows begin at a key's first spend
    currentend = now + first
    nextend = currentend
  elseif align == 0 then -- windows are aligned to the Unix epoch
    currentend = now - fmod(now, first) + first
    nextend = currentend + first
  else -- align is the third end of a calendar's windows
    kind, length = 3, align - second -- a month
    if align - first < 345600000000 then -- two windows last less than 4 days, so each is a day
      kind = 1
    elseif align - first < 1728000000000 then -- less than 20 days, so each is a week
      kind = 2
    end
    if now < first then
      currentend, nextend, length = first, second, second - first
    elseif now < second then
      currentend, nextend = second, align
    elseif now < align then
      currentend, nextend = align, align + length
    else
      currentend = now - fmod(now - align, length) + length
      nextend = currentend + length
    end
  end
  local repaired = false
  if not ending or ending <= now then
    ending, used = currentend, 0
  end
  if receipt ~= 0 and mode == REFUND and receipt ~= ending then -- the window of these units has ended
    cost = 0
  end
  local granted, after, fits = take(mode, cost, used, count)
  -- The window is of another limit, or the clock has stepped back: bound the window's end.
  if ending > nextend or oldkind ~= kind then
    local latest = ending
    local windows = math.max(cdiv(math.min(used, after), count), 1) -- how many windows of this limit have room for the used units
    -- The used units count no longer than these windows last.
    if ending > currentend and windows - 1 < cdiv(ending - currentend, length) then
      latest = currentend + (windows - 1) * length
    end
    if oldkind == kind and ending - length - now <= MAXSTALL then -- a small step back changes nothing
      latest = ending
    elseif oldkind == kind then
      latest = math.max(latest, nextend)
    end
    if ending > latest then
      ending, repaired = latest, true
    end
  end

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  if not fits then
    retry = ending - now
    if never(mode, cost, count) then
      retry = NEVER
    end
  end
  -- A grant makes the window one of this limit.
  if after > used and ending < currentend and (oldkind ~= kind or align ~= 1) then
    ending = currentend
  end
  if after < count then
    remaining = count - after
  end
  if after > 0 then
    reset = ending - now
  end
  -- A repair is saved, except by a granted Peek. If nothing has changed, the stored state stays.
  if after == used and not (repaired and (mode ~= PEEK or not fits)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, ending, after, kind
end
