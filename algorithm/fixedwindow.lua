local function fixedwindow(count, first, second, align, mode, cost, _, now, _, ending, used, was)
  local ends, following, length, kind = 0, 0, first, first -- ends and following: the ends of the current window and of the next
  if align == 1 then
    ends = now + first
    following = ends
  elseif align == 0 then
    ends = now - fmod(now, first) + first
    following = ends + first
  else -- align is the third end of a calendar's windows
    kind, length = 3, align - second
    if align - first < 345600000000 then -- two windows are less than 4 days
      kind = 1
    elseif align - first < 1728000000000 then -- less than 20 days
      kind = 2
    end
    if now < first then
      ends, following, length = first, second, second - first
    elseif now < second then
      ends, following = second, align
    elseif now < align then
      ends, following = align, align + length
    else
      ends = now - fmod(now - align, length) + length
      following = ends + length
    end
  end
  local repaired = false
  if not ending or ending <= now then
    ending, used = ends, 0
  end
  local granted, after, fits = take(mode, cost, used, count)
  if ending > following or was ~= kind then
    local latest, windows = ending, math.max(cdiv(math.min(used, after), count), 1) -- so many windows have room for the used units
    if ending > ends and windows - 1 < cdiv(ending - ends, length) then
      latest = ends + (windows - 1) * length
    end
    if was == kind and ending - length - now <= MAXSTALL then
      latest = ending
    elseif was == kind then
      latest = math.max(latest, following)
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
  if after > used and ending < ends and (was ~= kind or align ~= 1) then
    ending = ends
  end
  if after < count then
    remaining = count - after
  end
  if after > 0 then
    reset = ending - now
  end
  if after == used and not (repaired and (mode ~= PEEK or not fits)) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, ending, after, kind
end
