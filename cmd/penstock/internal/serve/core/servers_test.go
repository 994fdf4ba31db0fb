package core

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
)

func noSample(context.Context, int) (redisops.KeySample, error) { return redisops.KeySample{}, nil }

func TestEvictionAndScarceMemoryAreLogged(t *testing.T) {
	log := new(logbuffer.Buffer)
	var now redisops.Memory
	var failure error
	m := storeMonitor{log: log.Logger(), sample: noSample, servers: func(context.Context) ([]redisops.Server, error) {
		return []redisops.Server{{Memory: now}}, failure
	}}
	const evicts, scarce = "may evict counters", "memory is 80 % full"
	rows := []struct {
		now            redisops.Memory
		err            error
		evicts, scarce int // lines logged so far
	}{
		{now: redisops.Memory{Used: 900, Policy: "allkeys-lru"}}, // without maxmemory nothing is evicted
		{now: redisops.Memory{Used: 799, Max: 1000, Policy: "noeviction"}},
		{now: redisops.Memory{Used: 801, Max: 1000, Policy: "noeviction"}, evicts: 0, scarce: 1},
		{now: redisops.Memory{Used: 900, Max: 1000, Policy: "noeviction"}, evicts: 0, scarce: 1},
		{err: errors.New("no answer"), evicts: 0, scarce: 1},
		{now: redisops.Memory{Used: 900, Max: 1000, Policy: "volatile-ttl"}, evicts: 1, scarce: 1},
		{now: redisops.Memory{Used: 100, Max: 1000, Policy: "volatile-ttl"}, evicts: 1, scarce: 1},
		{now: redisops.Memory{Used: 900, Max: 1000, Policy: "noeviction"}, evicts: 1, scarce: 2},
		{now: redisops.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru"}, evicts: 2, scarce: 2},
	}
	for i, row := range rows {
		now, failure = row.now, row.err
		m.check(t.Context())
		evictLines, scarceLines := len(log.Lines("level=WARN", evicts)), len(log.Lines("level=WARN", scarce))
		if evictLines != row.evicts || scarceLines != row.scarce {
			t.Errorf("row %d, %+v: %d lines about eviction and %d about scarce memory; want %d and %d", i, row.now, evictLines, scarceLines, row.evicts, row.scarce)
		}
	}
	now = redisops.Memory{Used: 900, Max: 1000, Policy: "allkeys-lru", Address: "10.0.0.1:6379"}
	m.canEvict, m.isNearlyFull = false, false
	failure = nil
	m.check(t.Context())
	if n := len(log.Lines("server=10.0.0.1:6379")); n != 2 {
		t.Errorf("%d lines name the server of a Cluster; want 2:\n%s", n, log)
	}
	t.Logf("counted: %d states of a store's memory", len(rows))
}

// A server with another run ID is an event. A server that leaves is not an event, and neither is a
// server that does not report its ID.
func TestFailoversAreEvents(t *testing.T) {
	log := new(logbuffer.Buffer)
	var now []redisops.Server
	m := storeMonitor{log: log.Logger(), sample: noSample, servers: func(context.Context) ([]redisops.Server, error) { return now, nil }}
	server := func(address, id string) redisops.Server {
		return redisops.Server{Memory: redisops.Memory{Address: address}, RunID: id}
	}
	for i, row := range []struct {
		now  []redisops.Server
		line string // a part of the new line; "": there is none
	}{
		{now: []redisops.Server{server("", "a")}},
		{now: []redisops.Server{server("", "a")}},
		{now: []redisops.Server{server("", "b")}, line: `servers="the store"`},
		{now: []redisops.Server{server("", "")}},
		{now: []redisops.Server{server("10.0.0.1:1", "c"), server("10.0.0.2:1", "d")}},
		{now: []redisops.Server{server("10.0.0.2:1", "d")}},
		{now: []redisops.Server{server("10.0.0.3:1", "e"), server("10.0.0.2:1", "d")}, line: `servers=10.0.0.3:1`},
	} {
		now = row.now
		before := len(log.Lines("event=server_changed"))
		m.check(t.Context())
		lines := log.Lines("event=server_changed")[before:]
		if hasLine := len(lines) == 1 && row.line != "" && strings.Contains(lines[0], row.line); hasLine != (row.line != "") || row.line == "" && len(lines) > 0 {
			t.Errorf("row %d: the new events are %q; want %q", i, lines, row.line)
		}
	}
}

// Each missing right is logged once, and the metrics name it as long as it is missing.
func TestMissingRightsAreLoggedOnce(t *testing.T) {
	log := new(logbuffer.Buffer)
	newDeniedError := func(hint string) error {
		e := penstock.NewStoreError(penstock.ReasonPermissionDenied, errors.New("NOPERM"))
		e.Hint = hint
		return e
	}
	var infoErr, sampleErr error
	m := storeMonitor{log: log.Logger(),
		servers: func(context.Context) ([]redisops.Server, error) { return []redisops.Server{{Keys: 7}}, infoErr },
		sample: func(context.Context, int) (redisops.KeySample, error) {
			return redisops.KeySample{Seen: 5}, sampleErr
		},
	}
	for i, row := range []struct {
		infoErr, sampleErr error
		missing            string // the missing rights, as Go prints them
		line               string // a part of the new log line; "": there is none
	}{
		{missing: "[]"},
		{infoErr: newDeniedError("+info"), sampleErr: newDeniedError("+dbsize +scan"), missing: "[info dbsize scan]", line: `needs="+info +dbsize +scan"`},
		{infoErr: newDeniedError("+info"), missing: "[info]"},
		{infoErr: errors.New("down"), sampleErr: newDeniedError("+scan"), missing: "[]"},
		{infoErr: newDeniedError("~ps*"), sampleErr: newDeniedError("+get"), missing: "[]"},
		{sampleErr: newDeniedError("+scan"), missing: "[scan]"},
	} {
		infoErr, sampleErr = row.infoErr, row.sampleErr
		before := len(log.Lines("some metrics of the store are missing"))
		m.check(t.Context())
		lines := log.Lines("some metrics of the store are missing")[before:]
		now := m.latestHealth()
		isLogged, mustBeLogged := len(lines) > 0, row.line != ""
		if fmt.Sprint(now.Missing) != row.missing || isLogged != mustBeLogged || mustBeLogged && len(log.Lines(row.line)) != 1 {
			t.Errorf("row %d: the missing rights are %v, and the new lines %q; want %s, and a line with %q", i, now.Missing, lines, row.missing, row.line)
		}
		isSampled := infoErr == nil || now.Missing != nil // after a failed INFO only if a right is missing
		hasServers, hasKeys := now.Servers != nil, now.Keys != nil
		if hasServers != (infoErr == nil) || hasKeys != (isSampled && sampleErr == nil) {
			t.Errorf("row %d: the health is %+v; want no servers after a failed INFO, and no keys after a failed sample", i, now)
		}
	}
}

func TestPanicWhileServersAreReadEndsOnlyThisRead(t *testing.T) {
	m := storeMonitor{log: new(logbuffer.Buffer).Logger(), sample: noSample, servers: func(context.Context) ([]redisops.Server, error) { panic("as it should") }}
	m.check(t.Context())
	m.servers = func(context.Context) ([]redisops.Server, error) { return make([]redisops.Server, 1), nil }
	if m.check(t.Context()); m.latest.Load() == nil || len(m.latest.Load().Servers) != 1 {
		t.Errorf("after a panic, the next read finds %+v; want one server", m.latest.Load())
	}
}
