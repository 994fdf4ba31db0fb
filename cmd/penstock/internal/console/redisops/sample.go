package redisops

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/redisstore"
)

// MaxSample is the largest number of keys that SampleKeys looks at on each server. A sample of this
// size takes a server about 0.2 ms.
const MaxSample = 500

// A KeySample is what SampleKeys has seen on all servers.
type KeySample struct {
	Seen   int64              // keys that SampleKeys looked at
	Total  float64            // all keys of the database
	Groups map[string]float64 // keys of each group, estimated from those seen; "" has the store's own keys
}

// sampleLua looks at some keys. The first line of its reply has the number of all keys in the
// database and the number of keys seen. A line follows for each group of this store among the keys
// seen: the number of its keys, and its name. All keys of this store begin like KEYS[1], up to the
// brace. ARGV has a number of keys and a cursor. Any cursor is safe: an invalid one begins at some
// other key. SCAN may return a key twice, and a page may have few keys. The script reads at most
// four pages, so its time is bounded.
//
// Unlike other scripts, its error names all rights that are missing.
const sampleLua = `local call, may, missing = redis.call, redis.acl_check_cmd, {}
for right, isAllowed in pairs({dbsize = may('DBSIZE'), scan = may('SCAN', '0')}) do
  if not isAllowed then
    missing[#missing + 1] = right
  end
end
if #missing > 0 then
  table.sort(missing)
  return redis.error_reply('NOPERM the user needs the right +' .. table.concat(missing, ' +'))
end
local all, most = call('DBSIZE'), tonumber(ARGV[1])
local begin = string.match(KEYS[1], '^[^{]*{')
local known, groups, seen, cursor, pages = {}, {}, 0, ARGV[2], 0
repeat
  local page = call('SCAN', cursor, 'COUNT', ARGV[1])
  cursor = page[1]
  for _, name in ipairs(page[2]) do
    if seen < most and not known[name] then
      known[name] = true
      seen = seen + 1
      if string.sub(name, 1, #begin) == begin then
        local isOfStore = string.sub(name, #begin + 1, #begin + 2) == '%@'
        local group = not isOfStore and string.match(name, '}([^}:]*)[^}]*$') or ''
        groups[group] = (groups[group] or 0) + 1
      end
    end
  end
  pages = pages + 1
until seen >= math.min(all, most) or pages >= 4
local lines = {all .. ' ' .. seen}
for group, n in pairs(groups) do
  lines[#lines + 1] = n .. ' ' .. group
end
return table.concat(lines, '\n')`

// SampleRights returns the rights that SampleKeys needs in addition to those of Rights.
func SampleRights() []redisrights.Right {
	return []redisrights.Right{
		{Command: "dbsize", Example: []string{"DBSIZE"}, Without: "estimate the keys of each group"},
		{Command: "scan", Example: []string{"SCAN", "0"}, Without: "estimate the keys of each group"},
	}
}

// SampleKeys looks at up to n keys of the server, or of every primary of a Cluster, beginning at a
// random key. It estimates how many keys each group has. A database with at most n keys is counted
// exactly. If n is above MaxSample, MaxSample is used.
//
// SampleKeys needs the rights of SampleRights. On a Cluster it also needs those of Servers.
func SampleKeys(ctx context.Context, store *redisstore.Store, n int) (KeySample, error) {
	all := KeySample{Groups: make(map[string]float64)}
	args := []string{strconv.Itoa(max(1, min(n, MaxSample))), strconv.FormatUint(rand.Uint64(), 10)}
	err := store.EvalOnEach(ctx, sampleLua, "sample", args, func(_, reply string) error { return all.add(reply) })
	if err != nil {
		return KeySample{}, err
	}
	return all, nil
}

func (k *KeySample) add(reply string) error {
	head, rest, _ := strings.Cut(reply, "\n")
	var total, seen int64
	if _, err := fmt.Sscanf(head, "%d %d", &total, &seen); err != nil || total < 0 || seen < 0 {
		return fmt.Errorf("the sample script replied %.40q; expected the numbers of all keys and of keys seen", reply)
	}
	k.Total += float64(total)
	k.Seen += seen
	for line := range strings.Lines(rest) {
		number, group, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > seen {
			return fmt.Errorf("the sample script replied %.40q with the line %.40q; expected a number of keys from 1 to %d, and a group", reply, line, seen)
		}
		k.Groups[group] += float64(total) * float64(n) / float64(seen)
	}
	return nil
}
