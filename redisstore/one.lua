-- Decides one charge whose algorithm keeps at most five numbers: the most frequent call, and therefore without tables.
local now, _, _, _, _, mode, tag, cost, patience, who, p1, p2, p3, p4 = sunpack('<I7I2I2I2BBI4I7I7I7I7I7I7I7', ARGV[1])
local key, slack = KEYS[1], 1
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  slack = VIRTUALTTL
end

-- Where this limit's entry stands in the string, and its numbers: trailing zeros are not stored.
local stored = call('GET', key)
local first, last, s1, s2, s3, s4, s5
if stored then
  local at, size = 1, #stored
  while at <= size do
    local word = sunpack('<I4', stored, at)
    local n = fmod(word, 128)
    if word - n == tag then
      first, last = at, at + 3 + 7 * n
      if n == 3 then
        s1, s2, s3 = sunpack('<I7I7I7', stored, at + 4)
      elseif n == 2 then
        s1, s2 = sunpack('<I7I7', stored, at + 4)
      elseif n == 4 then
        s1, s2, s3, s4 = sunpack('<I7I7I7I7', stored, at + 4)
      else
        s1, s2, s3, s4, s5 = sunpack('<I7I7I7I7I7', stored, at + 4)
      end
      break
    end
    at = at + 4 + 7 * n
  end
end

local granted, remaining, retry, reset, wait, keep
granted, remaining, retry, reset, wait, keep, s1, s2, s3, s4, s5 =
  ALGORITHM(p1, p2, p3, p4, mode, cost, patience, now, who, s1, s2, s3, s4, s5)

if keep >= 0 then
  local entry = ''
  if keep > 0 then
    if s5 and s5 > 0 then
      entry = spack('<I4I7I7I7I7I7', tag + 5, s1, s2, s3, s4, s5)
    elseif s4 and s4 > 0 then
      entry = spack('<I4I7I7I7I7', tag + 4, s1, s2, s3, s4)
    elseif s3 and s3 > 0 then
      entry = spack('<I4I7I7I7', tag + 3, s1, s2, s3)
    else
      entry = spack('<I4I7I7', tag + 2, s1, s2)
    end
  end
  local ttl = cdiv(keep, 1000) + slack
  if stored and (not first or first > 1 or last < #stored) then -- others share the string
    if first then
      entry = stored:sub(1, first - 1) .. entry .. stored:sub(last + 1)
    else
      entry = stored .. entry
    end
    ttl = max(ttl, call('PTTL', key))
  end
  if entry ~= '' then
    call('SET', key, entry, 'PX', text(ttl))
  elseif stored then
    call('DEL', key)
  end
end
return spack('<I7I7i7I7I7', granted, remaining, retry, reset, wait)
