
-- Decides as the algorithm does, with the parameters of a share. extra is added to the capacity.
local function name_across_own(share, extra, p1, p2, p3, p4, ...)
  local units = math.max(div(div(CAPACITY, 16) * share, WHOLE), 1) + extra
  if CAPACITYAT == 1 then
    p1 = units
  else
    p3 = units
  end
  if REFILLS then
    p1 = p1 * share
  end
  return name_here(p1, p2, p3, p4, ...)
end

-- The twin of apply in share.go. It returns the state and the share for which it is right.
local function name_across_apply(state, applied, share, raised, now, p1, p2, p3, p4)
  if share == applied or not REFILLS then
    return state, share
  end
  local whole, result = div(CAPACITY, 16), nil
  local change = math.max(div(whole * share, WHOLE), 1) - math.max(div(whole * applied, WHOLE), 1)
  if share < applied then
    result = { name_across_own(share, 0, p1, p2, p3, p4, REFUND, -change, 0, now, 0, 0, unpack(state)) }
  elseif change > 0 then
    result = { name_across_own(applied, 0, p1, p2, p3, p4, FORCE, change, 0, raised, 0, 0, unpack(state)) }
  else
    return state, applied -- it counts with the next change
  end
  if result[6] ~= UNCHANGED then
    state = result[6] > 0 and { unpack(result, 7) } or {}
  end
  return state, share
end

-- The twin of share and raisedAt in share.go. The loans are the numbers from first on. The second
-- result is how much of the share has come back.
local function name_across_share(base, now, offertime, numbers, first)
  local share, back, raised, hasended = base, 0, 0, false
  for i = first, #numbers, 5 do
    local till, ending, amounts = numbers[i], numbers[i + 1], numbers[i + 2]
    local lent, borrowed = div(amounts, 1024) % 1024, div(amounts, 1048576)
    if now < till then
      share = share - lent
    elseif lent > 0 then
      back, raised, hasended = back + lent, math.max(raised, till), true
    end
    if now < ending and ending - now <= offertime then
      share = share + borrowed
    elseif borrowed > 0 then
      hasended = true
    end
  end
  return math.max(share, 1), back, raised > 0 and raised or now, hasended
end

-- Decides as the algorithm does, with the share that a region has of the limit: see share.go. The
-- numbers of the algorithm follow applied. The loans are at the end, each with until, ends, the
-- amounts (offered + 2^10 lent + 2^20 borrowed), the versions (version + 2^20 taken) and the
-- region.
local function name_across(p1, p2, p3, p4, mode, cost, patience, now, holder, receipt, start, asked, rows, before, offertime, applied, ...)
  local numbers = { ... }
  local whole, base = div(CAPACITY, 16), div(WHOLE, CAPACITY % 16)
  start, asked, rows, before = start or 0, asked or 0, rows or 0, before or 0
  offertime, applied = offertime or DEFAULTOFFERTIME, applied or base
  local own = #numbers - 5 * rows -- how many are of the algorithm
  local isodd = HASMARKS and own > 0 and own % 2 == 0 or offertime < MINOFFERTIME or offertime > MAXOFFERTIME
  if isodd or rows > MAXLOANS or own < 0 or applied == 0 or applied > 16 * WHOLE then -- not written by this store
    if mode ~= RESET then
      return 0, 0, IMPOSSIBLE, 0, 0, UNCHANGED
    end
    start, asked, rows, before, offertime, applied, numbers, own = 0, 0, 0, 0, DEFAULTOFFERTIME, base, {}, 0
  end
  local state = { unpack(numbers, 1, own) }
  if HASMARKS and own > 5 then -- the older marks of a token bucket, as they are stored
    state = { numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], spack('<' .. string.rep('I7', own - 5), unpack(numbers, 6, own)) }
  end
  local over = 0 -- when the last loan ends
  for i = own + 1, #numbers, 5 do
    over = math.max(over, numbers[i], numbers[i + 1])
  end
  local period = div(offertime, DEMANDPART) -- for how long demand is counted
  if now >= over and now - start >= 2 * period then -- nothing of the demand counts any more
    start, asked, before, offertime = 0, 0, 0, DEFAULTOFFERTIME
    period = div(offertime, DEMANDPART)
  end
  local length = p2 * p3 -- of a sub-window
  if WINDOWED then
    length = p4 == 0 and p2 or p4 - p3
  end
  local memory = 0 -- the twin of countsFor
  if not REFILLS then
    memory = WINDOWED and (p4 == 0 and length or div(length * 5, 4)) or p2 * (p3 + 1)
  end
  local share, back, raised, hasended = name_across_share(base, now, offertime, numbers, own + 1)
  if hasended then -- what was borrowed may have ended first, so the bucket refills until now at the lower rate
    if math.max(share - back, 1) < applied then
      state, applied = name_across_apply(state, applied, math.max(share - back, 1), now, now, p1, p2, p3, p4)
    end
    for i = own + 1, #numbers, 5 do
      local till, ending, amounts = numbers[i], numbers[i + 1], numbers[i + 2]
      if till <= now then
        amounts = amounts - amounts % 1048576
      end
      if now >= ending or ending - now > offertime then
        amounts = amounts % 1048576
      end
      numbers[i + 2] = amounts
    end
    state, applied = name_across_apply(state, applied, share, raised, now, p1, p2, p3, p4)
  end
  state, applied = name_across_apply(state, applied, share, now, now, p1, p2, p3, p4) -- if the number of regions has changed

  local result
  if mode >= REPORT then
    result = { name_across_own(applied, mode == REPORT and not REFILLS and 1 or 0, p1, p2, p3, p4, PEEK, 0, 0, now, 0, 0, unpack(state)) }
  else
    result = { name_across_own(applied, 0, p1, p2, p3, p4, mode, cost, 0, now, holder, receipt, unpack(state)) }
  end
  if result[3] == IMPOSSIBLE then
    return unpack(result, 1, 6)
  end
  local least, asking, changed = mode == DRAW and math.min(cost, 1) or cost, 0, result[6] ~= UNCHANGED
  if result[3] == NEVER and least <= whole then
    result[3] = offertime -- a larger share may suffice
  end
  if mode == FORCE then
    asking = result[1]
  elseif (mode == SPEND or mode == DRAW) and least <= whole then
    asking = math.min(cost, whole)
  end
  local passed, need = now - start, math.max(asked, before)
  if asking > 0 then
    if passed < 0 or passed >= 2 * period then
      start, before, asked = now, 0, 0
    elseif passed >= period then
      start, before, asked = start + period, asked, 0
    end
    asked, changed = math.min(asked + asking, MAX), true
  end

  if mode >= REPORT then
    if passed >= 2 * period then
      need = 0
    elseif passed >= period then
      need = asked
    end
    local units = whole
    if REFILLS then -- the parts of a token, and the parts that are refilled in a µs
      length, units = p2, p1 * WHOLE
    end
    need = math.min(math.ceil((need * 1.1 + 2 * math.sqrt(need)) * WHOLE / (units * period / length)), WHOLE)
    if mode ~= REPORT then -- loans that have ended are removed
      local kept = { unpack(numbers, 1, own) }
      for i = own + 1, #numbers, 5 do
        if now < numbers[i] or now < numbers[i + 1] + offertime then
          for j = i, i + 4 do
            kept[#kept + 1] = numbers[j]
          end
        end
      end
      numbers = kept
    end
    local at = own + 1
    while at < #numbers and numbers[at + 4] ~= holder do
      at = at + 5
    end
    local isnew, isloan = at > #numbers, false
    local till, ending, amounts, versions = numbers[at] or 0, numbers[at + 1] or 0, numbers[at + 2] or 0, numbers[at + 3] or 0
    local offered, lent, borrowed = amounts % 1024, div(amounts, 1024) % 1024, div(amounts, 1048576)
    local version, taken = versions % 1048576, div(versions, 1048576)
    local istaken = now < ending and ending - now <= offertime
    if mode == REPORT then
      local left, fits = till - memory - now, REFILLS or result[2] > 0
      result[1], result[2], result[4] = 0, 0, 0
      if start > 0 or now < over then
        result[2] = need + 1024 * share
      end
      if left > 0 then
        result[1], result[4] = offered + 1024 * version, left
      end
      if fits and istaken then
        result[1] = result[1] + 1073741824 * taken
      end
    elseif mode == MERGE then
      local offer, theirs = cost % 1024, div(cost, 1024) % 1048576
      local islate = taken > 0 and theirs ~= taken and (taken - theirs + 1048576) % 1048576 < 524288
      changed = not (isnew and (offer == 0 or #numbers == own + 5 * MAXLOANS)) and not islate
      isloan = changed
      if changed then
        result[1] = offer + (theirs ~= taken and 1 or 0)
        borrowed, ending, taken = offer, istaken and theirs == taken and math.max(receipt, ending) or receipt, theirs
      end
    else
      local want, has, theirs = cost % 1024, div(cost, 1024) % 1024, div(cost, 1048576) % 1048576
      local newtime = math.min(math.max(patience, MINOFFERTIME), MAXOFFERTIME)
      isloan = not (isnew and (want <= has or #numbers == own + 5 * MAXLOANS))
      changed = isloan or start > 0 and offertime ~= newtime
      offertime = newtime
      if isloan then
        if now >= till then
          offered, lent = 0, 0
        end
        if theirs == version then -- the other region has no more than the latest offer
          lent = offered
        end
        local kept = math.max(div(base, 10), cdiv(WHOLE, whole)) -- is never lent
        local spare, free, others = base - math.max(need, kept) - offered, base - kept, math.max(CAPACITY % 16 - 1, 1)
        for i = own + 1, #numbers, 5 do
          if i ~= at and now < numbers[i] then
            spare, free = spare - numbers[i + 2] % 1024, free - div(numbers[i + 2], 1024) % 1024
          end
        end
        local offer, missing = offered, want - has
        if spare < 0 then
          offer = offer + spare
        elseif missing > 0 then -- what is lent anyway can be offered again
          offer = offer + math.min(cdiv(missing, others), theirs == version and math.max(lent - offered, spare) or lent - offered)
        elseif missing < -div(base, 8) then
          offer = offer - cdiv(-missing, others)
        end
        if not REFILLS then -- not less units than are used
          offer = math.min(offer, lent + div(result[2] * WHOLE, whole))
        end
        offer = math.max(math.min(offer, free), 0)
        if offer ~= offered then
          local following, clock = version % 1048575 + 1, div(now, 65536) % 1048575 + 1
          if version == 0 or (clock - following + 1048576) % 1048576 < 524288 then
            following = clock
          end
          offered, version, lent = offer, following, math.max(lent, offer)
        end
        if offered > 0 then
          till = math.max(till, now + offertime + memory)
        end
        result[1] = lent
      end
    end
    if isloan then
      numbers[at], numbers[at + 1], numbers[at + 4] = till, ending, holder
      numbers[at + 2], numbers[at + 3] = offered + 1024 * lent + 1048576 * borrowed, version + 1048576 * taken
    end
    if changed then
      rows = (#numbers - own) / 5
      share = name_across_share(base, now, offertime, numbers, own + 1)
      state, applied = name_across_apply(state, applied, share, now, now, p1, p2, p3, p4)
    end
  end
  if not changed then
    return unpack(result, 1, 6)
  end

  local keep, ending = result[6], 0
  if keep == UNCHANGED then
    keep = result[4]
  else
    state = HASMARKS and keep == 0 and {} or { unpack(result, 7) } -- a bucket without a level has no numbers
  end
  for i = own + 1, #numbers, 5 do
    ending = math.max(ending, numbers[i], numbers[i + 1])
  end
  local k = cdiv(applied, base)
  if k > 1 then -- the share can become smaller, and refills more slowly then
    keep = math.min(keep, div(MAX, k)) * k
  end
  local fill = REFILLS and cdiv(whole * p2, p1 * WHOLE) or 0 -- the time in which a share that comes back is refilled
  local saved = { start, asked, rows, before, offertime, applied, unpack(state) }
  local marks = saved[#saved]
  if type(marks) == 'string' then
    for i = 1, #marks, 7 do
      saved[11 + (i + 6) / 7] = sunpack('<I7', marks, i)
    end
  end
  for i = own + 1, #numbers do
    saved[#saved + 1] = numbers[i]
  end
  keep = keep + math.max(ending - now + fill, start + 2 * div(offertime, DEMANDPART) - now, 0)
  return result[1], result[2], result[3], result[4], result[5], keep, unpack(saved)
end
