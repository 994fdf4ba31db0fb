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
	Server string // its address, on a Cluster; else ""
}

// Evicts tells whether the server may throw counters away, and so admit anew what was used. Only
// noeviction never does: then a server that is full gives no answer, and the guards say what
// happens.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// memoryLua replies with the numbers of memory that INFO has.
var memoryLua = withRights(`local call = redis.call
RIGHTS
local info = call('INFO', 'memory')
local function field(name) return string.match(info, '\r\n' .. name .. ':(%S+)') or '' end
return field('used_memory') .. ' ' .. field('maxmemory') .. ' ' .. field('maxmemory_policy')`)

// Memory asks the server how it keeps its memory. On a Cluster it asks every primary, and answers
// with the one to worry about: one that evicts, or else the fullest. It needs the right to INFO
// and, on a Cluster, to CLUSTER SLOTS, which deciding does not.
func (s *Store) Memory(ctx context.Context) (Memory, error) {
	keys, err := s.keyOfEachServer(ctx, "memory")
	if err != nil {
		return Memory{}, s.unavailable(ctx, err)
	}
	var worst Memory
	for server, key := range keys {
		m, err := s.memoryOf(ctx, key)
		if err != nil {
			return Memory{}, s.unavailable(ctx, explain(memoryLua, err))
		}
		m.Server = server
		if worst.Policy == "" || m.worse(worst) {
			worst = m
		}
	}
	return worst, nil
}

func (m Memory) worse(than Memory) bool {
	if m.Evicts() != than.Evicts() {
		return m.Evicts()
	}
	return m.full() > than.full()
}

// full is the part of its bound that is used.
func (m Memory) full() float64 {
	if m.Max == 0 {
		return 0
	}
	return float64(m.Used) / float64(m.Max)
}

// memoryOf asks the server that keeps a key.
func (s *Store) memoryOf(ctx context.Context, key string) (Memory, error) {
	text, err := s.client.Eval(ctx, memoryLua, []string{key}, nil)
	if err != nil {
		return Memory{}, err
	}
	words := strings.Split(text, " ")
	if len(words) != 3 {
		return Memory{}, fmt.Errorf("the script replied %q", text)
	}
	used, err1 := strconv.ParseInt(words[0], 10, 64)
	most, err2 := strconv.ParseInt(words[1], 10, 64)
	if err1 != nil || err2 != nil {
		return Memory{}, fmt.Errorf("the script replied %q", text)
	}
	return Memory{Used: used, Max: most, Policy: words[2]}, nil
}
