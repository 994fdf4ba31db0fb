-- Short names of Redis functions, the twins of helpers of package algorithm, and helpers for the
-- storage format. The generator (luagen.go) keeps what a script uses, and inlines the functions.
-- The generator also replaces names in capitals by numbers.
local call = redis.call
local spack = struct.pack
local sunpack = struct.unpack
local fmod = math.fmod

-- Returns a number as text with all its digits, as Redis reads it.
local function text(n)
  return string.format('%.0f', n)
end

-- Does the same for a time in µs. %d is much faster than %.0f, and each half of the number fits 32
-- bits.
local function timetext(t)
  return t >= 0 and string.format('%d%06d', (t - t % 1000000) / 1000000, t % 1000000) or string.format('%.0f', t)
end

-- Returns a TTL of at least a second, in ms, as text. See timetext.
local function ttltext(ttl)
  return string.format('%d%03d', (ttl - ttl % 1000) / 1000, ttl % 1000)
end

-- Exact integer division of numbers from 0 to MAX: div rounds down, and cdiv rounds up. Most rates
-- reduce to one unit per microsecond, and then nothing has to be divided. For these numbers, % is
-- exact, and faster than fmod.
local function div(a, b)
  return b == 1 and a or (a - a % b) / b
end

local function cdiv(a, b)
  return b == 1 and a or (a + b - 1 - (a + b - 1) % b) / b
end

-- Returns the size in bytes of an entry of n numbers (see storage.lua). The word has 4 bytes, the
-- third number 6, and each other number 7.
local function widthof(n)
  return 4 + 7 * n - (n >= 3 and 1 or 0)
end

-- Returns the TTL in ms of a string or set whose state is needed for the time keep, in µs. The TTL
-- is twice keep plus SLACK, so that a key in use rarely needs a new TTL.
local function ttlof(keep)
  return 2 * (keep + 999 - (keep + 999) % 1000) / 1000 + SLACK
end

-- Returns a time in seconds. A key that is written now with the TTL ttlof(keep) cannot expire
-- before it. The time is stored in 32 bits, so it is at most 4294967295.
local function expiryof(now, keep)
  return math.min((now + 2 * keep + MINSLACK - (now + 2 * keep + MINSLACK) % 1000000) / 1000000, 4294967295)
end

-- The twin of take in algorithm.go. It returns how many units are granted, how many are used after
-- the grant, and whether the cost fits.
local function take(mode, cost, used, count)
  if mode == SPEND then
    if cost == 0 or cost <= count - used then
      return cost, used + cost, true
    end
    return 0, used, false
  elseif mode == DRAW then
    local drawn = math.min(cost, math.max(count - used, 0))
    return drawn, used + drawn, drawn > 0 or cost == 0
  elseif mode == PEEK then
    return 0, used, cost == 0 or cost <= count - used
  elseif mode == FORCE then
    local forced = math.min(cost, math.max(MAX - used, 0))
    return forced, used + forced, true
  elseif mode == REFUND then
    local returned = math.min(cost, used)
    return returned, used - returned, true
  elseif mode == ATTEMPT then
    local counted = 0
    if cost <= count then
      counted = math.min(cost, math.max(math.min(2 * count, MAX / 2) - used, 0))
    end
    return counted, used + counted, true
  end
  return 0, 0, true
end

-- The twin of never in algorithm.go. It returns whether the cost is too large even for a new key.
local function never(mode, cost, count)
  return (mode == SPEND or mode == PEEK) and cost > count
end

-- The twin of convert in tokenbucket.go. It converts a level from the unit 1/old to the unit
-- 1/parts, and rounds up.
local function convert(level, old, parts)
  local whole = div(level, old)
  if whole >= div(MAX, parts) then
    return MAX
  end
  local rest = level - whole * old
  if rest > div(MAX, parts) then -- the product would not be exact, so it is rounded up by one more
    rest = math.min(parts, math.ceil(rest / old * parts) + 1)
  elseif rest > 0 then
    rest = cdiv(rest * parts, old)
  end
  return whole * parts + rest
end

-- The twin of drain in tokenbucket.go. It returns the level, the time at which the bucket has that
-- level, and how far this time is ahead of now. The last result is whether the state was repaired.
local function drain(rate, now, old, since)
  if not old then
    return 0, now, 0, false
  end
  local isrepaired = since - now > MAXSTALL
  if since > now and not isrepaired then
    return old, since, since - now, false
  end
  local passed = isrepaired and 0 or now - since
  if passed * rate >= old then -- a product too large to be exact is larger than any level
    return 0, now, 0, isrepaired
  end
  return old - passed * rate, now, 0, isrepaired
end
