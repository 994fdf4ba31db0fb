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
	ping   func(ctx context.Context) error
	memory func(ctx context.Context) (redisstore.Memory, error) // nil if it is this process'
	close  func()
}

// openStore does not connect. Its error wraps penstock.ErrInvalid, and shows no password.
func openStore(s settings.Settings) (store, error) {
	if s.Store == "" {
		return store{
			Store: memstore.New(memstore.Options{}),
			ping:  func(context.Context) error { return nil },
			close: func() {},
		}, nil
	}
	redis, err := redisstore.Open(s.Store, redisstore.Options{Prefix: s.Prefix, Secret: s.Secret})
	if err != nil {
		return store{}, err
	}
	return store{Store: redis, ping: redis.Ping, memory: redis.Memory, close: func() { redis.Close() }}, nil
}
