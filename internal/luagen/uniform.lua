-- Decides batches of several callers. template.go explains @ and $. Each batch is like the batch of
-- single.lua, which explains a$ to d$. All batches have the same algorithms, and each batch is
-- charged in full or not at all. Batches on one string follow each other, so that the string is
-- loaded once and saved once. If a string cannot be read, only the callers of that string get an
-- error.
local args, virtual = ARGV[1], 0
local now, stamp, at = sunpack('<dxxxxxxI2', args)
@clock
local get, loaded = call, {}
if #KEYS > 1 then
  RIGHTS()
  get = redis.pcall -- returns an error, which would otherwise end the script for all callers
end

-- replies has the numbers of the reply, and filled is how many there are. The first is the stamp,
-- as in single.lua. The results of each batch follow. ReplyFull and the other constants in
-- luagen.go describe their format.
local replies, filled = { stamp }, 1
local requests, callers, @list{tag$, mode$, callerCost$, a$, b$, c$} = 1
-- Often all batches are equal, and each is the only one on its string. Then the batch is stated
-- once, and the strings are read at once. Other flights may have a string twice.
local isShared = #args <= 16 + 37 * COUNT
@buckets
local isShort, @list{amount$}, @list{capacity$} = #args == 16 + 28 * COUNT
if isShort then -- see the block short
  @list{tag$, b$, amount$, capacity$} = sunpack('<@text{I4ddd}', args, at)
  @list{mode$, callerCost$, a$, c$} = @list{SPEND, amount$ / b$, 1, capacity$ / b$}
end
@endbuckets
if #args == 16 + 37 * COUNT then
  @list{tag$, mode$, callerCost$, a$, b$, c$} = sunpack('<@text{I4Bdddd}', args, at)
end
if isShared and #KEYS > 1 then
  loaded = get('MGET', unpack(KEYS)) -- an error has no elements, so the strings are read one by one
end
for index = 1, #KEYS do
  local key, isCorrupt, isDecided = KEYS[index], false, false
  callers = 1
  if not isShared then
    requests, @list{tag$}, callers, @list{mode$, callerCost$, a$, b$, c$}, at = sunpack('<I2@text{I4}I2@text{Bdddd}', args, at)
  end
  local stored = GET
@short
  if not isDecided then
@load

  -- The outcome of the last step that was accepted, for save. The numbers of that step are in s$1
  -- to s$6.
  local @list{keepLast$} = @list{UNCHANGED}
  local @list{resetLast$} = @list{0}
  for request = 1, requests do
    if request > 1 then
      callers, @list{mode$, callerCost$, a$, b$, c$}, at = sunpack('<I2@text{Bdddd}', args, at)
    end
    local isDryRun, @list{d$, patience$, holder$, receipt$} = false, @list{0, 0, 0, 0}
@each
    if mode$ >= EXTENDED then
      mode$ = mode$ - EXTENDED
      if mode$ >= DRYRUN then
        mode$, isDryRun = mode$ - DRYRUN, true
      end
      d$, patience$, holder$, receipt$, at = sunpack('<dddd', args, at)
    end
@endeach
    if isCorrupt then
      replies[filled + 1], replies[filled + 2], replies[filled + 3] = REPLYCORRUPT, REPLYREPEAT, callers - 1
      filled = filled + 3
@each
      replies[filled + 1], replies[filled + 2] = 0, 0
      filled = filled + 2
@endeach
      callers = 0
    end

    -- Several callers may have sent equal batches. After the first batch is granted, the next
    -- batches for which there is room are merged: one step decides them as one batch with their
    -- total cost. Merging requires that the algorithms are additive. The state is then the same as
    -- if the batches were decided one by one. Each reply differs from the reply before by the same
    -- amounts. If the outcome of a merged step shows otherwise, its batches are decided one by one.
    -- merged is how many batches the next step decides.
    local merged, canMerge = 1, ADDITIVE and @all{mode$ == SPEND and patience$ == 0 and callerCost$ > 0}
    local @list{remainingBefore$, resetBefore$}
    while callers > 0 do
      local @list{cost$} = @list{callerCost$ * merged}
@decide

      if merged > 1 and not (@all{granted$ == cost$ and retry$ == 0 and wait$ == 0 and remaining$ == remainingBefore$ - cost$ and (reset$ - resetBefore$) % merged == 0}) then
        merged, canMerge = 1, false
      else
@each
        resetLast$ = reset$
        if keep$ == 0 then
          keepLast$, s$1, s$2, s$3, s$4, s$5, s$6 = 0, nil
        elseif keep$ > 0 then
          keepLast$ = keep$
          s$1 = t$1
          s$2 = t$2
          s$3 = t$3
          s$4 = t$4
          s$5 = t$5
          s$6 = t$6
        end
@endeach
        callers = callers - merged
        local isUnchanged = false
        if merged > 1 then
          replies[filled + 1], replies[filled + 2] = REPLYREPEAT, merged
          filled = filled + 2
@each
          replies[filled + 1], replies[filled + 2] = callerCost$, (reset$ - resetBefore$) / merged
          filled = filled + 2
@endeach
          merged = 1
        elseif @all{granted$ == cost$ and retry$ == 0 and wait$ == 0 and remaining$ >= 0} then
          isUnchanged = @all{keep$ < 0}
          if @any{receipt$ < 0} then
            replies[filled + 1] = REPLYRECEIPTS
            filled = filled + 1
@each
            replies[filled + 1], replies[filled + 2], replies[filled + 3] = remaining$, reset$, receipt$ < 0 and cost$ > 0 and NEWRECEIPT$ or 0
            filled = filled + 3
@endeach
          else
@each
            replies[filled + 1], replies[filled + 2] = remaining$, reset$
            filled = filled + 2
@endeach
          end
          if canMerge and callers > 0 then
            merged = math.max(math.min(callers, @list{div(remaining$, callerCost$)}), 1)
            @list{remainingBefore$} = @list{remaining$}
            @list{resetBefore$} = @list{reset$}
          end
        elseif @all{granted$ == 0 and wait$ == 0} then
          isUnchanged = @all{keep$ < 0}
          replies[filled + 1] = REPLYDENIED
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2], replies[filled + 3] = remaining$, retry$, reset$
          filled = filled + 3
@endeach
        else
          isUnchanged = @all{keep$ < 0}
          replies[filled + 1] = REPLYFULL
          filled = filled + 1
@each
          replies[filled + 1], replies[filled + 2], replies[filled + 3], replies[filled + 4], replies[filled + 5], replies[filled + 6] = granted$, remaining$, retry$, reset$, wait$, receipt$ < 0 and granted$ > 0 and NEWRECEIPT$ or 0
          filled = filled + 6
@endeach
        end
        if isUnchanged and callers > 0 then -- nothing has changed: the other callers get the same reply
          replies[filled + 1], replies[filled + 2] = REPLYREPEAT, callers
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

@save
  end
end
return spack('<I2' .. string.rep('d', filled - 1), unpack(replies, 1, filled))

-- What the block short replies.
@allow
@each
replies[filled + 1], replies[filled + 2] = remaining$, level$
filled = filled + 2
@endeach
isDecided = true
@endallow
@deny
replies[filled + 1] = REPLYDENIED
filled = filled + 1
@each
replies[filled + 1], replies[filled + 2], replies[filled + 3] = remaining$, retry$, level$
filled = filled + 3
@endeach
isDecided = true
@enddeny
