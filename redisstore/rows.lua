-- Decides the batches of callers that went together: all are of one row of charges, as row.lua's,
-- and each is all or nothing for itself. The batches of one string follow each other: it is loaded
-- once, and saved once. If one of several strings cannot be read, only its own callers get an
-- error.
local args, virtual = ARGV[1], 0
local now, at = sunpack('<d', args)
@clock
local get = call
if #KEYS > 1 then
  RIGHTS
  get = redis.pcall
end

local replies, filled = {}, 0 -- numbers: what kind of reply it is, and its parts
for index = 1, #KEYS do
  local key, poisoned = KEYS[index], false
  local asks, @list{tag$}
  asks, @list{tag$}, at = sunpack('<I2@text{I4}', args, at)
@load

  local @list{left$} = @list{UNCHANGED}
  local @list{last$} = @list{0}
  for _ = 1, asks do
    local callers, dry, @list{mode$, each$, a$, b$, c$}
    local @list{d$, patience$, who$} = @list{0, 0, 0}
    callers, at = sunpack('<I2', args, at)
@each
    mode$, each$, a$, b$, c$, at = sunpack('<Bdddd', args, at)
    if mode$ >= 128 then
      mode$ = mode$ - 128
      if mode$ >= 64 then
        mode$, dry = mode$ - 64, true
      end
      d$, patience$, who$, at = sunpack('<ddd', args, at)
    end
@endeach
    if poisoned then
      replies[filled + 1], replies[filled + 2], replies[filled + 3] = 2, 3, callers - 1
      filled = filled + 3
@each
      replies[filled + 1], replies[filled + 2] = 0, 0
      filled = filled + 2
@endeach
      callers = 0
    end

    -- After one was granted, as many more as there is room for are decided at once: as their sum,
    -- if that is known to do what they do one by one. Their answers lie between the first and the
    -- last in equal steps, or else they are decided one by one.
    local sum, summing = 1, ADDITIVE and @all{mode$ == SPEND and patience$ == 0 and each$ > 0}
    local @list{before$, until$}
    while callers > 0 do
      local @list{cost$} = @list{each$ * sum}
@decide

      if sum > 1 and not (@all{granted$ == cost$ and retry$ == 0 and wait$ == 0 and remaining$ == before$ - cost$ and fmod(reset$ - until$, sum) == 0}) then
        sum, summing = 1, false
      else
@each
        last$ = reset$
        if keep$ == 0 then
          left$, s$1, s$2, s$3, s$4, s$5, s$6 = 0, nil
        elseif keep$ > 0 then
          left$, s$1, s$2, s$3, s$4, s$5, s$6 = keep$, t$1, t$2, t$3, t$4, t$5, t$6
        end
@endeach
        callers = callers - sum
        local same = false
        if sum > 1 then
          replies[filled + 1], replies[filled + 2] = 3, sum
          filled = filled + 2
@each
          replies[filled + 1], replies[filled + 2] = each$, (reset$ - until$) / sum
          filled = filled + 2
@endeach
          sum = 1
        elseif @all{granted$ == cost$ and retry$ == 0 and wait$ == 0} then
          same = @all{keep$ < 0}
          replies[filled + 1] = 0
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2] = remaining$, reset$
          filled = filled + 2
@endeach
          if summing then
            sum = math.max(math.min(callers, @list{div(remaining$, each$)}), 1)
            @list{before$} = @list{remaining$}
            @list{until$} = @list{reset$}
          end
        else
          same = @all{keep$ < 0}
          replies[filled + 1] = 1
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2], replies[filled + 3], replies[filled + 4], replies[filled + 5] = granted$, remaining$, retry$, reset$, wait$
          filled = filled + 5
@endeach
        end
        if same and callers > 0 then -- nothing has changed: the others are answered alike
          replies[filled + 1], replies[filled + 2] = 3, callers
          filled = filled + 2
@each
          replies[filled + 1], replies[filled + 2] = 0, 0
          filled = filled + 2
@endeach
          callers = 0
        end
      end
    end
  end

@each
  local keep$, reset$, t$1, t$2, t$3, t$4, t$5, t$6 = left$, last$, s$1, s$2, s$3, s$4, s$5, s$6
@endeach
@save
end
return spack('<' .. string.rep('d', filled), unpack(replies, 1, filled))
