package core

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/internal/panicked"
)

// A storeMonitor reads the state of the store's servers, for metrics and warnings. A server that
// evicts counters loses what clients have used. A full server makes no decision.
type storeMonitor struct {
	log     *slog.Logger
	servers func(context.Context) ([]redisops.Server, error)
	sample  func(ctx context.Context, keys int) (redisops.KeySample, error)

	canEvict, isNearlyFull bool     // of the latest read
	runIDs                 []string // of the servers at the latest read
	loggedRights           []string // missing rights that were logged
	latest                 atomic.Pointer[metrics.StoreHealth]
}

const (
	// serversInterval is the mean time between two reads of the servers' state. One read takes a
	// server about 1 ms.
	serversInterval = 15 * time.Second

	// serversTimeout bounds one read of all servers of a Cluster.
	serversTimeout = 5 * time.Second

	// keysSampled is how many keys of each server a sample has. The sample estimates each rule's share
	// of the keys, with a standard deviation of at most 2 percentage points.
	keysSampled = 500
)

// run reads the servers' state until ctx ends. The pauses are random, so that the instances of a
// fleet do not read at the same time.
func (m *storeMonitor) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.check(ctx)
		pause := time.NewTimer(serversInterval/2 + rand.N(serversInterval))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// check reads the servers' state once. A panic, due to a reply, ends only this read.
func (m *storeMonitor) check(ctx context.Context) {
	defer panicked.Recover("the state of the store's servers is read")
	ctx, cancel := context.WithTimeout(ctx, serversTimeout)
	defer cancel()
	var found metrics.StoreHealth
	servers, err := m.servers(ctx)
	if err == nil {
		found.Servers = servers
		m.warn(redisops.WorstMemory(servers))
		m.noteChange(servers)
	}
	found.Missing = missingRights(err)
	if err == nil || found.Missing != nil { // otherwise the store is down, and health reports that
		keys, err := m.sample(ctx, keysSampled)
		if err == nil {
			found.Keys = &keys
		}
		found.Missing = append(found.Missing, missingRights(err)...)
	}
	m.latest.Store(&found)
	m.logMissing(found.Missing)
}

// missingRights returns the rights of metrics.StoreRights that an error names.
func missingRights(err error) (missing []string) {
	e := penstock.AsStoreError(err)
	if e == nil || e.Reason != penstock.ReasonPermissionDenied {
		return nil
	}
	for right := range strings.FieldsSeq(e.Hint) {
		if right = strings.TrimPrefix(right, "+"); slices.Contains(metrics.StoreRights, right) {
			missing = append(missing, right)
		}
	}
	return missing
}

func (m *storeMonitor) logMissing(missing []string) {
	var unlogged []string
	for _, right := range missing {
		if !slices.Contains(m.loggedRights, right) {
			m.loggedRights = append(m.loggedRights, right)
			unlogged = append(unlogged, "+"+right)
		}
	}
	if unlogged != nil {
		m.log.Info("some metrics of the store are missing; penstock acl --role metrics prints all rights", "needs", strings.Join(unlogged, " "))
	}
}

// warn logs when a server becomes able to evict counters, or becomes nearly full.
func (m *storeMonitor) warn(memory redisops.Memory) {
	canEvict := memory.Evicts()
	isNearlyFull := memory.Max > 0 && memory.Used > memory.Max/10*8 // 80 %; Max is 0 without a bound
	if canEvict && !m.canEvict {
		m.log.Warn("the store may evict counters when its memory is full; set maxmemory-policy to noeviction", withServer(memory, "maxmemory_policy", memory.Policy)...)
	}
	if isNearlyFull && !m.isNearlyFull {
		m.log.Warn("the store's memory is 80 % full", withServer(memory, "used", memory.Used, "maxmemory", memory.Max)...)
	}
	m.canEvict, m.isNearlyFull = canEvict, isNearlyFull
}

// noteChange logs the servers whose run IDs were not among those of the read before.
func (m *storeMonitor) noteChange(servers []redisops.Server) {
	var runIDs, changed []string
	for _, s := range servers {
		if s.RunID == "" {
			continue
		}
		runIDs = append(runIDs, s.RunID)
		if !slices.Contains(m.runIDs, s.RunID) {
			changed = append(changed, cmp.Or(s.Address, "the store"))
		}
	}
	if m.runIDs != nil && changed != nil {
		m.log.Warn("the store has another server, or its server has restarted", activity.EventAttribute, activity.ServerChanged,
			"servers", strings.Join(changed, ", "))
	}
	m.runIDs = runIDs
}

// withServer adds the server's address to a log line about one server of a Cluster.
func withServer(m redisops.Memory, line ...any) []any {
	if m.Address != "" {
		line = append(line, "server", m.Address)
	}
	return line
}

func (m *storeMonitor) latestHealth() metrics.StoreHealth {
	if found := m.latest.Load(); found != nil {
		return *found
	}
	return metrics.StoreHealth{}
}
