package service

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestAStoreThatMayForgetOrIsFullIsTold(t *testing.T) {
	log := new(logged)
	var now redisstore.Memory
	var failure error
	m := memory{log: slog.New(slog.NewTextHandler(log, nil)), ask: func(context.Context) (redisstore.Memory, error) { return now, failure }}
	const evicts, scarce = "may throw counters away", "memory is 80 % full"
	rows := []struct {
		now            redisstore.Memory
		err            error
		evicts, scarce int // lines until now
	}{
		{redisstore.Memory{Used: 900, Policy: "allkeys-lru"}, nil, 0, 0}, // without a bound nothing is thrown away
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
		m.look(t.Context())
		if e, s := len(log.lines("level=WARN", evicts)), len(log.lines("level=WARN", scarce)); e != row.evicts || s != row.scarce {
			t.Errorf("row %d, %+v: %d and %d lines; want %d and %d", i, row.now, e, s, row.evicts, row.scarce)
		}
	}
	now = redisstore.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru", Server: "10.0.0.1:6379"}
	m.evicts, m.scarce = false, false
	failure = nil
	m.look(t.Context())
	if n := len(log.lines("server=10.0.0.1:6379")); n != 2 {
		t.Errorf("%d lines name the server of a Cluster, want 2:\n%s", n, log)
	}
	(&memory{}).look(t.Context()) // nobody to ask
	t.Logf("counted: %d states of a store's memory", len(rows))
}

func TestTheGateLooksAtItsStoresMemory(t *testing.T) {
	redis := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	r := startLimited(t, hello, "rules: [{name: all, per: everyone, limits: [{rate: 2/d}]}]\n", map[string]string{"store": redis.URL()})
	await(t, "the line", func() bool {
		return len(r.log.lines("level=WARN", "throw counters away", "maxmemory_policy=allkeys-lru")) == 1
	})
}
