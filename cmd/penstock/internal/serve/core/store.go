package core

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/memory"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// A store holds the counters. The other fields are what the core needs besides decisions.
type store struct {
	penstock.Store
	probe func(ctx context.Context) error // returns nil if the store makes decisions
	redis *redisstore.Store               // nil for the store in this process
	close func()
}

// MaxCounters is how many counters the store memory may hold: 10 million, or as many as a quarter
// of the memory limit of Go (GOMEMLIMIT) has room for.
func MaxCounters() int {
	const most, bytesPerCounter = 10_000_000, 100
	quarter := memory.Size(math.MaxInt64) / 2 // Size returns half of the limit
	return int(min(most, quarter/bytesPerCounter))
}

// openStore opens the store without connecting. Its error wraps ErrInvalid and shows no password.
func openStore(s settings.Settings, log *slog.Logger) (store, error) {
	if s.Store == "" {
		return store{
			Store: memstore.New(memstore.Options{MaxCounters: MaxCounters()}),
			probe: func(context.Context) error { return nil },
			close: func() {},
		}, nil
	}
	options := redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret}
	redis, err := redisstore.Open(s.Store, options)
	if err != nil {
		return store{}, err
	}
	key, err := redisstore.KeyOf(selfTestCharges[0], options)
	if err != nil {
		redis.Close()
		return store{}, err
	}
	reader := keylimits.Reader{URL: s.Store}
	remedy := reader.Repair([]*keylimits.Limit{{Stored: key}})
	line := logthrottle.Line{Every: corruptLineInterval}
	probe := func(ctx context.Context) error {
		_, err := redis.Decide(ctx, selfTestCharges)
		if !keylimits.IsCorrupt(err) {
			return err
		}
		// The store works: it decides the requests of all other keys.
		if _, isDue := line.Due(); isDue {
			log.Warn("the key of the self-test holds foreign data; delete it, and give other programs no rights to it", "key", key, "command", remedy, "err", err)
		}
		return nil
	}
	return store{Store: redis, probe: probe, redis: redis, close: func() { redis.Close() }}, nil
}

// corruptLineInterval is the time between two log lines about the key of the self-test.
const corruptLineInterval = 10 * time.Minute

// selfTestCharges are made only to check the store. A full server, a replica, or a server whose
// user lacks a right still answers PING, so only a real decision proves that the store can decide.
// All instances together never exhaust this limit. Its state lives for 5 s. No policy can use its
// key.
var selfTestCharges = []penstock.Charge{{Key: "gate", Plan: penstock.PerSecond(1_000_000).WithName("self-test").MustCompile(), Cost: 1}}
