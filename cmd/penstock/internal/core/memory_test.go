package core

import (
	"context"
	"errors"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/logbuffer"
	"github.com/penstock/penstock/redisstore"
)

func TestEvictionAndScarceMemoryAreLogged(t *testing.T) {
	log := new(logbuffer.Buffer)
	var now redisstore.Memory
	var failure error
	m := memoryMonitor{log: log.Logger(), read: func(context.Context) (redisstore.Memory, error) { return now, failure }}
	const evicts, scarce = "may evict counters", "memory is 80 % full"
	rows := []struct {
		now            redisstore.Memory
		err            error
		evicts, scarce int // lines logged so far
	}{
		{redisstore.Memory{Used: 900, Policy: "allkeys-lru"}, nil, 0, 0}, // without maxmemory nothing is evicted
		{redisstore.Memory{Used: 799, Max: 1000, Policy: "noeviction"}, nil, 0, 0},
		{redisstore.Memory{Used: 801, Max: 1000, Policy: "noeviction"}, nil, 0, 1},
		{redisstore.Memory{Used: 900, Max: 1000, Policy: "noeviction"}, nil, 0, 1},
		{redisstore.Memory{}, errors.New("no answer"), 0, 1},
		{redisstore.Memory{Used: 900, Max: 1000, Policy: "volatile-ttl"}, nil, 1, 1},
		{redisstore.Memory{Used: 100, Max: 1000, Policy: "volatile-ttl"}, nil, 1, 1},
		{redisstore.Memory{Used: 900, Max: 1000, Policy: "noeviction"}, nil, 1, 2},
		{redisstore.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru"}, nil, 2, 2},
	}
	for i, row := range rows {
		now, failure = row.now, row.err
		m.check(t.Context())
		if e, s := len(log.Lines("level=WARN", evicts)), len(log.Lines("level=WARN", scarce)); e != row.evicts || s != row.scarce {
			t.Errorf("row %d, %+v: %d and %d lines; want %d and %d", i, row.now, e, s, row.evicts, row.scarce)
		}
	}
	now = redisstore.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru", Server: "10.0.0.1:6379"}
	m.canEvict, m.isScarce = false, false
	failure = nil
	m.check(t.Context())
	if n := len(log.Lines("server=10.0.0.1:6379")); n != 2 {
		t.Errorf("%d lines name the server of a Cluster, want 2:\n%s", n, log)
	}
	(&memoryMonitor{}).check(t.Context()) // does nothing for a store in this process
	t.Logf("counted: %d states of a store's memory", len(rows))
}
