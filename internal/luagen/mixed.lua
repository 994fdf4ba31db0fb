-- Decides a list of independent batches, in order. Each batch is charged in full or not at all. A
-- string is loaded once and saved once, however many charges use it. The comment at @load in
-- storage.lua describes the format of strings. The reply begins with the stamp, as in
-- single.lua.
local args = ARGV[1]
local now, stamp, batches, at = sunpack('<dxxxxxxI2I2', args)
local virtual = 0
@clock
RIGHTS()

-- A cell is a table of the state of one limit. The first six elements are the outcome of the last
-- step, or zeros if there was no step: granted, remaining, retry, reset, wait, keep. The numbers of
-- the state follow. keep is how long the state must be kept, in µs: 0 if it equals a new state,
-- negative if it is unchanged.
--
-- strings has the loaded strings by the number of their key. Each has its cells by tag, the order
-- of the tags, and expiresAfter, a time in µs. The key does not expire before expiresAfter. keep of
-- a string is how long the string must exist, in µs; -1 if it need not be saved. changed has the
-- numbers of the keys whose strings must be saved.
local strings, changed = {}, {}

-- Returns the format of an entry's n numbers: 6 bytes for the third, and 7 for each other number.
local function formatof(n)
  return '<' .. string.rep('I7', math.min(n, 2)) .. (n >= 3 and 'I6' or '') .. string.rep('I7', n - 3)
end

local function load(key)
  local cells, order, expiresAfter = {}, {}, 0
  local stored = call('GET', KEYS[key])
  if stored then
    expiresAfter = sunpack('<I4', stored) * 1000000
    local pos, size = 5, #stored
    if size < 5 or size > MAXSTRING then
      error('CORRUPT the state of this key is malformed')
    end
    while pos <= size do
      local word = sunpack('<I4', stored, pos)
      local n = fmod(word, 128)
      if n < 2 then
        error('CORRUPT the state of this key is malformed')
      end
      local cell = { 0, 0, 0, 0, 0, 0, sunpack(formatof(n), stored, pos + 4) }
      pos = cell[7 + n]
      cell[7 + n] = nil
      cells[word - n] = cell
      order[#order + 1] = word - n
    end
  end
  strings[key] = { cells = cells, order = order, expiresAfter = expiresAfter, keep = -1 }
  return strings[key]
end

-- Returns the six numbers of a cell. If it has more, the sixth is a string of those from the sixth
-- on, as they are stored.
local function sixof(cell)
  local n = #cell
  if n > 12 then
    cell[12] = spack('<' .. string.rep('I7', n - 11), unpack(cell, 12))
    for i = 13, n do
      cell[i] = nil
    end
  end
  return unpack(cell, 7)
end

-- Runs the step of an algorithm for one charge. p1 to p4 are the algorithm's parameters. receipt is
-- the serial if the algorithm has no receipts.
local FRESH = {}
local function step(key, algorithm, tag, mode, cost, patience, holder, receipt, p1, p2, p3, p4)
  local cell
  if algorithm < FIRSTCOLLECTION then
    cell = (strings[key] or load(key)).cells[tag] or FRESH
  end
  STEP
end

-- Returns the receipt of a granted charge, which is one of the new numbers.
local function receiptof(algorithm, result)
  RECEIPTOF
  return 0
end

-- Saves the state of a granted charge, or the repaired state of a denied one. If a state has not
-- changed, only its TTL may have to be extended, because the limit may have been made slower.
local function save(key, algorithm, tag, result)
  local keep, reset = result[6], result[4]
@sets
  if algorithm >= FIRSTCOLLECTION then -- see saveset in storage.lua
    if keep == 0 then
      call('DEL', KEYS[key])
    elseif keep > 0 or result[8] then
      local ttl, need = call('PTTL', KEYS[key]), math.max(keep, reset)
      if keep > 0 then
        SAVE
      end
      if result[8] or ttl < need / 1000 + SLACK + virtual then
        call('PEXPIRE', KEYS[key], ttltext(math.max(ttl, ttlof(need) + virtual)))
      end
    end
    return
  end
@endsets
  if keep < 0 then
    if reset > 0 and now + reset > strings[key].expiresAfter then
      local s = strings[key]
      if s.keep < 0 then
        changed[#changed + 1] = key
      end
      s.keep = math.max(s.keep, reset)
    end
    return
  end
  local s = strings[key]
  if not s.cells[tag] then
    s.order[#s.order + 1] = tag
  end
  if keep == 0 then
    result = { 0, 0, 0, 0, 0, 0 }
  end
  s.cells[tag] = result
  if s.keep < 0 then
    changed[#changed + 1] = key
  end
  s.keep = math.max(s.keep, keep, reset)
end

local reply = { spack('<I2', stamp) }
for _ = 1, batches do
  local count
  count, at = sunpack('<I2', args, at)
  -- isGranted is false for a dry run too, so that nothing is charged.
  -- Only charges that count if the batch is denied have a cost and a patience in charges.
  local charges, results, isGranted = {}, {}, true
  for i = 1, count do
    local key, algorithm, mode, tag, cost, p1, p2, p3
    local p4, patience, holder, receipt = 0, 0, 0, 0
    key, algorithm, mode, tag, cost, p1, p2, p3, at = sunpack('<I2BBI4dddd', args, at)
    if mode >= EXTENDED then
      mode = mode - EXTENDED
      p4, patience, holder, receipt, at = sunpack('<dddd', args, at)
    end
    if mode >= DRYRUN then
      mode, isGranted = mode - DRYRUN, false
    end
    charges[i] = { key, algorithm, tag, holder, receipt, p1, p2, p3, p4 }
    if mode >= COUNTED then
      mode, charges[i].cost, charges[i].patience = mode - COUNTED, cost, patience
    end
    results[i] = step(key, algorithm, tag, mode, cost, patience, holder, receipt, p1, p2, p3, p4)
    isGranted = isGranted and results[i][3] == 0
  end
  for i = 1, count do
    local result = results[i]
    local key, algorithm, tag = unpack(charges[i], 1, 3)
    local cost, patience = charges[i].cost, charges[i].patience
    if not isGranted and cost then -- count the charge, and reply as a Peek does afterwards
      save(key, algorithm, tag, step(key, algorithm, tag, ATTEMPT, cost, 0, 0, 0, unpack(charges[i], 6)))
      result = step(key, algorithm, tag, PEEK, cost, patience, unpack(charges[i], 4))
      result[5] = 0 -- nobody waits for a turn in a denied batch
    elseif not isGranted and result[3] == 0 then -- another charge is denied, or it is a dry run: reply what is left
      result = step(key, algorithm, tag, PEEK, 0, 0, unpack(charges[i], 4))
    end
    save(key, algorithm, tag, result)
    local newreceipt = 0
    if charges[i][5] < 0 and result[1] > 0 then
      newreceipt = receiptof(algorithm, result)
    end
    reply[#reply + 1] = spack('<dddddd', result[1], result[2], result[3], result[4], result[5], newreceipt)
  end
end

for _, key in ipairs(changed) do
  local s, parts = strings[key], { '' }
  for _, tag in ipairs(s.order) do
    local cell = s.cells[tag]
    local n = #cell
    while n > 6 and cell[n] == 0 do
      n = n - 1
    end
    if n > 6 then -- an entry has at least two numbers
      n, cell[8] = math.max(n, 8), cell[8] or 0
      if type(cell[12]) == 'string' then -- see sixof
        parts[#parts + 1] = spack('<I4', tag + 5 + #cell[12] / 7) .. spack(formatof(5), unpack(cell, 7, 11)) .. cell[12]
      else
        parts[#parts + 1] = spack('<I4', tag + n - 6) .. spack(formatof(n - 6), unpack(cell, 7, n))
      end
    end
  end
  if #parts == 1 then
    call('DEL', KEYS[key])
  elseif now + s.keep <= s.expiresAfter then
    parts[1] = spack('<I4', s.expiresAfter / 1000000)
    call('SET', KEYS[key], table.concat(parts), 'KEEPTTL')
  else
    parts[1] = spack('<I4', expiryof(now, s.keep))
    call('SET', KEYS[key], table.concat(parts), 'PX', ttltext(ttlof(s.keep) + virtual))
  end
end
return table.concat(reply)
