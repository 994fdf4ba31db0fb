package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock/penstock/redisstore/internal/luagen"
)

// Memory describes a server's memory.
type Memory struct {
	Used   int64  // bytes
	Max    int64  // bytes; 0: it has no bound
	Policy string // maxmemory-policy: what happens when it is full
	Server string // its address, on a Cluster; else ""
}

// Evicts tells whether the server may delete counters. Then used units could be spent again. Only
// the policy noeviction never does: then a full server rejects calls, and the guards decide.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// memoryLua replies the numbers of memory in INFO.
var memoryLua = luagen.CheckRights(`local call = redis.call
RIGHTS
local info = call('INFO', 'memory')
local function field(name) return string.match(info, '\r\n' .. name .. ':(%S+)') or '' end
return field('used_memory') .. ' ' .. field('maxmemory') .. ' ' .. field('maxmemory_policy')`)

// Memory returns the state of the server's memory. On a Cluster it queries every primary, and
// returns the worst: one that evicts, or else the fullest. It needs the right to INFO and, on a
// Cluster, to CLUSTER SLOTS; Decide needs neither.
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
		if worst.Policy == "" || m.isWorse(worst) {
			worst = m
		}
	}
	return worst, nil
}

// isWorse tells whether m is more of a problem than another.
func (m Memory) isWorse(than Memory) bool {
	if m.Evicts() != than.Evicts() {
		return m.Evicts()
	}
	return m.utilization() > than.utilization()
}

// utilization returns the used part of the bound.
func (m Memory) utilization() float64 {
	if m.Max == 0 {
		return 0
	}
	return float64(m.Used) / float64(m.Max)
}

// memoryOf queries the server that has a key.
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
