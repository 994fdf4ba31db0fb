package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/penstock/penstock/redisstore"
)

// memory looks after the store's: a server that throws counters away lets callers have anew what
// they have used, and one that is full decides nothing.
type memory struct {
	log            *slog.Logger
	ask            func(context.Context) (redisstore.Memory, error) // nil: there is nobody to ask
	evicts, scarce bool                                             // as was told last
}

// memoryEvery is how often the store is asked for its memory.
const memoryEvery = time.Minute

func (m *memory) look(ctx context.Context) {
	if m.ask == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := m.ask(ctx)
	if err != nil { // it is away, which others tell, or does not say
		m.log.Debug("the store does not tell of its memory", "err", err)
		return
	}
	evicts, scarce := now.Evicts(), now.Max > 0 && now.Used > now.Max/10*8
	if evicts && !m.evicts {
		m.log.Warn("the store may throw counters away when its memory is full; set maxmemory-policy to noeviction", where(now, "maxmemory_policy", now.Policy)...)
	}
	if scarce && !m.scarce {
		m.log.Warn("the store's memory is 80 % full", where(now, "used", now.Used, "maxmemory", now.Max)...)
	}
	m.evicts, m.scarce = evicts, scarce
}

// where adds to a line which server of a Cluster it is about.
func where(m redisstore.Memory, line ...any) []any {
	if m.Server != "" {
		line = append(line, "server", m.Server)
	}
	return line
}
