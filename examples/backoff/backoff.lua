local function backoff(first, longest, _, _, mode, cost, _, now, _, ends, pause)
  ends, pause = ends or 0, math.min(pause or 0, longest)
  if ends + pause <= now then
    ends, pause = now, 0
  end
  local was_repaired = ends - now > pause + MAXSTALL
  if was_repaired then
    ends = now + pause
  end

  local granted, remaining, retry, reset, keep = 0, 0, 0, 0, UNCHANGED
  if mode == SPEND or mode == PEEK or mode == DRAW then
    if cost > 1 and mode ~= DRAW then
      retry = NEVER
    elseif cost > 0 and ends > now then
      retry = ends - now
    elseif cost > 0 and mode ~= PEEK then
      granted = 1
    end
  elseif mode == FORCE then
    granted = cost
  elseif mode == RESET then
    ends, pause = now, 0
  end
  if granted > 0 then
    pause = math.min(math.max(2 * pause, first), longest)
    ends = math.max(ends, now + pause)
  end

  if ends <= now then
    remaining = 1
  end
  if pause > 0 then
    reset = ends + pause - now
  end
  local saves_repair = was_repaired and (mode ~= PEEK or retry ~= 0)
  if granted == 0 and not saves_repair and mode ~= RESET then
    return granted, remaining, retry, reset, 0, keep
  end
  keep = reset
  return granted, remaining, retry, reset, 0, keep, ends, pause
end
