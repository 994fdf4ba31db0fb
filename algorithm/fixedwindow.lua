local function fixedwindow(count, first, second, align, mode, cost, _, now, _, ending, used)
  local ends, length = 0, first -- the end of the window that holds now, and the length of the next
  if align == 1 then
    ends = now + first
  elseif align == 0 then
    ends = now - fmod(now, first) + first
  else
    length = second - first
    if now < first then
      ends = first
    elseif now < second then
      ends = second
    else
      ends = now - fmod(now - second, length) + length
    end
  end
  local mended = false
  if not ending or ending <= now then
    ending, used = ends, 0
  elseif (ending > ends and ending - length - now > MAXSTALL) or (ending < ends and align ~= 1) then
    ending, mended = ends, true
  end

  local remaining, retry, reset, keep = 0, 0, 0, UNCHANGED
  local granted, after, fits = take(mode, cost, used, count)
  if not fits then
    retry = ending - now
    if never(mode, cost, count) then
      retry = NEVER
    end
  end
  remaining = math.max(count - after, 0)
  if after > 0 then
    reset = ending - now
  end
  if after == used and not (mended and mode ~= PEEK) and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, ending, after
end
