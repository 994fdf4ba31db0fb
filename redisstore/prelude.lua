-- What scripts are made of besides algorithms: short names, the twins of package algorithm's
-- helpers, and the codec of stored strings. The composer (script.go) takes what a script uses and
-- puts calls of these functions in line, since to define one costs a script more than to run it.
-- Names in capitals stand for numbers.
local call = redis.call
local spack = struct.pack
local sunpack = struct.unpack
local fmod = math.fmod

-- A number as Redis reads it: all its digits.
local function text(n)
  return string.format('%.0f', n)
end

-- Exact integer division, down and up, of numbers up to MAX. Most rates reduce to one unit per
-- microsecond, and dividing by that is not worth a call.
local function div(a, b)
  return b == 1 and a or (a - fmod(a, b)) / b
end

local function cdiv(a, b)
  return b == 1 and a or (a + b - 1 - fmod(a + b - 1, b)) / b
end

-- How many bytes an entry of n numbers takes: the third has six, the others seven.
local function widthof(n)
  return 4 + 7 * n - (n >= 3 and 1 or 0)
end

-- The TTL in ms of a string or set that is needed for keep µs: twice that and the slack, so that a
-- key in use needs a new one only now and then; and until when, in seconds, what is written now
-- with such a TTL certainly lives.
local function ttlof(keep)
  return 2 * cdiv(keep, 1000) + SLACK
end

local function livesof(now, keep)
  return math.min(div(now + 2 * keep + LIVES, 1000000), 4294967295)
end

local function take(mode, cost, used, count)
  if mode == SPEND then
    if cost == 0 or cost <= count - used then
      return cost, used + cost, true
    end
    return 0, used, false
  elseif mode == DRAW then
    local granted = math.min(cost, math.max(count - used, 0))
    return granted, used + granted, granted > 0 or cost == 0
  elseif mode == PEEK then
    return 0, used, cost == 0 or cost <= count - used
  elseif mode == FORCE then
    local granted = math.min(cost, math.max(MAX - used, 0))
    return granted, used + granted, true
  elseif mode == REFUND then
    local granted = math.min(cost, used)
    return granted, used - granted, true
  end
  return 0, 0, true
end

local function never(mode, cost, count)
  return (mode == SPEND or mode == PEEK) and cost > count
end

local function convert(level, old, parts)
  local whole = div(level, old)
  if whole >= div(MAX, parts) then
    return MAX
  end
  local rest = level - whole * old
  if rest > div(MAX, parts) then
    rest = math.min(parts, math.ceil(rest / old * parts) + 1)
  elseif rest > 0 then
    rest = cdiv(rest * parts, old)
  end
  return whole * parts + rest
end

local function drain(rate, now, level, at)
  if not level then
    return 0, now, 0, false
  end
  local mended = at - now > MAXSTALL
  if mended then
    at = now
  end
  if at > now then
    return level, at, at - now, mended
  end
  if (now - at) * rate >= level then -- a product too large to be exact is larger than any level
    return 0, now, 0, mended
  end
  return level - (now - at) * rate, now, 0, mended
end
