package regions

import "github.com/penstock/penstock/internal/luagen"

// Scripts are those that instances send to the Redis servers of regions. They run no command that
// the scripts of decisions do not run, so a user of the store needs no further right.
var Scripts = []string{syncLua, askLua}

// The instances of a region keep together, in the region's Redis:
//
//   - The site, a string: the name of the region, the instance that asks the others (the leader),
//     and what is known of each other region (its peers).
//   - Two sorted sets for each other region, of the counters that have changed, by the units that
//     one instance has granted between two syncs. One set is the last answer, the other is what has
//     changed since. A region that has merged the answer says so with its next question. Then the
//     first set is deleted, and the two swap roles.
//
// Times are those of the region's Redis, in µs. Between regions, only durations are exchanged. A
// time after now shows that the clock was set back, and is not trusted.
//
// A site has the fields region, leader, mark (a hash of the secret), lease (the time until which
// the leader leads) and fence. The fence numbers the leaders of the region, and only grows. A peer
// has these fields, of which the first four are about what this region asks, and the others about
// what the peer asks. A time of 0 means never.
//
//	merged   the number of the peer's last answer that was merged
//	asked    when the leader asked for the last full answer that was merged
//	counted  until when merges have taken account of what the peer's share refills
//	took     how long the last answer took, from the question until it was merged
//	delay    how long one of its messages took
//
//	number   the number of the last answer to the peer; 0 if there was none
//	visited  the last time at which the peer had merged all that this region had granted
//	fence    the largest fence of the peer's leaders
//	which    0 or 1: which of the two sets has what has changed since the last answer
//	till     until when counters in the sets count
//	dropped  when a changed counter was last dropped, because there were too many

// readSite is the beginning of both scripts. site is nil if there is none, or if it is damaged.
const readSite = `#!lua
local call = redis.call
local time = call('TIME')
RIGHTS()
local now = time[1] * 1000000 + time[2]
local function decimal(n) return string.format('%.0f', n) end
local site = call('GET', KEYS[1])
if site then
  local isread, value = pcall(cmsgpack.unpack, site)
  site = isread and type(value) == 'table' and type(value.peers) == 'table' and value or nil
end
for _, p in pairs(site and site.peers or {}) do
  p.asked = p.asked <= now and p.asked or 0
  p.visited = p.visited <= now and p.visited or 0
  p.counted = math.min(p.counted, now)
end
local function save()
  call('SET', KEYS[1], cmsgpack.pack(site), 'PX', 86400000)
end
`

// syncLua is sent by each instance of a region, to the region's own server. It notes changed
// counters, elects the leader, and records a merged answer if the instance is the leader. A leader
// that was deposed has an old fence, and records nothing. The script replies a line with the fence
// if the instance is the leader, or 0, and the time. A line about each other region follows.
//
// KEYS are the site, and the two sets of each other region. ARGV are:
//
//	1..3   the region, the instance, the mark of the secret
//	4      how long the instance leads if it is elected, in µs; 0: it leads no longer
//	5      a new fence must be above this one
//	6, 7   how long the changed counters count in µs, and how many counters a set may have
//	8..13  of the merged answer: the region ("" if there is none), the fence of the leader that
//	       asked, its number, 1 if it is full, when it was asked for by the clock of this server,
//	       and how long it took in µs
//	14     how long one of the messages of the merged answer took, in µs
//	15     1 if the instance had to drop changed counters
//	16     the number n of other regions, whose names are the next n
//	17+n   the units and the name of each changed counter
var syncLua = luagen.CheckRights(readSite + `
local life, n = tonumber(ARGV[4]), tonumber(ARGV[16])
if site and (site.region ~= ARGV[1] or site.mark ~= ARGV[3]) and site.lease + 60000000 <= now then
  for i = 2, #KEYS do call('DEL', KEYS[i]) end -- its instances have stopped, so this region or secret replaces it
  site = nil
end
local changed = not site
site = site or { region = ARGV[1], leader = '', lease = 0, fence = 0, peers = {}, mark = ARGV[3] }
if site.region ~= ARGV[1] then return 'other ' .. site.region end
if site.mark ~= ARGV[3] then return 'secret' end
local leads = site.leader == ARGV[2] or life > 0 and (site.lease <= now or site.lease > now + life)
if leads then
  if site.leader ~= ARGV[2] or site.fence <= tonumber(ARGV[5]) then
    site.fence = math.max(site.fence, tonumber(ARGV[5]), now) + 1
  end
  site.leader, site.lease, changed = life > 0 and ARGV[2] or '', now + life, true
end
local merged = site.peers[ARGV[8]]
if leads and merged and site.fence == tonumber(ARGV[9]) then
  merged.merged, merged.took, merged.delay = tonumber(ARGV[10]), tonumber(ARGV[13]), tonumber(ARGV[14])
  if ARGV[11] == '1' then
    merged.asked, merged.counted = math.max(merged.asked, math.min(tonumber(ARGV[12]), now)), now
  end
end
local reply = { (leads and life > 0 and decimal(site.fence) or '0') .. ' ' .. decimal(now) }
for i = 1, n do
  local name = ARGV[16 + i]
  local p = site.peers[name]
  if not p then
    p = { merged = 0, asked = 0, counted = now, took = 0, delay = 0, number = 0, visited = 0, fence = 0, which = 0, till = 0, dropped = 0 }
    site.peers[name], changed = p, true
  end
  local set = KEYS[2 * i + p.which]
  local size = call('ZCARD', set)
  if ARGV[15] == '1' then p.dropped, changed = now, true end
  if #ARGV > 16 + n then
    local flag = 'CH'
    if size + (#ARGV - 16 - n) / 2 > tonumber(ARGV[7]) then -- the set is full: only counters that it has
      flag, p.dropped = 'XX', now
    end
    call('ZADD', set, 'GT', flag, unpack(ARGV, 17 + n))
    p.till, changed = math.max(p.till, now + tonumber(ARGV[6])), true
    call('PEXPIRE', set, decimal(math.ceil((p.till - now) / 1000)))
  end
  reply[#reply + 1] = table.concat({ decimal(p.merged), decimal(p.asked > 0 and now - p.asked or -1), decimal(p.visited > 0 and now - p.visited or -1),
    decimal(now - p.counted), decimal(p.took), decimal(p.delay or 0), decimal(size), decimal(p.dropped > 0 and now - p.dropped or -1) }, ' ')
end
if changed then save() end
return table.concat(reply, '\n')`)

// askLua is sent by the leader of a region, to the server of another region. Its reply is the
// answer. The first line has the number of the answer, then 1 if it is full, 0 if other counters
// have changed too, or 2 if some were dropped, and then the time. The changed counters follow, each
// after its length.
//
// KEYS are the site, and the two sets of the region that asks. ARGV are:
//
//	1  the region that is asked
//	2  the region that asks
//	3  the mark of its secret
//	4  its fence
//	5  the number of the last answer that it has merged
//	6  how long ago it asked for the last full answer that it has merged, in µs; -1: there was none
//	7  how many counters the answer may have
//	8  a random number, from which answers are numbered if there was none before
//	9  for how long in µs no answer is full after a counter was dropped
//	10 as 6, as a time of the clock of the region that is asked; 0 if unknown. Unlike 6, it stays
//	   right if this script waits in a server that hangs
var askLua = luagen.CheckRights(readSite + `
local function add(set, counters) -- as ZRANGE replies them
  for first = 1, #counters, 2000 do
    local part = {}
    for i = first, math.min(first + 1998, #counters), 2 do
      part[#part + 1], part[#part + 2] = counters[i + 1], counters[i]
    end
    call('ZADD', set, 'GT', unpack(part))
  end
end
if not site then return 'none' end
if site.region ~= ARGV[1] then return 'other ' .. site.region end
if site.mark ~= ARGV[3] then return 'secret' end
local p = site.peers[ARGV[2]]
if not p then return 'stranger' end
local fence, contact, most = tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
if fence < p.fence then return 'fence ' .. decimal(p.fence) end
p.fence = fence
local at = tonumber(ARGV[10])
if contact >= 0 then p.visited = math.max(p.visited, math.min(now - contact, at > 0 and at or now)) end
local new, sent = KEYS[2 + p.which], KEYS[3 - p.which]
if p.number == 0 or p.number ~= tonumber(ARGV[5]) then -- the last answer or the site was lost: send it again
  local lost = call('ZRANGE', sent, 0, -1, 'WITHSCORES')
  add(new, lost)
end
call('DEL', sent)
local size = call('ZCARD', new)
local isfull = p.dropped > 0 and now - p.dropped < tonumber(ARGV[9]) and 2 or 1
if size > most then -- the least busy ones wait for the next answer
  isfull = 0
  local others = call('ZRANGE', new, 0, size - most - 1, 'WITHSCORES')
  add(sent, others)
  call('ZREMRANGEBYRANK', new, 0, size - most - 1)
end
for i = 1, 2 do
  call('PEXPIRE', KEYS[1 + i], decimal(math.max(math.ceil((p.till - now) / 1000), 1)))
end
p.which = 1 - p.which
p.number = (p.number > 0 and p.number or tonumber(ARGV[8])) + 1
save()
local reply = { decimal(p.number) .. ' ' .. isfull .. ' ' .. decimal(now) .. '\n' }
for _, counter in ipairs(call('ZRANGE', new, 0, -1)) do
  reply[#reply + 1] = #counter .. '\n' .. counter
end
return table.concat(reply)`)
