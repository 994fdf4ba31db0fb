-- Blocks of the harnesses. All three harnesses use clock, which reads the time. single.lua and
-- uniform.lua also use load, decide and save. load reads the numbers of a batch's limits from their
-- string. decide runs the algorithms, and save stores the new numbers. short does all this for
-- the most frequent batches. GET, FAIL, ALLOW and DENY stand for what differs between the two
-- harnesses: how to get the string, what to do if it is malformed, and how to reply. MGET returns
-- nothing for a key of another type, and GET returns an error.

-- now is 0 unless the caller gives the time, in µs. virtual, in ms, is added to TTLs.
@clock
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  virtual = VIRTUALTTL
end
@endclock

-- short decides a batch of Spends if all limits are token buckets that refill one part per µs.
-- Such a batch has a short form. For each bucket, it has the tag, and the size in parts of a unit,
-- of the cost, and of the capacity. If the string is new or usual (see load), short writes and
-- replies what the general code would. It leaves other strings to the general code, and denials
-- that need a longer TTL.
@short
@buckets
if isShort then
  local expiresAfter, @list{word$, level$, since$, parts$} = 0
  if not stored then
    @list{level$} = @list{0}
  elseif #stored == 4 + 24 * COUNT then
    expiresAfter, @list{word$, level$, since$, parts$} = sunpack('<I4@text{I4I7I7I6}', stored)
    if @all{word$ == tag$ + 3 and parts$ == b$ and since$ <= now and level$ <= MAX} then
@each
      level$ = level$ > now - since$ and level$ - now + since$ or 0
@endeach
    else
      level1 = nil
    end
  end
  if level1 and @all{level$ + amount$ <= capacity$} then
    @list{level$} = @list{level$ + amount$}
    local need = level1
@several
    need = math.max(@list{level$})
@endseveral
    if now + need > expiresAfter * 1000000 then
      local ttl = ttlof(need) + virtual
      call('SET', key, spack('<I4@text{I4I7I7I6}', expiryof(now, need), @list{tag$ + 3, level$, now, b$}), 'PX', ttltext(ttl))
    else
@one
      call('SETRANGE', key, '8', spack('<I7I7', level$, now))
@endone
@several
      call('SETRANGE', key, '4', spack('<@text{I4I7I7I6}', @list{tag$ + 3, level$, now, b$}))
@endseveral
    end
    local @list{remaining$} = @list{(capacity$ - level$ - (capacity$ - level$) % b$) / b$}
    ALLOW
  elseif level1 and @all{now + level$ <= expiresAfter * 1000000} then
    local @list{remaining$} = @list{level$ < capacity$ and (capacity$ - level$ - (capacity$ - level$) % b$) / b$ or 0}
    local @list{retry$} = @list{level$ + amount$ > capacity$ and level$ + amount$ - capacity$ or 0}
    DENY
  end
end
@endbuckets
@endshort

@load
-- The first 4 bytes of a string are a time in seconds: the key does not expire before that time. An
-- entry follows for each limit. An entry has a word, and then the numbers of the limit's state. The
-- word is the limit's tag, a multiple of 128, plus the count of the numbers. Trailing zeros are not
-- stored. A usual string has exactly the entries of this batch, in the batch's order, with three
-- numbers each, which makes 24 bytes. Such entries are all read by one call, and written by one
-- call.
--
-- For each charge: in a usual string, n$ is the word of its entry. In any other string, n$ is the
-- count of the entry's numbers, and first$ is the position of the entry. s$1 to s$6 are the stored
-- numbers. If there are more than six, s$6 has those from the sixth on, as they are stored.
-- expiresAfter is the time at the beginning of the string: first in seconds, later in µs.
local isUsual, expiresAfter, size = false, 0, 0
local @list{first$, n$, s$1, s$2, s$3, s$4, s$5, s$6}
if stored then
  size = #stored
  if size == 4 + 24 * COUNT then
    expiresAfter, @list{n$, s$1, s$2, s$3} = sunpack('<I4@text{I4I7I7I6}', stored)
    isUsual = @all{n$ == tag$ + 3}
  end
  if not isUsual then
    local pos = 5
    @list{s$1, s$2, s$3} = nil
    if size >= 5 then
      expiresAfter = sunpack('<I4', stored)
    end
    -- The smallest entry has 18 bytes: a word and two numbers. A string that is too long is
    -- malformed.
    while pos + 17 <= size and size <= MAXSTRING do
      local word = sunpack('<I4', stored, pos)
      local n = word % 128
      local nextPos = pos + widthof(n)
      if nextPos > size + 1 then
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
        elseif n == 6 then
          s$1, s$2, s$3, s$4, s$5, s$6 = sunpack('<I7I7I6I7I7I7', stored, pos + 4)
        else
          s$1, s$2, s$3, s$4, s$5 = sunpack('<I7I7I6I7I7', stored, pos + 4)
          s$6 = stored:sub(pos + 38, nextPos - 1)
        end
      end
@endeach
      pos = nextPos
    end
    if size < 5 or pos ~= size + 1 then
      FAIL
    end
  end
  expiresAfter = expiresAfter * 1000000
end
@one
local third = s$3
@endone
@endload

@decide
-- t$1 to t$6 are the numbers after the step. keep$ is how long these numbers must be kept, in µs.
-- keep$ is 0 if the numbers equal a new state, and negative if the step has not changed them.
@each
local granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6 = ALGORITHM$(a$, b$, c$, d$, mode$, cost$, patience$, now, holder$, RECEIPT$s$1, s$2, s$3, s$4, s$5, s$6)
@endeach
if isDryRun or not (@all{retry$ == 0}) then
@each
  if retry$ == 0 then -- another charge is denied, or it is a dry run: reply what is left
    granted$, remaining$, retry$, reset$, wait$, keep$ = ALGORITHM$(a$, b$, c$, d$, PEEK, 0, 0, now, holder$, RECEIPT$s$1, s$2, s$3, s$4, s$5, s$6)
  end
@endeach
end
@enddecide

@save
-- Most strings are new or usual, and stay usual. Such a string is overwritten in place if its TTL
-- is long enough, and set otherwise. If no entry has changed, nothing is written while the TTL is
-- long enough. All other strings are written entry by entry. need is how long the string must
-- exist, in µs, also for unchanged entries.
local isLong = @all{now + keep$ <= expiresAfter and now + reset$ <= expiresAfter}
local staysUsual = (isUsual or not stored) and @all{keep$ > 0 and t$3 and t$3 > 0 and (not t$4 or t$4 == 0 and (t$5 or 0) == 0 and (t$6 or 0) == 0)}
if staysUsual and isLong then
@one
  if t$3 == third then -- only the first two numbers differ
    call('SETRANGE', key, '8', spack('<I7I7', t$1, t$2))
  else
@endone
  call('SETRANGE', key, '4', spack('<@text{I4I7I7I6}', @list{n$, t$1, t$2, t$3}))
@one
  end
@endone
elseif staysUsual then
  local need = 0
@each
  if keep$ > need then
    need = keep$
  end
  if reset$ > need then
    need = reset$
  end
@endeach
  local ttl = ttlof(need) + virtual
  call('SET', key, spack('<I4@text{I4I7I7I6}', expiryof(now, need), @list{tag$ + 3, t$1, t$2, t$3}), 'PX', ttltext(ttl))
elseif @any{keep$ >= 0} or not isLong and (@any{reset$ > 0}) then
  local need, value = math.max(@list{keep$, reset$}), ''
@each
  t$2, t$4, t$5, t$6 = t$2 or 0, t$4 or 0, t$5 or 0, t$6 or 0
@endeach
@each
  if keep$ > 0 then
    if t$6 ~= 0 and type(t$6) == 'string' then
      value = value .. spack('<I4I7I7I6I7I7', tag$ + 5 + #t$6 / 7, t$1, t$2, t$3, t$4, t$5) .. t$6
    elseif t$6 ~= 0 then
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
  elseif keep$ < 0 and isUsual then
    value = value .. stored:sub(5 + 24 * ($ - 1), 4 + 24 * $)
  elseif keep$ < 0 and first$ then
    value = value .. stored:sub(first$, first$ + widthof(n$) - 1)
  end
@endeach
  if not isUsual then -- append the entries of other limits, in parts that are as long as possible
    local pos, from = 5, 5
    while pos <= size do
      local word = sunpack('<I4', stored, pos)
      local n = word % 128
      local nextPos = pos + widthof(n)
      if @any{word - n == tag$} then
        value = value .. stored:sub(from, pos - 1)
        from = nextPos
      end
      pos = nextPos
    end
    if from <= size then
      value = value .. stored:sub(from)
    end
  end
  if value == '' then
    if stored then
      call('DEL', key)
    end
  elseif now + need <= expiresAfter then
    call('SET', key, stored:sub(1, 4) .. value, 'KEEPTTL')
  else
    call('SET', key, spack('<I4', expiryof(now, need)) .. value, 'PX', ttltext(ttlof(need) + virtual))
  end
end
@endsave

-- An algorithm whose state is a set reads and writes the set itself. A script for one charge of
-- such an algorithm has decideset and saveset instead of load, decide and save. t$1 is whether the
-- set is new. t$2 is whether the TTL must be set: the set is written anew, or an unchanged set may
-- be needed for longer than its TTL. t$3 and the others are arguments of the algorithm's save.
@decideset
@each
local granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2, t$3, t$4, t$5, t$6, t$7, t$8, t$9, t$10, t$11, t$12, t$13, t$14, t$15, t$16 = ALGORITHM$(a$, b$, c$, d$, mode$, cost$, patience$, now, key, ARGV[holder$] or '', receipt$)
if isDryRun and retry$ == 0 then
  granted$, remaining$, retry$, reset$, wait$, keep$, t$1, t$2 = ALGORITHM$(a$, b$, c$, d$, PEEK, 0, 0, now, key, ARGV[holder$] or '', receipt$)
end
@endeach
@enddecideset

@saveset
-- The TTL is read first, because a set that is written anew loses it. A TTL never becomes shorter.
@each
if keep$ == 0 then
  call('DEL', key)
elseif keep$ > 0 or t$2 then
  local ttl, need = -1, math.max(keep$, reset$)
  if not t$1 then
    ttl = call('PTTL', key)
  end
  local needsTTL = t$2 or ttl < need / 1000 + SLACK + virtual
  if needsTTL then
    RIGHTS('PEXPIRE')
  end
  if keep$ > 0 then
    SAVE$(key, t$3, t$4, t$5, t$6, t$7, t$8, t$9, t$10, t$11, t$12, t$13, t$14, t$15, t$16)
  end
  if needsTTL then
    ttl = math.max(ttl, ttlof(need) + virtual)
    call('PEXPIRE', key, ttltext(ttl))
  end
end
@endeach
@endsaveset
