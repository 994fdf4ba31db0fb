package core

import (
	"context"

	"github.com/penstock/penstock"
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

// openStore opens the store without connecting. Its error wraps penstock.ErrInvalid and shows no
// password.
func openStore(s settings.Settings) (store, error) {
	if s.Store == "" {
		return store{
			Store: memstore.New(memstore.Options{}),
			probe: func(context.Context) error { return nil },
			close: func() {},
		}, nil
	}
	redis, err := redisstore.Open(s.Store, redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret})
	if err != nil {
		return store{}, err
	}
	probe := func(ctx context.Context) error {
		_, err := redis.Decide(ctx, selfTestCharges)
		return err
	}
	return store{Store: redis, probe: probe, redis: redis, close: func() { redis.Close() }}, nil
}

// selfTestCharges are made only to check the store. A full server, a replica, or a server whose
// user lacks a right still answers PING, so only a real decision proves that the store can decide.
// All instances together never exhaust this limit. Its state lives for 5 s. No policy can use its
// key.
var selfTestCharges = []penstock.Charge{{Key: "gate", Plan: penstock.PerSecond(1_000_000).WithName("self-test").MustCompile(), Cost: 1}}
