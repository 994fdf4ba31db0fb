package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Memory is what a server says of its memory.
type Memory struct {
	Used   int64  // bytes
	Max    int64  // bytes; 0: it has no bound
	Policy string // maxmemory-policy: what happens when it is full
}

// Evicts tells whether the server may throw counters away, and so admit anew what was used. Only noeviction never does: then a server that is
// full gives no answer, and the guards say what happens.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// memoryLua replies with the numbers of memory that INFO has.
const memoryLua = `local info = redis.call('INFO', 'memory')
local function field(name) return string.match(info, '\r\n' .. name .. ':(%S+)') or '' end
return field('used_memory') .. ' ' .. field('maxmemory') .. ' ' .. field('maxmemory_policy')`

// Memory asks a server how it keeps its memory; on a Cluster, one of them. It needs the right to INFO, which deciding does not.
func (s *Store) Memory(ctx context.Context) (Memory, error) {
	text, err := s.client.Eval(ctx, memoryLua, []string{s.prefix + "{%@}memory"}, nil)
	if err != nil {
		return Memory{}, unavailable(ctx, err)
	}
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return Memory{}, unavailable(ctx, fmt.Errorf("the script replied %q", text))
	}
	used, err1 := strconv.ParseInt(words[0], 10, 64)
	most, err2 := strconv.ParseInt(words[1], 10, 64)
	if err1 != nil || err2 != nil {
		return Memory{}, unavailable(ctx, fmt.Errorf("the script replied %q", text))
	}
	return Memory{used, most, words[2]}, nil
}
