-- Decides one batch of up to four charges on one string: the most frequent call. The composer writes it out for a sequence
-- of algorithms, without tables: what stands between @each and @endeach once per charge, with its number for $; between
-- @several and @endseveral if there are several; @list{…}, @text{…}, @all{…}, @cat{…} once per charge in a line, joined by
-- commas, by nothing, by "and", by ".."; COUNT is the number of charges.
local args, key, virtual = ARGV[1], KEYS[1], 0
local now, @list{mode$, tag$, cost$, a$, b$, c$}
local @list{d$, patience$, who$} = @list{0, 0, 0}
if #args == 12 + 40 * COUNT then
  now, @list{mode$, tag$, cost$, a$, b$, c$} = sunpack('<dxxxx@text{xxxBI4dddd}', args)
else
  local at
  now, at = sunpack('<dxxxx', args)
@each
  mode$, tag$, cost$, a$, b$, c$, at = sunpack('<xxxBI4dddd', args, at)
  if mode$ >= 128 then
    mode$ = mode$ - 128
    d$, patience$, who$, at = sunpack('<ddd', args, at)
  end
@endeach
end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  virtual = VIRTUALTTL
end

-- A string begins with the time, in seconds, until which it certainly lives. Entries follow: a word of the limit's tag and
-- the count of its numbers, then these; trailing zeros are not stored. Usually the entries of this batch are all there is,
-- in its order, with three numbers each, and are read and written in one go.
local stored = call('GET', key)
local usual, lives, size = false, 0, 0
local @list{first$, n$, s$1, s$2, s$3, s$4, s$5, s$6}
if stored then
  size = #stored
  if size == 4 + 24 * COUNT then
    lives, @list{n$, s$1, s$2, s$3} = sunpack('<I4@text{I4I7I7I6}', stored)
    usual = @all{n$ == tag$ + 3}
  end
  if not usual then
    lives = sunpack('<I4', stored)
    local pos = 5
    @list{s$1, s$2, s$3} = nil
    while pos <= size do
      local word = sunpack('<I4', stored, pos)
      local n = fmod(word, 128)
@each
      if word - n == tag$ then
        first$, n$ = pos, n
        if n == 2 then
          s$1, s$2 = sunpack('<I7I7', stored, pos + 4)
        elseif n == 3 then
          s$1, s$2, s$3 = sunpack('<I7I7I6', stored, pos + 4)
        elseif n == 4 then
          s$1, s$2, s$3, s$4 = sunpack('<I7I7I6I7', stored, pos + 4)
        elseif n == 5 then
          s$1, s$2, s$3, s$4, s$5 = sunpack('<I7I7I6I7I7', stored, pos + 4)
        else
          s$1, s$2, s$3, s$4, s$5, s$6 = sunpack('<I7I7I6I7I7I7', stored, pos + 4)
        end
      end
@endeach
      pos = pos + widthof(n)
    end
    if size < 5 or pos ~= size + 1 then
      return redis.error_reply('POISONED the state is malformed')
    end
  end
  lives = lives * 1000000
end

@each
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

local keep = UNCHANGED
@each
if keep$ > keep then
  keep = keep$
end
t$2, t$4, t$5, t$6 = t$2 or 0, t$4 or 0, t$5 or 0, t$6 or 0
@endeach
if usual and now + keep <= lives and @all{keep$ > 0 and t$3 and t$3 > 0 and t$4 + t$5 + t$6 == 0} then
  call('SETRANGE', key, '4', spack('<@text{I4I7I7I6}', @list{n$, t$1, t$2, t$3}))
elseif keep >= 0 then
  local value = ''
@each
  if keep$ > 0 then
    if t$6 > 0 then
      value = value .. spack('<I4I7I7I6I7I7I7', tag$ + 6, t$1, t$2, t$3, t$4, t$5, t$6)
    elseif t$5 > 0 then
      value = value .. spack('<I4I7I7I6I7I7', tag$ + 5, t$1, t$2, t$3, t$4, t$5)
    elseif t$4 > 0 then
      value = value .. spack('<I4I7I7I6I7', tag$ + 4, t$1, t$2, t$3, t$4)
    elseif t$3 and t$3 > 0 then
      value = value .. spack('<I4I7I7I6', tag$ + 3, t$1, t$2, t$3)
    else
      value = value .. spack('<I4I7I7', tag$ + 2, t$1, t$2)
    end
  elseif keep$ < 0 and usual then
    value = value .. stored:sub(5 + 24 * ($ - 1), 4 + 24 * $)
  elseif keep$ < 0 and first$ then
    value = value .. stored:sub(first$, first$ + widthof(n$) - 1)
  end
@endeach
  if not usual then -- behind them stand those of others
    local pos = 5
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
    call('SET', key, spack('<I4', livesof(now, keep)) .. value, 'PX', text(ttlof(keep) + virtual))
  end
end
if @all{granted$ == cost$ and retry$ == 0 and wait$ == 0} then -- the caller knows the rest
  return spack('<@text{dd}', @list{remaining$, reset$})
end
return spack('<@text{ddddd}', @list{granted$, remaining$, retry$, reset$, wait$})
