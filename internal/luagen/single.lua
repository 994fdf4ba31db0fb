-- Decides one batch of up to four charges whose state is in one string. Most calls are of this
-- kind. The generator unrolls this template for a sequence of algorithms, so that the script needs
-- no tables (see template.go). COUNT is the number of charges.
--
-- a$ to d$ are the parameters of an algorithm. The extension d$, patience$, holder$, receipt$ is
-- left out if all four are 0, unless the batch is a dry run. The first 16 bytes of args are now and
-- the stamp. The reply begins with the last two bytes of the stamp. A charge has 37 bytes without
-- its extension, and 28 bytes in the short form (see the block short). If the caller gives the
-- time, a byte follows the charges. So the length of args shows the form of the charges.
local args, key, virtual, isDryRun = ARGV[1], KEYS[1], 0, false
local now, stamp, @list{mode$, tag$, cost$, a$, b$, c$} = 0
local @list{d$, patience$, holder$, receipt$} = @list{0, 0, 0, 0}
@buckets
local isShort, @list{amount$}, @list{capacity$} = #args <= 17 + 28 * COUNT
if isShort then
  stamp, @list{tag$, b$, amount$, capacity$} = sunpack('<I2@text{I4ddd}', args, 15)
  if #args > 16 + 28 * COUNT then
    now = sunpack('<d', args)
  end
else
@endbuckets
if #args == 16 + 37 * COUNT then
  stamp, @list{mode$, tag$, cost$, a$, b$, c$} = sunpack('<I2@text{BI4dddd}', args, 15)
else
  local at
  now, stamp, at = sunpack('<dxxxxxxI2', args)
@each
  mode$, tag$, cost$, a$, b$, c$, at = sunpack('<BI4dddd', args, at)
  if mode$ >= EXTENDED then
    mode$ = mode$ - EXTENDED
    if mode$ >= DRYRUN then
      mode$, isDryRun = mode$ - DRYRUN, true
    end
    d$, patience$, holder$, receipt$, at = sunpack('<dddd', args, at)
  end
@endeach
end
@buckets
end
@endbuckets
@clock

local stored = GET
@short
@buckets
if isShort then -- not decided above
  @list{mode$, cost$, a$, c$} = @list{SPEND, amount$ / b$, 1, capacity$ / b$}
end
@endbuckets
@load

@decide

@save
if @all{granted$ == cost$ and retry$ == 0 and wait$ == 0} then -- the caller knows the other fields
  if not (@any{receipt$ < 0}) then
    return spack('<I2@text{dd}', stamp, @list{remaining$, reset$})
  end
end
if @all{granted$ == 0 and wait$ == 0} then
  return spack('<I2@text{ddd}', stamp, @list{remaining$, retry$, reset$})
end
if @any{receipt$ < 0} then
  return spack('<I2@text{dddddd}', stamp, @list{granted$, remaining$, retry$, reset$, wait$, receipt$ < 0 and granted$ > 0 and NEWRECEIPT$ or 0})
end
return spack('<I2@text{ddddd}', stamp, @list{granted$, remaining$, retry$, reset$, wait$})

-- What the block short replies.
@allow
return spack('<I2@text{dd}', stamp, @list{remaining$, level$})
@endallow
@deny
return spack('<I2@text{ddd}', stamp, @list{remaining$, retry$, level$})
@enddeny
