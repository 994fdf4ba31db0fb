package service

import (
	"context"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// A store is where counters live, and what the service needs of it besides.
type store struct {
	penstock.Store
	decides func(ctx context.Context) error                      // nil if it does
	memory  func(ctx context.Context) (redisstore.Memory, error) // nil if it is this process'
	close   func()
}

// openStore does not connect. Its error wraps penstock.ErrInvalid, and shows no password.
func openStore(s settings.Settings) (store, error) {
	if s.Store == "" {
		return store{
			Store:   memstore.New(memstore.Options{}),
			decides: func(context.Context) error { return nil },
			close:   func() {},
		}, nil
	}
	redis, err := redisstore.Open(s.Store, redisstore.Options{Prefix: s.Prefix, Secret: s.Secret})
	if err != nil {
		return store{}, err
	}
	decides := func(ctx context.Context) error {
		_, err := redis.Decide(ctx, selfTest)
		return err
	}
	return store{Store: redis, decides: decides, memory: redis.Memory, close: func() { redis.Close() }}, nil
}

// selfTest is what the service asks for itself, since only a decision proves that the store makes
// them: one that is full, that is a replica or that lacks a right answers a PING. All gates
// together never use the limit up; its state lives for 5 s. No policy has a payer of this name.
var selfTest = []penstock.Charge{{Key: "gate", Limit: penstock.PerSecond(1_000_000).WithName("self-test"), Cost: 1}}
