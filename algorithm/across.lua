
-- Decides as the algorithm does, and keeps the tally of a limit across regions: see across.go. The
-- numbers of the algorithm follow since. The rows are at the end, each with a total, a life and a
-- region.
local function name_across(p1, p2, p3, p4, mode, cost, patience, now, holder, receipt, life, granted, rows, credit, till, since, ...)
  local numbers = { ... }
  life, granted, rows, credit, till, since = life or 0, granted or 0, rows or 0, credit or 0, till or 0, since or 0
  local own = #numbers - 3 * rows -- how many are of the algorithm
  if rows > MAXROWS or own < 0 or HASMARKS and own > 0 and own % 2 == 0 then -- not written by this store
    if mode ~= RESET then
      return 0, 0, IMPOSSIBLE, 0, 0, UNCHANGED
    end
    numbers, rows, since, own = {}, 0, 0, 0
  end
  if life == 0 or WINDOWED and (own == 0 or numbers[1] <= now) or now > till then -- nothing of the total counts any more
    life, granted, credit, till = math.max(now, life + 1), 0, 0, now
  end
  if not WINDOWED and not (REFILLS and now < till - TALLYLIFE / 2) then -- what was refunded is not used elsewhere either
    credit = 0
  end
  local step, ismerge, at = mode, mode == MERGE or mode == REJOIN, own + 1
  local steps, here, newreceipt = cost, holder, receipt
  if mode == REPORT then
    step, steps, here, newreceipt = PEEK, 0, 0, 0
  elseif ismerge then
    while at < #numbers and numbers[at + 2] ~= holder do
      at = at + 3
    end
    local units = cost -- what is new
    if numbers[at + 1] == receipt then
      units = units - numbers[at]
    end
    step, steps, here, newreceipt = FORCE, units, 0, 0
    if units <= 0 or at < #numbers and numbers[at + 1] > receipt then
      step, steps, ismerge = PEEK, 0, false
    elseif mode == REJOIN then
      steps = math.min(units, CAPACITY * fmod(patience, FACTORS))
      if at < #numbers then
        steps = math.max(units - div(patience, FACTORS), steps)
      end
    end
  end

  local state = { unpack(numbers, 1, own) }
  if HASMARKS and own > 5 then -- the older marks of a token bucket, as they are stored
    state = { numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], spack('<' .. string.rep('I7', own - 5), unpack(numbers, 6, own)) }
  end
  local users, left, from, hasshare = rows + 1, 0, 0, REFILLS and rows > 0 and mode <= RESET
  if REFILLS then -- what is left of the own share
    from = math.max(since, now - cdiv(p3 * p2, p1))
    if from < now then
      left = math.min(div((now - from) * p1, p2 * users), div(p3, users))
    end
  end
  local result = { name_here(p1, p2, p3, p4, step, steps, 0, now, here, newreceipt, unpack(state)) }
  if hasshare and mode <= PEEK then
    local units, least = math.min(cost, left), mode == DRAW and math.min(cost, 1) or cost
    if units >= least and units > result[1] and (mode == DRAW or result[3] ~= 0) then -- the share has more than the level
      local forced = { name_here(p1, p2, p3, p4, FORCE, units, 0, now, here, newreceipt, unpack(state)) }
      if forced[1] == units then
        result = mode ~= PEEK and forced or { name_here(p1, p2, p3, p4, PEEK, 0, 0, now, 0, 0, unpack(state)) }
      end
    end
    if result[3] ~= 0 and least > left and least <= div(p3, users) then
      result[3] = math.min(result[3], from + cdiv(least * p2 * users, p1) - now)
    end
  end
  local units = result[1]
  local length = p4 == 0 and p2 or p4 - p3
  local isother = WINDOWED and 2 * math.abs(patience - result[4]) >= length
  if ismerge and (isother or at > #numbers and rows == MAXROWS) then
    ismerge = false
    result = { name_here(p1, p2, p3, p4, PEEK, 0, 0, now, 0, 0, unpack(state)) }
  end
  if mode == REPORT then
    result[1], result[2], result[5] = granted, math.max(now - life, 0), life
  elseif ismerge then
    if at > #numbers then
      rows = rows + 1
    end
    numbers[at], numbers[at + 1], numbers[at + 2] = cost, receipt, holder
    result[6] = math.max(result[6], 0)
  elseif units > 0 and mode ~= MERGE and mode ~= REJOIN then
    local paid = math.min(credit, units)
    if mode == REFUND then
      paid = -units
    else
      granted = math.min(granted + units - paid, MAX)
    end
    credit = math.min(credit - paid, MAX)
    till = math.min(now + result[4] + TALLYLIFE / 2, MAX)
    if REFILLS then -- charge the own share
      if mode == REFUND then
        since = math.max(from - div(units * p2, p1) * users, 0)
      elseif units <= left then
        since = from + cdiv(units * p2 * users, p1)
      elseif mode == FORCE then
        since = math.min(from + cdiv(units * p2, p1) * users, MAX)
      else
        since = math.max(from, now)
      end
    end
  elseif mode == RESET then
    since = 0
  end
  if REFILLS and rows > 0 and mode ~= REPORT then
    from, users = math.max(since, now - cdiv(p3 * p2, p1)), rows + 1
    if from < now then
      result[2] = math.max(result[2], math.min(div((now - from) * p1, p2 * users), div(p3, users)))
    end
  end
  if not WINDOWED and not (REFILLS and now < till - TALLYLIFE / 2) then
    credit = 0
  end
  if result[6] == UNCHANGED then
    return unpack(result, 1, 6)
  end
  local saved = { life, granted, rows, credit, till, since }
  local new, first, last = result, 7, #result
  if last == 6 then
    new, first, last = numbers, 1, own
  elseif HASMARKS and result[6] == 0 then -- a bucket without a level has no numbers
    last = 6
  end
  result[6] = result[6] + TALLYLIFE
  for i = first, last do
    saved[#saved + 1] = new[i]
  end
  if type(saved[#saved]) == 'string' then
    local marks = saved[#saved]
    for i = 1, #marks, 7 do
      saved[11 + (i + 6) / 7] = sunpack('<I7', marks, i)
    end
  end
  for i = own + 1, #numbers do
    saved[#saved + 1] = numbers[i]
  end
  return result[1], result[2], result[3], result[4], result[5], result[6], unpack(saved)
end
