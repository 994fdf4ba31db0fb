package core

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/redisstore"
)

// A memoryMonitor warns about the store's memory. A server that evicts counters forgets what
// clients have used. A full server makes no decision.
type memoryMonitor struct {
	log                *slog.Logger
	read               func(context.Context) (redisstore.Memory, error) // nil: the store is in this process
	canEvict, isScarce bool                                             // as last logged
	latest             atomic.Pointer[redisstore.Memory]                // nil: it is not known
}

// memoryInterval is how often the memory is checked.
const memoryInterval = time.Minute

func (m *memoryMonitor) check(ctx context.Context) {
	if m.read == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := m.read(ctx)
	if err != nil {
		m.latest.Store(nil)
	} else {
		m.latest.Store(&now)
	}
	if err != nil { // health reports a server that is down; some servers do not allow INFO
		m.log.Debug("the store's memory cannot be read", "err", err)
		return
	}
	canEvict, isScarce := now.Evicts(), now.Max > 0 && now.Used > now.Max/10*8
	if canEvict && !m.canEvict {
		m.log.Warn("the store may evict counters when its memory is full; set maxmemory-policy to noeviction", withServer(now, "maxmemory_policy", now.Policy)...)
	}
	if isScarce && !m.isScarce {
		m.log.Warn("the store's memory is 80 % full", withServer(now, "used", now.Used, "maxmemory", now.Max)...)
	}
	m.canEvict, m.isScarce = canEvict, isScarce
}

// withServer adds the server's address to a log line about one server of a Cluster.
func withServer(m redisstore.Memory, line ...any) []any {
	if m.Server != "" {
		line = append(line, "server", m.Server)
	}
	return line
}
