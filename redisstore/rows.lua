-- Decides the batches of callers that went together: all are of one row of charges, as row.lua's, and each is all or nothing for
-- itself. The batches of one string follow each other: it is loaded once, and saved once. A string that cannot be read is the
-- trouble of its own callers.
local args, virtual = ARGV[1], 0
local now, at = sunpack('<d', args)
@clock

local replies, filled = {}, 0 -- numbers: what kind of reply it is, and its parts
for index = 1, #KEYS do
  local key, poisoned = KEYS[index], false
  local runs, @list{tag$}
  runs, @list{tag$}, at = sunpack('<I2@text{I4}', args, at)
@load

  local @list{left$} = @list{UNCHANGED}
  for _ = 1, runs do -- of batches that are equal
    local batches, @list{mode$, cost$, a$, b$, c$}
    local @list{d$, patience$, who$} = @list{0, 0, 0}
    batches, at = sunpack('<I2', args, at)
@each
    mode$, cost$, a$, b$, c$, at = sunpack('<Bdddd', args, at)
    if mode$ >= 128 then
      mode$ = mode$ - 128
      d$, patience$, who$, at = sunpack('<ddd', args, at)
    end
@endeach
    for _ = 1, batches do
      if poisoned then
        filled = filled + 1
        replies[filled] = 2
      else
@decide

@each
        if keep$ == 0 then
          left$, s$1, s$2, s$3, s$4, s$5, s$6 = 0, nil
        elseif keep$ > 0 then
          left$, s$1, s$2, s$3, s$4, s$5, s$6 = keep$, t$1, t$2, t$3, t$4, t$5, t$6
        end
@endeach
        if @all{granted$ == cost$ and retry$ == 0 and wait$ == 0} then
          replies[filled + 1] = 0
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2] = remaining$, reset$
          filled = filled + 2
@endeach
        else
          replies[filled + 1] = 1
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2], replies[filled + 3], replies[filled + 4], replies[filled + 5] = granted$, remaining$, retry$, reset$, wait$
          filled = filled + 5
@endeach
        end
      end
    end
  end

@each
  local keep$, t$1, t$2, t$3, t$4, t$5, t$6 = left$, s$1, s$2, s$3, s$4, s$5, s$6
@endeach
@save
end
return spack('<' .. string.rep('d', filled), unpack(replies, 1, filled))
