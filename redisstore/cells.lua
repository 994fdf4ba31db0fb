-- What harnesses have in common: to read the time; and row.lua and rows.lua to load the numbers of
-- a batch's limits from their string, to make its charges, and to save what they left. GET and
-- POISON stand for what differs.
@clock
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  virtual = VIRTUALTTL
end
@endclock

@load
-- A string begins with the time, in seconds, until which it certainly lives. Entries follow: a word
-- of the limit's tag and the count of its numbers, then these; trailing zeros are not stored.
-- Usually the entries of this batch are all there is, in its order, with three numbers each, and
-- are read and written in one go.
local stored = GET
local usual, lives, size = false, 0, 0
local @list{first$, n$, s$1, s$2, s$3, s$4, s$5, s$6}
if stored then
  size = #stored
  if size == 4 + 24 * COUNT then
    lives, @list{n$, s$1, s$2, s$3} = sunpack('<I4@text{I4I7I7I6}', stored)
    usual = @all{n$ == tag$ + 3}
  end
  if not usual then
    local pos = 5
    @list{s$1, s$2, s$3} = nil
    if size >= 5 then
      lives = sunpack('<I4', stored)
    end
    while pos + 17 <= size do
      local word = sunpack('<I4', stored, pos)
      local n = fmod(word, 128)
      local behind = pos + widthof(n)
      if behind > size + 1 then
        break
      end
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
      pos = behind
    end
    if size < 5 or pos ~= size + 1 then
      POISON
    end
  end
  lives = lives * 1000000
end
@endload

@decide
@each
local granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6
granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6 = ALGORITHM$(a$, b$, c$, d$, mode$, cost$, patience$, now, who$, s$1, s$2, s$3, s$4, s$5, s$6)
@endeach
if dry or not (@all{retry$ == 0}) then
@each
  if retry$ == 0 then -- granted by itself, denied by another, or only asked for: say what is left
    granted$, remaining$, retry$, reset$, wait$, keep$ = ALGORITHM$(a$, b$, c$, d$, PEEK, 0, 0, now, who$, s$1, s$2, s$3, s$4, s$5, s$6)
  end
@endeach
end
@enddecide

@save
local keep, need = UNCHANGED, 0 -- need: for how long the string must live, unchanged entries included
@each
if keep$ > keep then
  keep = keep$
end
if reset$ > need then
  need = reset$
end
t$2, t$4, t$5, t$6 = t$2 or 0, t$4 or 0, t$5 or 0, t$6 or 0
@endeach
if keep > need then
  need = keep
end
if usual and now + need <= lives and @all{keep$ > 0 and t$3 and t$3 > 0 and t$4 + t$5 + t$6 == 0} then
  call('SETRANGE', key, '4', spack('<@text{I4I7I7I6}', @list{n$, t$1, t$2, t$3}))
elseif keep >= 0 or need > 0 and now + need > lives then
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
  elseif now + need <= lives then
    call('SET', key, stored:sub(1, 4) .. value, 'KEEPTTL')
  else
    call('SET', key, spack('<I4', livesof(now, need)) .. value, 'PX', text(ttlof(need) + virtual))
  end
end
@endsave
