package core

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/logbuffer"
	"github.com/penstock/penstock/redisstore"
)

func noSample(context.Context, int) (redisstore.KeySample, error) { return redisstore.KeySample{}, nil }

func TestEvictionAndScarceMemoryAreLogged(t *testing.T) {
	log := new(logbuffer.Buffer)
	var now redisstore.Memory
	var failure error
	m := storeMonitor{log: log.Logger(), sample: noSample, servers: func(context.Context) ([]redisstore.Server, error) {
		return []redisstore.Server{{Memory: now}}, failure
	}}
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
		evictLines, scarceLines := len(log.Lines("level=WARN", evicts)), len(log.Lines("level=WARN", scarce))
		if evictLines != row.evicts || scarceLines != row.scarce {
			t.Errorf("row %d, %+v: %d lines about eviction and %d about scarce memory; want %d and %d", i, row.now, evictLines, scarceLines, row.evicts, row.scarce)
		}
	}
	now = redisstore.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru", Server: "10.0.0.1:6379"}
	m.canEvict, m.isNearlyFull = false, false
	failure = nil
	m.check(t.Context())
	if n := len(log.Lines("server=10.0.0.1:6379")); n != 2 {
		t.Errorf("%d lines name the server of a Cluster, want 2:\n%s", n, log)
	}
	t.Logf("counted: %d states of a store's memory", len(rows))
}

// Each missing right is logged once, and the metrics name it as long as it is missing.
func TestMissingRightsAreLoggedOnce(t *testing.T) {
	log := new(logbuffer.Buffer)
	denied := func(hint string) error {
		e := penstock.NewStoreError(penstock.ReasonPermissionDenied, errors.New("NOPERM"))
		e.Hint = hint
		return e
	}
	var infoErr, sampleErr error
	m := storeMonitor{log: log.Logger(),
		servers: func(context.Context) ([]redisstore.Server, error) { return []redisstore.Server{{Keys: 7}}, infoErr },
		sample: func(context.Context, int) (redisstore.KeySample, error) {
			return redisstore.KeySample{Seen: 5}, sampleErr
		},
	}
	for i, row := range []struct {
		infoErr, sampleErr error
		missing, line      string // line is part of the new line; "" for none
	}{
		{nil, nil, "[]", ""},
		{denied("+info"), denied("+dbsize +scan"), "[info dbsize scan]", `needs="+info +dbsize +scan"`},
		{denied("+info"), nil, "[info]", ""},
		{errors.New("down"), denied("+scan"), "[]", ""},
		{denied("~ps*"), denied("+get"), "[]", ""},
		{nil, denied("+scan"), "[scan]", ""},
	} {
		infoErr, sampleErr = row.infoErr, row.sampleErr
		before := len(log.Lines("some metrics of the store are missing"))
		m.check(t.Context())
		lines := log.Lines("some metrics of the store are missing")[before:]
		now := m.latestHealth()
		if fmt.Sprint(now.Missing) != row.missing || (len(lines) > 0) != (row.line != "") || row.line != "" && len(log.Lines(row.line)) != 1 {
			t.Errorf("row %d: missing %v, logged %v; want %s and %s", i, now.Missing, lines, row.missing, row.line)
		}
		if (now.Servers != nil) != (infoErr == nil) || (now.Keys != nil) != (sampleErr == nil && (infoErr == nil || now.Missing != nil)) {
			t.Errorf("row %d: the health is %+v; want no servers after a failed INFO, and no keys after a failed sample", i, now)
		}
	}
}
