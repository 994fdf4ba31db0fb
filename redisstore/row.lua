-- Decides one batch of up to four charges on one string: the most frequent call. The composer writes it out for a sequence
-- of algorithms, without tables: what stands between @each and @endeach once per charge, with its number for $; @rest: not for
-- the first charge; @several: not if there is but one; @list{…}, @text{…}, @all{…}, @cat{…} once per charge in a line, joined by commas, by
-- nothing, by "and", by "..".
local key, slack = KEYS[1], SLACK
local now, mode1, tag1, cost1, a1, b1, c1, at = sunpack('<dxxxxxxxBI4dddd', ARGV[1])
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  slack = VIRTUALTTL
end

-- A string begins with the time, in seconds, until which it certainly lives. Entries follow: a word of the limit's tag and
-- the count of its numbers, then these; trailing zeros are not stored.
local stored = call('GET', key)
local lives, size, pos, inorder = 0, 0, 5, true
local first1, n1
if stored then
  lives, n1 = sunpack('<I4I4', stored)
  lives, size, first1, n1 = lives * 1000000, #stored, 5, n1 - tag1
end
@each
@rest
local mode$, tag$, cost$, a$, b$, c$
mode$, tag$, cost$, a$, b$, c$, at = sunpack('<xxxBI4dddd', ARGV[1], at)
@endrest
local d$, patience$, who$ = 0, 0, 0
if mode$ >= 128 then
  mode$ = mode$ - 128
  d$, patience$, who$, at = sunpack('<ddd', ARGV[1], at)
end

-- The entry mostly stands behind that of the charge before, so it is looked for there first.
@rest
local first$, n$
if pos <= size then
  first$, n$ = pos, sunpack('<I4', stored, pos) - tag$
end
@endrest
local s$1, s$2, s$3, s$4, s$5, s$6
if stored then
  if not n$ or n$ <= 0 or n$ >= 128 then
    inorder, first$, pos = false, nil, 5
    while pos <= size do
      local word = sunpack('<I4', stored, pos)
      n$ = word - tag$
      if n$ > 0 and n$ < 128 then
        first$ = pos
        break
      end
      pos = pos + widthof(fmod(word, 128))
    end
    if not first$ and pos ~= size + 1 then
      return redis.error_reply('POISONED the state is malformed')
    end
  end
  if first$ then
    if n$ == 3 then
      s$1, s$2, s$3, pos = sunpack('<I7I7I6', stored, first$ + 4)
    elseif n$ == 2 then
      s$1, s$2, pos = sunpack('<I7I7', stored, first$ + 4)
    elseif n$ == 4 then
      s$1, s$2, s$3, s$4, pos = sunpack('<I7I7I6I7', stored, first$ + 4)
    elseif n$ == 5 then
      s$1, s$2, s$3, s$4, s$5, pos = sunpack('<I7I7I6I7I7', stored, first$ + 4)
    elseif n$ == 6 then
      s$1, s$2, s$3, s$4, s$5, s$6, pos = sunpack('<I7I7I6I7I7I7', stored, first$ + 4)
    else
      return redis.error_reply('POISONED the state is malformed')
    end
  end
end

local granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6
granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6 = ALGORITHM$(a$, b$, c$, d$, mode$, cost$, patience$, now, who$, s$1, s$2, s$3, s$4, s$5, s$6)
@endeach
@several
if not (@all{retry$ == 0}) then
@each
  if retry$ == 0 then -- granted by itself, denied by another: say what is left
    granted$, remaining$, retry$, reset$, wait$, keep$ = ALGORITHM$(a$, b$, c$, d$, PEEK, 0, 0, now, who$, s$1, s$2, s$3, s$4, s$5, s$6)
  end
@endeach
end
@endseveral

local keep = keep1
@each
@rest
if keep$ > keep then
  keep = keep$
end
@endrest
@endeach
if keep >= 0 then
  local inplace = inorder and stored and now + keep <= lives
@each
  local entry$, m$ = '', 0
  if keep$ > 0 then
    if t$6 and t$6 > 0 then
      entry$, m$ = spack('<I4I7I7I6I7I7I7', tag$ + 6, t$1, t$2, t$3, t$4, t$5, t$6), 6
    elseif t$5 and t$5 > 0 then
      entry$, m$ = spack('<I4I7I7I6I7I7', tag$ + 5, t$1, t$2, t$3, t$4, t$5), 5
    elseif t$4 and t$4 > 0 then
      entry$, m$ = spack('<I4I7I7I6I7', tag$ + 4, t$1, t$2, t$3, t$4), 4
    elseif t$3 and t$3 > 0 then
      entry$, m$ = spack('<I4I7I7I6', tag$ + 3, t$1, t$2, t$3), 3
    else
      entry$, m$ = spack('<I4I7I7', tag$ + 2, t$1, t$2), 2
    end
  elseif keep$ < 0 and first$ then
    entry$, m$ = stored:sub(first$, first$ + widthof(n$) - 1), n$
  end
@endeach
  if inplace and @all{m$ == n$} then
    call('SETRANGE', key, '4', @cat{entry$})
  else
    local value = @cat{entry$}
    if stored and not (inorder and pos > size) then -- behind them stand those of others
      pos = 5
      while pos <= size do
        local word = sunpack('<I4', stored, pos)
        local n = fmod(word, 128)
        if @all{word - n ~= tag$} then
          value = value .. stored:sub(pos, pos + widthof(n) - 1)
        end
        pos = pos + widthof(n)
      end
    end
    if value == '' then
      if stored then
        call('DEL', key)
      end
    elseif now + keep <= lives then
      call('SET', key, stored:sub(1, 4) .. value, 'KEEPTTL')
    else
      local ttl = cdiv(keep, 1000)
      call('SET', key, spack('<I4', livesof(now, ttl)) .. value, 'PX', text(ttl + slack))
    end
  end
end
if @all{retry$ == 0 and wait$ == 0} then
  return spack('<@text{ddd}', @list{granted$, remaining$, reset$})
end
return spack('<@text{ddddd}', @list{granted$, remaining$, retry$, reset$, wait$})
