-- Decides a list of independent batches in order, each all or nothing for itself. The string of a key is loaded once and
-- saved once, however many charges touch it.
local args = ARGV[1]
local now, batches, at = sunpack('<I7I2', args)
local slack = 1
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  slack = VIRTUALTTL
end

-- A string holds entries: a word of the limit's tag and the count of its numbers, then the numbers without trailing
-- zeros. A cell is an entry's numbers behind the six fields of the outcome that left them, or six zeros as loaded.
local strings, saved = {}, {}
local function load(key)
  local cells, order, loaded = {}, {}, {}
  local stored = call('GET', KEYS[key]) or ''
  local pos, size = 1, #stored
  while pos <= size do
    local word = sunpack('<I4', stored, pos)
    local n = fmod(word, 128)
    local cell = { 0, 0, 0, 0, 0, 0, sunpack('<' .. string.rep('I7', n), stored, pos + 4) }
    cell[7 + n] = nil -- the position that unpacking returns last
    local tag = word - n
    cells[tag], loaded[tag] = cell, true
    order[#order + 1] = tag
    pos = pos + 4 + 7 * n
  end
  strings[key] = { cells = cells, order = order, loaded = loaded }
  return strings[key]
end

local FRESH = {}
local function ask(key, algorithm, tag, mode, cost, patience, who, p1, p2, p3, p4)
  local cell
  if algorithm < 128 then
    cell = (strings[key] or load(key)).cells[tag] or FRESH
  end
  ASK
end

-- Makes a granted charge, or mends the state of a denied one.
local function save(key, algorithm, tag, result)
  local keep = result[6]
  if keep < 0 then
    return
  end
  if algorithm >= 128 then
    SAVE
    if keep > 0 then
      call('PEXPIRE', KEYS[key], text(cdiv(keep, 1000) + slack))
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
  s.cells[tag], s.loaded[tag] = result, nil
  if not s.changed then
    s.changed = true
    saved[#saved + 1] = key
  end
end

local reply = {}
for _ = 1, batches do
  local charges
  charges, at = sunpack('<I2', args, at)
  local asked, results, allowed = {}, {}, true
  for i = 1, charges do
    local q = { sunpack('<I2BBI4I7I7I7I7I7I7I7', args, at) }
    at = q[12]
    local result = ask(q[1], q[2], q[4], q[3], q[5], q[6], q[7], q[8], q[9], q[10], q[11])
    asked[i], results[i] = q, result
    allowed = allowed and result[3] == 0
  end
  for i = 1, charges do
    local q, result = asked[i], results[i]
    if allowed or result[3] ~= 0 then
      save(q[1], q[2], q[4], result)
    else -- granted by itself, denied by another: say what is left
      result = ask(q[1], q[2], q[4], PEEK, 0, 0, q[7], q[8], q[9], q[10], q[11])
    end
    reply[#reply + 1] = spack('<I7I7i7I7I7', result[1], result[2], result[3], result[4], result[5])
  end
end

for _, key in ipairs(saved) do
  local s, parts, ttl = strings[key], {}, 0
  for _, tag in ipairs(s.order) do
    local cell = s.cells[tag]
    local n = #cell
    while n > 6 and cell[n] == 0 do
      n = n - 1
    end
    if n > 6 then
      parts[#parts + 1] = spack('<I4' .. string.rep('I7', n - 6), tag + n - 6, unpack(cell, 7, n))
    end
    if s.loaded[tag] then -- not touched: nobody knows how long it must be kept, except its key
      ttl = max(ttl, call('PTTL', KEYS[key]))
    else
      ttl = max(ttl, cdiv(cell[6], 1000) + slack)
    end
  end
  if #parts > 0 then
    call('SET', KEYS[key], table.concat(parts), 'PX', text(ttl))
  else
    call('DEL', KEYS[key])
  end
end
return table.concat(reply)
